"""TCPStore: one process serves, the others are its clients.

The rule: what is served outlives the object that serves it until its clients have left, so nobody has to leave last.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Final

from ... import store
from ...errors import RendezvousTimeoutError, UsageError
from ...place import detect
from ..arguments import integer, switch
from ..refusals import RuntimeUsageError, TypeUsageError, documented
from .base import wait_seconds
from .opened import WORKERS, Opened, release
from .thread import enter

_PORT_MAX: Final = 65535


class TCPStore(Opened):
    """A connection to the store that one process, the master, serves at host and port.

    Arguments:
        host_name, port: Where the master serves; port 0 lets the kernel choose, see ``port``. Without a secret (the
            runner makes one, ``AIOCOLL_SECRET`` gives one) only loopback addresses work.
        world_size: How many workers, the master included, the master waits for; None for any number.
        is_master: Serve it. It lives until the master has closed it and the others have, too.
        timeout: For connecting, for the workers, and for every wait.
        wait_for_workers: Whether the master waits for all workers.
        multi_tenant: Accepted: a process that serves at host and port already shares that server in any case.
        master_listen_fd: A bound socket's descriptor for the master to serve on, so that nobody can take the port.
        use_libuv: Accepted for code written for torch.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        del multi_tenant, use_libuv
        if not isinstance(host_name, str):
            raise TypeUsageError(f"TCPStore: host_name must be a str, got {type(host_name).__name__}")
        is_master = switch(is_master, "TCPStore", "is_master")
        wait_for_workers = switch(wait_for_workers, "TCPStore", "wait_for_workers")
        number = integer(port, "TCPStore", "port")
        size = None if world_size is None else integer(world_size, "TCPStore", "world_size")
        if not (0 if is_master else 1) <= number <= _PORT_MAX:
            raise RuntimeUsageError(
                f"TCPStore: port must have value from 0 to 65535 (0: only the master) but was {port}"
            )
        if size is not None and size < 1 and size != -1:
            raise RuntimeUsageError(f"TCPStore: world_size={size}: at least the master is there; None for any number")
        self._seconds = wait_seconds(timeout, "TCPStore")
        place = detect(told=True)
        self._host, self._secret, self._job = host_name, place.secret, place.job_name
        descriptor = None if master_listen_fd is None else integer(master_listen_fd, "TCPStore", "master_listen_fd")
        hosted = None
        try:
            if is_master:
                sock = None if descriptor is None else socket.socket(fileno=descriptor)
                hosted = store.host_store(host_name, number, secret=self._secret, job=self._job, sock=sock)
            self._port = number if hosted is None else hosted.address[1]
            self._connect(hosted)
        except UsageError as error:
            raise documented(error) from error.__cause__
        if size is not None and size != -1 and wait_for_workers:
            self._count_workers(size, is_master)

    @property
    def host(self) -> str:
        """Where the master serves."""
        return self._host

    @property
    def port(self) -> int:
        """The port at which it does."""
        return self._port

    @property
    def libuvBackend(self) -> bool:  # the documented name
        """False: the server is aiocoll's own."""
        return False

    def clone(self) -> TCPStore:
        twin = TCPStore.__new__(TCPStore)
        twin._seconds, twin._host, twin._port = self._seconds, self._host, self._port
        twin._secret, twin._job = self._secret, self._job
        twin._connect(None)
        return twin

    def _connect(self, hosted: store.HostedStore | None) -> None:
        thread = enter()
        try:
            opened = thread.run(
                store.TCPStore.connect(
                    self._host, self._port, secret=self._secret, job=self._job, timeout=self._seconds
                )
            )
        except BaseException:
            thread.leave()
            if hosted is not None:
                hosted.release()
            raise
        super().__init__(thread, opened, lambda: release(thread, opened.close, hosted))

    def _count_workers(self, size: int, is_master: bool) -> None:
        here = self.add(WORKERS, 1)
        enough = f"{WORKERS}{size}"
        if here >= size:
            self.queue_push(enough, "1")
        if not is_master:
            return
        try:
            self.queue_pop(enough)
        except RendezvousTimeoutError as error:
            here = self.add(WORKERS, 0)
            self.close()
            raise RendezvousTimeoutError(
                f"TCPStore at {self._host}:{self._port}: Timed out after {self._seconds:g} seconds waiting for "
                f"clients. {here}/{size} clients joined."
            ) from error
