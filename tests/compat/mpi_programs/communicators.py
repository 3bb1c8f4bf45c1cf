"""Rows and columns of ranks, groups chosen by hand, and messages that never meet those of another communicator."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size

row = world.Split(color=rank // 2, key=rank)
column = world.Split(color=rank % 2, key=-rank)
print("row", row.rank, row.size, row.allgather(rank), "column", column.rank, column.allgather(rank))
print(row.allreduce(rank), column.bcast(f"top is {rank}", root=0))

everyone = world.Get_group()
first = everyone.Incl(list(range(0, size, 2)))
rest = everyone.Excl(list(range(0, size, 2)))
print(first.Get_size(), first.Get_rank() == MPI.UNDEFINED, MPI.Group.Translate_ranks(first, [0, 1], everyone))
odd = everyone.Range_incl([(1, 3, 2)])
print(MPI.Group.Union(rest, first).size, MPI.Group.Intersection(rest, first).size, odd.size)

chosen = world.Create(first)
if chosen != MPI.COMM_NULL:
    print("chosen", chosen.Get_rank(), chosen.gather(rank * 11, root=1))
    chosen.Free()
else:
    print("not chosen")

lonely = world.Split(MPI.UNDEFINED if rank == 1 else 3, 0)
print("lonely", lonely == MPI.COMM_NULL, None if lonely == MPI.COMM_NULL else lonely.size)

twin = world.Dup()
if rank == 0:
    world.send("in the world", dest=1, tag=5)
    twin.send("in its twin", dest=1, tag=5)
if rank == 1:
    print(twin.recv(source=0, tag=5), "/", world.recv(source=0, tag=5))
print(MPI.Comm.Compare(world, twin) == MPI.CONGRUENT, MPI.Comm.Compare(world, world) == MPI.IDENT)
twin.Free()
row.Free()
column.Free()

alone = MPI.COMM_SELF
table = np.zeros(2)
alone.Allreduce(np.array([1.5, rank]), table)
print("alone", alone.size, table.tolist(), alone.allgather("x"))
shared = world.Split_type(MPI.COMM_TYPE_SHARED)
print("on this host", shared.size == size)
