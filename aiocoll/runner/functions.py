"""`aiocoll.launch`: runs a function on n ranks, from a script, a test or a notebook.

Rule: the caller's process stays as it was: no fork, no signal handlers, no event loop in its thread. The ranks belong
to a warden, so they end with the caller, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.machinery
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from aiocoll.cpus import usable_cpus
from aiocoll.errors import AiocollError, CollectiveTimeoutError, PeerLostError, SerializationError, UsageError
from aiocoll.runner.console import Console, FileSink, Sink, TextSink
from aiocoll.runner.job import TIMEOUT_CODE
from aiocoll.runner.options import GRACE_S, Options
from aiocoll.runner.plan import Layout, base_environment, python_command
from aiocoll.runner.start import Recipe, Started
from aiocoll.runner.supervise import Supervisor
from aiocoll.runner.traces import Traces
from aiocoll.runner.verdict import decode, names

LAUNCHERS = ("local",)
_ROOT = str(Path(__file__).resolve().parents[2])


def launch(
    fn: Callable[..., Any],
    *args: Any,
    n: int | str = 4,
    launcher: str = "local",
    timeout: float | None = None,
    grace: float = GRACE_S,
    env: Mapping[str, str] | None = None,
    ranks: Sequence[int] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    **connect: Any,
) -> list[Any]:
    """Runs ``fn(group, *args)`` on `n` ranks of this host and returns what each of them returned, in rank order.

    `fn` may be async (it gets a `Group`) or plain (it gets a blocking `SyncGroup`); it, its arguments and its results
    travel by cloudpickle, so lambdas and functions of a notebook will do. What the ranks print is shown, behind
    ``[r0]`` and so on if there are several; `ranks` limits that to some of them.

    n: number of ranks, or "auto" for one per usable CPU. timeout: seconds for everything. grace: seconds between Ctrl-C
    and killing. env: more variables. log_dir: where to write each rank's output. Other keywords are those of
    `aiocoll.connect` (name, transport, allow_pickle).

    An exception of a rank is raised here, of the rank that failed first: the same exception with a note that names the
    rank and shows its traceback there, and with the attribute ``rank`` unless it has one. A rank that dies or exits
    without returning raises `PeerLostError`; a passed deadline `CollectiveTimeoutError`; what cannot be pickled
    `SerializationError`. Where several ranks failed, or the deadline passed, the note says what they knew together,
    too: who waited for whom, and where their calls first differed. In every case, Ctrl-C included, no rank is left when
    this returns.
    """
    if launcher not in LAUNCHERS:
        raise UsageError(f"launch: launcher={launcher!r} is not known; there is {', '.join(map(repr, LAUNCHERS))}")
    count = _count(n)
    payload = _pickled(fn, args, connect)
    options = Options(
        command=("launch",),
        ranks=count,
        timeout=math.inf if timeout is None else timeout,
        grace=grace,
        env=dict(env or {}),
        log_dir=os.fspath(log_dir) if log_dir is not None else "",
        stdin=None,
    )
    start = f"import sys; sys.path.insert(0, {_ROOT!r}); from aiocoll.runner.worker import main; main()"
    environment = base_environment(os.environ, options.env, count)
    traces = Traces.choose(environment, options.log_dir, said=False)
    recipe = Recipe(
        [*python_command(), "-c", start],
        {**environment, **traces.variables},
        piped=True,
        payload=payload,
        traces=traces,
    )
    console = Console(
        _sink(sys.stdout, 1),
        _sink(sys.stderr, 2),
        prefixed=count > 1,
        shown=lambda rank: ranks is None or rank in ranks,
    )
    try:
        first = recipe.start_alone(Layout(size=count, ranks=count, job=os.urandom(6).hex()))
        supervisor = Supervisor(options, recipe, console)
        code = _run_in_thread(supervisor, first)
    finally:
        console.close()
    return _outcome(supervisor, code, options)


def _count(n: int | str) -> int:
    if n == "auto":
        return usable_cpus()
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f'launch: n={n!r}: a whole number of at least 1, or "auto", is needed')
    return n


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...], connect: dict[str, Any]) -> bytes:
    if not callable(fn):
        raise UsageError(f"launch: fn={fn!r} cannot be called; give the function itself and its arguments after it")
    import cloudpickle

    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    # A module that only the caller can import (a test, a script by another name) travels as source would.
    by_value = module is not None and module.__name__ != "__main__" and not _importable(module.__name__)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        job = pickle.dumps(cloudpickle.dumps((fn, args, connect)))
    except Exception as error:
        raise SerializationError(f"launch: fn or one of its arguments cannot be pickled: {error}") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    # The path comes first: what is loaded may need it.
    return pickle.dumps([entry or os.getcwd() for entry in sys.path]) + job


def _importable(name: str) -> bool:
    """Whether a fresh process with our sys.path would find the module's outermost package."""
    try:
        return importlib.machinery.PathFinder.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _sink(stream: TextIO | None, fd: int) -> Sink:
    """A notebook's or a test's stream where there is one, else the descriptor."""
    if stream is None:
        return FileSink(fd)
    stream.flush()
    if stream in (sys.__stdout__, sys.__stderr__):
        return FileSink(fd)
    return TextSink(stream)


