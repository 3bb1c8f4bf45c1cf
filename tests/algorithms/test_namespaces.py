"""Two hosts as network namespaces of this one, joined by a cable: ranks of each share memory, the hosts do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = [0, 1, 0, 0, 1]


class Namespace:
    """A network namespace that lives as long as a process which does nothing."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != b"ready\n":
            self.end()
            raise OSError("the kernel makes no network namespace for us")

    @property
    def pid(self) -> int:
        return self.holder.pid

    def enter(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *command]

    def ip(self, *arguments: str) -> None:
        done = subprocess.run(self.enter("ip", *arguments), capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def end(self) -> None:
        self.holder.kill()
        self.holder.communicate()


@pytest.fixture
def namespaces() -> Iterator[list[Namespace]]:
    made: list[Namespace] = []
    try:
        try:
            made += [Namespace()]
            made += [Namespace()]
            made[0].ip("link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", str(made[1].pid))
            for i, each in enumerate(made):
                each.ip("link", "set", "lo", "up")
                each.ip("address", "add", f"10.77.0.{i + 1}/24", "dev", f"cable{i}")
                each.ip("link", "set", f"cable{i}", "up")
        except OSError as error:
            pytest.skip(f"no two network namespaces joined by a cable can be had here: {error}")
        yield made
    finally:
        for each in made:
            each.end()


@pytest.mark.slow
@pytest.mark.parametrize("forced", ["", "leaders", "lanes"])
def test_hosts_that_share_no_memory(namespaces: list[Namespace], forced: str) -> None:
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
            env=environment | {"AIOCOLL_HOST": f"10.77.0.{host + 1}"},
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
