"""How jobs end: exit codes, the first failure last on screen, signals, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psutil
import pytest

STUBBORN = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]\n"

# Each rank says "up" when it sleeps, so that a test acts when all of them do.
SLEEPER = """
    import os, subprocess, sys, time
    {before}
    try:
        print("up")
        time.sleep(600)
    finally:
        print("finally", os.environ["RANK"])
"""


def sleeping(runner: Any, *options: Any, before: str = "", ranks: int = 2, **popen: Any) -> subprocess.Popen[bytes]:
    """A job whose ranks all sleep."""
    script = runner.script(SLEEPER.format(before=before))
    process: subprocess.Popen[bytes] = runner.start("-n", ranks, *options, script, **popen)
    for _ in range(ranks):
        runner.line(process, b"up")
    return process


# -- failures


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("sys.exit(7)", 7, "rank 1 exited with code 7"),
        ("raise ValueError('boom')", 1, "[r1] ValueError: boom"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 was killed by signal 9 (SIGKILL"),
        pytest.param("sys.exit('a message')", 1, "rank 1 exited with code 1", marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), 11)", 139, "SIGSEGV: segmentation fault", marks=pytest.mark.slow),
        pytest.param("os.abort()", 134, "SIGABRT", marks=pytest.mark.slow),
        pytest.param("os._exit(255)", 255, "code 255", marks=pytest.mark.slow),
    ],
)
def test_the_first_failure_ends_the_job_and_is_said_last(runner: Any, statement: str, code: int, words: str) -> None:
    script = runner.script(f"import os, sys, time\nif os.environ['RANK'] == '1': {statement}\ntime.sleep(600)")
    done = runner.run("-n", 3, script)
    assert done.code == code
    assert words in done.last
    assert "ranks 0 and 2 ended by the runner" in done.err
    assert 'File "/' not in done.err.partition("aiocoll: rank 1")[2] or "script.py" in done.err, "no traceback of ours"
    assert not runner.left()


def test_success_is_0_and_says_nothing(runner: Any) -> None:
    done = runner.run("-n", 3, runner.script("pass"))
    assert (done.code, done.out, done.err) == (0, "", "")
    assert not runner.left()


@pytest.mark.slow
def test_ranks_that_ignore_everything_are_killed_within_seconds(runner: Any) -> None:
    script = runner.script(STUBBORN + "import os, time\nif os.environ['RANK'] == '0': os._exit(3)\ntime.sleep(600)")
    done = runner.run("-n", 2, script)
    assert done.code == 3 and not runner.left()


CONSEQUENCE = """
    import os, time
    from aiocoll import errors
    from aiocoll.observe import report
    report.install()
    if os.environ["RANK"] == "0":
        raise errors.{name}("somebody else failed")
    time.sleep(0.4)
    os._exit({code})
