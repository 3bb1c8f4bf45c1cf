"""The game of life on a torus of ranks: a grid of processes, rows as they lie, columns as a datatype of their own."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
dims = MPI.Compute_dims(world.size, 2)
grid = world.Create_cart(dims, periods=[True, True], reorder=False)
row, column = grid.Get_coords(grid.rank)
n = 8

cells = np.zeros((n + 2, n + 2), dtype="i")
for y in range(n):
    for x in range(n):
        cells[y + 1, x + 1] = (3 * (row * n + y) + 5 * (column * n + x) + (row * n + y) * (column * n + x)) % 7 < 2

vertical = MPI.INT.Create_vector(n + 2, 1, n + 2).Commit()
up, down = grid.Shift(0, 1)
west, east = grid.Shift(1, 1)
flat = cells.reshape(-1)


def exchange():
    grid.Sendrecv(cells[1], dest=up, recvbuf=cells[-1], source=down)
    grid.Sendrecv(cells[-2], dest=down, recvbuf=cells[0], source=up)
    grid.Sendrecv([flat[1:], 1, vertical], dest=west, recvbuf=[flat[n + 1 :], 1, vertical], source=east)
    grid.Sendrecv([flat[n:], 1, vertical], dest=east, recvbuf=[flat[0:], 1, vertical], source=west)


for generation in range(12):
    exchange()
    neighbours = sum(
        np.roll(np.roll(cells, dy, 0), dx, 1) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)
    )
    alive = (neighbours == 3) | ((cells == 1) & (neighbours == 2))
    cells[1:-1, 1:-1] = alive[1:-1, 1:-1]
    if generation % 4 == 3:
        print(generation, grid.allreduce(int(cells[1:-1, 1:-1].sum())))

vertical.Free()
print(dims, [row, column], grid.Get_cart_rank([row + 1, column - 1]), grid.dims, grid.periods)
for line in cells[1:-1, 1:-1]:
    print("".join(".#"[each] for each in line))
lines = grid.Sub([False, True])
print("my row", lines.size, lines.allgather(grid.rank))
