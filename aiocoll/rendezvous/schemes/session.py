"""session:///path: ranks of one host meet where rank 0 says in a file of a directory that only their user may enter.

Rule: the file is readable for this user only, and believed only if nobody else could have written it; once all have
met it is removed. Open MPI's launcher makes such a directory for each job.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Final

from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.rendezvous.introduction import Introduction, check_process, introduce, meet_introduced
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.request import Request

_LAUNCHER: Final = "the launcher"
_MARK: Final = "AIOCOLL_SESSION_TAKEN"
"""The variable that tells a rank's children, which inherit the launcher's variables, that its place is taken."""
_BYTES_MAX: Final = 4096
_LOOK_AGAIN_SECONDS: Final = (0.002, 0.05)


async def meet(request: Request) -> Meeting:
    """As ``tcp://`` on loopback, once rank 0 has said where; RendezvousError where it says nothing in time."""
    path = Path(request.url.path)
    if request.rank is None or request.size is None:
        raise UsageError(f"init_method={request.url.text!r}: rank= and size= are needed, as the launcher gives them")
    if request.listener is not None:
        raise UsageError(f"init_method={request.url.text!r} with listener=: rank 0 tells a port of its own")
    pid, _, taken = os.environ.get(_MARK, "").partition(":")
    if taken == str(path) and pid.isdigit():
        check_process(int(pid), _LAUNCHER)
    _check_directory(path.parent)
    os.environ[_MARK] = f"{os.getpid()}:{path}"
    if request.rank == 0:
        introduction = _known.told(path)
    else:
        introduction = _known.heard(path) or await _heard(request, path)
    meeting = await meet_introduced(request, introduction)
    if request.rank == 0:
        remove(path, os.getpid())  # who has met has read it
    return meeting


async def _heard(request: Request, path: Path) -> Introduction:
    wait, longest = _LOOK_AGAIN_SECONDS
    while (introduction := _read(path)) is None:
        if request.seconds_left() <= 0:
            raise RendezvousTimeoutError(
                f"{request.url.text}: rank {request.rank} of {request.size} has waited {request.timeout:g} s for rank "
                "0 to say where it serves the store: has rank 0 called connect(), on this host and as this user?",
                missing=(0,),
            )
        await asyncio.sleep(min(wait, max(request.seconds_left(), 0.001)))
        wait = min(wait * 1.5, longest)
    return _known.keep(path, introduction)


def _read(path: Path) -> Introduction | None:
    """What rank 0 has written; None if that is not there yet."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RendezvousError(f"session://{path} cannot be read: {error.strerror}") from error
    with open(number, "rb") as file:
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise RendezvousError(f"session://{path} is not this user's alone: somebody else may have written it")
        text = file.read(_BYTES_MAX)
    try:
        said = json.loads(text)
        return Introduction("127.0.0.1", int(said["port"]), bytes.fromhex(said["secret"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RendezvousError(f"session://{path} says something else than a port and a secret") from error


def _write(path: Path, introduction: Introduction) -> None:
    """All at once, so that nobody reads half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    text = json.dumps({"port": introduction.port, "secret": introduction.secret.hex()})
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise RendezvousError(f"session://{path} cannot be written: {error.strerror}") from error


def _check_directory(directory: Path) -> None:
    try:
        facts = directory.stat()
    except OSError as error:
        raise RendezvousError(f"session://{directory}: the launcher's directory: {error.strerror}") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise UsageError(
            f"session://{directory}: not a directory that only this user may write to, so others could send ranks "
            "elsewhere; set AIOCOLL_RDZV=host:port instead"
        )


def remove(path: Path, pid: int) -> None:
    """Nobody needs it any more; not by a child of the process `pid` that wrote it. Again: nothing."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            path.unlink()


class _Known:
    """What this process has said or heard, by file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._introductions: dict[Path, Introduction] = {}

    def told(self, path: Path) -> Introduction:
        """Rank 0 says where it serves, once."""
        with self._lock:
            found = self._introductions.get(path)
            if found is None:
                found = introduce("127.0.0.1")
                try:
                    _write(path, found)
                except BaseException:
                    if found.listener is not None:
                        found.listener.close()
                    raise
                atexit.register(remove, path, os.getpid())
                self._introductions[path] = found
            return found

    def keep(self, path: Path, introduction: Introduction) -> Introduction:
        """The first that was heard."""
        return self._introductions.setdefault(path, introduction)

    def heard(self, path: Path) -> Introduction | None:
        """What another rank has said before."""
        return self._introductions.get(path)


_known = _Known()