def _run_in_thread(supervisor: Supervisor, first: Started) -> int:
    """The job's exit code. A thread, since the caller's may run an event loop already; Ctrl-C reaches the ranks."""
    outcome: list[int | BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            outcome.append(asyncio.run(supervisor.run(first))[0])
        except BaseException as error:
            outcome.append(error)
        finally:
            first.close()
            over.set()

    thread = threading.Thread(target=work, name="aiocoll launch")
    thread.start()
    while not over.is_set():
        try:
            over.wait()  # not join(): an interrupted join() takes the thread for ended
        except KeyboardInterrupt:
            if supervisor.loop is not None and supervisor.attempt is not None:
                with contextlib.suppress(RuntimeError):  # the loop has just ended
                    supervisor.loop.call_soon_threadsafe(supervisor.attempt.stop, 130)
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _outcome(supervisor: Supervisor, code: int, options: Options) -> list[Any]:
    try:
        return _returned(supervisor, code, options)
    except Exception as error:
        if supervisor.attempt is not None and supervisor.attempt.findings:
            notes: list[str] = getattr(error, "__notes__", [])
            where = [notes.pop().rstrip("\n")] if notes else []  # what became of one rank stands above that
            error.add_note("\n".join([*where, "what the ranks knew, together:", *supervisor.attempt.findings]))
        raise


def _returned(supervisor: Supervisor, code: int, options: Options) -> list[Any]:
    attempt = supervisor.attempt
    assert attempt is not None
    if attempt.stopped == 130:
        raise KeyboardInterrupt
    returned = {rank: data for rank, data in attempt.results.items() if data[:1] == b"R"}
    missing = [rank for rank in attempt.ranks if rank not in returned]
    if code == TIMEOUT_CODE and attempt.stopped is not None:
        late = [rank for rank in missing if attempt.results[rank][:1] != b"E"] or missing or attempt.ranks
        raise CollectiveTimeoutError(
            f"launch: {names(late)} had not returned after {options.timeout:g} s and were ended",
            missing=tuple(late),
            operation="launch",
            elapsed=options.timeout,
        )
    if code or missing:
        cause = attempt.verdict.cause
        # Who left without a word and with code 0 is the cause of the errors of those that waited for it.
        silent = [rank for rank in missing if not attempt.verdict.endings[rank].failed]
        rank = silent[0] if cause is None or (cause.consequence and silent) else cause.rank
        raise _error(rank, attempt.results[rank], decode(attempt.verdict.endings[rank].code), attempt.host)
    results = []
    for rank, data in sorted(returned.items()):
        try:
            results.append(pickle.loads(memoryview(data)[1:]))  # noqa: S301  from a rank that this process started
        except Exception as error:
            raise SerializationError(f"launch: what rank {rank} returned cannot be unpickled here: {error}") from error
    return results


def _error(rank: int, data: bytearray, how: str, host: str) -> BaseException:
    """What the rank raised, as it was, with a note that says where; else what became of the rank."""
    if data[:1] != b"E":
        return PeerLostError(
            f"launch: rank {rank} on {host} {how} before the function returned", rank=rank, world_rank=rank, host=host,
            operation="launch",
        )  # fmt: skip
    pickled, report = pickle.loads(memoryview(data)[1:])  # noqa: S301  as above
    note = f"raised by rank {rank} of aiocoll.launch on {host}:\n{report['traceback']}"
    try:
        error: BaseException = pickle.loads(pickled)  # noqa: S301  as above
    except Exception:
        error = AiocollError(f"launch: rank {rank} raised {report['class']}: {report['message']}")
    error.add_note(note)
    if getattr(error, "rank", None) is None:
        with contextlib.suppress(TypeError):  # a class without a __dict__
            vars(error)["rank"] = rank
    return error
