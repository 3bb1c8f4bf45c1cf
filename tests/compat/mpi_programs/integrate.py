"""Pi as the area under 4 / (1 + x²): the number of strips is told to all, the sums of the ranks are added up."""

import math

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
start = MPI.Wtime()

strips = np.array(100_000 if comm.rank == 0 else 0, dtype="i")
comm.Bcast([strips, MPI.INT], root=0)
width = 1.0 / int(strips)
middles = (np.arange(comm.rank, int(strips), comm.size) + 0.5) * width
part = np.array(np.sum(4.0 / (1.0 + middles**2)) * width)

area = np.zeros(1)
comm.Reduce([part, MPI.DOUBLE], [area, MPI.DOUBLE], op=MPI.SUM, root=0)
if comm.rank == 0:
    print(f"pi is about {area[0]:.10f}, wrong by less than 1e-8: {abs(area[0] - math.pi) < 1e-8}")

settings = comm.bcast({"strips": int(strips), "rule": "midpoint"} if comm.rank == 0 else None, root=0)
print(settings, "seconds have passed:", MPI.Wtime() >= start)

everywhere = np.array(part)
comm.Allreduce(MPI.IN_PLACE, everywhere)
print(f"{float(everywhere):.10f}", f"{comm.allreduce(float(part), op=MPI.SUM):.10f}")
print(comm.reduce(comm.rank + 1, op=MPI.PROD, root=1), comm.allreduce([comm.rank]), comm.allreduce(comm.rank, MPI.MAX))
