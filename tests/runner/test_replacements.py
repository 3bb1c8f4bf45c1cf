"""``--on-failure shrink``: the others go on, dead ranks get a process in their place, and the end tells."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

# Rank 1 fails in its first lives; the others live until it has come to its last.
LIVES = """
    import os, pathlib, sys, time
    rank, life = os.environ["RANK"], int(os.environ["AIOCOLL_RESTART_COUNT"])
    names = "AIOCOLL_JOIN LOCAL_RANK WORLD_SIZE TORCHELASTIC_RESTART_COUNT".split()
    print("life", life, *(os.environ.get(name) for name in names))
    last = pathlib.Path("last life")
    if rank == "1" and life == {lives}:
        last.touch()
    elif rank == "1":
        {fail}
    until = time.monotonic() + 30
    while not last.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.4)  # whoever dies with a last touch is seen to be dead
"""


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_a_dead_rank_gets_a_process_in_its_place_and_the_end_tells(runner: Any) -> None:
    script = runner.script(LIVES.format(lives=1, fail="os.kill(os.getpid(), 9)"))
    done = runner.run("-n", 3, "--on-failure", "shrink", "--max-restarts", 1, "--log-dir", "logs", script)
    assert done.code == 0, done.err
    assert lines(done.out, "[r1]") == ["[r1] life 0 None 1 3 0", "[r1] life 1 1 1 3 1"]
    assert lines(done.out, "[r0]") == ["[r0] life 0 None 0 3 0"]
    assert (runner.directory / "logs" / "r1.stdout.log").read_text() == "life 0 None 1 3 0\nlife 1 1 1 3 1\n"
    died, ended = done.err.splitlines()
    assert re.fullmatch(
        r"aiocoll: \d+\.\d s: rank 1 \(pid \d+ on \S+\) was killed by signal 9 \(SIGKILL\); replacement 1 \(pid \d+\) "
        "was started in its place",
        died,
    )
    assert ended == "aiocoll: ranks 0, 1 and 2 finished: the job succeeded"


def test_so_many_replacements_and_no_more(runner: Any) -> None:
    script = runner.script(LIVES.format(lives=3, fail="(last.touch() if life == 2 else 0); sys.exit(5)"))
    done = runner.run("-n", 2, "--on-failure", "shrink", "--max-restarts", 2, script)
    assert done.code == 0, done.err
    assert len(lines(done.out, "[r1]")) == 3
    assert "rank 1 (replacement 2)" in done.err and "not replaced: --max-restarts 2 was used up" in done.err
    assert done.last == "aiocoll: rank 0 finished: the job succeeded without rank 1"


def test_success_is_no_failure_and_gets_no_replacement(runner: Any) -> None:
    script = runner.script("print('life')")
    done = runner.run("-n", 3, "--on-failure", "shrink", "--max-restarts", 3, script)
    assert (done.code, done.err) == (0, "") and len(done.out.splitlines()) == 3


def test_when_all_are_dead_the_first_is_the_cause(runner: Any) -> None:
    script = runner.script("""
        import os, time
        if os.environ["RANK"] == "0":
            time.sleep(0.3)
            os._exit(4)
        os._exit(3)
    """)
    done = runner.run("-n", 2, "--on-failure", "shrink", script)
    assert done.code == 3 and done.last == "aiocoll: rank 1 exited with code 3"
    assert "rank 0" in done.err


def test_a_survivor_that_does_not_go_on_fails_the_job(runner: Any) -> None:
    script = runner.script("""
        import aiocoll, os
        async def main(group):
            if group.rank == 1:
                os.kill(os.getpid(), 9)
            await group.barrier()
        aiocoll.run(main)
    """)
    done = runner.run("-n", 3, "--on-failure", "shrink", script)
    assert done.code == 137 and "SIGKILL" in done.last
    assert "ranks 0 and 2 did not go on" in done.err and "shrink()" in done.err


def test_a_replacement_that_nobody_takes_in_is_ended_and_does_no_harm(runner: Any) -> None:
    script = runner.script("""
        import aiocoll, os, pathlib, time
        newcomer = "AIOCOLL_JOIN" in os.environ
        if newcomer:
            pathlib.Path("here").touch()
        async def main(group):
            if group.rank == 1:
                os.kill(os.getpid(), 9)
            while not os.path.exists("here"):
                time.sleep(0.01)
        aiocoll.run(main)
    """)
    done = runner.run("-n", 3, "--on-failure", "shrink", "--max-restarts", 2, script)
    assert done.code == 0, done.err
    assert "rank 1 (replacement 1) came too late" in done.err and "Traceback" not in done.err
    assert done.last == "aiocoll: ranks 0 and 2 finished: the job succeeded without rank 1"


def test_a_rank_that_dies_before_the_world_has_met_is_replaced_in_its_own_place(runner: Any) -> None:
    script = runner.script("""
        import aiocoll, os, pathlib, time
        if os.environ["RANK"] == "1" and os.environ["AIOCOLL_RESTART_COUNT"] == "0":
            while not pathlib.Path("others").exists():
                time.sleep(0.01)
            time.sleep(0.2)
            os._exit(6)
        async def main(group):
            print(await group.all_reduce(group.rank + 1), os.environ.get("AIOCOLL_JOIN"))
        connecting = aiocoll.connect()
        pathlib.Path("others").touch()
        aiocoll.run(main)
    """)
    done = runner.run("-n", 3, "--on-failure", "shrink", "--max-restarts", 1, script)
    assert done.code == 0, done.err
    assert sorted(line.partition(" ")[2] for line in done.out.splitlines()) == ["6 None"] * 3


def test_signals_and_the_end_reach_replacements(runner: Any) -> None:
    script = runner.script("""
        import os, time
        if os.environ["RANK"] == "1" and os.environ["AIOCOLL_RESTART_COUNT"] == "0":
            os._exit(6)
        try:
            print("up")
            time.sleep(600)
        finally:
            print("finally")
    """)
    process = runner.start("-n", 2, "--on-failure", "shrink", "--max-restarts", 1, script)
    for _ in range(2):
        runner.line(process, b"up")
    process.send_signal(signal.SIGTERM)
    done = runner.finish(process)
    assert done.code == 143 and sorted(done.out.splitlines()) == ["[r0] finally", "[r1] finally"]
    assert not runner.left()


def test_a_killed_runner_leaves_no_replacement(runner: Any) -> None:
    script = runner.script("""
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.environ["RANK"] == "1" and os.environ["AIOCOLL_RESTART_COUNT"] == "0":
            os._exit(6)
        print("up")
        time.sleep(600)
    """)
    process = runner.start("-n", 2, "--on-failure", "shrink", "--max-restarts", 1, script)
    for _ in range(2):
        runner.line(process, b"up")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    assert runner.nothing_left(), runner.left()


def test_kill_is_the_default_and_has_two_names(runner: Any) -> None:
    script = runner.script("import os, time\nif os.environ['RANK'] == '1': os._exit(7)\ntime.sleep(600)")
    for options in (("--on-failure", "kill"), ("--on-failure", "end")):
        assert runner.run("-n", 2, *options, script).code == 7


@pytest.mark.slow
def test_restart_is_three_times_unless_said_otherwise(runner: Any) -> None:
    script = runner.script("import os, sys; print(os.environ['AIOCOLL_RESTART_COUNT']); sys.exit(8)")
    done = runner.run("--on-failure", "restart", script)
    assert done.code == 8 and done.out.split() == ["0", "1", "2", "3"]


def test_replacements_are_events_with_json(runner: Any) -> None:
    script = runner.script(LIVES.format(lives=1, fail="os._exit(3)"))
    done = runner.run("-n", 2, "--json", "--on-failure", "shrink", "--max-restarts", 1, script)
    assert done.code == 0 and '"replacement": 1' in done.out and done.err == ""
    assert "the job succeeded" in done.out.splitlines()[-1]
