"""The command line of ``aiocoll run``: one frozen `Options`, and the names that torchrun's and mpirun's users type.

Rule: nothing is ignored silently. What another launcher has and we have not is refused with the nearest thing we have;
only what changes nothing here (``--standalone``, ``--oversubscribe``) is taken and dropped.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aiocoll.cpus import usable_cpus
from aiocoll.errors import UsageError

JOIN_S = 300.0
"""How long runners of one job wait for one another, unless --timeout is less."""
GRACE_S = 30.0
FAILURE_GRACE_S = 1.5
LAST_CALL_S = 30.0
"""With MIN:MAX runners, how long a job that has MIN of them waits for the next one to come."""
RESTARTS = 3
"""How often --on-failure restart starts all ranks again unless --max-restarts says so."""

_DROPPED = ("--standalone", "--oversubscribe", "--allow-run-as-root", "--tag-output", "-prepend-rank", "-l")
_DROPPED_WITH_VALUE = ("--monitor-interval", "--start-method", "--role", "--map-by", "--bind-to")
_REFUSED = {
    "--run-path": "name the script itself",
    "--logs-specs": "use --log-dir",
    "--numa-binding": "start through numactl: --no-python numactl ... python script.py",
    "--virtual-local-rank": "read LOCAL_RANK in the script",
    "--duplicate-stdout-filters": "use --log-dir, and search the files",
    "--duplicate-stderr-filters": "use --log-dir, and search the files",
    "--event-log-handler": "use --json",
    "--signals-to-handle": "INT, TERM and HUP are always handled, QUIT, USR1 and USR2 passed on",
    "--hostfile": "start one runner on each host: --nnodes N --node-rank I --rdzv HOST:PORT",
    "--host": "start one runner on each host: --nnodes N --node-rank I --rdzv HOST:PORT",
}
_REFUSED_ALIASES = {"-H": "--host", "--hosts": "--host", "-hostfile": "--hostfile", "--machinefile": "--hostfile"}


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; seconds unless a name says otherwise."""

    command: tuple[str, ...]
    """The script, module or program, and its arguments."""
    kind: str = "script"
    """"script", "module" or "program"."""
    ranks: int = 1
    """How many this runner starts."""
    nnodes: int = 1
    """How many runners the job has, at most."""
    nnodes_min: int = 1
    """With how many it begins, and goes on."""
    node_rank: int | None = 0
    """None: whoever can serve at `rdzv` is 0, the others take the next free numbers."""
    last_call: float = LAST_CALL_S
    rdzv: str = ""
    job: str = ""
    secret: bytes = field(default=b"", repr=False)
    master: str = ""
    """MASTER_ADDR:MASTER_PORT to export, where the user insists."""
    env: Mapping[str, str] = field(default_factory=dict)
    chdir: str = ""
    max_restarts: int = 0
    """How often all ranks may start again ("restart"), or how many replacements there may be ("shrink")."""
    log_dir: str = ""
    shown: frozenset[int] | None = None
    """Whose output is shown; None is everybody's."""
    timeout: float = math.inf
    grace: float = GRACE_S
    failure_grace: float = FAILURE_GRACE_S
    on_failure: str = "kill"
    """"kill" (one failure ends the job), "shrink" (the others go on) or "restart" (all ranks start again)."""
    stdin: int | None = 0
    """The rank that gets our standard input; None is nobody."""
    dry_run: bool = False
    json: bool = False
    verbose: bool = False


