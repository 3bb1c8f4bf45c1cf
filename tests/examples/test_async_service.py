"""examples/async_service.py answers while it awaits collectives, and all replicas stop together."""

from __future__ import annotations

import json
import re
import subprocess
from urllib.request import urlopen

import pytest

from .conftest import Installed, Job

EXAMPLE = "async_service.py"


@pytest.mark.slow
def test_the_demo_serves_every_request_and_ends(job: Job) -> None:
    output = job(3, EXAMPLE, "--demo", "20").stdout
    assert re.search(r"a world of 3 serves on 127.0.0.1, ports \[\d+, \d+, \d+\]", output)
    assert "180 requests served" in output
    slowest = re.search(r"slowest answer (\d+) ms", output)
    assert slowest and int(slowest[1]) < 5000  # a hang, not a speed


@pytest.mark.slow
def test_one_request_to_stop_ends_all_replicas(installed: Installed) -> None:
    command = [str(installed.python), "-m", "aiocoll", "run", "-n", "2", EXAMPLE]
    environ = installed.environ
    with subprocess.Popen(command, cwd=installed.folder, env=environ, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        ports = re.findall(r"\d+", job.stdout.readline().split("ports")[1])
        with urlopen(f"http://127.0.0.1:{ports[1]}/", timeout=20) as answer:
            facts = json.load(answer)
        assert facts["rank"] == 1 and facts["served"] == 1
        with urlopen(f"http://127.0.0.1:{ports[0]}/stop", timeout=20) as answer:
            assert json.load(answer)["rank"] == 0
        assert job.wait(timeout=60) == 0
