"""Jobs, their ends and their output: situations reported of other launchers (L1, L3, L5, L6, L7, and R3: going on)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000


def test_l1_one_rank_fails_and_the_healthy_ones_are_not_waited_for(runner: Any) -> None:
    script = runner.script("""
        import os, time
        print("up")
        time.sleep(0.5 if os.environ["RANK"] == "1" else 60)
        raise RuntimeError("in rank " + os.environ["RANK"])
    """)
    begun = time.monotonic()
    done = runner.run("-n", 5, script)
    assert time.monotonic() - begun < 30  # not the minute of the others
    assert done.code == 1 and done.last == "[r1] RuntimeError: in rank 1"
    assert re.search(r"rank 1 \(pid \d+ on \S+\) failed first: RuntimeError: in rank 1", done.err)
    assert "ranks 0, 2, 3 and 4 ended by the runner" in done.err and not runner.left()


@contextlib.contextmanager
def traced(pid: int) -> Iterator[None]:
    """Until it ends, this process alone hears of the other one's end: to its parent it cannot be ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, pid, None, None):
            pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(pid, WALL)  # it has stopped
    try:
        yield
    finally:
        os.waitpid(pid, WALL)  # it was killed: now its parent may hear of it


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="traces a rank as a debugger does, which is Linux's ptrace")
def test_l3_a_rank_that_nothing_ends_does_not_hold_the_launcher(runner: Any) -> None:
    script = runner.script("""
        import os, time, pathlib
        print("pid", os.getpid())
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            os._exit(3)
        time.sleep(600)
    """)
    process = runner.start("-n", 2, "--grace", "0.5", script)
    lines = [runner.line(process, b"pid") for _ in range(2)]
    (pid,) = (int(line.split()[-1]) for line in lines if line.startswith(b"[r0]"))
    with traced(pid):
        (runner.directory / "go").touch()
        done = runner.finish(process)
        assert done.code == 3 and "rank 1 exited with code 3" in done.last
        assert f"not even KILL ended rank 0 (pid {pid}); leaving it to the kernel" in done.err


@pytest.mark.slow
def test_l3_a_stopped_rank_is_ended(runner: Any) -> None:
    script = runner.script("""
        import os, signal
        if os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise ValueError("boom")
    """)
    done = runner.run("-n", 2, script)
    assert done.code == 1 and done.last == "[r1] ValueError: boom" and not runner.left()


CHATTER = """
    import os, sys
    rank = int(os.environ["RANK"])
    for number in range(1000):
        print(f"{number:04d}", chr(ord("a") + (rank * 7 + number) % 26) * 195)
    sys.stderr.write("bar 1\\rbar 2\\rbar 3\\n")
    os.write(1, b"not UTF-8: \\xff\\xfe %d\\n" % rank)
    os.write(1, b"x" * (1 << 20) + b" %d\\n" % rank)
    raise ValueError(f"of rank {rank}")
"""


@pytest.mark.parametrize("to", ["pipe", "file"])
def test_l5_output_is_whole_prefixed_complete_and_kept_apart(runner: Any, to: str) -> None:
    script = runner.script(CHATTER)
    path = runner.directory / "output"
    if to == "file":
        with path.open("wb") as file:
            process = runner.start("-n", 4, "--on-failure", "shrink", "--log-dir", "logs", script, stdout=file)
            _, err = process.communicate(timeout=60)
        out = path.read_bytes()
    else:
        process = runner.start("-n", 4, "--on-failure", "shrink", "--log-dir", "logs", script)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    for rank in range(4):
        prefix = b"[r%d] " % rank
        mine = [line.removeprefix(prefix) for line in out.split(b"\n") if line.startswith(prefix)]
        letters = [chr(ord("a") + (rank * 7 + number) % 26) for number in range(1000)]
        assert mine[:1000] == [f"{number:04d} {letter * 195}".encode() for number, letter in enumerate(letters)]
        assert mine[1000:] == [b"not UTF-8: \xff\xfe %d" % rank, b"x" * (1 << 20) + b" %d" % rank]
        assert out.count(b"\n") == 4 * 1002, "nothing else is on stdout"
        heard = [line.removeprefix(prefix) for line in err.split(b"\n") if line.startswith(prefix)]
        assert heard[:3] == [b"bar 1", b"bar 2", b"bar 3"] and b"ValueError: of rank %d" % rank in heard
        log = (runner.directory / "logs" / f"r{rank}.stdout.log").read_bytes()
        assert log == b"\n".join([*mine, b""])


def test_l5_only_wanted_ranks_are_shown(runner: Any) -> None:
    done = runner.run("-n", 4, "--ranks", "1,3", runner.script("import os; print(os.environ['RANK'])"))
    assert sorted(done.out.splitlines()) == ["[r1] 1", "[r3] 3"]


