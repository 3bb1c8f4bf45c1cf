"""The runner's end of its ranks: pipes for what they say, and the warden that owns the processes.

Rule: mechanism only. `Processes.start` needs no event loop (so ranks start before asyncio is even imported); `watch`
then turns everything that happens into calls of one `Listener`, and decides nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from aiocoll.errors import AiocollError
from aiocoll.runner import orders as ordering
from aiocoll.runner.console import STREAMS
from aiocoll.runner.warden import Spawn, encode_plan

if TYPE_CHECKING:
    import asyncio

READ_BYTES = 256 << 10
REPORT_BYTES_MAX = 1 << 20
WORD_BYTES_MAX = 64
# A rank's last words are read when its end is known; a descendant of it that goes on writing must not keep us.
LAST_READS_MAX = 64


class Listener(Protocol):
    """What can happen; all in the loop's thread. `on_exit` of a rank comes after everything that it said by then."""

    def on_started(self, rank: int, pid: int) -> None: ...

    def on_output(self, rank: int, stream: str, data: bytes) -> None:
        """Bytes of stdout or stderr; b"" is the end of that stream."""

    def on_result(self, rank: int, data: bytes) -> None: ...

    def on_word(self, rank: int, word: str) -> None:
        """What the rank says of itself while it lives (`aiocoll.observe.report.tell`)."""

    def on_exit(self, rank: int, code: int, at: float, report: bytes) -> None: ...

    def on_not_started(self, rank: int, error: int) -> None: ...

    def on_stuck(self, pids: Sequence[int]) -> None: ...

    def on_done(self, processes: Processes, complete: bool) -> None:
        """The warden has ended; not `complete` if somebody killed it."""


