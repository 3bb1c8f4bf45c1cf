"""The rank's end of `aiocoll.launch`: fetches the function, joins the world, runs it, hands back what it gives.

Rule: pickles come through descriptors that the caller's own process has opened for its own code, from nowhere else.
What the function raises is handed to the caller and printed nowhere; the exit code is 0 only if it returned.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from aiocoll.errors import SerializationError
from aiocoll.observe import report

RETURNED, RAISED = b"R", b"E"

_Job = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def main() -> None:
    """The program that `launch` starts on each rank."""
    results = int(os.environ.pop("AIOCOLL_RESULT_FD"))
    os.set_inheritable(results, False)
    rank = os.environ["AIOCOLL_RANK"]
    try:
        fn, args, connect = _fetch(int(os.environ.pop("AIOCOLL_PAYLOAD_FD")))
        value = _call(fn, args, connect)
        try:
            import cloudpickle

            data = RETURNED + cloudpickle.dumps(value)
        except Exception as error:
            raise SerializationError(
                f"rank {rank}: the function returned a {type(value).__name__}, which cannot be pickled: {error}"
            ) from error
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace or error.__traceback__  # it begins in the caller's code
        report.send_to_runner(error)
        _write(results, RAISED + pickle.dumps((_pickled(error), report.describe(error))))
        _flush()
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    _write(results, data)


def _fetch(fd: int) -> _Job:
    """All ranks share the descriptor, so its position too: it is read by offset."""
    os.set_inheritable(fd, False)
    size, pieces, offset = os.fstat(fd).st_size, [], 0
    while offset < size:
        pieces.append(os.pread(fd, size - offset, offset))
        offset += len(pieces[-1])
    os.close(fd)
    source = io.BytesIO(b"".join(pieces))
    sys.path[:] = pickle.load(source)  # noqa: S301  from the process that started this one
    job: _Job = pickle.loads(pickle.load(source))  # noqa: S301  as above
    return job


def _call(fn: Callable[..., Any], args: tuple[Any, ...], connect: dict[str, Any]) -> Any:
    import aiocoll  # and its attributes: which room makes a blocking group is not this room's business

    if not inspect.iscoroutinefunction(inspect.unwrap(fn)):
        with aiocoll.sync.connect(**connect) as group:
            value = fn(group, *args)
        if not inspect.iscoroutine(value):
            return value
        value.close()  # an async function behind a lambda or a decorator: nothing of it has run yet

    async def run(group: Any) -> Any:
        return await fn(group, *args)

    return aiocoll.run(run, **connect)


def _pickled(error: BaseException) -> bytes:
    """b"" if it cannot be: the report tells the rest."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # noqa: S301  our own bytes: do they come back?
        return data
    except Exception:
        return b""


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
