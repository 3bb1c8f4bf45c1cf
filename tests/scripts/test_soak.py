"""scripts/soak.py plays, replays, and says what is wrong with the line that replays it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from aiocoll.testing.matrix import Case

ROOT = Path(__file__).resolve().parents[2]
LINE = "all_reduce:ring size=3 victim=1 crash frames=2 seed=5"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("soak")


@pytest.mark.slow
def test_it_plays_in_several_processes() -> None:
    options = ["--cases", "4100", "--jobs", "2", "--only", "barrier:", "--sizes", "2"]
    command = [sys.executable, "scripts/soak.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4100 cases, 0 wrong" in done.stdout


def test_a_case_is_replayed(soak: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--replay", LINE, LINE]) == 0
    assert capsys.readouterr().out == f"right: {LINE}\n" * 2
    assert soak.main(["--replay", "all_reduce:ring"]) == 2
    assert "is no case" in capsys.readouterr().err


def test_what_is_wrong_is_shown_with_the_way_to_play_it_again(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(case: Case) -> list[str]:
        return ["rank 2 is too slow"] if case.victim == 1 else []

    monkeypatch.setattr(soak, "play", wrong)
    assert soak.main(["--cases", "40", "--jobs", "1", "--only", "all_reduce:ring", "--sizes", "2", "3"]) == 1
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("wrong: "))
    assert "    rank 2 is too slow" in said and "40 cases, " in said
    shown = line.removeprefix("wrong: python scripts/soak.py --replay '").removesuffix("'")
    assert Case.parse(shown).program == "all_reduce:ring"
    assert soak.main(["--replay", shown]) == 1


def test_each_is_struck_equally_often(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Case] = []

    def right(case: Case) -> list[str]:
        played.append(case)
        return []

    monkeypatch.setattr(soak, "play", right)
    monkeypatch.setattr(soak, "CHUNK", 7)  # chunks end in the middle of a turn
    arguments = ["--each", "3", "--jobs", "1", "--only", "all_reduce:ring", "--sizes", "2", "4"]
    assert soak.main([*arguments, "--faults", "crash", "cancel"]) == 0
    counted = Counter((case.size, case.victim, case.fault) for case in played)
    assert set(counted) == {(s, v, f) for s in (2, 4) for v in range(s) for f in ("crash", "cancel")}
    assert set(counted.values()) == {3} and len(set(map(str, played))) == 36
    assert "36 cases, 0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--only", "nothing like it"], ["--replay", "all_reduce:nothing size=3"]])
def test_what_does_not_exist_is_refused(soak: ModuleType, arguments: list[str]) -> None:
    assert soak.main(arguments) == 2


def test_programs_that_do_not_exist_are_refused_by_name(soak: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--replay", "all_reduce:magic size=3 victim=1 crash frames=2 seed=5"]) == 2
    assert "all_reduce:magic" in capsys.readouterr().err


def test_a_case_that_does_not_end_is_wrong_too(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spin(case: Case) -> list[str]:
        while True:
            pass

    monkeypatch.setattr(soak, "_CPU_SECONDS_MAX", 1)
    monkeypatch.setattr(soak, "play", spin)
    assert soak.main(["--replay", LINE]) == 1
    assert "still ran after 1 seconds" in capsys.readouterr().out
