"""A rod that cools: neighbours swap their ends with requests that are described once; then the other ways to send."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
left = rank - 1 if rank else MPI.PROC_NULL
right = rank + 1 if rank < size - 1 else MPI.PROC_NULL

rod = np.zeros(10)  # 8 cells of mine between those of the neighbours
rod[1:-1] = 10.0 * rank + np.arange(8) % 3
ends = np.zeros(4)  # to the left, to the right, from the left, from the right
requests = [
    comm.Send_init(ends[0:1], left, tag=1),
    comm.Ssend_init(ends[1:2], right, tag=2),
    comm.Recv_init(ends[2:3], source=left, tag=2),
    comm.Recv_init(ends[3:4], source=right, tag=1),
]
for _ in range(20):
    ends[:2] = rod[1], rod[-2]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    rod[0] = ends[2] if left != MPI.PROC_NULL else rod[1]
    rod[-1] = ends[3] if right != MPI.PROC_NULL else rod[-2]
    rod[1:-1] += 0.25 * (rod[:-2] - 2 * rod[1:-1] + rod[2:])
print(rod[1:-1].round(9).tolist(), all(map(bool, requests)), requests[0] == MPI.REQUEST_NULL)
for request in requests:
    request.Free()
print([bool(request) for request in requests], comm.allreduce(rod[1:-1].sum().round(6), op=MPI.MAX))

other = rank ^ 1
if other < size:
    if rank < other:
        comm.Ssend(np.arange(4, dtype="i") * other, dest=other, tag=5)
        comm.ssend({"from": rank}, dest=other, tag=6)
        print("synchronous", comm.recv(source=other, tag=7))
    else:
        box, status = np.zeros(6, dtype="i"), MPI.Status()
        comm.Recv(box, source=other, tag=5, status=status)
        print("synchronous", box.tolist(), status.Get_count(MPI.INT), comm.recv(source=other, tag=6))
        comm.issend(("thanks", rank), dest=other, tag=7).wait()

    buffer = bytearray(1000 + MPI.BSEND_OVERHEAD)
    MPI.Attach_buffer(buffer)
    box = np.zeros(5)
    comm.Bsend(np.linspace(0, rank + 1, 5), dest=other, tag=8)
    comm.Recv(box, source=other, tag=8)
    MPI.Detach_buffer()
    print("buffered", box.tolist())
    letter = box + 1
    request = comm.Irecv(box, source=other, tag=9)
    comm.Barrier()
    comm.Rsend(letter, dest=other, tag=9)
    request.Wait()
    print("ready", box.round(3).tolist())
else:
    comm.Barrier()
    print("alone")