class _Parser(argparse.ArgumentParser):
    """Errors are UsageError, so that who calls us decides how they look."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"aiocoll run: {message} (aiocoll run --help lists all options)")


class _Refused(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        option = str(given[-1])
        advice = _REFUSED[_REFUSED_ALIASES.get(option, option.replace("_", "-"))]
        raise UsageError(f"aiocoll run: {option} is not supported here; instead: {advice}")


def _spellings(*names: str) -> list[str]:
    """Every long name with dashes and with underscores."""
    return list(dict.fromkeys(form for name in names for form in (name, _underscored(name))))


def _underscored(name: str) -> str:
    dashes = len(name) - len(name.lstrip("-"))
    return name[:dashes] + name[dashes:].replace("-", "_")


def parser() -> argparse.ArgumentParser:
    """The parser of everything after ``aiocoll run``."""
    made = _Parser(
        prog="aiocoll run",
        description="Starts N ranks of a program, shows their output, and ends them all when one fails.",
        usage="aiocoll run [-n N] [options] (script.py | -m package.module | --no-python program) [arguments ...]",
        epilog="Every option can be preset by AIOCOLL_RUN_<OPTION>; torchrun's PET_<OPTION> is read after it.",
        allow_abbrev=False,
    )
    add = made.add_argument

    # An option is a line or two.
    # fmt: off
    what = made.add_argument_group("what to start")
    what.add_argument("-m", "--module", action="store_true", help="the program is a module, as for python -m")
    what.add_argument(*_spellings("--no-python"), action="store_true", help="the program is an executable")
    what.add_argument("-n", *_spellings("-np", "--np", "--ranks-per-node", "--nproc-per-node"), dest="ranks",
                      metavar="N", help="ranks on this host, or auto: one per usable CPU (default 1)")
    what.add_argument("-x", "--env", action="append", default=[], metavar="NAME[=VALUE]",
                      help="a variable for the ranks")
    what.add_argument("-genv", "-env", dest="mpich_env", nargs=2, action="append", default=[], help=argparse.SUPPRESS)
    what.add_argument("-C", "--chdir", "-wdir", "--wdir", "--wd", metavar="DIR", help="the ranks' working directory")
    what.add_argument("--stdin", metavar="RANK|none", help="who reads our standard input (default: rank 0)")

    several = made.add_argument_group("several hosts: one runner on each")
    several.add_argument("--nnodes", metavar="N|MIN:MAX",
                         help="number of runners; MIN:MAX: the job begins with at least MIN of them")
    several.add_argument(*_spellings("--node-rank"), metavar="I",
                         help="which of them this one is; 0 serves the store")
    several.add_argument("--rdzv", *_spellings("--rdzv-endpoint"), metavar="HOST:PORT", help="where the runners meet")
    several.add_argument(*_spellings("--job-id", "--rdzv-id"), dest="job", metavar="NAME", help="name of the job")
    several.add_argument(*_spellings("--secret-file"), metavar="FILE",
                         help="the runners' common secret (or AIOCOLL_SECRET); needed beyond loopback")
    several.add_argument(*_spellings("--local-addr"), metavar="ADDR",
                         help="the address that the ranks here tell others")
    several.add_argument(*_spellings("--last-call"), metavar="SECONDS",
                         help=f"with MIN:MAX, how long to wait for one more runner (default {LAST_CALL_S:g})")
    for name in ("--master-addr", "--master-port", "--rdzv-backend", "--rdzv-conf"):
        several.add_argument(*_spellings(name), help=argparse.SUPPRESS)

    ends = made.add_argument_group("when it ends")
    ends.add_argument("--timeout", metavar="SECONDS", help="end the whole job after this long (exit code 124)")
    ends.add_argument("--grace", *_spellings("--shutdown-timeout"), metavar="SECONDS",
                      help=f"from asking ranks to end until killing them (default {GRACE_S:g}; after a failure "
                           f"{FAILURE_GRACE_S:g})")
    ends.add_argument(*_spellings("--on-failure"), metavar="kill|shrink|restart",
                      help="kill: one failure ends all ranks (default); shrink: the others go on; "
                           "restart: all ranks start again (default with --max-restarts)")
    ends.add_argument(*_spellings("--max-restarts"), metavar="N",
                      help=f"restart: start all ranks again up to N times (default {RESTARTS}); shrink: up to N dead "
                           "ranks get a replacement process (default 0)")

    shown = made.add_argument_group("what is shown")
    shown.add_argument("--ranks", *_spellings("--local-ranks-filter"), dest="shown", metavar="0,2-3",
                       help="whose output to show")
    shown.add_argument(*_spellings("--log-dir"), metavar="DIR",
                       help="also write r0.stdout.log, r0.stderr.log, ... there")
    shown.add_argument("-r", "--redirects", metavar="3", help=argparse.SUPPRESS)
    shown.add_argument("-t", "--tee", metavar="3", help=argparse.SUPPRESS)
    shown.add_argument(*_spellings("--dry-run"), action="store_true", help="print what would be started, start nothing")
    shown.add_argument("--json", action="store_true", help="one JSON object a line on stdout: output, exits, failures")
    shown.add_argument("-v", "--verbose", action="store_true", help="say what was decided")

    for name in _DROPPED:
        add(*_spellings(name), action="store_true", help=argparse.SUPPRESS)
    for name in _DROPPED_WITH_VALUE:
        add(*_spellings(name), help=argparse.SUPPRESS)
    for name in (*_REFUSED, *_REFUSED_ALIASES):
        add(*_spellings(name), action=_Refused, nargs="?", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    # fmt: on
    return made


def parse(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Options:
    """Command line to `Options`; UsageError says what is wrong with which option."""
    environ = os.environ if environ is None else environ
    given = parser().parse_args(list(argv))
    if given.on_failure in ("kill", "end") and given.max_restarts is None:
        given.max_restarts = "0"  # the command line wins over a preset number
    _preset(given, environ)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise UsageError("aiocoll run: no program given: aiocoll run -n 4 script.py [arguments]")
    if given.module and given.no_python:
        raise UsageError("aiocoll run: -m and --no-python exclude each other")
    least, nnodes = _nodes(given.nnodes)
    node_rank = None if given.node_rank is None and least < nnodes else _whole("--node-rank", given.node_rank, 0)
    rdzv, master = _meeting(given, nnodes)
    on_failure, restarts = _policy(given.on_failure, given.max_restarts)
    if least == nnodes and not (node_rank or 0) < nnodes:
        raise UsageError(f"aiocoll run: --node-rank {node_rank} is not a node of --nnodes {nnodes}: 0..{nnodes - 1}")
    if given.log_dir is None and (given.redirects or given.tee) not in (None, "0"):
        raise UsageError("aiocoll run: --redirects and --tee write files: say where with --log-dir")
    ranks, shown, stdin = _rank_count(given.ranks), _rank_set(given.shown), _stdin(given.stdin)
    if nnodes == 1:
        _check_ranks_exist(ranks, shown, stdin)
    grace = None if given.grace is None else _seconds("--grace", given.grace, least=0.0)
    return Options(
        command=tuple(command),
        kind="module" if given.module else "program" if given.no_python else "script",
        ranks=ranks,
        nnodes=nnodes,
        nnodes_min=least,
        node_rank=node_rank,
        last_call=_last_call(given),
        rdzv=rdzv,
        job=given.job or "",
        secret=_secret(given.secret_file, environ),
        master=master,
        env=_variables(given, environ),
        chdir=given.chdir or "",
        max_restarts=restarts,
        log_dir=given.log_dir or "",
        shown=frozenset() if given.redirects == "3" else shown,
        timeout=_seconds("--timeout", given.timeout) if given.timeout is not None else math.inf,
        grace=GRACE_S if grace is None else grace,
        failure_grace=FAILURE_GRACE_S if grace is None else grace,
        on_failure=on_failure,
        stdin=stdin,
        dry_run=given.dry_run,
        json=given.json,
        verbose=given.verbose,
    )


# torchrun's variables are named after its own options.
_PET = {"ranks": "NPROC_PER_NODE", "rdzv": "RDZV_ENDPOINT", "job": "RDZV_ID", "grace": "SHUTDOWN_TIMEOUT",
        "shown": "LOCAL_RANKS_FILTER"}  # fmt: skip


def _preset(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Fills what the command line left open from AIOCOLL_RUN_* and PET_*."""
    for dest, value in vars(given).items():
        if value is None or value is False:
            name = {"shown": "RANKS", "ranks": "N"}.get(dest, dest.upper())
            preset = environ.get(f"AIOCOLL_RUN_{name}") or environ.get(f"PET_{_PET.get(dest, dest.upper())}")
            if preset:
                setattr(given, dest, preset.lower() in ("1", "true", "yes") if value is False else preset)


