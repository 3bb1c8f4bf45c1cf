"""Power iteration on a matrix whose rows are dealt out unevenly: Scatterv, Gatherv, Allgatherv, Bcast."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
n = 10

counts = [n // size + (each < n % size) for each in range(size)]
starts = [sum(counts[:each]) for each in range(size)]

matrix = None
if rank == 0:
    i, j = np.indices((n, n))
    matrix = 1.0 / (1 + np.abs(i - j)) + np.eye(n) * np.arange(n)
rows = np.empty((counts[rank], n))
comm.Scatterv([matrix, [each * n for each in counts], [each * n for each in starts], MPI.DOUBLE], rows, root=0)
print("rows", rank, rows.shape, np.round(rows.sum(), 6))

x = np.ones(n)
for _ in range(60):
    part = rows @ x
    comm.Allgatherv([part, MPI.DOUBLE], [x, counts, starts, MPI.DOUBLE])
    x /= np.sqrt(comm.allreduce(float(part @ part)))
largest = comm.allreduce(float(x[starts[rank] : starts[rank] + counts[rank]] @ (rows @ x)))
print(f"largest eigenvalue {largest:.6f}")

# The other way round, with the parts in reverse order and a gap after each.
spread = np.full(2 * n, -1.0) if rank == 1 else None
places = [2 * (n - starts[each] - counts[each]) for each in range(size)]
comm.Gatherv(np.round(np.abs(part), 4), [spread, (counts, places), MPI.DOUBLE] if rank == 1 else None, root=1)
if rank == 1:
    print(np.flatnonzero(spread == -1).tolist(), np.round(spread[places[0] : places[0] + counts[0]], 3).tolist())

blocks = np.empty((size, 2), dtype="i8")
comm.Gather(np.array([rank, rank**2]), blocks, root=0)
shares = np.empty(2, dtype="i8")
comm.Scatter(blocks[::-1].copy() if rank == 0 else None, shares, root=0)
print("share", shares.tolist())
