"""Under a real mpiexec: programs find one another whichever of our doors they come through, and MPI beside us works."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")

PROGRAM = """
import sys
import numpy as np
import aiocoll, aiocoll.sync, aiocoll.distributed as dist
from aiocoll.mpi import MPI as ours

with aiocoll.sync.connect() as group:
    said = [group.rank, group.size, group.all_reduce(np.arange(2.0) + group.rank).tolist()]
dist.init_process_group()
tensor = np.array([1.0 + dist.get_rank()])
dist.all_reduce(tensor)
dist.destroy_process_group()
said += [tensor.tolist(), ours.COMM_WORLD.allgather(ours.COMM_WORLD.rank)]
from mpi4py import MPI
said += [MPI.COMM_WORLD.allreduce(1)]
sys.stdout.write(f"{said}\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpich (the dev extra)"
)
def test_every_way_in_under_mpiexec(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [str(MPIEXEC), "-n", "2", sys.executable, "-W", "error", str(tmp_path / "program.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0, 2, [1.0, 3.0], [3.0], [0, 1], 2]",
        "[1, 2, [1.0, 3.0], [3.0], [0, 1], 2]",
    ]
