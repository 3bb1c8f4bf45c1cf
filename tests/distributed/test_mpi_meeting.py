"""How the ranks of MPI's world find each other: over messages of a fake that lie in queues, without any MPI."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aiocoll.distributed.carriers.mpi import _Meeting
from aiocoll.errors import RendezvousTimeoutError

Mail = dict[tuple[int, int], deque[Any]]
SECONDS = 20.0


class Status:
    """Where a message came from."""

    source = -1

    def Get_source(self) -> int:
        return self.source


class World:
    """One rank's MPI, which has nothing but messages to and from others."""

    ANY_SOURCE = -1
    Status = Status

    def __init__(self, mail: Mail, rank: int, size: int) -> None:
        self.mail, self.rank, self.size, self.COMM_WORLD = mail, rank, size, self

    def Get_attr(self, key: int) -> None:
        return None

    TAG_UB = 0

    def Get_size(self) -> int:
        return self.size

    def send(self, data: Any, dest: int, tag: int) -> None:
        self.mail[self.rank, dest].append(data)

    def recv(self, source: int, tag: int) -> Any:
        return self.mail[source, self.rank].popleft()

    def iprobe(self, source: int, tag: int, status: Status) -> bool:
        for each in range(self.size) if source == self.ANY_SOURCE else [source]:
            if self.mail[each, self.rank]:
                status.source = each
                return True
        return False


def post(size: int) -> Mail:
    return {(source, target): deque() for source in range(size) for target in range(size)}


def met(mail: Mail, rank: int, size: int, seconds: float = SECONDS) -> Any:
    """Each rank's word is its number; the answer is all of them."""
    meeting = _Meeting(World(mail, rank, size), seconds)
    return meeting.called(rank, list) if rank == 0 else meeting.answered(rank)


def test_all_get_the_answer_to_all_words() -> None:
    mail = post(4)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda rank: met(mail, rank, 4), range(4))) == [[0, 1, 2, 3]] * 4
    assert not any(mail.values())


def test_a_word_of_a_meeting_that_failed_is_no_rank_that_waits_now() -> None:
    """Rank 1 was too late once, and what it said lies there when rank 0 meets again, before rank 1 does."""
    mail = post(3)
    with pytest.raises(RendezvousTimeoutError) as caught:
        met(mail, 0, 3, 0.0)
    assert caught.value.missing == (1, 2)
    late = _Meeting(World(mail, 1, 3), -60.0)  # so late that it does not wait at all
    with pytest.raises(RendezvousTimeoutError, match="rank 0 of MPI's world"):
        late.answered("old")
    with ThreadPoolExecutor(3) as pool:
        first, third = pool.submit(met, mail, 0, 3), pool.submit(met, mail, 2, 3)
        end = time.monotonic() + SECONDS
        while mail[1, 0] or not mail[0, 1] or mail[2, 0] or mail[0, 2]:  # rank 0 has heard both, and asked
            assert time.monotonic() < end
            time.sleep(0)
        assert not first.done() and not third.done()
        assert met(mail, 1, 3) == first.result() == third.result() == [0, 1, 2]


def test_who_said_something_and_went_away_is_missing() -> None:
    mail = post(2)
    with pytest.raises(RendezvousTimeoutError):
        _Meeting(World(mail, 1, 2), -60.0).answered("old")
    with pytest.raises(RendezvousTimeoutError, match=r"ranks \[1\]") as caught:
        met(mail, 0, 2, 0.05)
    assert caught.value.missing == (1,)
