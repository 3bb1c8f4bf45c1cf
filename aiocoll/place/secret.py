"""The job's secret; the rule: a descriptor is read once and closed, and no secret reaches a log or a repr.

The runner passes ``AIOCOLL_SECRET_FD``, so that the secret is in no process list; remote starts may use
``AIOCOLL_SECRET_FILE`` (the file's text) or ``AIOCOLL_SECRET``; text means its UTF-8 bytes, as in ``secret=``.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import MutableMapping
from pathlib import Path

from aiocoll.errors import UsageError
from aiocoll.place.base import Environ, whole

_SECRET_BYTES_MAX = 4096
_DESCRIPTOR = "AIOCOLL_SECRET_FD"

_lock = threading.Lock()
_from_descriptor: bytes | None = None


def job_secret(environ: Environ | None = None) -> bytes:
    """The secret that the environment gives this process, b"" if none.

    A descriptor named by the process's own environment is read at the first call, then closed and its variable
    deleted; later calls get the same bytes.
    """
    global _from_descriptor
    env = os.environ if environ is None else environ
    with _lock:
        number = whole(env, _DESCRIPTOR)
        if number is not None:
            secret = _read_descriptor(number)
            if isinstance(env, MutableMapping):
                del env[_DESCRIPTOR]
            if env is not os.environ:
                return secret
            _from_descriptor = secret
        if env is os.environ and _from_descriptor is not None:
            return _from_descriptor
    if path := env.get("AIOCOLL_SECRET_FILE", "").strip():
        return _read_file(path)
    return env.get("AIOCOLL_SECRET", "").strip().encode()


def _read_descriptor(number: int) -> bytes:
    try:
        kind = os.fstat(number).st_mode
        if stat.S_ISREG(kind):
            # Ranks of one host share the open file, so its position too: read by offset, never by position.
            data = os.pread(number, _SECRET_BYTES_MAX + 1, 0)
        elif stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            data = _read_to_end(number)
        else:
            raise UsageError(f"{_DESCRIPTOR}={number} is neither a file nor a pipe: is it the runner's descriptor?")
        os.close(number)
    except OSError as error:
        raise UsageError(
            f"{_DESCRIPTOR}={number} cannot be read ({error.strerror}): the runner passes the secret to the ranks "
            f"themselves; a process that a rank starts must be given its own place, or secret="
        ) from error
    return _checked(data, f"{_DESCRIPTOR}={number}")


def _read_to_end(number: int) -> bytes:
    data = b""
    while len(data) <= _SECRET_BYTES_MAX and (piece := os.read(number, _SECRET_BYTES_MAX + 1 - len(data))):
        data += piece
    return data


def _read_file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"AIOCOLL_SECRET_FILE={path!r} cannot be read: {error.strerror}") from error
    return _checked(data.rstrip(b"\r\n"), f"AIOCOLL_SECRET_FILE={path!r}")


def _checked(data: bytes, where: str) -> bytes:
    if not data:
        raise UsageError(f"{where} holds no secret: it is empty")
    if len(data) > _SECRET_BYTES_MAX:
        raise UsageError(f"{where} holds more than {_SECRET_BYTES_MAX} bytes: that is no secret of a job")
    return data