def _rank_count(text: str | None) -> int:
    if text in ("auto", "cpu"):
        return usable_cpus()
    if text == "gpu":
        raise UsageError("aiocoll run: -n gpu is not supported: give the number")
    return _whole("-n", text, 1, least=1)


def _nodes(text: str | None) -> tuple[int, int]:
    """The least and the greatest number of runners."""
    least, colon, most = (text or "1").partition(":")
    low = _whole("--nnodes", least, 1, least=1)
    high = _whole("--nnodes", most, 1, least=1) if colon else low
    if low > high:
        raise UsageError(f"aiocoll run: --nnodes {text}: the smaller number comes first: {high}:{low}")
    return low, high


def _policy(on_failure: str | None, restarts: str | None) -> tuple[str, int]:
    """What follows a failure, and how often."""
    policy = {"end": "kill"}.get(on_failure or "", on_failure) or ("restart" if restarts not in (None, "0") else "kill")
    if policy not in ("kill", "shrink", "restart"):
        raise UsageError(f"aiocoll run: --on-failure {on_failure!r} is none of kill, shrink, restart")
    most = _whole("--max-restarts", restarts, RESTARTS if policy == "restart" else 0)
    if policy == "kill" and most:
        raise UsageError(
            f"aiocoll run: --on-failure {on_failure} starts nothing again, so --max-restarts {most} has no meaning: "
            "leave one of them out, or take --on-failure restart or shrink"
        )
    return policy, most


