"""examples/elastic_training.py learns although ranks die, with replacements and without."""

from __future__ import annotations

import re
import subprocess

import pytest

from .conftest import Installed


def train(installed: Installed, *options: str, pause: float) -> subprocess.CompletedProcess[str]:
    runner = ["-m", "aiocoll", "run", "-n", "4", "--on-failure", "shrink", *options]
    done = installed.run(*runner, "elastic_training.py", "--pause", str(pause), seconds=150)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for share in re.findall(r"test accuracy ([\d.]+)%", done.stdout):
        assert float(share) >= 95
    return done


@pytest.mark.slow
def test_the_survivors_train_to_the_end(installed: Installed) -> None:
    done = train(installed, pause=0.0)
    assert re.findall(r"going on with (\d)", done.stdout) == ["3", "3", "3", "2", "2", "1"]
    assert done.stdout.count("test accuracy") == 1
    assert re.search(r"rank \d finished: the job succeeded without ranks \d, \d and \d$", done.stderr.strip())


@pytest.mark.slow
def test_replacements_get_the_state_and_train_along(installed: Installed) -> None:
    done = train(installed, "--max-restarts", "8", pause=0.003)  # replacements need time to come
    assert done.stderr.count("was killed by signal 9 (SIGKILL); replacement") >= 3
    assert re.search(r"rank \d of [234]: test accuracy", done.stdout)
    assert "the job succeeded" in done.stderr.splitlines()[-1]
