"""What this process reads out of the private memory of others, for tests that must know which way data has come."""

from __future__ import annotations

from typing import Any

import pytest

from aiocoll.transport.shm.private import Private
from aiocoll.transport.shm.segment import NONCE_BYTES


def private_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read from now on, but for those that only try whether it can be done."""
    sizes: list[int] = []
    read = Private.read

    def counted(self: Private, address: int, into: Any) -> None:
        read(self, address, into)
        if into.nbytes != NONCE_BYTES:
            sizes.append(into.nbytes)

    monkeypatch.setattr(Private, "read", counted)
    return sizes