def _last_call(given: argparse.Namespace) -> float:
    """Our option, or what torchrun's users write: --rdzv-conf last_call_timeout=30,..."""
    text = given.last_call
    for entry in (given.rdzv_conf or "").split(","):
        name, _, value = entry.partition("=")
        if name.strip() == "last_call_timeout" and text is None:
            text = value.strip()
    return LAST_CALL_S if text is None else _seconds("--last-call", text, least=0.0)


def _whole(name: str, text: str | None, default: int, *, least: int = 0) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise UsageError(f"aiocoll run: {name} {text!r}: a whole number of at least {least} is needed")
    return int(text)


def _seconds(name: str, text: str, *, least: float = 1e-3) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= least:
        raise UsageError(f"aiocoll run: {name} {text!r}: a number of seconds is needed")
    return value


def _rank_set(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match:
            raise UsageError(f"aiocoll run: --ranks {text!r}: ranks and ranges are needed, like 0,2-3")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def _check_ranks_exist(size: int, shown: frozenset[int] | None, stdin: int | None) -> None:
    """What names no rank of a job on one host would be silence."""
    there = f"the rank is 0 (-n {size})" if size == 1 else f"the ranks are 0 to {size - 1} (-n {size})"
    if shown and min(shown) >= size:
        raise UsageError(f"aiocoll run: --ranks would show nobody: {there}")
    if stdin is not None and stdin >= size:
        raise UsageError(f"aiocoll run: --stdin {stdin}: nobody would read: {there}")


def _stdin(text: str | None) -> int | None:
    if text == "none":
        return None
    return _whole("--stdin", text, 0)


def _meeting(given: argparse.Namespace, nnodes: int) -> tuple[str, str]:
    """(where runners meet, MASTER_ADDR:PORT that the user wants)."""
    if given.rdzv_backend not in (None, "static", "c10d"):
        raise UsageError(f"aiocoll run: --rdzv-backend {given.rdzv_backend} is not supported: runners meet at --rdzv")
    master = ""
    if given.master_addr is not None or given.master_port is not None:
        port = _whole("--master-port", given.master_port, 29500, least=1)
        master = f"{given.master_addr or '127.0.0.1'}:{port}"
    rdzv = given.rdzv or ""
    if nnodes == 1:
        return "", master
    rdzv, master = rdzv or master, ""
    if not rdzv:
        raise UsageError(f"aiocoll run: --nnodes {nnodes} needs --rdzv HOST:PORT: where node 0 serves the store")
    split_address(rdzv)
    return rdzv, master


def split_address(text: str) -> tuple[str, int]:
    """host:port, [v6]:port; without a port torchrun's 29400."""
    match = re.fullmatch(r"(?:tcp://)?(?:\[([^\[\]]+)\]|([^:\[\]/]+))(?::(\d{1,5}))?/?", text)
    if not match or not 0 < int(match[3] or 29400) < 65536:
        raise UsageError(f"aiocoll run: --rdzv {text!r} is not HOST:PORT (an IPv6 address stands in brackets)")
    return match[1] or match[2], int(match[3] or 29400)


def _secret(path: str | None, environ: Mapping[str, str]) -> bytes:
    found = {name: environ[name] for name in ("AIOCOLL_SECRET_FILE", "AIOCOLL_SECRET") if environ.get(name)}
    if path is not None:
        found = {"AIOCOLL_SECRET_FILE": path}
    if not found:
        return b""
    from aiocoll.place.secret import job_secret

    return job_secret(found)


def _variables(given: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {name: value for name, value in given.mpich_env}
    for entry in given.env:
        name, equals, value = entry.partition("=")
        if not name:
            raise UsageError(f"aiocoll run: --env {entry!r}: NAME=VALUE is needed")
        if equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    if given.local_addr:
        found.setdefault("AIOCOLL_HOST", given.local_addr)
    return found
