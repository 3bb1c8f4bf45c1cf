"""A sort by samples: every rank ends with its share of the numbers, in order; Alltoall of counts, then Alltoallv."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

numbers = np.random.default_rng(1000 + rank).integers(0, 10_000, 500 + 37 * rank)
numbers.sort()

samples = numbers[np.linspace(0, len(numbers) - 1, size + 2, dtype=int)[1:-1]]
table = np.empty((size, size), dtype=samples.dtype)
comm.Allgather(samples, table)
cuts = np.sort(table.reshape(-1))[size // 2 :: size][1:]

parts = np.split(numbers, np.searchsorted(numbers, cuts))
sending = np.array([len(part) for part in parts], dtype="i")
receiving = np.empty(size, dtype="i")
comm.Alltoall(sending, receiving)

share = np.empty(receiving.sum(), dtype=numbers.dtype)
comm.Alltoallv([numbers, sending, None, MPI.LONG], [share, receiving, None, MPI.LONG])
share.sort()
print(rank, len(share), int(share[0]), int(share[-1]), int(share.sum()))

edges = comm.allgather((int(share[0]), int(share[-1])))
print("in order:", all(a[1] <= b[0] for a, b in zip(edges, edges[1:], strict=False)), comm.allreduce(len(share)))

table = comm.alltoall([f"{rank} to {each}" for each in range(size)])
print(table)
matrix = np.arange(size * 2.0).reshape(size, 2) + 100 * rank
turned = np.empty_like(matrix)
comm.Alltoall(matrix, turned)
print(turned.tolist())
comm.Alltoall(MPI.IN_PLACE, turned)
print(np.array_equal(turned, matrix))
