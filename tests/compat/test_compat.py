"""Programs in the style of tutorials give equal results with the real libraries and with aiocoll.

Each program runs as it stands with the library that it was written for, and with one import line exchanged.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports

HERE = Path(__file__).parent
DRIVER = HERE / "driver.py"
MPI_PROGRAMS = HERE / "mpi_programs"
TORCH_PROGRAMS = HERE / "torch_programs"
ENOUGH_SECONDS = 140  # on a machine that does much else: importing torch takes most of it
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def _missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _environment(**more: str) -> dict[str, str]:
    root = str(HERE.parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def _run(command: list[str | Path], **more: str) -> None:
    ended = subprocess.run(
        [str(each) for each in command],
        env=_environment(**more),
        timeout=ENOUGH_SECONDS,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _results(directory: Path, size: int) -> list[dict[str, str]]:
    """What each rank's programs have printed."""
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(size)]


def _compare(there: list[dict[str, str]], here: list[dict[str, str]]) -> None:
    assert len(there[0]) >= 10, sorted(there[0])
    for rank, (real, ours) in enumerate(zip(there, here, strict=True)):
        assert sorted(real) == sorted(ours)
        for program in real:
            assert real[program].strip(), f"{program} prints nothing on rank {rank}"
            assert ours[program] == real[program], f"{program} on rank {rank}"


def _aiocoll_run(size: int, *arguments: str | Path, **more: str) -> None:
    _run([sys.executable, "-m", "aiocoll", "run", "-n", str(size), DRIVER, *arguments], **more)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(MPIEXEC is None or _missing("mpi4py"), reason="needs mpi4py and mpich (the dev extra)")
def test_ten_programs_for_mpi4py(tmp_path: Path) -> None:
    size = 4
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    _run([str(MPIEXEC), "-n", str(size), sys.executable, DRIVER, MPI_PROGRAMS, there])
    _aiocoll_run(size, MPI_PROGRAMS, here, "from mpi4py import MPI=from aiocoll.mpi import MPI")
    _compare(_results(there, size), _results(here, size))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(_missing("torch"), reason="needs torch (the dev extra)")
def test_ten_programs_for_torch_distributed(tmp_path: Path) -> None:
    size, count = 3, len(list(TORCH_PROGRAMS.glob("*.py")))
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    ports = ",".join(map(str, free_ports(2 * count)))
    exchange = "import torch.distributed as dist=import aiocoll.distributed as dist"
    _aiocoll_run(size, TORCH_PROGRAMS, there, "+", TORCH_PROGRAMS, here, exchange, COMPAT_PORTS=ports)
    _compare(_results(there, size), _results(here, size))
