"""The command line: ``aiocoll COMMAND``, each command one module that is imported when it is asked for.

Rule: nothing is done here but choosing, and seeing to the standard streams: one that is closed is /dev/null, and a
reader that goes away (``| head``) ends a command without a word, as SIGPIPE ends other tools.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module

from aiocoll.runner.signals import UNREAD_CODE

COMMANDS = {
    "run": ("aiocoll.runner.command", "start the ranks of a program and see them through"),
    "trace": ("aiocoll.trace.command", "what the ranks of a job are doing, and what their dumps say together"),
    "bench": ("aiocoll.bench.command", "measure the collectives, and what the machine itself can do"),
    "doctor": ("aiocoll.doctor", "what aiocoll finds here; --env: where connect() takes this process to be"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (2 for a command line that makes no sense)."""
    _have_standard_streams()
    try:
        try:
            return _main(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        _write_no_more()
        return UNREAD_CODE


def _main(argv: Sequence[str] | None) -> int:
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if name in COMMANDS:
        code: int = import_module(COMMANDS[name][0]).main(rest)
        return code
    if name in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if name in ("-V", "--version", "version"):
        sys.stdout.write(_versions())
        return 0
    sys.stderr.write(f"aiocoll: no command {name!r}{_advice(name, rest)}\n{_help()}")
    return 2


def _have_standard_streams() -> None:
    """A pipe of ours must not get the number of a standard stream that somebody closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w", closefd=False))


def _nobody_reads() -> bool:
    """Whether stdout or stderr is a pipe without a reader: other pipes break, too."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)
    return bool(poll.poll(0))


def _write_no_more() -> None:
    """The interpreter flushes at its end what could not be written."""
    with open(os.devnull, "wb") as nothing:
        for fd in (1, 2):
            os.dup2(nothing.fileno(), fd)


def _advice(name: str, rest: Sequence[str]) -> str:
    """What was probably meant: a command with a slip in it, or ``run`` left out before its options or a script."""
    import difflib  # milliseconds that only a slip should cost

    if (name.startswith("-") and rest) or name.endswith(".py") or os.path.isfile(name):
        return f": did you mean 'aiocoll run {' '.join([name, *rest])}'?"
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.65)
    return f": did you mean {near[0]!r}?" if near else ""


def _help() -> str:
    lines = [f"  {name:8} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: aiocoll COMMAND ...", "", *lines, "", "aiocoll COMMAND --help says more; --version", ""])


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    words = [f"Python {sys.version.partition(' ')[0]}"]
    for package in ("numpy", "msgpack", "uvloop"):
        try:
            words.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            words.append(f"no {package}")
    try:
        own = version("aiocoll")
    except PackageNotFoundError:
        own = "(not installed)"
    return f"aiocoll {own}, {', '.join(words)}\n"
