"""A store server in a thread of this process; the rule: once released it lives exactly as long as its last client.

So rank 0 may host the store and leave first: `release` returns at once and the thread, which is no daemon, keeps the
process until the others have left too. A process that ends without releasing counts as having released.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading

from aiocoll.errors import RendezvousError
from aiocoll.store.listen import host_of, listen
from aiocoll.store.server import StoreServer
from aiocoll.store.stream import address_text

TICK_SECONDS = 0.25

_lock = threading.Lock()
_hosts: list[_Host] = []
# What a forked child inherited; kept for ever, since destroying it would touch the parent's loop.
_inherited: list[_Host] = []


class HostedStore:
    """A share in a running server, made by `host_store`; the server ends when all shares are released and all gone."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._pid = os.getpid()
        self._released = False

    def __repr__(self) -> str:
        return f"<HostedStore {address_text(*self.address)}{' released' if self._released else ''}>"

    @property
    def address(self) -> tuple[str, int]:
        """(host, port), the port as it is."""
        return self._host.server.address

    @property
    def refused(self) -> list[str]:
        """The last strangers that were turned away, as text."""
        return list(self._host.server.refused)

    @property
    def running(self) -> bool:
        """Whether the server still lives."""
        return os.getpid() == self._pid and self._host.thread.is_alive()

    def release(self) -> None:
        """Say that this process needs it no longer; returns at once, and again does nothing."""
        if not self._released and os.getpid() == self._pid:
            self._released = True
            self._host.drop_share()

    def join(self, timeout: float | None = None) -> bool:
        """Block until the server has ended; whether it has."""
        self._host.thread.join(timeout)
        return not self._host.thread.is_alive()


def host_store(
    host: str, port: int, *, secret: bytes = b"", job: str = "", sock: socket.socket | None = None
) -> HostedStore:
    """Serve a store on host:port (0: any) from a thread of this process; share the one that is already there.

    Errors as in `StoreServer.start`, and RendezvousError if this process serves another job or secret there.
    """
    while True:
        with _lock:
            running = next((h for h in _hosts if sock is None and port and h.server.address == (host, port)), None)
            if running is None:
                return _Host(host, port, secret, job, sock).share()
            if (running.secret, running.job) != (secret, job):
                raise RendezvousError(
                    f"store: cannot listen on {address_text(host, port)}: this process serves another job there, "
                    "whose ranks have not all left: choose another port"
                )
            if not running.ending:
                return running.share()
        running.thread.join()


class _Host:
    """The thread, its loop and its server. Shares are counted under the module's lock, which the end takes too."""

    secret: bytes
    job: str
    thread: threading.Thread

    def __init__(self, host: str, port: int, secret: bytes, job: str, sock: socket.socket | None) -> None:
        self.secret, self.job = secret, job
        listeners = listen(host, port, secret=secret, sock=sock)
        self.server: StoreServer = StoreServer(listeners, host_of(host, sock), secret=secret, job=job)
        self.ending: bool = False
        self._shares = 0
        self._selector = selectors.DefaultSelector()
        # Plain asyncio, whatever the policy: this loop must survive in a thread and be abandoned in a fork.
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self.thread = threading.Thread(target=self._run, name=f"aiocoll-store-{self.server.port}", daemon=False)
        _hosts.append(self)
        self.thread.start()

    def share(self) -> HostedStore:
        """One more share; the lock is held."""
        self._shares += 1
        return HostedStore(self)

    def drop_share(self) -> None:
        with _lock:
            self._shares -= 1
            # Under the lock the loop cannot be closed yet: it ends only with `ending` set under the same lock.
            if not self._shares and not self.ending:
                self._loop.call_soon_threadsafe(self._end_if_unused)

    def abandon(self) -> None:
        """In a forked child: close the descriptors, touch nothing else."""
        self.server.abandon()
        self._selector.close()

    def _run(self) -> None:
        try:
            self.server.on_leave = self._end_if_unused
            self.server.open(self._loop)
            self._loop.call_later(TICK_SECONDS, self._tick)
            self._loop.run_forever()
        finally:
            with _lock:
                self.ending = True
                self.server.on_leave = _nothing
                self.server.shut()
                self._loop.close()
                _hosts.remove(self)

    def _tick(self) -> None:
        self._end_if_unused()
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _end_if_unused(self) -> None:
        with _lock:
            exiting = _process_exits()
            # An exiting process cannot close its own connections any more, so they hold up nothing.
            # Whoever is just coming would be let in, find the store gone, and give up instead of dialing again.
            clients = self.server.foreign_clients if exiting else self.server.clients + self.server.coming
            if (exiting or not self._shares) and not clients:
                self.ending = True
                self._loop.stop()


def _nothing() -> None:
    """Nobody is to be told any more."""


def hosting_threads() -> list[threading.Thread]:
    """The threads of this module that run: they wait for others, so nobody need wait for them."""
    return [host.thread for host in list(_hosts)]


def _process_exits() -> bool:
    """Whether the interpreter only waits for the threads of this module."""
    if threading.main_thread().is_alive():
        return False
    ours = hosting_threads()
    return all(thread.daemon or thread in ours for thread in threading.enumerate() if thread.is_alive())


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for host in _hosts:
        host.abandon()
    _inherited.extend(_hosts)
    _hosts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
