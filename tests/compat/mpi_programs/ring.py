"""A token that every rank signs on its way around the ring, once as an object and once as a buffer."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size

if rank == 0:
    comm.send({"signed": [0], "by": "rank 0"}, dest=right, tag=7)
    token = comm.recv(source=left, tag=7)
else:
    token = comm.recv(source=left, tag=7)
    token["signed"].append(rank)
    token["by"] = f"rank {rank}"
    comm.send(token, dest=right, tag=7)
print("token", token)

numbers = np.zeros(size, dtype="i")
status = MPI.Status()
if rank == 0:
    numbers[0] = 100
    comm.Send([numbers, MPI.INT], dest=right, tag=8)
    comm.Recv([numbers, MPI.INT], source=left, tag=8, status=status)
else:
    comm.Recv([numbers, MPI.INT], source=left, tag=8, status=status)
    numbers[rank] = numbers[rank - 1] * 2 + rank
    comm.Send([numbers, MPI.INT], dest=right, tag=8)
print("numbers", numbers.tolist(), "from", status.Get_source(), status.Get_tag(), status.Get_count(MPI.INT))

greetings = comm.sendrecv(f"hello from {rank}", dest=right, source=left)
print(greetings, comm.Get_name(), MPI.Is_initialized())