@pytest.mark.parametrize(
    ("statement", "code"),
    [("pass", 0), ("sys.exit(9)", 9), ("os.kill(os.getpid(), 15)", 143), ("os.kill(os.getpid(), 9)", 137)],
)
def test_l6_the_code_reaches_a_shell_that_waits_in_the_background(runner: Any, statement: str, code: int) -> None:
    script = runner.script(f"import os, sys, time\nif os.environ['RANK'] == '1': {statement}")
    process = runner.start("-n", 2, script, before=["sh", "-c", '"$@" & wait $!; echo code $?', "sh"])
    assert f"code {code}" in runner.finish(process).out


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (["timeout", "-s", "INT", "1"], 124),
        (["timeout", "1"], 124),
        (["nohup"], 0),
        (["sh", "-c", 'exec "$@" <&-', "sh"], 0),
    ],
    ids=["timeout INT", "timeout TERM", "nohup", "stdin closed"],
)  # fmt: skip
def test_l6_under_other_programs(runner: Any, before: list[str], code: int) -> None:
    text = "import time; time.sleep(600)" if code else "import sys; print('read', sys.stdin and sys.stdin.read())"
    done = runner.run("-n", 2, runner.script(text), before=before)
    assert done.code == code
    assert code or sorted(line[:9] for line in done.out.splitlines()) == ["[r0] read", "[r1] read"]
    assert not runner.left()


def test_l6_standard_input_is_read_by_rank_0_alone(runner: Any) -> None:
    path: Path = runner.directory / "input"
    path.write_text("for rank 0\n")
    with path.open("rb") as file:
        script = runner.script("import sys; print(repr(sys.stdin.read()))")
        done = runner.run("-n", 2, script, stdin=file)
        assert sorted(done.out.splitlines()) == ["[r0] 'for rank 0\\n'", "[r1] ''"]
        file.seek(0)
        done = runner.run("-n", 2, "--stdin", "none", script, stdin=file)
        assert sorted(done.out.splitlines()) == ["[r0] ''", "[r1] ''"]
        assert file.tell() == 0, "nobody has read from it"


def test_l7_a_job_does_not_take_the_place_of_the_one_around_it(runner: Any) -> None:
    """The command line wins over what an outer launcher has left in the environment."""
    script = runner.script("""
        import aiocoll, os
        async def main(group):
            print(group.rank, group.size, await group.all_reduce(group.rank + 1), os.environ["WORLD_SIZE"])
        aiocoll.run(main)
    """)
    outer = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
             "AIOCOLL_RANK": "3", "AIOCOLL_WORLD_SIZE": "8", "AIOCOLL_RDZV": "tcp://127.0.0.1:1", "AIOCOLL_JOIN": "1",
             "AIOCOLL_ATTEMPT": "5", "TORCHELASTIC_RUN_ID": "outer"}  # fmt: skip
    done = runner.run("-n", 2, script, env=outer)
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["[r0] 0 2 3 2", "[r1] 1 2 3 2"]


@pytest.mark.slow
def test_l7_launching_from_within_a_rank(runner: Any) -> None:
    script = runner.script("""
        import aiocoll
        async def inner(group, base):
            return int(await group.all_reduce(group.rank + base))
        async def main(group):
            return await group.all_reduce(group.rank + 1)
        if __name__ == "__main__":
            print("inner", aiocoll.launch(inner, 10, n=3), "outer", aiocoll.run(main))
    """)
    done = runner.run("-n", 2, script)
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["[r0] inner [33, 33, 33] outer 3", "[r1] inner [33, 33, 33] outer 3"]


def test_r3_the_survivors_go_on_and_a_replacement_joins(runner: Any) -> None:
    script = runner.script("""
        import aiocoll, os, signal, time
        async def main(group):
            if group.new_ranks:  # the replacement
                print("new", group.rank, await group.broadcast_object(None), await group.all_reduce(group.rank + 1))
                return
            if group.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                await group.all_reduce(group.rank)
            except aiocoll.PeerLostError as error:
                assert error.rank == 2, error
            died = time.monotonic()
            try:
                await group.barrier()  # before there is a new group
            except aiocoll.GroupBrokenError as error:
                assert isinstance(error.cause, aiocoll.PeerLostError)
            three = await group.shrink()
            assert time.monotonic() - died < 5
            print("three", three.size, await three.all_reduce(three.rank + 1))
            four = await three.grow(wait=30.0)
            print("four", four.size, four.new_ranks, await four.broadcast_object({"step": 7}),
                  await four.all_reduce(four.rank + 1))
            try:
                await group.barrier()
            except aiocoll.GroupBrokenError:
                print("stays broken")
        aiocoll.run(main)
    """)
    done = runner.run("-n", 4, "--on-failure", "shrink", "--max-restarts", 1, script)
    assert done.code == 0, done.err
    said = sorted(line.partition("] ")[2] for line in done.out.splitlines())
    assert said == sorted(["three 3 6", "four 4 (3,) {'step': 7} 10", "stays broken"] * 3 + ["new 3 {'step': 7} 10"])
    assert done.last == "aiocoll: ranks 0, 1, 2 and 3 finished: the job succeeded"
