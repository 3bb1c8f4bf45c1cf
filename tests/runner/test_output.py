"""What the ranks print: whole lines behind a prefix, streams apart, nothing lost, files and events."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHATTER = """
    import os, sys
    rank = os.environ["RANK"]
    for i in range(300):
        print(f"{rank} line {i} " + "x" * 200)
        print(f"{rank} error {i}", file=sys.stderr)
    print("y" * (1 << 20))
    sys.stdout.buffer.write(b"bytes \\xff\\xfe\\n"); sys.stdout.buffer.flush()
    for i in range(3):
        sys.stdout.write(f"\\rbar {i}")
    print()
    sys.stdout.write("the end without newline")
"""


def by_rank(text: bytes) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for line in text.removesuffix(b"\n").split(b"\n"):
        prefix, _, rest = line.partition(b" ")
        found.setdefault(prefix, []).append(rest)
    return found


def test_lines_are_whole_prefixed_and_complete(runner: Any) -> None:
    process = runner.start("-n", 3, runner.script(CHATTER))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    lines, errors = by_rank(out), by_rank(err)
    assert sorted(lines) == sorted(errors) == [b"[r0]", b"[r1]", b"[r2]"]
    for rank in range(3):
        expected = [f"{rank} line {i} {'x' * 200}".encode() for i in range(300)]
        expected += [b"y" * (1 << 20), b"bytes \xff\xfe", b"bar 0", b"bar 1", b"bar 2", b"the end without newline"]
        assert lines[b"[r%d]" % rank] == expected
        assert errors[b"[r%d]" % rank] == [f"{rank} error {i}".encode() for i in range(300)]


def test_a_lone_rank_is_passed_through_untouched(runner: Any) -> None:
    script = runner.script("import sys; sys.stdout.buffer.write(b'a\\rb\\xff\\nno newline'); sys.exit(3)")
    for options in ([], ["--log-dir", "logs"]):
        process = runner.start("-n", 1, *options, script)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (3, b"a\rb\xff\nno newline", b"")


def test_one_rank_of_a_larger_world_has_a_prefix(runner: Any) -> None:
    script = runner.script("import os; print('hello', os.environ['RANK'])")
    assert runner.run("-n", 2, "--ranks", "1", script).out == "[r1] hello 1\n"


def test_logs_hold_every_rank_unprefixed(runner: Any) -> None:
    script = runner.script("import os, sys; print(os.environ['RANK']); print('e', file=sys.stderr)")
    assert runner.run("-n", 2, "--log-dir", "logs", "--ranks", "0", script).code == 0
    logs: Path = runner.directory / "logs"
    assert sorted(path.name for path in logs.iterdir()) == [
        "r0.stderr.log", "r0.stdout.log", "r1.stderr.log", "r1.stdout.log",
    ]  # fmt: skip
    assert (logs / "r1.stdout.log").read_text() == "1\n" and (logs / "r1.stderr.log").read_text() == "e\n"


def test_a_log_directory_that_cannot_be(runner: Any) -> None:
    (runner.directory / "file").touch()
    done = runner.run("-n", 2, "--log-dir", "file/logs", runner.script("pass"))
    assert done.code == 1 and "--log-dir" in done.err and "Traceback" not in done.err


def test_json_is_one_event_a_line(runner: Any) -> None:
    script = runner.script("""
        import os, sys
        sys.stdout.buffer.write(b"\\xff\\n")
        print("err", file=sys.stderr)
        sys.exit(int(os.environ["RANK"]) * 5)
    """)
    done = runner.run("-n", 2, "--json", script)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 5 and done.err == ""
    assert [event["rank"] for event in events if event["event"] == "start"] == [0, 1]
    outputs = [event for event in events if event["event"] == "output" and event["rank"] == 1]
    assert {(event["stream"], event["text"]) for event in outputs} == {("stdout", "\\xff\n"), ("stderr", "err\n")}
    assert [event["base64"] for event in outputs if "base64" in event] == ["/wo="]
    assert {event["rank"]: event["code"] for event in events if event["event"] == "exit"} == {0: 0, 1: 5}
    assert events[-1]["event"] == "end" and events[-1]["code"] == 5
    assert "exited with code 5" in events[-1]["words"][-1]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_the_job_without_a_word(runner: Any, more: list[str]) -> None:
    script = runner.script("""
        import os
        try:
            while True:
                print("x" * 100)
        finally:
            open("ended" + os.environ["RANK"], "w").close()
    """)
    process = runner.start("-n", 2, *more, script)
    wanted = [b'"rank": 0, "stream"', b'"rank": 1, "stream"'] if more else [b"[r0]", b"[r1]"]
    for text in wanted:  # both have begun
        runner.line(process, text)
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""
    assert (runner.directory / "ended0").exists() and (runner.directory / "ended1").exists()
    assert runner.nothing_left()


def test_a_reader_that_has_gone_when_the_job_has_ended_well(runner: Any) -> None:
    process = runner.start("-n", 2, runner.script("print('nobody hears it')"))
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""


def test_a_lone_rank_that_a_closed_pipe_ends(runner: Any) -> None:
    process = runner.start("-n", 1, "--no-python", "yes")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""


@pytest.mark.slow
def test_a_slow_reader_holds_the_ranks_back_and_loses_nothing(runner: Any) -> None:
    script = runner.script("for i in range(40): print('z' * 999_999)")
    process = runner.start("-n", 2, script, stderr=subprocess.DEVNULL)
    first = process.stdout.read(1)  # the rest waits in pipes and in the runner, which must not grow without bound
    out = first + process.stdout.read()
    assert process.wait(60) == 0
    assert [len(lines) for lines in by_rank(out).values()] == [40, 40]
    assert {len(line) for lines in by_rank(out).values() for line in lines} == {999_999}


def test_output_appears_at_once_not_at_the_end(runner: Any) -> None:
    script = runner.script("print('now'); import time; time.sleep(600)")
    process = runner.start("-n", 2, script)
    assert runner.line(process, b"now").endswith(b"now\n")
    process.terminate()
    assert process.wait(60) == 143


@pytest.mark.parametrize("how", ["closed", "file", "none"])
def test_standard_input_belongs_to_rank_0(runner: Any, how: str) -> None:
    script = runner.script("import os, sys; print(os.environ['RANK'], repr(sys.stdin.read() if sys.stdin else None))")
    (runner.directory / "input").write_text("text of the file")
    with open(runner.directory / "input", "rb") as file:
        options = ["--stdin", "none"] if how == "none" else []
        before = ["sh", "-c", 'exec "$@" <&-', "sh"] if how == "closed" else []
        done = runner.run("-n", 2, *options, script, stdin=file, before=before)
    expected = "'text of the file'" if how == "file" else "''"
    assert sorted(done.out.splitlines()) == [f"[r0] 0 {expected}", "[r1] 1 ''"]


def test_all_standard_streams_closed(runner: Any) -> None:
    script = runner.script("import os; open('done' + os.environ['RANK'], 'w').close(); print('x')")
    done = runner.run("-n", 2, script, before=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"])
    assert done.code == 0
    assert (runner.directory / "done1").exists()


def test_tracebacks_argv_and_main_are_pythons_own(runner: Any) -> None:
    script = runner.script("""
        import sys
        print(sys.argv[1:], __name__, sys.modules["__main__"].__file__ == __file__, __spec__)
        raise RuntimeError("mine")
    """)
    done = runner.run("-n", 1, script, "--flag", "-x")
    assert done.out == "['--flag', '-x'] __main__ True None\n"
    assert done.err.splitlines()[1].strip().startswith(f'File "{script}", line 4')
    assert done.last == "RuntimeError: mine"


def test_modules_and_programs(runner: Any) -> None:
    package = runner.directory / "pkg"
    package.mkdir()
    (package / "mod.py").write_text("import sys; print(__spec__.name, sys.argv[1:])")
    assert runner.run("-n", 2, "-m", "pkg.mod", "a").out.count("pkg.mod ['a']") == 2
    done = runner.run("-n", 2, "--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert sorted(done.out.splitlines()) == ["[r0] 0 of 2", "[r1] 1 of 2"]
