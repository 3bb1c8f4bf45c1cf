"""A proxy that stands before this rank's listener: asked for the address that the others are to be told.

The rule: one line each way, before ranks meet and only where a test wants it, so it may block. Whoever stands there
sees handshakes and frames, and proves nothing.
"""

from __future__ import annotations

import json
import socket
from typing import Final

from ..errors import UsageError

_SECONDS: Final = 5.0
_LINE_BYTES_MAX: Final = 1000


def fronted(proxy: str, host: str, port: int) -> tuple[str, int]:
    """Where the listener at ``host``:``port`` is to be reached, as the proxy at ``proxy`` ("host:port") says; itself
    without one. UsageError when nobody answers there."""
    if not proxy:
        return host, port
    try:
        where, _, number = proxy.rpartition(":")
        with socket.create_connection((where.strip("[]"), int(number)), timeout=_SECONDS) as connection:
            connection.sendall(json.dumps({"host": host, "port": port}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                told = json.loads(answers.readline(_LINE_BYTES_MAX))
        return str(told["host"]), int(told["port"])
    except (OSError, ValueError, KeyError, TypeError) as error:  # a timeout is an OSError
        raise UsageError(
            f"AIOCOLL_PROXY={proxy!r}: no fault proxy answers there ({type(error).__name__}: {error}); it is what "
            "aiocoll.testing.FaultProxy sets while it runs"
        ) from error


__all__ = ["fronted"]
