"""A farm: rank 0 hands out tasks to whoever is free, in any order; tags say what a message is."""

import numpy as np
from mpi4py import MPI

READY, TASK, DONE, STOP = 1, 2, 3, 4

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
status = MPI.Status()

if rank == 0:
    tasks = [{"number": each, "upto": 50 * (each % 7 + 1)} for each in range(40)]
    results, working, served = {}, size - 1, set()
    while working:
        answer = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        worker = status.Get_source()
        if status.Get_tag() == DONE:
            results[answer["number"]] = answer["primes"]
            served.add(worker)
        elif status.Get_tag() == READY:
            if tasks:
                comm.send(tasks.pop(0), dest=worker, tag=TASK)
            else:
                comm.send(None, dest=worker, tag=STOP)
                working -= 1
    print("results", [results[each] for each in sorted(results)])
    print("everybody asked until there was nothing left:", served <= set(range(1, size)))
else:
    finished = 0
    while True:
        comm.send(None, dest=0, tag=READY)
        task = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if status.tag == STOP:
            break
        primes = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, task["upto"]))
        comm.send({"number": task["number"], "primes": primes}, dest=0, tag=DONE)
        finished += 1
    print("a worker stops")

finished = 0 if rank == 0 else finished
print("tasks in all", comm.allreduce(finished))
comm.Barrier()

# Messages whose length only their sender knows.
if rank == 0:
    lengths = {}
    for _ in range(size - 1):
        comm.Probe(MPI.ANY_SOURCE, 9, status)
        buffer = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(buffer, source=status.source, tag=9)
        lengths[status.source] = (len(buffer), float(buffer.sum()))
    print(sorted(lengths.items()))
else:
    comm.Send(np.arange(3.0 * rank), dest=0, tag=9)
comm.Barrier()
print("nothing is left:", comm.iprobe() is False)
comm.Barrier()
