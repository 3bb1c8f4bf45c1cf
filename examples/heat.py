"""The heat equation on a plate that is cut in tiles, one per rank, which swap their edges in every step.

    aiocoll run -n 4 examples/heat.py heat.png

The rule: a tile's frame, one cell wide, holds its neighbours' edges; any number of ranks gives the same bits.
"""

import asyncio
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aiocoll

Floats = NDArray[np.float64]
PLATE, STEPS, PICTURE = 200, 1000, (sys.argv[1:] or ["heat.png"])[0]
SIDES: list[tuple[int, int, Any, Any]] = [  # rows and columns away, my edge on that side, the halo beyond it
    (-1, 0, np.s_[1, 1:-1], np.s_[0, 1:-1]),
    (+1, 0, np.s_[-2, 1:-1], np.s_[-1, 1:-1]),
    (0, -1, np.s_[1:-1, 1], np.s_[1:-1, 0]),
    (0, +1, np.s_[1:-1, -2], np.s_[1:-1, -1]),
]


def layout(rank: int, size: int) -> tuple[int, int, dict[int, int]]:
    """Rows and columns of the grid of tiles, nearly square, and the rank on each side of mine where there is one."""
    rows = next(each for each in range(int(size**0.5), 0, -1) if size % each == 0)
    row, column = divmod(rank, columns := size // rows)
    beyond = [(side, row + down, column + right) for side, (down, right, _, _) in enumerate(SIDES)]
    return rows, columns, {side: r * columns + c for side, r, c in beyond if 0 <= r < rows and 0 <= c < columns}


async def swap_edges(group: aiocoll.Group, tile: Floats, neighbours: dict[int, int]) -> None:
    """Every edge goes to the neighbour there, whose own edge fills the halo; all at once, and the side is the tag."""
    sends = [group.send(tile[SIDES[side][2]], peer, side) for side, peer in neighbours.items()]
    receives = [group.recv(peer, side ^ 1, out=tile[SIDES[side][3]]) for side, peer in neighbours.items()]
    await asyncio.gather(*sends, *receives)


async def simulate(group: aiocoll.Group) -> Floats | None:
    """The plate in the end, on rank 0; its upper edge is kept hot, and a bar in the middle too."""
    rows, columns, neighbours = layout(group.rank, group.size)
    y = np.array_split(np.arange(PLATE), rows)[group.rank // columns][:, None]
    x = np.array_split(np.arange(PLATE), columns)[group.rank % columns]
    mine = (tile := np.zeros((len(y) + 2, len(x) + 2)))[1:-1, 1:-1]
    hot = (y == 0) | (abs(y - PLATE // 2) < PLATE // 40) & (abs(x - PLATE // 2) < PLATE // 4)
    for _ in range(STEPS):
        mine[hot] = 1.0
        await swap_edges(group, tile, neighbours)
        around = tile[:-2, 1:-1] + tile[2:, 1:-1] + tile[1:-1, :-2] + tile[1:-1, 2:]
        mine += 0.2 * (around - 4 * mine)
    tiles = await group.gather(mine)
    return None if tiles is None else np.block([tiles[i * columns : (i + 1) * columns] for i in range(rows)])


def png(path: str, heat: Floats) -> None:
    """A picture, twice as large as the plate: black, red, yellow, white."""
    shade = np.clip(3 * np.kron(heat, np.ones((2, 2)))[..., None] - np.arange(3), 0, 1)
    lines = np.insert((255 * shade).astype(np.uint8).reshape(len(shade), -1), 0, 0, axis=1).tobytes()
    head = struct.pack(">IIBBBBB", *shade.shape[1::-1], 8, 2, 0, 0, 0)
    pieces = [(b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in pieces]
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


async def main(group: aiocoll.Group) -> None:
    """Simulates, and draws what rank 0 has gathered."""
    if (heat := await simulate(group)) is not None:
        png(PICTURE, heat)
        print(f"world of {group.size}, {STEPS} steps: mean {heat.mean():.12f}, see {PICTURE}")


if __name__ == "__main__":
    aiocoll.run(main)
