"""The error texts of the page on troubleshooting are those of the code: each stands there, and many are raised here."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll.testing import Crash, run
from tests.ports import free_url

from .snippets import ROOT

TEXTS = [
    found[2] for found in re.finditer(r"^### (`+)(.*)\1$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.M)
]


def templates() -> list[str]:
    """Every string of the package, ``…`` where something is put in."""
    found = []
    for path in (ROOT / "aiocoll").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
                found.append("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_page_is_worth_reading() -> None:
    assert len(TEXTS) == len(set(TEXTS)) > 30


# ------------------------------------------------------------------------------------------------ raised


def on_ranks(main: Callable[[aiocoll.Group], Any], size: int = 3, **options: Any) -> list[str]:
    """What ranks of a simulated world were told."""
    told: list[str] = []

    async def program(group: aiocoll.Group) -> None:
        for _ in range(2):
            try:
                await main(group)
            except Exception as error:
                told.append(str(error))

    run(size, program, "sim", **options)
    return told


async def different(group: aiocoll.Group) -> None:
    await (group.barrier() if group.rank == 1 else group.all_reduce(np.ones(2 + group.rank)))


async def one_is_late(group: aiocoll.Group) -> None:
    if group.rank == 1:
        await asyncio.sleep(100)
    await group.barrier()


async def again_and_again(group: aiocoll.Group) -> None:
    for _ in range(10):
        await group.barrier()
        await asyncio.sleep(0.1)


async def one_cancels(group: aiocoll.Group) -> None:
    if group.rank == 1:
        async with asyncio.timeout(0.1):
            await group.barrier()
    await asyncio.sleep(1)
    await group.barrier()


async def no_plain_data(group: aiocoll.Group) -> None:
    await group.all_gather_object(object() if group.rank == 1 else 1)


async def wrong_out(group: aiocoll.Group) -> None:
    await group.all_reduce(np.ones(3), out=np.ones(4))


async def overlapping(group: aiocoll.Group) -> None:
    x = np.ones(4)
    await group.all_reduce(x[1:], out=x[:-1])


async def objects(group: aiocoll.Group) -> None:
    await group.all_reduce(np.array([{}]))


async def bits_of_floats(group: aiocoll.Group) -> None:
    await group.all_reduce(np.ones(2), aiocoll.BAND)


async def no_place(group: aiocoll.Group) -> None:
    if group.rank == 0:
        await group.send(np.ones(3), 1)
    elif group.rank == 1:
        await group.recv(0, out=np.ones(4))


async def closed(group: aiocoll.Group) -> None:
    await group.close()
    await group.barrier()


def connecting(**where: Any) -> Callable[[], list[str]]:
    async def main() -> None:
        async with aiocoll.connect(**where):
            pass

    return lambda: failing(lambda: asyncio.run(main()))


def failing(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:
        call()
    return [str(caught.value)]


def inside_a_loop() -> list[str]:
    async def main() -> None:
        with contextlib.closing(closed(None)) as coroutine:
            aiocoll.run(lambda group: coroutine)

    return failing(lambda: asyncio.run(main()))


RAISED: dict[str, Callable[[], list[str]]] = {
    "ranks made different calls under": lambda: on_ranks(different),
    "timed out after": lambda: on_ranks(one_is_late, timeout=5.0),
    "is broken on rank": lambda: on_ranks(one_is_late, timeout=5.0),
    "is lost": lambda: on_ranks(again_and_again, faults=Crash(1, at=0.35)),
    "cancelled": lambda: on_ranks(one_cancels),
    "which has no plain form": lambda: on_ranks(no_plain_data),
    "refused this call": lambda: on_ranks(no_plain_data),
    "out has shape": lambda: on_ranks(wrong_out),
    "out and input overlap": lambda: on_ranks(overlapping),
    "holds Python objects": lambda: on_ranks(objects),
    "does not work on dtype": lambda: on_ranks(bits_of_floats),
    "a message of shape": lambda: on_ranks(no_place),
    "is closed on this rank": lambda: on_ranks(closed),
    "has met nobody": connecting(init_method="tcp://127.0.0.1:9", rank=1, size=2, timeout=0.3),
    "could not be reached within": connecting(init_method="tcp://127.0.0.1:9", rank=1, size=2, timeout=0.3),
    "Look whether the missing": lambda: connecting(init_method=free_url(), rank=0, size=2, timeout=0.3)(),
    "without a secret only loopback": connecting(init_method="tcp://192.0.2.1:29500", rank=0, size=2),
    "is malformed": connecting(init_method="127.0.0.1:29500"),
    "is not set but it is required for env": lambda: failing(lambda: dist.init_process_group("tcp")),
    "Invalid distributed backend name": lambda: failing(lambda: dist.init_process_group("carrier pigeon")),
    "is none of …, no file of": connecting(transport="pigeon"),
    "run() cannot be called from": inside_a_loop,
    "collective only supported in process-group": lambda: failing(dist.get_rank),
    "launch: fn or one of its": lambda: failing(lambda: aiocoll.launch(print, threading.Lock())),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("key", RAISED)
def test_it_is_raised_in_these_words(key: str) -> None:
    (text,) = [each for each in TEXTS if key in each]
    pattern = re.compile(".*".join(re.escape(piece) for piece in re.split(r"\s*…\s*", text)), re.DOTALL)
    told = RAISED[key]()
    assert any(pattern.search(each) for each in told), told


# ------------------------------------------------------------------------------------------------ written


@pytest.fixture(scope="module")
def written() -> list[str]:
    return templates()


@pytest.mark.parametrize("text", [each for each in TEXTS if not any(key in each for key in RAISED)])
def test_the_code_has_this_text(text: str, written: list[str]) -> None:
    pieces = [piece for piece in re.split(r"\s*…\s*", text) if len(piece) > 2]
    pattern = re.compile(".*".join(re.escape(piece) for piece in pieces), re.DOTALL)
    assert any(pattern.search(each) for each in written), pieces
