"""What each rank does in the test of the snippets: runs all of them, one after the other, each in a world of its own.

    aiocoll run -n 3 ranks.py snippets.json

The rule: a snippet finds the names that the manual says are there (aiocoll, np, dist, group), and leaves no world.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import aiocoll
import aiocoll.distributed as dist

SECONDS = 20.0


def compiled(code: str, where: str, line: int = 1) -> Any:
    """Code that may await at its top level, with the page's line numbers."""
    return compile("\n" * (line - 1) + code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def executed(names: dict[str, Any], *pieces: Any) -> None:
    """Runs the pieces in one namespace, and awaits what they leave to be awaited."""
    for piece in pieces:
        left = eval(piece, names)
        if inspect.isawaitable(left):
            await left


async def with_group(names: dict[str, Any], pieces: list[Any]) -> None:
    async with aiocoll.connect(timeout=SECONDS) as group:
        await executed(names | {"group": group}, *pieces)


def run(snippet: dict[str, Any]) -> None:
    """One snippet; what it prints is nobody's business."""
    names: dict[str, Any] = {"__name__": "__main__", "aiocoll": aiocoll, "np": np, "dist": dist, "asyncio": asyncio}
    where = f"{snippet['page']}:{snippet['line']}"
    pieces = [
        compiled(snippet["given"], f"given for {where}"),
        compiled(snippet["code"], snippet["page"], snippet["line"]),
        compiled(snippet["then"], f"then of {where}"),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        if snippet["how"] == "blocking":
            dist.init_process_group("tcp", timeout=SECONDS)
            asyncio.run(executed(names, *pieces))
        elif any(piece.co_flags & inspect.CO_COROUTINE for piece in pieces) or "group" in snippet["code"]:
            asyncio.run(with_group(names, pieces))
        else:
            for piece in pieces:
                exec(piece, names)
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    """Runs all snippets of the file; an exception names the page and the line."""
    for snippet in json.loads(Path(sys.argv[1]).read_text()):
        try:
            run(snippet)
        except BaseException as error:
            error.add_note(f"in the snippet at {snippet['page']}:{snippet['line']}")
            raise


if __name__ == "__main__":
    main()
