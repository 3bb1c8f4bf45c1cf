"""Reductions beyond sums: prefixes, where the largest stands, an operation that is not commutative, one's own types."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

mine = np.array([rank + 1, 10 * rank], dtype="i8")
upto, below = np.zeros_like(mine), np.full_like(mine, -1)
comm.Scan(mine, upto)
comm.Exscan(mine, below, op=MPI.MAX)
print("scan", upto.tolist(), "exscan", below.tolist(), comm.scan(rank + 1, op=MPI.PROD), comm.exscan([rank]))

temperature = (rank * 7 + 3) % 5
print("hottest", comm.allreduce((temperature, rank), op=MPI.MAXLOC), comm.allreduce((temperature, rank), op=MPI.MINLOC))
pair = np.zeros(1, dtype=[("value", "f8"), ("where", "i4"), ("pad", "i4")])
pair["value"], pair["where"] = temperature, rank
best = np.zeros_like(pair)
comm.Allreduce([pair, 1, MPI.DOUBLE_INT], [best, 1, MPI.DOUBLE_INT], op=MPI.MAXLOC)
print("hottest again", best["value"][0], best["where"][0])


def compose(first, second, datatype):
    """Straight lines a·x + b, applied one after the other: the order matters."""
    f = np.frombuffer(first, dtype="d").reshape(-1, 2)
    g = np.frombuffer(second, dtype="d").reshape(-1, 2)
    g[:, 1] += g[:, 0] * f[:, 1]
    g[:, 0] *= f[:, 0]


then = MPI.Op.Create(compose, commute=False)
lines = np.array([[2.0, rank + 1.0], [1.0, -rank]])
all_of_them = np.empty_like(lines)
comm.Allreduce(lines, all_of_them, op=then)
print("composed", all_of_them.tolist(), then.Is_commutative())
comm.Reduce(lines, all_of_them if rank == 2 else None, op=then, root=2)
then.Free()

longest = comm.allreduce("x" * (rank % 3 + 1), op=lambda a, b: a if len(a) >= len(b) else b)
merged = comm.reduce({rank: rank**2}, op=lambda a, b: {**a, **b}, root=0)
print(longest, merged)

flags = np.array([rank % 2 == 0, True, False])
some = np.empty_like(flags)
comm.Allreduce([flags, MPI.C_BOOL], [some, MPI.C_BOOL], op=MPI.LAND)
bits = np.array([1 << rank], dtype="u1")
union = np.empty_like(bits)
comm.Allreduce(bits, union, op=MPI.BOR)
print(some.tolist(), union.tolist())

block = np.empty(2)
comm.Reduce_scatter_block(np.arange(2.0 * size) * (rank + 1), block)
piece = np.empty(rank + 1)
comm.Reduce_scatter(np.ones(size * (size + 1) // 2) * rank, piece, recvcounts=[each + 1 for each in range(size)])
print(block.tolist(), piece.tolist())