def memory_file(data: bytes, name: str) -> int:
    """A descriptor that holds bytes and has no name in any file system; readers use offsets, as they share it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        import tempfile

        fd = os.dup(tempfile.TemporaryFile().fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # a kernel that seals nothing: the ranks only read it
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


class Processes:
    """The ranks of one attempt of one runner.

    ``piped`` is False for a lone rank that writes to our own stdout and stderr; ``payload`` and ``results`` belong to
    `aiocoll.launch`: bytes that every rank can read, and a pipe for what it returns. ``orders`` gives every rank a
    pipe on which it is told what to do, beside the one for what it returns. ``scratch`` is a directory that the warden
    removes when the runner cannot.
    """

    def __init__(
        self,
        ranks: Mapping[int, Mapping[str, str]],
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        secret: bytes,
        stdin_rank: int | None = None,
        piped: bool = True,
        payload: bytes | None = None,
        orders: ordering.Orders | None = None,
        scratch: str = "",
    ) -> None:
        self._argv, self._env, self._places = list(argv), dict(env), dict(ranks)
        self._secret, self._stdin_rank, self._piped, self._payload = secret, stdin_rank, piped, payload
        self._scratch, self._orders = scratch, orders
        self._pipes: dict[int, tuple[int, str]] = {}  # read end -> (rank, "stdout" | "stderr" | "report" | "result")
        self._reports: dict[int, bytearray] = {rank: bytearray() for rank in ranks}
        self._paused = False
        self._control: socket.socket | None = None
        self._unread = b""
        self._warden = 0
        self._done = False
        self.pids: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Processes(warden={self._warden}, running={self.pids})"

    @property
    def done(self) -> bool:
        """Whether all of them, and their warden, have ended (or been let go)."""
        return self._done

    # -- starting ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts warden and ranks; AiocollError when the system refuses."""
        theirs: list[int] = []
        try:
            self._start(theirs)
        except OSError as error:
            pipes = len(self._pipes)
            self.close()
            raise AiocollError(
                f"the runner cannot start {len(self._places)} rank{'s' * (len(self._places) > 1)}: {error.strerror} "
                f"(with {pipes} pipes open; see ulimit -n and ulimit -u)"
            ) from error
        finally:
            for fd in theirs:
                os.close(fd)

    def _pipe(self, rank: int, what: str, theirs: list[int]) -> int:
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._pipes[read] = (rank, what)
        theirs.append(write)
        return write

    def _start(self, theirs: list[int]) -> None:
        spawns = []
        shared: dict[str, int] = {}
        if self._payload is not None:
            shared["AIOCOLL_PAYLOAD_FD"] = memory_file(self._payload, "aiocoll-payload")
            theirs.append(shared["AIOCOLL_PAYLOAD_FD"])
        if self._secret:
            shared["AIOCOLL_SECRET_FD"] = memory_file(self._secret, "aiocoll-secret")
            theirs.append(shared["AIOCOLL_SECRET_FD"])
        for rank, place in self._places.items():
            own = {"AIOCOLL_ERROR_FD": self._pipe(rank, "report", theirs)}
            if self._orders is not None:
                own[ordering.VARIABLE] = self._orders.pipe(rank)
                theirs.append(own[ordering.VARIABLE])
            if self._payload is not None or self._orders is not None:
                own["AIOCOLL_RESULT_FD"] = self._pipe(rank, "result", theirs)
            fds = [0 if rank == self._stdin_rank else -1, 1, 2]
            if self._piped:
                fds[1:] = [self._pipe(rank, stream, theirs) for stream in STREAMS]
            descriptors = {**shared, **own}
            env = {**self._env, **place, **{name: str(fd) for name, fd in descriptors.items()}}
            spawns.append(Spawn(rank, self._argv, env, fds, list(descriptors.values())))
        ours, wardens = socket.socketpair()
        self._control = ours
        with wardens:
            # Loaded as a module, so that its compiled form is used: that is half of its start.
            run = f"import sys; sys.path.append({os.path.dirname(__file__)!r}); import warden; warden.main()"
            passed = [*theirs, wardens.fileno()]
            self._warden = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", run, str(wardens.fileno()), self._scratch],
                self._env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in passed],
                setsid=True,
                setsigmask=[],
            )
        ours.sendall(encode_plan(spawns))

    # -- watching ---------------------------------------------------------------------------------------------------

    def watch(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        """From now on `listener` hears everything, first what has happened since `start`."""
        assert self._control is not None
        self._loop, self._listener = loop, listener
        self._control.setblocking(False)
        loop.add_reader(self._control, self._hear)
        for fd in self._pipes:
            loop.add_reader(fd, self._read, fd)

    def pause(self, paused: bool) -> None:
        """Stops, or resumes, reading stdout and stderr."""
        if paused != self._paused and not self._done:
            self._paused = paused
            for fd, (_, what) in self._pipes.items():
                if what in STREAMS:
                    if paused:
                        self._loop.remove_reader(fd)
                    else:
                        self._loop.add_reader(fd, self._read, fd)

    def stop_reading(self, streams: Sequence[str]) -> None:
        """Closes the ranks' pipes of streams that nobody reads: they get EPIPE, as without a runner."""
        for fd, (_, what) in list(self._pipes.items()):
            if what in streams:
                self._forget(fd)

    def signal(self, number: int, ranks: Sequence[int] | None = None, *, group: bool = True) -> None:
        """Signals ranks (all that live) and, with `group`, their process groups."""
        wanted = list(self.pids) if ranks is None else [rank for rank in ranks if rank in self.pids]
        if wanted and self._control is not None:
            line = f"signal {int(number)} {'group' if group else 'leader'} {','.join(map(str, wanted))}\n"
            with contextlib.suppress(OSError):  # the warden is gone, and has ended the ranks
                self._control.send(line.encode())

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._finish(complete=False)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, *rest = line.decode().split(" ")
            if word == "started":
                rank, pid = map(int, rest)
                self.pids[rank] = pid
                self._listener.on_started(rank, pid)
            elif word == "failed":
                self._listener.on_not_started(int(rest[0]), int(rest[1]))
            elif word == "exit":
                self._exited(int(rest[0]), int(rest[1]), float(rest[2]))
            elif word == "stuck":
                self._listener.on_stuck([int(pid) for pid in rest[0].split(",")])
            elif word == "done":
                self._finish(complete=True)
                return

    def _exited(self, rank: int, code: int, at: float) -> None:
        self._drain(lambda owner, what: owner == rank)
        del self.pids[rank]
        self._listener.on_exit(rank, code, at, bytes(self._reports[rank]))

    def _read(self, fd: int) -> bool:
        """One read; False when there is nothing (more) to read now."""
        rank, what = self._pipes[fd]
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._forget(fd)
        if what == "report":
            self._reported(rank, data)
        elif what == "result":
            self._listener.on_result(rank, data)
        else:
            self._listener.on_output(rank, what, data)
        return bool(data)

    def _reported(self, rank: int, data: bytes) -> None:
        """Words are passed on at once; what is longer is the report, for the end."""
        report = self._reports[rank]
        start = report.rfind(b"\n") + 1
        *lines, rest = bytes(report[start:] + data).split(b"\n")
        del report[start:]
        for line in lines:
            if len(line) <= WORD_BYTES_MAX:
                self._listener.on_word(rank, line.decode(errors="replace"))
            else:
                report += line + b"\n"
        report += rest
        del report[REPORT_BYTES_MAX:]

    def read_streams(self, rank: int) -> None:
        """Reads now what the rank has written to its stdout and stderr by now."""
        self._drain(lambda owner, what: owner == rank and what in STREAMS)

    def _drain(self, wanted: Callable[[int, str], bool]) -> None:
        for fd, (rank, what) in list(self._pipes.items()):
            if wanted(rank, what):
                reads = 0
                while fd in self._pipes and self._read(fd) and reads < LAST_READS_MAX:
                    reads += 1

    def _forget(self, fd: int) -> None:
        del self._pipes[fd]
        if hasattr(self, "_loop"):
            self._loop.remove_reader(fd)
        os.close(fd)

    # -- ending -----------------------------------------------------------------------------------------------------

    def _finish(self, *, complete: bool) -> None:
        if self._done:
            return
        self._drain(lambda owner, what: True)
        for rank, what in list(self._pipes.values()):
            if what in STREAMS:
                self._listener.on_output(rank, what, b"")  # held open by something that could not be ended
        self.close()
        self._listener.on_done(self, complete)

    def close(self) -> None:
        """Lets go: ranks that still live are ended by the warden, which sees our end of the control socket close."""
        self._done = True
        for fd in list(self._pipes):
            self._forget(fd)
        if self._orders is not None:
            self._orders.close(getattr(self, "_loop", None))
        if self._control is not None:
            if hasattr(self, "_loop"):
                self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None

    def reap(self, seconds_max: float) -> None:
        """Waits until the warden, which has said that it is done or that its runner is gone, is no more."""
        until = time.monotonic() + seconds_max
        while self._warden:
            try:
                if os.waitpid(self._warden, os.WNOHANG) != (0, 0) or time.monotonic() > until:
                    self._warden = 0
                else:
                    time.sleep(0.001)
            except ChildProcessError:  # somebody else waits for all children of this process
                self._warden = 0
