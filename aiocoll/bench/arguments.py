"""The command line of ``aiocoll bench``: nccl-tests' letters where they mean the same, words for the rest.

The rule: a mistake is a UsageError in one line, before any rank is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..cpus import usable_cpus
from ..errors import UsageError
from . import request as asked
from .request import COLLECTIVES, OPS, Request

DESCRIPTION = "Measures the collectives on this machine, checks every result, and shows what the machine itself can do."
EPILOG = """examples:
  aiocoll bench                                      all_reduce on two ranks of this host, 4 B to 16 MiB
  aiocoll bench all --ranks 4 -b 1K -e 1M -f 4       every collective on four
  aiocoll bench all_reduce -d float16 -o sum,max     other numbers, other ops
  aiocoll bench --save before.json                   ... then change something, and
  aiocoll bench --diff before.json                   see what is slower beyond the noise (exit code 1)
  aiocoll run -n 4 -m aiocoll bench --await          in ranks that are there already
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, who does it, and where the results go."""

    request: Request
    ranks: int | None
    """None: as many as the world has, or two."""
    form: str = "text"
    plot: Path | None = None
    save: Path | None = None
    diff: Path | None = None
    noise: float = 0.1
    bar: bool = True
    events: bool = False
    """The ranks' own: tell the process that started us, instead of showing a table."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (aiocoll bench --help lists all options)")


def parser() -> argparse.ArgumentParser:
    """All options."""
    made = _Parser(
        prog="aiocoll bench", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("collectives", nargs="*", metavar="collective", help=f"{', '.join(COLLECTIVES)}, or all "
                      "(default all_reduce)")  # fmt: skip

    what = made.add_argument_group("what to measure")
    what.add_argument("-b", "--minbytes", default="4", metavar="SIZE", help="smallest input of a rank (default 4)")
    what.add_argument("-e", "--maxbytes", metavar="SIZE", help="largest (default 16M, or -b where that is more)")
    what.add_argument("-f", "--stepfactor", type=float, default=4.0, metavar="F", help="from size to size (default 4)")
    what.add_argument("-i", "--stepbytes", metavar="SIZE", help="... or so many bytes more each time")
    what.add_argument("-d", "--datatype", default="float32", metavar="NAMES", help="NumPy's or nccl-tests' names, "
                      "separated by commas, or all (default float32)")  # fmt: skip
    what.add_argument("-o", "--op", default="sum", metavar="NAMES", help=f"{', '.join(OPS)}, or all (default sum)")
    what.add_argument("-r", "--root", type=int, default=0, help="of broadcast, reduce, gather and scatter (default 0)")
    what.add_argument("--place", default="out,in", metavar="out,in", help="with out= beside the input, or into it")
    what.add_argument("--shared", action="store_true", help="arrays from group.empty(), which other ranks can read")
    what.add_argument("--algorithm", default="", metavar="NAMES", help="force these, one after the other; all: each "
                      "that there is")  # fmt: skip

    how = made.add_argument_group("how")
    how.add_argument("--ranks", metavar="N", help="how many to start here, or auto: one per usable CPU (default 2)")
    how.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto")
    how.add_argument("--calls", choices=asked.CALLERS, default="facade", dest="caller",
                     help="facade: aiocoll.distributed where it has the call, else aiocoll.sync (default); group: "
                     "aiocoll.sync; await: the async API")  # fmt: skip
    how.add_argument("--await", action="store_const", const="await", dest="caller", help="the same as --calls await")
    how.add_argument("-n", "--iters", type=int, default=0, metavar="N", help="timed calls of a row (default: as many "
                     "as take --seconds)")  # fmt: skip
    how.add_argument("--seconds", type=float, default=0.2, metavar="S", help="of timed calls of a row (default 0.2)")
    how.add_argument("-w", "--warmup_iters", type=int, default=5, metavar="N", help="calls before those (default 5)")
    how.add_argument("-c", "--check", type=int, default=2, metavar="N", help="calls of which every element is checked "
                     "(default 2; a few elements are looked at in every call)")  # fmt: skip

    shown = made.add_argument_group("what comes out")
    form = shown.add_mutually_exclusive_group()
    for name in ("json", "csv", "md"):
        form.add_argument(f"--{name}", action="store_const", const=name, dest="form", help="instead of the table")
    shown.add_argument("--plot", type=Path, metavar="FILE.png", help="a picture (needs aiocoll[plot])")
    shown.add_argument("--save", type=Path, metavar="FILE", help="keep the results there, as JSON")
    shown.add_argument("--diff", type=Path, metavar="FILE", help="compare with what --save has written")
    shown.add_argument("--noise", type=float, default=0.1, metavar="FRACTION", help="the least change that --diff "
                       "takes for one (default 0.1)")  # fmt: skip
    shown.add_argument("--no-bar", action="store_true", help="no progress bar")
    shown.add_argument("--events", action="store_true", help=argparse.SUPPRESS)
    made.set_defaults(form="text")
    return made


def parse(argv: Sequence[str]) -> Options:
    """Command line to `Options`; UsageError says what is wrong with which option."""
    given = parser().parse_args(list(argv))
    begin = asked.size_of(given.minbytes)
    end = max(begin, 16 << 20) if given.maxbytes is None else asked.size_of(given.maxbytes)
    step = asked.size_of(given.stepbytes) if given.stepbytes is not None else 0
    request = Request(
        collectives=asked.collectives_of(given.collectives),
        sizes=asked.sweep(begin, end, given.stepfactor, step),
        dtypes=asked.dtypes_of(given.datatype),
        ops=asked.ops_of(given.op),
        root=_at_least("-r", given.root, 0),
        places=_places(given.place),
        caller=given.caller,
        transport=given.transport,
        shared=given.shared,
        algorithms=tuple(filter(None, (name.strip() for name in given.algorithm.split(",")))),
        calls=_at_least("-n", given.iters, 0),
        seconds=given.seconds,
        warmup=_at_least("-w", given.warmup_iters, 0),
        checks=_at_least("-c", given.check, 0),
    )
    if not 0 < given.seconds < 3600 or not 0 <= given.noise < 100:
        raise UsageError("--seconds takes a number above 0, --noise a fraction from 0 up")
    asked.check(request)
    return Options(
        request, _ranks(given.ranks), given.form, given.plot, given.save, given.diff, given.noise, not given.no_bar,
        given.events,
    )  # fmt: skip


def _ranks(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "auto":
        return usable_cpus()
    if not text.isdigit() or not 0 < int(text) <= 4096:
        raise UsageError(f"--ranks {text!r}: a whole number from 1 up, or auto, is needed")
    return int(text)


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise UsageError(f"{name} {value}: a number from {least} up is needed")
    return value


def _places(text: str) -> tuple[str, ...]:
    places = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not places or not set(places) <= set(asked.PLACES):
        raise UsageError(f"--place {text!r}: out, in, or both are needed")
    return places
