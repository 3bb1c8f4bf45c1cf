"""PMI-1 as a rank speaks it: lines of text over the descriptor PMI_FD to the launcher, one answer to each.

Rule: it blocks, so it lives in a thread of its own; nothing that the launcher says is believed before it is checked.
The protocol is MPICH's "simple" PMI, which hydra, Slurm (``--mpi=pmi2``) and Flux serve alike.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from typing import Final

from aiocoll.errors import RendezvousError, UsageError

_LINE_BYTES_MAX: Final = 8192
_FINALIZE_SECONDS: Final = 5.0
_PID: Final = struct.Struct("i")
_CREDENTIALS_BYTES: Final = 12
"""Process, user and group."""
_NOT_OURS: Final = (
    "the launcher gives that descriptor to the ranks themselves; a process that a rank starts is none, and needs "
    "rank=, size= and init_method= (or an environment without PMI_RANK, PMI_SIZE and PMI_FD to be a world of one)"
)


class PmiClient:
    """One rank's conversation with its launcher; every method raises RendezvousError where that ends it or refuses."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is the client's from now on."""
        self._sock = sock
        self._sock.setblocking(True)
        self._read = b""
        self._space = ""

    def __repr__(self) -> str:
        return f"<PmiClient in {self._space or 'no key space yet'}>"

    def begin(self) -> None:
        """Introduces this process, and learns the name of the job's keys. From here on the launcher takes a process
        that ends without `finalize` for one that has failed, and ends the job."""
        self._ask("init pmi_version=1 pmi_subversion=1", "response_to_init")
        self.learn()

    def learn(self) -> None:
        """Only the name of the keys: for a process that MPI has introduced already."""
        self._space = self._ask("get_my_kvsname", "my_kvsname").get("kvsname", "")
        if not self._space:
            raise RendezvousError("PMI: the launcher gives the job's keys no name")

    def put(self, key: str, value: str) -> None:
        """Others get it after the next `barrier`; no spaces, at most 1,000 characters."""
        self._ask(f"put kvsname={self._space} key={key} value={value}", "put_result")

    def get(self, key: str) -> str:
        """What some rank has put before the last barrier."""
        return self._ask(f"get kvsname={self._space} key={key}", "get_result").get("value", "")

    def barrier(self) -> None:
        """Waits until every rank has called it, however long that takes."""
        self._ask("barrier_in", "barrier_out")

    def finalize(self) -> None:
        """Says that this process ends in good order; waits a few seconds for the answer, and raises nothing."""
        with contextlib.suppress(OSError, RendezvousError):
            self._sock.settimeout(_FINALIZE_SECONDS)
            self._ask("finalize", "finalize_ack")

    def close(self) -> None:
        """Idempotent."""
        self._sock.close()

    def _ask(self, command: str, answer: str) -> dict[str, str]:
        try:
            self._sock.sendall(f"cmd={command}\n".encode())
            line = self._line()
        except OSError as error:
            raise RendezvousError(f"PMI: the launcher does not answer to {command.split()[0]}: {error}") from error
        said = dict(token.split("=", 1) for token in line.split() if "=" in token)
        if said.get("cmd") != answer or said.get("rc", "0") != "0":
            raise RendezvousError(f"PMI: the launcher answers {command!r} with {line[:200]!r}")
        return said

    def _line(self) -> str:
        while b"\n" not in self._read:
            if len(self._read) > _LINE_BYTES_MAX:
                raise RendezvousError(f"PMI: the launcher sends a line of more than {_LINE_BYTES_MAX} bytes")
            piece = self._sock.recv(4096)
            if not piece:
                raise ConnectionError("it has closed the connection, as it does after MPI_Finalize and finalize")
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace")


def connected(number: int) -> PmiClient:
    """A client over the launcher's descriptor, which programs that this process starts do not inherit any more.
    UsageError where that is no socket."""
    try:
        kind = os.fstat(number).st_mode
        if not stat.S_ISSOCK(kind):
            raise UsageError(f"PMI_FD={number} is no socket: {_NOT_OURS}")
        sock = socket.socket(fileno=os.dup(number))
        if _made_here(sock):
            sock.close()
            raise UsageError(f"PMI_FD={number} is a socket of this process's own: {_NOT_OURS}")
        os.set_inheritable(number, False)
        return PmiClient(sock)
    except OSError as error:
        raise UsageError(f"PMI_FD={number} cannot be used ({error.strerror}): {_NOT_OURS}") from error


def _made_here(sock: socket.socket) -> bool:
    """Whether this process has made it, as its event loop makes one: in a program that a rank starts it may get the
    number that the launcher's has in the rank."""
    if sock.family != socket.AF_UNIX:
        return False
    (pid,) = _PID.unpack_from(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES))
    return bool(pid == os.getpid())
