"""``aiocoll trace``: dumps of running ranks, and what dumps say together.

The rule: what is said goes to stdout, what could not be had to stderr; the exit code is 0 only if there was a dump.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence

from aiocoll.errors import AiocollError, UsageError

from .dumps import Dump, files, latest, read
from .ranks import ask, chosen, everybody
from .timeline import timeline
from .verdict import job_named, verdict

USAGE_CODE = 2
_DESCRIPTION = "What the ranks of a job are doing, and what their dumps say together."
_EPILOG = "A rank also dumps by itself when a group breaks, if AIOCOLL_TRACE_DIR is set (aiocoll run sets it)."


def main(argv: Sequence[str]) -> int:
    """Runs the command that the arguments after ``aiocoll trace`` describe."""
    options = _parser().parse_args(list(argv))
    try:
        if options.what == "show":
            return _show(options, [read(path) for path in files(options.files)])
        if options.pids and options.job is not None:
            raise UsageError("aiocoll trace dump: give process ids or --job, not both")
        if not options.pids and options.job is None:
            raise UsageError("aiocoll trace dump: whose? Give process ids (of ranks, or of aiocoll run), or --job")
        dumps, silent = ask(chosen(options.pids, options.job, everybody()), options.timeout)
        for line in silent:
            sys.stderr.write(f"aiocoll: {line}\n")
        if options.output:
            _keep(dumps, options.output)
        return _show(options, dumps) if dumps else 1
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_CODE
    except AiocollError as error:
        sys.stderr.write(f"aiocoll trace: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aiocoll trace", description=_DESCRIPTION, epilog=_EPILOG)
    commands = parser.add_subparsers(dest="what", required=True, metavar="dump|show")
    dump = commands.add_parser("dump", help="ask the ranks of a running job (SIGUSR2) and show what they say together")
    dump.add_argument("pids", nargs="*", type=int, metavar="PID", help="ranks, or a runner for all its ranks")
    dump.add_argument("--job", nargs="?", const="", metavar="NAME", help="all ranks of a job (without NAME: the only)")
    dump.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="how long to wait (%(default)g)")
    dump.add_argument("-o", "--output", metavar="DIRECTORY", help="keep the dumps there, too")
    show = commands.add_parser("show", help="what dumps say together: who died, who waits for whom, what differed")
    show.add_argument("files", nargs="+", metavar="FILE", help="dumps (*.trace.json), or directories of them")
    for command in (dump, show):
        command.add_argument(
            "--facts", type=int, default=20, metavar="N", help="the last N facts of all ranks (%(default)d)"
        )
        command.add_argument("--json", action="store_true", help="verdict and dumps as one JSON object")
    return parser


def _show(options: argparse.Namespace, dumps: list[Dump]) -> int:
    lines = verdict(dumps) or ["nobody waits, nobody died, and all calls were alike"]
    if options.json:
        content = {"verdict": lines, "dumps": [dump.content for dump in dumps]}
        sys.stdout.write(json.dumps(content) + "\n")
        return 0
    speaking = [dump for ranks in latest(dumps).values() for dump in ranks.values()]
    several = len({dump.job for dump in speaking}) > 1
    for dump in speaking:
        of = f"{dump.size} of {job_named(dump.job)}" if several else str(dump.size)
        sys.stdout.write(f"{dump.who(dump.rank)} of {of}: {dump.content['why']}\n")
    sys.stdout.writelines(f"{line}\n" for line in ("", *lines))
    facts = timeline(speaking, max(options.facts, 0))
    sys.stdout.writelines(f"{line}\n" for line in (("", *facts) if facts else ()))
    return 0


def _keep(dumps: Sequence[Dump], directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
        for dump in dumps:
            for path in (dump.path, dump.path.removesuffix(".json") + ".txt"):
                shutil.copy(path, directory)
    except OSError as error:
        raise AiocollError(f"--output {directory!r}: {error.strerror}") from error
