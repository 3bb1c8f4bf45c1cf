"""``aiocoll bench``: starts the ranks and shows what they find; inside a job, is one of its ranks.

The rule: exit code 0 says that every result was right and, with --diff, that nothing is slower beyond the noise; 1 that
this is not so; 2 is a command line that makes no sense; anything else is the exit code of a rank that failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import UsageError
from ..place import detect
from . import rank, saved
from .arguments import Options, parse
from .plot import check_plot, plot
from .records import Report
from .screen import Screen

USAGE_CODE: Final = 2
_RANKS: Final = 2
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_START: Final = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from aiocoll.bench.command import main; sys.exit(main(sys.argv[1:]))"
)
_MARK: Final = b"\x1eaiocoll bench "  # begins the lines in which rank 0 tells what it finds


def main(argv: Sequence[str]) -> int:
    """Measures what the arguments after ``aiocoll bench`` ask for; returns the exit code."""
    try:
        options = parse(argv)
        place = detect()
        if options.events:
            rank.measure(options.request, _to_starter, options.ranks)
            return 0
        if place.rank:
            rank.measure(options.request, lambda event: None, options.ranks)
            return 0  # rank 0 is told, shows it, and has the files
        before = _prepared(options)
        screen = Screen(options.form, options.request.places, bar=options.bar)
        try:
            if place.rank is None:
                code = _start_ranks(options, argv, screen.tell)
                if code:
                    return code
            else:
                rank.measure(options.request, screen.tell, options.ranks)
            return _ended(options, screen, before)
        finally:
            screen.stop()
    except UsageError as error:
        sys.stderr.write(f"aiocoll bench: {error}\n")
        return USAGE_CODE


def _prepared(options: Options) -> Report | None:
    """Finds out now what would otherwise be found out after minutes; the report to compare with."""
    if options.plot is not None:
        check_plot()
    for name, path in (("--plot", options.plot), ("--save", options.save)):
        if path is not None and not os.access(path.parent, os.W_OK):
            raise UsageError(f"{name} {path}: {path.parent} is no directory that can be written to")
    return saved.load(options.diff) if options.diff is not None else None


def _ended(options: Options, screen: Screen, before: Report | None) -> int:
    """Shows the end, writes the files, and judges."""
    report = screen.report
    found = saved.changes(before, report, options.noise) if before is not None else []
    screen.finish({"diff": [change.as_json() for change in found]} if before is not None else None)
    if before is not None:
        screen.remark(saved.lines(before, report, found, str(options.diff)))
    if options.save is not None:
        saved.save(options.save, report)
    if options.plot is not None:
        plot(report, options.plot)
    slower = any(change.verdict == "slower" for change in found)
    return 1 if report.wrong or slower else 0


# ------------------------------------------------------------------------------------------ ranks of our own


class RankZero:
    """A sink for the ranks' standard output: hears what rank 0 tells, passes everything else on."""

    tty = False

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], others: Callable[[bytes], None]) -> None:
        self._tell, self._others = tell, others
        self.error: Exception | None = None

    def __repr__(self) -> str:
        return f"RankZero(error={self.error!r})"

    def write(self, data: bytes) -> None:
        """Whole lines, each behind its rank's prefix."""
        for line in data.splitlines(keepends=True):
            _, marked, text = line.partition(_MARK)
            if not marked:
                self._others(line)
                continue
            try:
                self._tell(json.loads(text))
            except OSError:
                raise  # nobody reads us any more: the runner ends the ranks
            except Exception as error:
                self.error = self.error or error


def _to_starter(event: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(_MARK + json.dumps(event).encode() + b"\n")
    sys.stdout.buffer.flush()


def _start_ranks(options: Options, argv: Sequence[str], tell: Callable[[Mapping[str, Any]], None]) -> int:
    """Starts the ranks with the same arguments and sees them through; their exit code."""
    from ..runner import command
    from ..runner.console import Console, FileSink
    from ..runner.options import Options as RunOptions
    from ..runner.plan import Layout, base_environment, python_command
    from ..runner.start import Recipe

    ranks = options.ranks or _RANKS
    if options.request.root >= ranks:
        raise UsageError(f"-r {options.request.root} is no rank of {ranks}: ranks are 0 to {ranks - 1}")
    recipe = Recipe(
        [*python_command(), "-c", _START, *argv, "--events"], base_environment(os.environ, {}, ranks), piped=True
    )
    errors = FileSink(2)
    heard = RankZero(tell, errors.write)
    console = Console(heard, errors, prefixed=True)
    code = command.see_through(
        RunOptions(command=("bench",), ranks=ranks, stdin=None),
        Layout(size=ranks, ranks=ranks, job=os.urandom(6).hex()),
        recipe,
        console,
    )
    if heard.error is not None:
        raise heard.error
    return code
