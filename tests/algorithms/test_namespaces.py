"""Two hosts as network namespaces of this one, joined by a cable: ranks of each share memory, the hosts do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import Host, two_hosts

ROOT = Path(__file__).resolve().parents[2]
HOSTS = [0, 1, 0, 0, 1]


@pytest.fixture
def namespaces() -> Iterator[list[Host]]:
    with two_hosts() as hosts:
        yield hosts


@pytest.mark.slow
@pytest.mark.parametrize("forced", ["", "leaders", "lanes"])
def test_hosts_that_share_no_memory(namespaces: list[Host], forced: str) -> None:
    collectives = ["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIOCOLL_")}
    environment["PYTHONPATH"] = str(ROOT)
    if forced:
        environment["AIOCOLL_ALGORITHM"] = ",".join(f"{collective}:{forced}" for collective in collectives)
    ranks = [
        subprocess.Popen(
            namespaces[host].enter(
                sys.executable, str(Path(__file__).with_name("namespace_rank.py")), str(rank), str(len(HOSTS)),
                "tcp://10.77.0.1:29400", "a secret of this test",
            ),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment | {"AIOCOLL_HOST": namespaces[host].address},
        )
        for rank, host in enumerate(HOSTS)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0] * len(HOSTS), outputs
    seen = [json.loads(output) for output, _ in outputs]
    for each in seen:
        assert (each["islands"], each["shared"]) == (2, True) and each["sent"]["shm"] > 0
        assert each["bits"] == seen[0]["bits"], "ranks disagree in bits"
        assert each["chosen"] == dict.fromkeys(("broadcast", "all_gather"), forced or "lanes")
    assert any(each["sent"].get("tcp", 0) > 0 for each in seen)
