"""Text, Markdown, CSV and JSON say the same; --diff tells changes from noise; --plot says what it needs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from aiocoll.bench import plot, saved, table
from aiocoll.bench.records import Floor, Report, Row
from aiocoll.bench.screen import FORMS, Screen
from aiocoll.errors import UsageError
from tests.bench.rows import cell, row

MACHINE = {
    "when": "2026-01-01T00:00:00+0000", "cpu": "Fast CPU", "cpus": 2, "system": "Linux 6", "python": "CPython 3.11",
    "numpy": "2.4", "aiocoll": "0.1.0", "ranks": 2, "hosts": 1, "transport": "auto", "caller": "facade",
}  # fmt: skip


def shown(form: str, rows: list[Row], capsys: pytest.CaptureFixture[str], more: Any = None) -> str:
    screen = Screen(form, ("out", "in"))
    screen.tell({"kind": "begin", "rows": len(rows), "machine": MACHINE})
    for each in rows:
        screen.tell({"kind": "next", "text": each.collective})
        screen.tell({"kind": "row", "row": each.as_json()})
    screen.finish(more)
    return capsys.readouterr().out


def rows() -> list[Row]:
    return [
        row(cells={"out": cell(12.34e-6), "in": cell(5678e-6, wrong=2)}, algorithm="exchange"),
        row(nbytes=1 << 20, cells={"out": cell(1e-3)}, floor=Floor(1e-5, 2e-5, None), transport="shm"),
        row(collective="barrier", nbytes=0, dtype="", op="", floor=Floor(), algorithm=""),
    ]


def test_text_has_the_columns_of_nccl_tests(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("text", rows(), capsys).splitlines()
    heads = [line for line in lines if "algbw" in line]
    assert len(heads) == 2  # one for each collective
    assert heads[0].split()[1:12] == [
        "size", "count", "type", "op", "root", "time", "p99", "algbw", "busbw", "#wrong", "eff",
    ]  # fmt: skip
    data = [line.split() for line in lines if not line.startswith("#")]
    assert data[0] == [
        "4096", "1024", "float32", "sum", "-1", "12.34", "24.68", "0.33", "0.33", "0", "0.32",
        "5678.0", "11356", "0.00", "0.00", "2", "0.00", "4.00", "tcp", "exchange",
    ]  # fmt: skip
    assert "N/A" in data[1] and data[1][-2:] == ["shm", "exchange"] and data[2][:4] == ["0", "0", "-", "none"]
    assert "# out of bounds values: 2 FAILED" in lines
    assert any(line.startswith("# avg bus bandwidth: ") for line in lines)
    assert "Fast CPU" in lines[0] and "2 ranks on 1 host" in lines[1]
    starts = {line.index("N/A") + 3 for line in lines if "N/A" in line}
    assert len(starts) == 1  # columns stand below one another


def test_markdown_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("md", rows(), capsys).splitlines()
    assert len(lines) == 5 and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| all_reduce | 4 KiB | 1024 | float32 |")


def test_csv_has_a_line_per_place_and_exact_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    read = list(csv.DictReader(io.StringIO(shown("csv", rows(), capsys))))
    assert [(line["collective"], line["place"]) for line in read] == [
        ("all_reduce", "out"), ("all_reduce", "in"), ("all_reduce", "out"), ("barrier", "out"),
    ]  # fmt: skip
    assert float(read[0]["time_us"]) == pytest.approx(12.34) and read[1]["wrong"] == "2"
    assert read[2]["floor_socket_us"] == "" and float(read[2]["efficiency"]) == pytest.approx(0.02)


def test_json_is_one_object_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown("json", rows(), capsys, {"diff": []}))
    assert data["machine"] == MACHINE and data["diff"] == []
    assert [Row.from_json(each) for each in data["rows"]] == rows()


def test_rows_are_written_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    for form in set(FORMS) - {"json"}:
        screen = Screen(form, ("out",))
        screen.tell({"kind": "begin", "rows": 2, "machine": MACHINE})
        capsys.readouterr()
        screen.tell({"kind": "row", "row": rows()[0].as_json()})
        assert "4096" in capsys.readouterr().out or form == "md"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 30, "1 GiB"), (5 << 40, "5120 GiB")],
)
def test_sizes_as_people_read_them(nbytes: int, text: str) -> None:
    assert table.size_text(nbytes) == text


# ------------------------------------------------------------------------------------------ --save and --diff


def one(seconds: float, spread: float = 0.0, **facts: Any) -> Report:
    return Report(dict(MACHINE), [row(seconds=seconds, spread=spread, **facts)])


@pytest.mark.parametrize(
    ("before", "now", "noise", "spread", "verdict"),
    [
        (100e-6, 120e-6, 0.1, 0.0, "slower"),
        (100e-6, 109e-6, 0.1, 0.0, "same"),
        (100e-6, 80e-6, 0.1, 0.0, "faster"),
        (100e-6, 92e-6, 0.1, 0.0, "same"),
        (100e-6, 120e-6, 0.1, 0.3, "same"),
        (100e-6, 140e-6, 0.1, 0.3, "slower"),
        (100e-6, 101e-6, 0.0, 0.0, "slower"),
    ],
)
def test_a_change_is_one_beyond_the_noise(before: float, now: float, noise: float, spread: float, verdict: str) -> None:
    for old, new in ((one(before, spread), one(now)), (one(before), one(now, spread))):
        (change,) = saved.changes(old, new, noise)
        assert change.verdict == verdict
        assert change.ratio == pytest.approx(now / before)


def test_only_rows_of_one_kind_are_compared() -> None:
    old = one(1e-4)
    for facts in ({"nbytes": 8}, {"ranks": 3}, {"transport": "shm"}, {"caller": "await"}, {"shared": True},
                  {"forced": "ring"}, {"op": "max"}, {"dtype": "float64"}):  # fmt: skip
        assert saved.changes(old, one(1e-4, **facts), 0.1) == []
    assert len(saved.changes(old, one(1e-4, algorithm="another"), 0.1)) == 1


def test_the_comparison_names_what_is_slower_and_another_machine() -> None:
    old, new = one(1e-4), one(2e-4)
    new.rows.append(row(nbytes=12))
    new.machine["cpu"] = "Slow CPU"
    text = "\n".join(saved.lines(old, new, saved.changes(old, new, 0.1), "old.json"))
    assert "+100.0 %" in text and "slower" in text and "1 of 2 cells are not in old.json" in text
    assert "cpu was 'Fast CPU' and is 'Slow CPU'" in text and "0 faster, 0 same, 1 slower" in text


def test_what_is_saved_can_be_loaded(tmp_path: Path) -> None:
    report = Report(dict(MACHINE), rows())
    saved.save(tmp_path / "run.json", report)
    loaded = saved.load(tmp_path / "run.json")
    assert (loaded.machine, loaded.rows) == (report.machine, report.rows)


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "no JSON"), ("[]", "not written by"), ('{"format": "aiocoll bench 1"}', "damaged"),
     ('{"format": "aiocoll bench 1", "machine": {}, "rows": [{"cells": 1}]}', "damaged"), ("{}", "not written by")],
)  # fmt: skip
def test_other_files_are_refused(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        saved.load(path)
    with pytest.raises(UsageError, match="cannot be read"):
        saved.load(tmp_path / "none.json")


# ------------------------------------------------------------------------------------------ --plot


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"aiocoll\[plot\]"):
        plot.check_plot()


def test_lines_of_a_plot_differ_in_more_than_size() -> None:
    report = Report({}, [*rows(), row(nbytes=8, op="max"), row(nbytes=64)])
    found = {label: [each.nbytes for each in lines] for label, lines in plot.series(report).items()}
    assert found == {
        "all_reduce float32 sum tcp": [4096, 64], "all_reduce float32 sum shm": [1 << 20],
        "all_reduce float32 max tcp": [8],
    }  # fmt: skip


@pytest.mark.leaks("matplotlib keeps the files of its fonts open")
def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'aiocoll[plot]'")
    plot.plot(Report(MACHINE, rows()), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="out.nonsense"):
        plot.plot(Report(MACHINE, rows()), tmp_path / "out.nonsense")