"""


@pytest.mark.parametrize("name", ["PeerLostError", pytest.param("GroupBrokenError", marks=pytest.mark.slow)])
def test_a_consequence_that_comes_first_is_not_the_cause(runner: Any, name: str) -> None:
    done = runner.run("-n", 2, runner.script(CONSEQUENCE.format(name=name, code=9)))
    assert done.code == 9
    assert "rank 1 exited with code 9" in done.last and f"rank 0 ended with {name}" in done.err


@pytest.mark.slow
def test_a_consequence_without_a_cause_is_shown(runner: Any) -> None:
    done = runner.run("-n", 2, runner.script(CONSEQUENCE.format(name="PeerLostError", code=0)))
    assert done.code == 1
    assert done.last == "[r0] aiocoll.errors.PeerLostError: somebody else failed"


def test_survivors_say_which_collective_they_were_in(runner: Any) -> None:
    script = runner.script("""
        import aiocoll, numpy as np, os
        async def main(group):
            if group.rank == 1:
                await group.recv(0)
                await group.recv(2)
                os.kill(os.getpid(), 9)
            else:
                await group.send(0, 1)
            await group.all_reduce(np.ones(3))
        aiocoll.run(main)
    """)
    done = runner.run("-n", 3, script)
    assert done.code == 137 and "SIGKILL" in done.last
    assert "in all_reduce" in done.err.partition("failed first")[2]


@pytest.mark.slow
def test_on_failure_shrink_lets_the_others_finish(runner: Any) -> None:
    script = runner.script("""
        import os, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        time.sleep(1.5)  # longer than the others would have after a failure
        print("fine")
    """)
    done = runner.run("-n", 3, "--on-failure", "shrink", script)
    assert done.code == 0 and sorted(done.out.splitlines()) == ["[r0] fine", "[r2] fine"]


@pytest.mark.slow
def test_restarts_start_all_ranks_again(runner: Any) -> None:
    script = runner.script("""
        import os, sys
        print(os.environ["AIOCOLL_RESTART_COUNT"], os.environ["TORCHELASTIC_RESTART_COUNT"])
        sys.exit(os.environ["RANK"] == "1" and os.environ["AIOCOLL_RESTART_COUNT"] != "2")
    """)
    done = runner.run("-n", 2, "--max-restarts", 2, script)
    assert done.code == 0
    assert [line for line in done.out.splitlines() if "[r0]" in line] == ["[r0] 0 0", "[r0] 1 1", "[r0] 2 2"]
    assert "restart 2 of 2" in done.err
    assert runner.run("-n", 2, "--max-restarts", 1, script).code == 1


@pytest.mark.slow
def test_a_restarted_world_meets_afresh(runner: Any) -> None:
    script = runner.script("""
        import aiocoll, os
        async def main(group):
            print(os.environ["AIOCOLL_RESTART_COUNT"], "sum", await group.all_reduce(group.rank + 1))
            if group.rank == 0 and os.environ["AIOCOLL_RESTART_COUNT"] == "0":
                raise ValueError("once")
            await group.barrier()
        aiocoll.run(main)
    """)
    done = runner.run("-n", 3, "--max-restarts", 1, script)
    assert done.code == 0, done.err
    assert done.out.count("1 sum 6") == 3


# -- stopping


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "TERM"), (signal.SIGHUP, 129, "HUP")],
)
def test_signals_interrupt_the_ranks_so_that_finally_runs(runner: Any, number: int, code: int, why: str) -> None:
    process = sleeping(runner)
    process.send_signal(number)
    done = runner.finish(process)
    assert done.code == code
    assert sorted(done.out.splitlines()) == ["[r0] finally 0", "[r1] finally 1"]
    assert why in done.last
    assert not runner.left()


@pytest.mark.slow
def test_after_the_grace_time_ranks_are_killed(runner: Any) -> None:
    process = sleeping(runner, "--grace", "0.5", before=STUBBORN)
    process.send_signal(signal.SIGINT)
    assert runner.finish(process).code == 130
    assert not runner.left()


def test_a_second_ctrl_c_is_faster_than_the_grace_time(runner: Any) -> None:
    handler = "import signal; signal.signal(signal.SIGINT, lambda *_: print('not yet'))"
    process = sleeping(runner, before=handler)
    process.send_signal(signal.SIGINT)
    for _ in range(2):
        runner.line(process, b"not yet")
    process.send_signal(signal.SIGINT)  # TERM now, which they do not handle
    assert runner.finish(process).code == 130


def test_a_third_ctrl_c_kills(runner: Any) -> None:
    handler = (
        "import signal; signal.signal(signal.SIGINT, lambda *_: print('not yet'))\n"
        "    signal.signal(signal.SIGTERM, lambda *_: print('never'))"
    )
    process = sleeping(runner, before=handler)
    for words in (b"not yet", b"never"):
        process.send_signal(signal.SIGINT)
        for _ in range(2):
            runner.line(process, words)
    process.send_signal(signal.SIGINT)
    assert runner.finish(process).code == 130


def test_hup_stays_ignored_under_nohup(runner: Any) -> None:
    script = runner.script(SLEEPER.format(before="import signal; print(signal.getsignal(signal.SIGHUP).name)"))
    process = runner.start("-n", 2, script, before=["nohup"])
    for _ in range(2):
        runner.line(process, b"SIG_IGN")
        runner.line(process, b"up")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)  # comes after it; the ranks die of it, which shows that HUP has done nothing
    done = runner.finish(process)
    assert done.code == 128 + signal.SIGUSR1


def test_in_the_background_of_a_shell_finally_still_runs(runner: Any) -> None:
    """A shell without job control starts background jobs with INT ignored; the ranks must not inherit that."""
    script = runner.script(SLEEPER.format(before=""))
    process = runner.start("-n", 1, script, before=["sh", "-c", 'trap "" INT; exec "$@"', "sh"])
    runner.line(process, b"up")
    process.send_signal(signal.SIGINT)  # ignored, as the shell wanted
    process.send_signal(signal.SIGTERM)
    done = runner.finish(process)
    assert (done.code, done.out) == (143, "finally 0\n")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_are_passed_on(runner: Any, number: int) -> None:
    process = sleeping(runner, before=f"import signal; signal.signal({int(number)}, lambda *_: os._exit(0))")
    process.send_signal(number)
    assert runner.finish(process).code == 0


def test_ctrl_z_stops_the_ranks_and_fg_wakes_them(runner: Any, wait_for: Callable[..., bool]) -> None:
    process = sleeping(runner)
    ranks = [psutil.Process(int(line.partition(":")[0])) for line in runner.left() if "script.py" in line]
    ranks = [rank for rank in ranks if "aiocoll" not in rank.cmdline()]
    assert len(ranks) == 2
    process.send_signal(signal.SIGTSTP)
    assert wait_for(lambda: all(rank.status() == psutil.STATUS_STOPPED for rank in ranks))
    assert wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGCONT)
    assert wait_for(lambda: all(rank.status() != psutil.STATUS_STOPPED for rank in ranks))
    process.send_signal(signal.SIGTERM)
    assert runner.finish(process).code == 143


def test_the_jobs_timeout(runner: Any) -> None:
    done = runner.run("-n", 2, "--timeout", "0.7", runner.script(SLEEPER.format(before="")))
    assert done.code == 124 and "--timeout" in done.last
    assert not runner.left()


# -- nothing is left

CHILDREN = (
    "subprocess.Popen(['sleep', '600']); subprocess.Popen(['sleep', '601'], start_new_session=True); "
    "subprocess.Popen(['sh', '-c', 'trap \"\" INT TERM HUP; (trap \"\" INT TERM HUP; exec setsid sleep 602) & exit'])"
)


@pytest.mark.slow
def test_children_go_with_their_rank_after_success(runner: Any) -> None:
    done = runner.run("-n", 2, runner.script(f"import subprocess; {CHILDREN}"))
    assert done.code == 0 and not runner.left()


def test_children_go_while_other_ranks_go_on(runner: Any, wait_for: Callable[..., bool]) -> None:
    script = runner.script("""
        import os, subprocess, time
        if os.environ["RANK"] == "1":
            subprocess.Popen(["sleep", "603"])
        else:
            print("up"); time.sleep(600)
    """)
    process = runner.start("-n", 2, script)
    runner.line(process, b"up")
    assert wait_for(lambda: not any("sleep 603" in line for line in runner.left()))
    process.terminate()
    assert process.wait(60) == 143


@pytest.mark.slow
def test_children_go_after_failure_and_stop(runner: Any) -> None:
    process = sleeping(runner, before=CHILDREN)
    process.terminate()
    assert runner.finish(process).code == 143 and not runner.left()
    done = runner.run("-n", 2, runner.script(f"import subprocess; {CHILDREN}; 1 / 0"))
    assert done.code == 1 and not runner.left()


@pytest.mark.parametrize("whom", ["runner", pytest.param("group", marks=pytest.mark.slow)])
def test_a_killed_runner_leaves_nothing(runner: Any, whom: str) -> None:
    process = sleeping(runner, before=CHILDREN + "\n    " + STUBBORN, start_new_session=True)
    (os.kill if whom == "runner" else os.killpg)(process.pid, signal.SIGKILL)
    process.wait(60)
    assert runner.nothing_left(), runner.left()


def test_a_killed_warden_takes_the_ranks_along(runner: Any) -> None:
    process = sleeping(runner, before="subprocess.Popen(['sleep', '600'])\n    " + STUBBORN)
    (warden,) = psutil.Process(process.pid).children()
    warden.kill()
    done = runner.finish(process)
    assert done.code == 137
    assert runner.nothing_left(), runner.left()


@pytest.mark.slow
def test_no_file_is_left(runner: Any) -> None:
    temporary = runner.directory / "temporary"
    temporary.mkdir()
    script = runner.script("""
        import aiocoll
        async def main(group):
            await group.barrier()
            raise ValueError
        aiocoll.run(main)
    """)
    runner.run("-n", 2, script, env={"TMPDIR": str(temporary)})
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in runner.directory.iterdir()) == ["script.py", "temporary"]


# -- what never starts


@pytest.mark.parametrize(
    "options", [["no.py"], ["-n", "0", "x.py"], ["--bogus", "x.py"], [], ["--chdir", "/no/dir", "x.py"]]
)
def test_a_command_line_without_sense_is_2_in_one_line(runner: Any, options: list[str]) -> None:
    done = runner.run(*options)
    assert done.code == 2 and done.err.startswith("aiocoll run: ") and done.err.count("\n") == 1


def test_a_program_that_cannot_be_executed(runner: Any) -> None:
    path = runner.directory / "program"
    path.write_text("no program at all")
    path.chmod(0o755)
    done = runner.run("-n", 2, "--no-python", "./program")
    assert done.code == 127 and "Exec format error" in done.last


@pytest.mark.slow
def test_a_job_inside_a_job(runner: Any) -> None:
    inner = runner.script("import os; print('inner', os.environ['RANK'], os.environ['WORLD_SIZE'])", "inner.py")
    outer = runner.script(f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-m", "aiocoll", "run", "-n", "3", {str(inner)!r}], check=True)
    """)
    done = runner.run("-n", 2, outer)
    assert done.code == 0, done.err
    assert sorted(line.split("] ", 1)[1] for line in done.out.splitlines()) == sorted(
        [f"[r{rank}] inner {rank} 3" for rank in range(3)] * 2
    )
