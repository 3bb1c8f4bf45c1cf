"""``%%ranks`` and ``%ranks``: what is typed into a notebook, as calls of a `Crew`, and their outcome as text.

Rule: whatever goes wrong, the cell says it in a line or two; the ranks' own tracebacks stand above that.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from aiocoll.cpus import usable_cpus
from aiocoll.errors import AiocollError, UsageError
from aiocoll.notebook.cells import Answer
from aiocoll.notebook.crew import Crew
from aiocoll.runner.verdict import names

RANKS = 4
_CELL_HELP = "usage: %%ranks [-n RANKS] [--ranks 0,2] [--timeout SECONDS] [--transport NAME] [--allow-pickle]"
_LINE_HELP = "usage: %ranks [status | stop | restart [-n RANKS]]"


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext aiocoll``: `shell` is the running IPython."""
    magic = Ranks()
    shell.register_magic_function(magic.ranks, "line_cell", "ranks")
    atexit.register(magic.stop)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext aiocoll``: ends the ranks."""
    for kind in ("line", "cell"):
        magic = shell.magics_manager.magics[kind].pop("ranks", None)
        if isinstance(owner := getattr(magic, "__self__", None), Ranks):
            atexit.unregister(owner.stop)
            owner.stop()


class Ranks:
    """The magic, and the ranks that it has started."""

    def __init__(self) -> None:
        self._crew: Crew | None = None
        self._size, self._options = RANKS, dict[str, Any]()
        """How the last ranks were started; once they are stopped on purpose, as at first."""
        self._home = os.getpid()

    def __repr__(self) -> str:
        return f"Ranks({self._crew!r})"

    def ranks(self, line: str, cell: str | None = None) -> None:
        """Runs a cell on several ranks that live on between cells.

        %%ranks [-n RANKS] [--ranks 0,2] [--timeout SECONDS] [--transport NAME] [--allow-pickle]

        The first such cell starts the ranks (4 unless -n says otherwise). Each has `rank`, `size` and `group`: in a
        cell with `await` at its top level the async group, in others the blocking one. What they print is shown behind
        [r0], [r1] and so on, then the value of the last expression. --ranks limits what is shown, --timeout interrupts
        the cell. After a cell that failed on some rank `group` is a new one.

        %ranks status, %ranks stop, %ranks restart [-n RANKS] say how they are, end them, and begin anew.
        """
        if cell is None:
            self._command(line)
        else:
            self._run(line, cell)

    def stop(self) -> None:
        """Ends the ranks, if there are any; in a forked child: nothing."""
        if self._crew is not None and os.getpid() == self._home:
            self._crew.stop()
            self._crew = None

    # ------------------------------------------------------------------------------------------ %%ranks

    def _run(self, line: str, code: str) -> None:
        with _Briefly():
            options = _parse_cell(line)
            size = options.n or self._size
            if beyond := [rank for rank in options.shown or () if not 0 <= rank < size]:
                raise UsageError(f"%%ranks: --ranks {','.join(map(str, beyond))}: the ranks are 0 to {size - 1}")
            crew = self._crew_for(options)
            try:
                answers = crew.run(code, _show, shown=options.shown, timeout=options.timeout)
            finally:
                if crew.over is not None:
                    self._crew = None
                    crew.stop()
            _show_answers(answers, options.shown)

    def _crew_for(self, options: argparse.Namespace) -> Crew:
        if self._crew is not None and self._crew.over is not None:
            why = self._crew.cause
            self.stop()
            _show("stderr", f"aiocoll: the ranks have ended since the last cell ({why}); starting new ones\n")
        connect = {name: getattr(options, name) for name in ("transport", "allow_pickle") if getattr(options, name)}
        if self._crew is None:
            return self._start(options.n or self._size, connect or self._options)
        if options.n not in (None, self._crew.size) or (connect and connect != self._options):
            raise UsageError(
                f"%%ranks: {_ranks(self._crew.size)} running, and keep their number and their "
                "transport; %ranks stop ends them, and with them what they hold"
            )
        return self._crew

    def _start(self, n: int, connect: dict[str, Any]) -> Crew:
        self._size, self._options = n, connect
        self._crew = Crew(n, environ=os.environ, path=sys.path, **connect)
        return self._crew

    # ------------------------------------------------------------------------------------------ %ranks

    def _command(self, line: str) -> None:
        with _Briefly():
            options = _parse_line(line)
            crew = self._crew
            if options.what == "status":
                _show("stdout", _status(crew))
            elif options.what == "stop":
                self.stop()
                self._size, self._options = RANKS, {}
                ended = "no ranks were running" if crew is None else f"{_ranks(crew.size, 'has', 'have')} ended"
                _show("stdout", f"{ended}\n")
            else:
                n = options.n or self._size
                self.stop()
                self._start(n, self._options)
                _show("stdout", f"{n} new rank{'s' * (n > 1)}\n")


def _status(crew: Crew | None) -> str:
    if crew is None:
        return f"no ranks; a cell that begins with %%ranks -n {RANKS} starts some\n"
    if crew.over is not None:
        return f"no ranks any more: {crew.cause}\n"
    pids = ", ".join(f"{rank}: {pid}" for rank, pid in sorted(crew.pids.items()))
    return f"{crew.size} rank{'s' * (crew.size > 1)}, cells run: {crew.cells}; processes by rank: {pids}\n"


def _ranks(count: int, one: str = "is", several: str = "are") -> str:
    return f"1 rank {one}" if count == 1 else f"{count} ranks {several}"


# ---------------------------------------------------------------------------------------------- what is typed


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; {self.usage}")


def _count(text: str) -> int:
    if text == "auto":
        return usable_cpus()
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of ranks: 1 or more, or "auto"')
    return int(text)


def _some(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not ranks, such as 0,2") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _parse_cell(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%ranks", usage=_CELL_HELP, add_help=False, allow_abbrev=False)
    parser.add_argument("-n", type=_count)
    parser.add_argument("--ranks", dest="shown", type=_some)
    parser.add_argument("--timeout", type=_seconds, default=0.0)
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"))
    parser.add_argument("--allow-pickle", action="store_true")
    return parser.parse_args(line.split())


def _parse_line(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%ranks", usage=_LINE_HELP, add_help=False, allow_abbrev=False)
    parser.add_argument("what", nargs="?", choices=("status", "stop", "restart"), default="status")
    parser.add_argument("-n", type=_count)
    return parser.parse_args(line.split())


# ---------------------------------------------------------------------------------------------- what is shown


def _show(stream: str, text: str) -> None:
    target = getattr(sys, stream)
    target.write(text)
    target.flush()


def _show_answers(answers: Sequence[Answer], shown: Sequence[int] | None) -> None:
    """Values, then tracebacks, each kind in rank order; raises if there was an error."""
    for answer in answers:
        if answer.value is not None and (shown is None or answer.rank in shown):
            _show("stdout", _behind([answer.rank], answer.value, "Out: "))
    failed = [answer for answer in answers if answer.error is not None]
    if not failed:
        return
    told: dict[str, list[int]] = {}
    for answer in failed:
        assert answer.error is not None
        line = f"{answer.error['class']}: {answer.error['message']}".partition("\n")[0]
        told.setdefault(line if answer.consequence else answer.error["traceback"], []).append(answer.rank)
    for text, ranks in told.items():
        _show("stderr", _behind(ranks, text))
    first = min(failed, key=lambda answer: (answer.consequence, answer.error["time"] if answer.error else 0.0))
    assert first.error is not None
    also = [answer.rank for answer in failed if answer is not first]
    raise AiocollError(
        f"the cell failed on rank {first.rank}: {first.error['class']}: {first.error['message']}"
        + (f" (and on {names(also)})" if also else "")
    )


def _behind(ranks: Sequence[int], text: str, mark: str = "") -> str:
    """Each line behind whose it is; what several say alike is shown once."""
    who = f"[{','.join(f'r{rank}' for rank in ranks)}] "
    first, *rest = text.splitlines() or [""]
    return "".join([f"{who}{mark}{first}\n", *(f"{who}{' ' * len(mark)}{line}\n" for line in rest)])


class _Briefly:
    """Errors of ours are shown by the notebook without the way they took through this package."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, AiocollError):
            line = f"{type(error).__name__}: {error}"
            vars(error)["_render_traceback_"] = lambda: [line]
