"""Ranks as plain processes, started by hand as the tutorials do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def spawn(size: int, body: str, **environ: str) -> list[Any]:
    """Runs `body` (which sets `answer`) in `size` processes with `rank` and `size` set; the answers in rank order."""
    program = "import sys, json, os, warnings; warnings.simplefilter('error'); rank, size = map(int, sys.argv[1:3])\n"
    program += (
        "import numpy as np, aiocoll.distributed as dist\n" + textwrap.dedent(body) + "\nprint(json.dumps(answer))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(size)],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = heard(children)
    wrong = [
        f"rank {rank} (exit code {child.returncode}):\n{err}"
        for rank, (child, (_, err)) in enumerate(zip(children, said, strict=True))
        if child.returncode or err
    ]
    assert not wrong, "\n".join(wrong)
    return [json.loads(out) for out, _ in said]


def heard(children: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """What each has written to stdout and stderr when it has ended; none is left running."""
    try:
        return [child.communicate(timeout=100) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()


TOTAL = "x = np.arange(3.0) + rank; dist.all_reduce(x); answer = [dist.get_rank(), dist.get_world_size(), x.tolist()]"
LEAVE = "; dist.destroy_process_group()"


def expected(size: int) -> list[Any]:
    total = sum(np.arange(3.0) + rank for rank in range(size))
    return [[rank, size, np.asarray(total).tolist()] for rank in range(size)]
