"""Heat in a rod that is cut into pieces: each rank swaps its edges with its neighbours, nobody is beyond the ends."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
cells, steps = 12, 200

left = rank - 1 if rank > 0 else MPI.PROC_NULL
right = rank + 1 if rank < size - 1 else MPI.PROC_NULL

rod = np.zeros(cells + 2)
if rank == 0:
    rod[0] = 100.0
if rank == size - 1:
    rod[-1] = 20.0

for step in range(steps):
    comm.Sendrecv(rod[1:2], dest=left, sendtag=1, recvbuf=rod[-1:], source=right, recvtag=1)
    comm.Sendrecv(rod[-2:-1], dest=right, sendtag=2, recvbuf=rod[:1], source=left, recvtag=2)
    new = rod.copy()
    new[1:-1] += 0.4 * (rod[:-2] - 2 * rod[1:-1] + rod[2:])
    change = np.max(np.abs(new - rod))
    rod = new
    if step % 50 == 49:
        print(step, f"{comm.allreduce(change, op=MPI.MAX):.6f}")

whole = np.empty(size * cells) if rank == 0 else None
comm.Gather(rod[1:-1].copy(), whole, root=0)
if rank == 0:
    print(np.round(whole, 3).tolist())
total = np.zeros(1)
comm.Allreduce(np.array([rod[1:-1].sum()]), total)
print(f"{total[0]:.6f}")
