"""What ranks that share no address yet are told by way of their launcher: where rank 0 serves the store, and a secret.

Rule: a process is introduced once. The address and the secret then hold for every later ``connect()`` of it, and a
forked child, which is no rank of the launcher's, has no part in them.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field, replace

from aiocoll.errors import UsageError
from aiocoll.rendezvous.hosts import is_local, outward
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.request import Request
from aiocoll.rendezvous.schemes import tcp
from aiocoll.rendezvous.url import parse, tcp_url
from aiocoll.store.dial import resolve

_BACKLOG = 1024


@dataclass(slots=True)
class Introduction:
    """Where the ranks of this launcher meet, and what only they know."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    listener: socket.socket | None = field(default=None, repr=False)
    """Rank 0's, until its store takes it: from the moment in which others hear of the port nobody else may have it."""


def introduce(host: str) -> Introduction:
    """Rank 0's own part: a port of `host` that listens already, and a new secret. OSError where it cannot be had."""
    bound = host if is_local((host, 0)) else ""  # behind a translated address this host listens on all that it has
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((bound, 0), family=family, backlog=_BACKLOG)
    return Introduction(host, int(listener.getsockname()[1]), secrets.token_bytes(32), listener)


async def address_for_others(request: Request) -> str:
    """The numeric address of this host that other hosts are told."""
    if not request.advertise:
        return outward()
    return str((await resolve(request.advertise, 0))[0][1][0])


async def meet_introduced(request: Request, introduction: Introduction) -> Meeting:
    """As ``tcp://``, at the address that all have been told; their own secret, where they have one, is the job's."""
    url = tcp_url(introduction.host, introduction.port)
    listener, introduction.listener = introduction.listener, None
    secret = request.secret or introduction.secret
    meeting = await tcp.meet(
        replace(
            request,
            url=replace(parse(url), text=f"{request.url.text} ({url})"),
            secret=secret,
            listener=listener if request.rank == 0 else None,
        )
    )
    meeting.secret = secret
    return meeting


def check_process(pid: int, launcher: str) -> None:
    """UsageError in any process but `pid`, the rank that has been introduced: in its children, that is."""
    if pid != os.getpid():
        raise UsageError(
            f"this process is a child of the rank (pid {pid}) that {launcher} has told where to meet, and no rank of "
            "its own: give it rank=, size= and init_method=, or an environment without the launcher's variables"
        )


def check_claim(request: Request, rank: int, size: int, launcher: str) -> None:
    """UsageError where rank and size are not those that the launcher has given."""
    if (request.rank, request.size) != (rank, size):
        raise UsageError(
            f"rank={request.rank} and size={request.size}, but {launcher} has started this process as rank {rank} of "
            f"{size}: only those meet through it; leave rank= and size= to it, or give init_method= too"
        )
    if request.listener is not None:
        raise UsageError(f"listener=: {launcher} tells the ranks where to meet; give init_method=tcp://host:port too")
