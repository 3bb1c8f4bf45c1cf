"""``--nnodes MIN:MAX``: a job begins with fewer runners, takes in those that come later, goes on without lost ones."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

# Rank 0 says when it is there; all end when the file "enough" appears.
WAITS = """
    import os, pathlib, time
    names = "RANK WORLD_SIZE GROUP_RANK AIOCOLL_NNODES AIOCOLL_JOIN AIOCOLL_RESTART_COUNT".split()
    print("up", *(os.environ.get(name) for name in names))
    until = time.monotonic() + 40
    while not pathlib.Path("enough").exists() and time.monotonic() < until:
        time.sleep(0.01)
"""

# Members grow to the size that the test wants, survive a death, and say what they have come to.
GROWS = """
    import aiocoll, asyncio, os, pathlib
    async def main(group):
        print("size", group.size)
        while group.size < {size}:
            group = await group.grow(wait=30.0)
        print("sum", await group.all_reduce(group.rank + 1))
        try:
            if {lose}:
                await group.recv(group.size - 1, timeout=40)
        except (aiocoll.PeerLostError, aiocoll.GroupBrokenError):  # it dies at once, or is interrupted and says so
            group = await group.shrink()
            print("left", await group.all_reduce(group.rank + 1))
    aiocoll.run(main)
