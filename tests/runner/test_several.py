"""Two runners on one machine stand in for two hosts: ranks, one end for all, and how they can fail to meet."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from typing import Any

import pytest

from tests.runner.conftest import DEADLINE_S

WHO = "import os; print(*(os.environ[n] for n in ('RANK WORLD_SIZE LOCAL_RANK GROUP_RANK AIOCOLL_NNODES').split()))"


def node(runner: Any, port: int, rank: int, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
    place = ("--nnodes", 2, "--node-rank", rank, "--rdzv", f"127.0.0.1:{port}")
    process: subprocess.Popen[bytes] = runner.start(*place, *arguments, **options)
    return process


def both(runner: Any, port: int, *arguments: Any, counts: tuple[int, int] = (1, 2), **options: Any) -> list[Any]:
    processes = [node(runner, port, rank, "-n", counts[rank], *arguments, **options) for rank in (1, 0)]
    return [runner.finish(process) for process in reversed(processes)]


def test_ranks_are_numbered_in_the_order_of_the_nodes(runner: Any, port: int) -> None:
    zero, one = both(runner, port, runner.script(WHO))
    assert (zero.code, one.code) == (0, 0), zero.err + one.err
    assert zero.out.splitlines() == ["[r0] 0 3 0 0 2"]
    assert sorted(one.out.splitlines()) == ["[r1] 1 3 0 1 2", "[r2] 2 3 1 1 2"]


def test_all_ranks_form_one_world_with_a_shared_secret(runner: Any, port: int) -> None:
    script = runner.script("""
        import aiocoll
        async def main(group):
            print(await group.all_reduce(group.rank + 1), group.size)
        aiocoll.run(main)
    """)
    done = both(runner, port, script, counts=(2, 1), env={"AIOCOLL_SECRET": "open sesame"})
    assert [each.code for each in done] == [0, 0], done[0].err + done[1].err
    assert [line.split("] ")[1] for each in done for line in each.out.splitlines()] == ["6 3"] * 3


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_nodes_failure_is_everybodys_end_with_the_same_code(runner: Any, port: int, failing: int) -> None:
    script = runner.script(f"""
        import os, time
        print("up")
        if os.environ["GROUP_RANK"] == "{failing}" and os.environ["LOCAL_RANK"] == "0":
            time.sleep(0.3)
            print("cause", flush=True)
            os._exit(9)
        time.sleep(600)
    """)
    done = both(runner, port, script)
    assert [each.code for each in done] == [9, 9]
    rank = 0 if failing == 0 else 1
    for each in done:
        assert f"rank {rank} exited with code 9" in each.last
    assert f"node {failing} reports" in done[1 - failing].err
    assert not runner.left()


def test_a_signal_to_one_runner_stops_all(runner: Any, port: int) -> None:
    script = runner.script("""
        import time
        try:
            print("up")
            time.sleep(600)
        finally:
            time.sleep(0.3)  # whoever gets the signal twice does not come so far
            print("finally")
    """)
    zero, one = (node(runner, port, rank, "-n", 1, script) for rank in (0, 1))
    for process in (zero, one):
        runner.line(process, b"up")
    one.send_signal(signal.SIGTERM)
    for done in (runner.finish(zero), runner.finish(one)):
        assert done.code == 143 and "finally" in done.out


def test_a_killed_runner_ends_the_others(runner: Any, port: int) -> None:
    script = runner.script("import time; print('up'); time.sleep(600)")
    zero, one = (node(runner, port, rank, "-n", 1, script) for rank in (0, 1))
    for process in (zero, one):
        runner.line(process, b"up")
    zero.kill()
    done = runner.finish(one)
    assert done.code == 1 and "node 0" in done.last
    assert runner.nothing_left()


@pytest.mark.slow
def test_restarts_concern_all_nodes(runner: Any, port: int) -> None:
    script = runner.script("""
        import os, sys
        print(os.environ["AIOCOLL_RESTART_COUNT"])
        sys.exit(os.environ["RANK"] == "0" and os.environ["AIOCOLL_RESTART_COUNT"] == "0")
    """)
    done = both(runner, port, "--max-restarts", 1, script, counts=(1, 1))
    assert [each.code for each in done] == [0, 0], done[0].err + done[1].err
    assert done[1].out.splitlines()[-1] == "[r1] 1"


def test_a_missing_runner_is_named(runner: Any, port: int) -> None:
    done = runner.finish(node(runner, port, 0, "--timeout", "0.7", runner.script("pass")))
    assert done.code == 124 and "--node-rank 1 missing" in done.err


def test_a_signal_while_waiting_for_the_others(runner: Any, port: int) -> None:
    process = node(runner, port, 0, runner.script("pass"))
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
    process.send_signal(signal.SIGINT)
    done = runner.finish(process)
    assert done.code == 130 and "waiting for other runners" in done.last


@pytest.mark.slow
def test_the_same_node_twice(runner: Any, port: int) -> None:
    script = runner.script("pass")
    zeros = [node(runner, port, 0, script) for _ in range(2)]  # and both want to serve
    ends = {os.pidfd_open(process.pid): process for process in zeros}
    try:  # before the other node comes: with it the job would be over, and the port free for whoever is late
        ended, _, _ = select.select(list(ends), [], [], DEADLINE_S)
    finally:
        for end in ends:
            os.close(end)
    assert len(ended) == 1, "neither, or both"
    second = ends[ended[0]]
    done = runner.finish(second)
    assert done.code == 1 and "already in use" in done.err
    assert runner.finish(node(runner, port, 1, script)).code == 0
    assert runner.finish(zeros[zeros[0] is second]).code == 0


@pytest.mark.slow
def test_different_numbers_of_nodes(runner: Any, port: int) -> None:
    script = runner.script("pass")
    zero = node(runner, port, 0, "--timeout", 20, script)
    one = runner.start("--nnodes", 3, "--node-rank", 1, "--rdzv", f"127.0.0.1:{port}", "--timeout", 20, script)
    done = runner.finish(zero)
    assert done.code == 1 and "--nnodes 2 here, but 3 at node 1" in done.last
    assert runner.finish(one).code != 0


def test_different_secrets(runner: Any, port: int) -> None:
    script = runner.script("pass")
    zero = node(runner, port, 0, script, env={"AIOCOLL_SECRET": "one"})
    done = runner.finish(node(runner, port, 1, script, env={"AIOCOLL_SECRET": "hush"}))
    assert done.code == 1 and "secret" in done.last and "hush" not in done.last
    zero.terminate()
    assert runner.finish(zero).code == 143


def test_beyond_loopback_a_secret_is_needed(runner: Any) -> None:
    for rank in (0, 1):
        script = runner.script("pass")
        done = runner.run("--nnodes", 2, "--node-rank", rank, "--rdzv", "192.0.2.1:29500", script)
        assert done.code == 2 and "--secret-file" in done.err


def test_a_port_that_somebody_has(runner: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = runner.finish(node(runner, server.getsockname()[1], 0, runner.script("pass")))
    assert done.code == 1 and "Address already in use" in done.err and "Traceback" not in done.err


def test_a_host_that_does_not_exist(runner: Any) -> None:
    done = runner.run(
        "--nnodes", 2, "--node-rank", 1, "--rdzv", "no-such-host.invalid:29500", runner.script("pass"),
        env={"AIOCOLL_SECRET": "s"},
    )  # fmt: skip
    assert done.code == 1 and "no-such-host.invalid" in done.err
    assert os.path.basename(__file__) not in done.err
