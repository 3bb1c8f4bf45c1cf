"""``aiocoll bench`` as a user runs it: ranks of its own, ranks of a job, files, exit codes, and a terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiocoll.algorithms import all_of
from aiocoll.bench.command import RankZero, main
from aiocoll.bench.request import COLLECTIVES

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--seconds", "0.01", "-w", "1", "-b", "4", "-e", "1K", "-f", "256")
DEADLINE_S = 90.0


def bench(*arguments: str, before: tuple[str, ...] = (), code: int = 0) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "aiocoll", *(before or ("bench",)), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_two_ranks_and_a_table() -> None:
    done = bench(*SHORT)
    data = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line[0] for line in data] == ["4", "1024"]
    assert "out of bounds values: 0 OK" in done.stdout and "floor, raw socket" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("calls", ["facade", "group", "await"])
def test_all_collectives_by_every_way_to_call(calls: str) -> None:
    done = bench("all", *SHORT, "--ranks", "3", "--csv", "--calls", calls)
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {line["collective"] for line in lines} == set(COLLECTIVES)
    assert {line["wrong"] for line in lines} == {"0"} and {line["ranks"] for line in lines} == {"3"}


@pytest.mark.slow
def test_inside_a_job_rank_zero_shows_the_table_and_writes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    job = ("run", "-n", "2", "-m", "aiocoll", "bench")
    done = bench(*SHORT, "--await", "--json", "--save", str(path), before=job)
    lines = [line.removeprefix("[r0] ") for line in done.stdout.splitlines()]
    data = json.loads("\n".join(lines))  # nobody else has said a word
    assert data["machine"]["ranks"] == 2 and data["machine"]["caller"] == "await" and len(data["rows"]) == 2
    assert json.loads(path.read_text()) == data


@pytest.mark.slow
def test_another_number_of_ranks_than_the_job_has_is_refused() -> None:
    done = bench(*SHORT, "--ranks", "3", before=("run", "-n", "2", "-m", "aiocoll", "bench"), code=2)
    assert "--ranks 3, but this world has 2" in done.stderr


@pytest.mark.slow
def test_a_run_is_saved_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    bench(*SHORT, "--save", str(path), "--transport", "tcp")
    _rewrite(path, lambda cell: {"low": 0.0, "high": 1e9 * cell["seconds"]})  # whatever this machine does: it is noise
    done = bench(*SHORT, "--diff", str(path), "--json", "--transport", "tcp")
    data = json.loads(done.stdout)
    assert {change["verdict"] for change in data["diff"]} == {"same"} and len(data["diff"]) == 4
    assert {row["transport"] for row in data["rows"]} == {"tcp"}
    assert "0 slower" in done.stderr

    _rewrite(path, lambda cell: {"seconds": 1e-12, "low": 1e-12, "high": 1e-12})
    done = bench(*SHORT, "--diff", str(path), "--transport", "tcp", code=1)
    assert "4 slower" in done.stdout


def _rewrite(path: Path, change: Callable[[dict[str, float]], dict[str, float]]) -> None:
    saved = json.loads(path.read_text())
    for row in saved["rows"]:
        for cell in row["cells"].values():
            cell.update(change(cell))
    path.write_text(json.dumps(saved))


@pytest.mark.slow
def test_each_algorithm_is_forced_in_turn() -> None:
    done = bench("all_reduce", "--algorithm", "all", "--place", "in", *SHORT, "--json")
    forced = [row["forced"] for row in json.loads(done.stdout)["rows"] if row["cells"]]
    from aiocoll.algorithms import all_of

    assert set(forced) <= {each.name for each in all_of("all_reduce")} and len(set(forced)) > 2
    assert all(row["algorithm"] == row["forced"] for row in json.loads(done.stdout)["rows"] if row["cells"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all_reduse"], "no collective 'all_reduse'"),
        (["-o", "bxor"], "cannot be folded"),
        (["-r", "2"], "-r 2 is no rank of 2"),
        (["--diff", "/nowhere/at/all.json"], "cannot be read"),
        (["--save", "/nowhere/at/all.json"], "no directory"),
        (["--ranks", "many"], "--ranks 'many'"),
    ],
)
def test_mistakes_end_before_anything_starts(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("aiocoll bench: ") and words in said.err and said.err.count("\n") == 1
    assert said.out == ""


def test_a_plot_is_refused_before_minutes_are_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aiocoll.bench.plot.find_spec", lambda name: None)
    assert main(["--plot", "out.png"]) == 2
    assert "aiocoll[plot]" in capsys.readouterr().err


def test_help_names_every_collective(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(each in shown for each in COLLECTIVES)


def test_what_ranks_print_beside_the_table_is_passed_on() -> None:
    told: list[object] = []
    others: list[bytes] = []
    sink = RankZero(told.append, others.append)
    sink.write(b'[r0] \x1eaiocoll bench {"kind": "next"}\n[r1] hello\n')
    assert told == [{"kind": "next"}] and others == [b"[r1] hello\n"] and sink.error is None
    sink.write(b"[r0] \x1eaiocoll bench not json\n")
    assert isinstance(sink.error, ValueError)


def terminal(*arguments: str) -> tuple[int, str]:
    """Runs with a terminal as standard output."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    argv = [sys.executable, "-m", "aiocoll", "bench", *arguments]
    with subprocess.Popen(
        argv, stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 1 << 16):
                seen += piece
        except OSError:
            pass  # how Linux says that a terminal has no other side any more
        os.close(ours)
        return process.wait(DEADLINE_S), seen.decode()


@pytest.mark.slow
def test_a_terminal_gets_a_bar_that_goes_away_and_whole_rows() -> None:
    code, seen = terminal(*SHORT)
    assert code == 0
    assert "2/2" in seen and "all_reduce float32 sum 1024 B" in seen and "\x1b[?25h" in seen
    assert "# out of bounds values: 0 OK\r\n" in seen
    names = tuple(f" {each.name}" for each in all_of("all_reduce"))
    assert sum(" float32  sum " in line and line.endswith(names) for line in seen.splitlines()) == 2
    code, seen = terminal(*SHORT, "--no-bar")
    assert code == 0 and "2/2" not in seen and "\x1b" not in seen


def test_without_a_terminal_rich_is_not_imported() -> None:
    program = (
        "import sys\nfrom aiocoll.bench.command import main\n"
        f"code = main({[*SHORT, '--csv']!r})\nprint('rich' in sys.modules, code, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=DEADLINE_S
    )
    assert done.stderr == "False 0\n" and done.stdout.startswith("collective,")


def test_a_reader_that_goes_away_ends_it_and_its_ranks_without_a_word() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "aiocoll", "bench", "all", "--seconds", "0.01", "-w", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"# aiocoll")
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(DEADLINE_S) == 141
