"""Messages on their way while the ranks compute: Isend, Irecv and all the ways to wait for them."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
others = [each for each in range(size) if each != rank]

boxes = {each: np.empty(5) for each in others}
receives = [comm.Irecv(boxes[each], source=each, tag=each) for each in others]
letters = {each: np.arange(5.0) * (rank + 1) + each for each in others}
sends = [comm.Isend(letters[each], dest=each, tag=rank) for each in others]
worked = sum(n * n for n in range(1000))
MPI.Request.Waitall(receives)
MPI.Request.Waitall(sends)
print(worked, {each: boxes[each].tolist() for each in others})

requests = [comm.irecv(source=each, tag=20) for each in others]
for each in others:
    comm.isend({"from": rank, "to": each}, dest=each, tag=20).wait()
print(MPI.Request.waitall(requests))

pending = [comm.irecv(source=each, tag=30) for each in others]
comm.Barrier()
for each in others:
    comm.send(rank * 10, dest=each, tag=30)
came = []
while len(came) < len(others):
    index, value = MPI.Request.waitany(pending)
    came.append((others[index], value))
print(sorted(came), MPI.Request.Waitany(pending) == MPI.UNDEFINED)

if rank == 0:
    request = comm.irecv(source=size - 1, tag=40)
    flag, nothing = request.test()
    print("nothing has come:", flag, nothing)
    comm.Barrier()
    while True:
        flag, answer = request.test()
        if flag:
            break
    print(answer)
else:
    comm.Barrier()
    if rank == size - 1:
        comm.send(("late", rank), dest=0, tag=40)

total = np.empty(3)
request = comm.Iallreduce(np.full(3, rank + 1.0), total, op=MPI.PROD)
busy = [n for n in range(200) if n % 3 == 0]
request.Wait()
print(total.tolist(), len(busy))
word = np.array([ord(each) for each in "barrier"], dtype="i") if rank == 1 else np.zeros(7, dtype="i")
comm.Ibcast(word, root=1).Wait()
print("".join(map(chr, word)), comm.Ibarrier().Wait())
