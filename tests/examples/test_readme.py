"""The programs in README.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.ports import free_port

from .conftest import ROOT

PROGRAMS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def run(ranks: int, program: str, folder: Path) -> list[str]:
    """The program's output lines on so many ranks, sorted."""
    script = folder / "hello.py"
    script.write_text(program)
    command = [sys.executable, "-m", "aiocoll", "run", "-n", str(ranks), str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def program(word: str) -> str:
    (found,) = [each for each in PROGRAMS if word in each]
    return found


def test_the_async_program(tmp_path: Path) -> None:
    lines = run(4, program("aiocoll.run(main)"), tmp_path)
    shapes = "[(1, 2), (2, 2), (3, 2), (4, 2)]"
    assert lines == [f"[r{rank}] {rank} [ 6. 10. 14. 18.] (3, 3) {shapes}" for rank in range(4)]


@pytest.mark.slow
def test_the_blocking_program(tmp_path: Path) -> None:
    assert run(3, program("init_process_group"), tmp_path) == [f"[r{rank}] {rank} [3. 3. 3.]" for rank in range(3)]


@pytest.mark.slow
def test_joining_from_inside_a_program(tmp_path: Path) -> None:
    with_main = (
        "import asyncio, os, aiocoll\n"
        "async def main():\n"
        "    rank = int(os.environ['RANK'])\n"
        f"{textwrap.indent(program('async with aiocoll.connect'), '    ')}"
        "asyncio.run(main())\n"
    ).replace("29500", str(free_port()))
    expected = "[{'rank': 0}, {'rank': 1}]"
    assert run(2, with_main, tmp_path) == [f"[r{rank}] {expected}" for rank in range(2)]


def test_arrays_in_shared_memory(tmp_path: Path) -> None:
    with_main = (
        "import aiocoll\n"
        "import numpy as np\n"
        "async def main(group):\n"
        f"{textwrap.indent(program('group.empty'), '    ')}"
        "    print((x == group.size * np.arange(1 << 20, dtype=np.float32)).all())\n"
        "aiocoll.run(main)\n"
    )
    assert run(2, with_main, tmp_path) == ["[r0] True", "[r1] True"]
