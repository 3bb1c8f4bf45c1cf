"""What is seen while it is measured: rows as they come, and on a terminal a bar below them.

The rule: rows go to standard output and nothing else does; the bar is drawn on a terminal only, and rich is imported
only then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import table
from .records import Report, Row

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

FORMS = ("text", "md", "csv", "json")


class Screen:
    """Takes what rank 0 tells (see ``rank``), keeps the report, and shows it in one of FORMS."""

    def __init__(self, form: str, places: tuple[str, ...], *, bar: bool = True) -> None:
        self._form, self._places, self._bar = form, places, bar
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._of = ""
        self.report: Report = Report({})

    def __repr__(self) -> str:
        return f"Screen({self._form}, {len(self.report.rows)} rows)"

    def tell(self, event: Mapping[str, Any]) -> None:
        """One fact more."""
        if event["kind"] == "begin":
            self.report.machine = dict(event["machine"])
            self._start_bar(int(event["rows"]))
            for line in self._head():
                self._line(line)
        elif event["kind"] == "next":
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, description=event["text"])
        elif event["kind"] == "row":
            row = Row.from_json(event["row"])
            self.report.rows.append(row)
            for line in self._row(row):
                self._line(line)
            if self._progress is not None and self._task is not None:
                self._progress.advance(self._task)

    def finish(self, more: Mapping[str, Any] | None = None) -> None:
        """The last lines; ``more`` belongs to JSON's object."""
        self.stop()
        if self._form == "json":
            sys.stdout.write(json.dumps({**self.report.as_json(), **(more or {})}, indent=1) + "\n")
        elif self._form == "text":
            for line in table.text_end(self.report):
                self._line(line)
        sys.stdout.flush()

    def remark(self, lines: Iterator[str]) -> None:
        """Words about the table: below it in text and Markdown, on standard error where programs read the table."""
        stream = sys.stdout if self._form in ("text", "md") else sys.stderr
        if self._form == "md":
            stream.write("\n")
        stream.writelines(f"{line}\n" for line in lines)
        stream.flush()

    def stop(self) -> None:
        """Takes the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _head(self) -> Iterator[str]:
        if self._form == "text":
            yield table.text_machine(self.report.machine)
        elif self._form == "md":
            yield from table.markdown_head(self._places)
        elif self._form == "csv":
            yield table.csv_head()

    def _row(self, row: Row) -> Iterator[str]:
        if self._form == "text":
            if row.collective != self._of:
                yield "#"
                yield from table.text_head(row, self._places)
                self._of = row.collective
            yield table.text_row(row, self._places)
        elif self._form == "md":
            yield table.markdown_row(row, self._places)
        elif self._form == "csv":
            yield from table.csv_lines(row)

    def _line(self, line: str) -> None:
        if self._progress is not None and sys.stdout.isatty():
            self._progress.console.out(line, highlight=False)
            return
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _start_bar(self, rows: int) -> None:
        """On the terminal that shows the rows, else on that of the messages, else nowhere."""
        stream = next((each for each in (sys.stdout, sys.stderr) if each.isatty()), None)
        if stream is None or not self._bar:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=Console(file=stream, soft_wrap=True), transient=True)
        self._progress.start()
        self._task = self._progress.add_task("", total=rows)