"""


def start(runner: Any, port: int, nodes: str, *arguments: Any, last_call: float = 0.3) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = runner.start(
        "--nnodes", nodes, "--rdzv", f"127.0.0.1:{port}", "--last-call", last_call, *arguments
    )
    return process


def words(done: Any, start: str) -> list[str]:
    return sorted(line.partition("] ")[2] for line in done.out.splitlines() if f"] {start}" in line)


def test_without_node_ranks_one_serves_and_the_others_are_numbered(runner: Any, port: int) -> None:
    script = runner.script(WAITS)
    (runner.directory / "enough").touch()
    started = [start(runner, port, "1:3", "-n", 1, script, last_call=60) for _ in range(3)]
    done = [runner.finish(each) for each in started]
    assert [each.code for each in done] == [0, 0, 0], [each.err for each in done]
    found = sorted(line for each in done for line in words(each, "up"))
    assert found == [f"up {rank} 3 {rank} 3 None 0" for rank in range(3)]


def test_it_begins_with_the_least_after_the_last_call(runner: Any, port: int) -> None:
    script = runner.script(WAITS)
    (runner.directory / "enough").touch()
    first = start(runner, port, "2:4", "-n", 2, script, last_call=0.5)
    second = start(runner, port, "2:4", "-n", 1, script, last_call=0.5)
    done = [runner.finish(first), runner.finish(second)]
    assert [each.code for each in done] == [0, 0], done[0].err + done[1].err
    assert sorted(line.split()[2] for each in done for line in words(each, "up")) == ["3", "3", "3"]


def test_fewer_than_the_least_do_not_begin(runner: Any, port: int) -> None:
    done = runner.finish(start(runner, port, "2:4", "--timeout", 1, runner.script(WAITS)))
    assert done.code == 124 and "1 of 2:4 runners came" in done.last and "at least 2" in done.last


def test_a_runner_that_comes_later_brings_newcomers(runner: Any, port: int) -> None:
    script = runner.script(GROWS.format(size=3, lose=False))
    first = start(runner, port, "1:2", "-n", 1, "--on-failure", "shrink", script)
    runner.line(first, b"size 1")
    second = start(runner, port, "1:2", "-n", 2, "--on-failure", "shrink", script)
    done = [runner.finish(first), runner.finish(second)]
    assert [each.code for each in done] == [0, 0], done[0].err + done[1].err
    assert words(done[0], "sum") + words(done[1], "sum") == ["sum 6"] * 3
    assert sorted(done[1].out.splitlines())[0].startswith("[r1] ")
    assert "node 1" in done[0].err and "has come, with 2 ranks" in done[0].err


def test_a_later_runner_that_nobody_takes_in_is_ended_with_the_job(runner: Any, port: int) -> None:
    script = runner.script("""
        import aiocoll, os, pathlib, time
        if os.environ.get("AIOCOLL_JOIN"):
            pathlib.Path("here").touch()
        async def main(group):
            print("size", group.size)
            while not os.path.exists("here"):
                time.sleep(0.01)
            time.sleep(1.0)
        aiocoll.run(main)
    """)
    first = start(runner, port, "1:2", "-n", 1, "--on-failure", "shrink", script)
    runner.line(first, b"size 1")
    second = start(runner, port, "1:2", "-n", 1, "--on-failure", "shrink", script)
    done = [runner.finish(first), runner.finish(second)]
    assert [each.code for each in done] == [0, 0], done[0].err + done[1].err
    assert "Traceback" not in done[1].err


@pytest.mark.parametrize(
    ("policy", "count", "wanted"),
    [("kill", 1, "--on-failure kill it takes in no runner"), ("shrink", 2, "has 2 runners already")],
)
def test_a_runner_that_is_not_wanted_is_told_so_and_disturbs_nobody(
    runner: Any, port: int, policy: str, count: int, wanted: str
) -> None:
    arguments = ("-n", 1, "--on-failure", policy, runner.script(WAITS))
    there = [start(runner, port, "1:2", *arguments, last_call=60 if count == 2 else 0.3) for _ in range(count)]
    for each in there:
        runner.line(each, b"up")
    late = runner.finish(start(runner, port, "1:2", *arguments))
    assert late.code == 1 and wanted in late.last
    (runner.directory / "enough").touch()
    assert [runner.finish(each).code for each in there] == [0] * count


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_runner_is_survived_as_long_as_enough_are_left(runner: Any, port: int, number: int) -> None:
    script = runner.script(GROWS.format(size=3, lose=True))
    options = ("--on-failure", "shrink")
    first = start(runner, port, "1:2", "--node-rank", 0, "-n", 2, *options, script, last_call=60)
    second = start(runner, port, "1:2", "--node-rank", 1, "-n", 1, *options, script, last_call=60)
    for _ in range(2):
        runner.line(first, b"sum 6")
    second.send_signal(number)
    done = runner.finish(first)
    assert done.code == 0, done.err
    assert words(done, "left") == ["left 3", "left 3"]
    how = "is gone" if number == signal.SIGKILL else "was terminated (TERM)"
    assert "the runner of node 1" in done.err and how in done.err and "its ranks count as dead" in done.err
    assert done.last.endswith("ranks 0 and 1 finished: the job succeeded without rank 2")
    assert runner.finish(second).code == (-9 if number == signal.SIGKILL else 143)


def test_with_fewer_than_the_least_left_the_job_ends(runner: Any, port: int) -> None:
    script = runner.script(WAITS)
    options = ("--on-failure", "shrink", "-n", 1, script)
    both = [start(runner, port, "2:3", *options, last_call=0.5) for _ in range(2)]
    lines = [runner.line(each, b"up") for each in both]
    other = 0 if b"[r1]" in lines[0] else 1
    both[other].kill()
    done = runner.finish(both[1 - other])
    assert done.code == 1 and "1 are left, and --nnodes 2:3 needs 2" in done.last


def test_when_node_0_is_lost_the_others_go_on_alone(runner: Any, port: int) -> None:
    script = runner.script(WAITS)
    options = ("--on-failure", "shrink", "-n", 1, script)
    both = [start(runner, port, "1:2", *options, last_call=60) for _ in range(2)]
    lines = [runner.line(each, b"up") for each in both]
    first = 0 if b"[r0]" in lines[0] else 1
    both[first].kill()
    assert both[1 - first].stderr is not None
    assert b"go on without it" in both[1 - first].stderr.readline()
    (runner.directory / "enough").touch()
    assert runner.finish(both[1 - first]).code == 0


def test_ctrl_c_at_node_0_ends_all(runner: Any, port: int) -> None:
    script = runner.script(WAITS)
    both = [start(runner, port, "1:2", "--on-failure", "shrink", "-n", 1, script, last_call=60) for _ in range(2)]
    lines = [runner.line(each, b"up") for each in both]
    both[0 if b"[r0]" in lines[0] else 1].send_signal(signal.SIGINT)
    assert [runner.finish(each).code for each in both] == [130, 130]
