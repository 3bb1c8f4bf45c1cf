"""Two hosts and what a network does between them: found out within the time that is promised, by default settings."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import Host, two_hosts

ROOT = Path(__file__).resolve().parents[2]
LOST_SECONDS = 10.0
SLACK_SECONDS = 10.0
"""What a busy machine may add."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


class Job:
    """Ranks on two hosts, and what each of them says."""

    def __init__(self, hosts: list[Host], work: str, places: list[int]) -> None:
        self.hosts, self.work, self.places = hosts, work, places
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AIOCOLL_")}
        environment["PYTHONPATH"] = str(ROOT)
        script = str(Path(__file__).with_name("partition_rank.py"))
        self.ranks = [
            subprocess.Popen(
                hosts[host].enter(
                    sys.executable, script, str(rank), str(len(places)), "tcp://10.77.0.1:29400", "secret", work
                ),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=environment | {"AIOCOLL_HOST": hosts[host].address},
            )
            for rank, host in enumerate(places)
        ]  # fmt: skip
        self.broken_at = 0.0

    def __repr__(self) -> str:
        return f"<Job of {len(self.ranks)} ranks, {self.work}>"

    def hear(self) -> list[dict[str, Any]]:
        """The next line of each rank."""
        return [json.loads(rank.stdout.readline() or '"silence"') for rank in self.ranks]

    def break_by(self, *steps: Callable[[], None]) -> None:
        """Once everybody is at work."""
        assert self.hear() == [{"ready": rank} for rank in range(len(self.places))]
        self.broken_at = time.monotonic()
        for step in steps:
            step()

    def go_on(self) -> None:
        """Lets the ranks go on."""
        for rank in self.ranks:
            rank.stdin.write("on\n")
            rank.stdin.flush()

    def end(self) -> list[int]:
        """The exit codes."""
        return [rank.wait(30) for rank in self.ranks]

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            for pipe in (rank.stdin, rank.stdout):
                pipe.close()


@pytest.fixture
def job_of() -> Iterator[Callable[[str, list[int]], Job]]:
    """Starts jobs, each on two hosts of its own."""
    with contextlib.ExitStack() as stack:

        def start(work: str, places: list[int]) -> Job:
            job = Job(stack.enter_context(two_hosts()), work, places)
            stack.callback(job.kill)
            return job

        yield start


def in_time(job: Job, said: list[dict[str, Any]], seconds: float = LOST_SECONDS) -> None:
    """Every rank has named one of the other host, soon enough."""
    for rank, facts in enumerate(said):
        assert facts.get("class") in ("PeerLostError", "GroupBrokenError"), (job, rank, facts)
        assert facts["when"] - job.broken_at < seconds + SLACK_SECONDS, (job, rank, facts)
        if facts["class"] == "PeerLostError":
            assert job.places[facts["world_rank"]] != job.places[rank], (job, rank, facts)


def stays_broken(job: Job) -> None:
    """The network is there again, and the group is not."""
    job.go_on()
    for facts in job.hear():
        assert facts["class"] == "GroupBrokenError" and facts["cause"]["class"] == "PeerLostError", facts
    if job.work == "shrinking":
        assert job.hear() == [{"sum": 4.0}, "silence", {"sum": 4.0}]
    assert job.end() == [0] * len(job.places)


def test_j2_a_network_that_fails_is_noticed_in_time_by_both_sides(job_of: Callable[[str, list[int]], Job]) -> None:
    """Side by side, since each takes its ten seconds: a pulled cable, loss both ways and one way, and a route that goes
    nowhere, with traffic and without."""
    jobs = {
        "pulled": job_of("busy", [0, 1, 0, 1]), "lossy": job_of("quiet", [0, 1]),
        "one way": job_of("shrinking", [0, 1, 0]), "one way, quiet": job_of("quiet", [0, 1, 1]),
        "no route": job_of("idle", [0, 1]), "computing": job_of("computing", [0, 1]),
    }  # fmt: skip
    for name, job in jobs.items():
        a, b = job.hosts
        steps: dict[str, list[Callable[[], None]]] = {
            "pulled": [lambda a=a: a.ip("link", "set", a.cable, "down")],
            "lossy": [lambda a=a, b=b: a.lose_everything_for(b), lambda a=a, b=b: b.lose_everything_for(a)],
            "one way": [lambda a=a, b=b: a.lose_everything_for(b)],
            "one way, quiet": [lambda a=a, b=b: b.lose_everything_for(a)],
            "no route": [lambda a=a, b=b: b.ip("route", "add", "blackhole", a.address)],
        }
        job.break_by(*steps.get(name, []))
    for name, job in jobs.items():
        said = job.hear()
        if name == "computing":
            assert said == [{"well": True}] * len(job.places), said
            continue
        in_time(job, said)
    larger, left, _ = jobs["one way"].hear()  # two of three may go on, the third may not
    assert (larger["ranks"], larger["sum"]) == ([0, 2], 1 + 3) and left["class"] == "GroupBrokenError", (larger, left)
    a, b = jobs["pulled"].hosts
    a.ip("link", "set", a.cable, "up")
    a, b = jobs["lossy"].hosts
    a.find_again(b)
    b.find_again(a)
    jobs["one way"].hosts[0].find_again(jobs["one way"].hosts[1])
    for name in ("pulled", "lossy", "one way"):
        stays_broken(jobs[name])
