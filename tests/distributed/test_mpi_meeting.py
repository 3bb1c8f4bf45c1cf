"""How ranks of MPI meet with a deadline: rank 0's part, over an MPI of which only this rank exists."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from aiocoll.distributed.carriers.mpi import _Meeting
from aiocoll.errors import RendezvousTimeoutError


class Status:
    source = 0

    def Get_source(self) -> int:
        return self.source


class FakeMpi:
    """COMM_WORLD of three, in which messages lie; the others answer at once while they wait (``present``)."""

    ANY_SOURCE, TAG_UB, Status = -1, 7, Status

    def __init__(self, *lying: tuple[int, Any]) -> None:
        self.COMM_WORLD = self
        self.lying, self.sent = deque(lying), list[tuple[int, Any]]()
        self.present: dict[int, bytes] = {}

    def Get_size(self) -> int:
        return 3

    def Get_attr(self, key: int) -> int:
        return 99

    def iprobe(self, source: int, tag: int, status: Status) -> bool:
        if self.lying:
            status.source = self.lying[0][0]
        return bool(self.lying)

    def recv(self, source: int, tag: int) -> Any:
        sender, message = self.lying.popleft()
        assert sender == source
        return message

    def send(self, message: Any, rank: int, tag: int) -> None:
        self.sent.append((rank, message))
        kind, token = message[:2]
        if kind == "asked" and self.present.get(rank) == token:
            self.lying.append((rank, ("here", token, None)))


def told(mpi: FakeMpi) -> dict[int, Any]:
    return {rank: message[1:] for rank, message in mpi.sent if message[0] == "told"}


def test_what_an_attempt_that_failed_has_left_is_nobodys_answer() -> None:
    """Words and answers of it come first, also the answer of a rank whose word was taken then."""
    mpi = FakeMpi(
        (2, ("here", b"old", None)), (1, ("word", b"old", "h1?")), (1, ("here", b"old", None)),
        (2, ("word", b"two", "h2")), (1, ("word", b"one", "h1")),
    )  # fmt: skip
    mpi.present = {1: b"one", 2: b"two"}
    assert _Meeting(mpi, 10).called("h0", "-".join) == "h0-h1-h2"
    assert told(mpi) == {1: (b"one", "", "h0-h1-h2"), 2: (b"two", "", "h0-h1-h2")}


def test_those_who_have_come_hear_who_has_not() -> None:
    mpi = FakeMpi((2, ("word", b"two", "h2")), (1, ("word", b"old", "h1")))
    mpi.present = {2: b"two"}
    with pytest.raises(RendezvousTimeoutError, match=r"0.05 s for ranks \[1\] of MPI's world of 3") as caught:
        _Meeting(mpi, 0.05).called("h0", "-".join)
    assert caught.value.missing == (1,) and told(mpi)[2][::2] == (b"two", (1,))
