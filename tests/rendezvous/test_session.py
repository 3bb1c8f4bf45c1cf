"""Ranks of one host that meet through their launcher's directory: what lies there, who believes it, what remains."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import stat
from pathlib import Path

import pytest

import aiocoll
from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.rendezvous.introduction import Introduction
from aiocoll.rendezvous.schemes import session


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; this process takes no place for good, and each rank that it plays reads for itself."""
    monkeypatch.setattr(session, "_known", session._Known())
    monkeypatch.setattr(session._Known, "heard", lambda self, path: None)
    monkeypatch.setattr(session._Known, "keep", lambda self, path, introduction: introduction)
    monkeypatch.setattr(atexit, "register", lambda *call: None)
    monkeypatch.setenv(session._MARK, "")
    tmp_path.chmod(0o700)
    return tmp_path / "aiocoll-job@1"


async def test_ranks_meet_and_leave_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def rank(number: int) -> float:
        async with aiocoll.connect(f"session://{path}", rank=number, size=3, timeout=20) as group:
            return float(await group.all_reduce(number + 1.5))

    assert set(await asyncio.gather(rank(2), rank(1), rank(0))) == {7.5}
    assert list(path.parent.iterdir()) == []
    monkeypatch.setattr(session._Known, "heard", lambda self, path: self._introductions.get(path))
    assert set(await asyncio.gather(rank(2), rank(1), rank(0))) == {7.5}  # they know where by now


def test_the_file_is_its_users_alone(path: Path) -> None:
    session._write(path, Introduction("127.0.0.1", 4321, b"secret"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [each.name for each in path.parent.iterdir()] == [path.name]
    found = session._read(path)
    assert found is not None and (found.host, found.port, found.secret) == ("127.0.0.1", 4321, b"secret")
    session.remove(path, os.getppid())
    assert path.exists()  # a child of rank 0's removes nothing
    session.remove(path, os.getpid())
    assert session._read(path) is None


def refusal(path: str, rank: int) -> Exception:
    async def connect() -> None:
        await aiocoll.connect(f"session://{path}", rank=rank, size=2)

    with pytest.raises((UsageError, RendezvousError)) as error:
        asyncio.run(connect())
    return error.value


def test_what_somebody_else_may_have_written_is_not_believed(path: Path) -> None:
    path.write_text(json.dumps({"port": 4321, "secret": "00"}))
    path.chmod(0o644)
    assert "not this user's alone" in str(refusal(str(path), 1))
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    assert "cannot be read" in str(refusal(str(path), 1))
    path.unlink()
    path.write_text('{"port": []}')
    path.chmod(0o600)
    assert "something else than a port and a secret" in str(refusal(str(path), 1))
    path.parent.chmod(0o777)
    error = refusal(str(path), 0)
    assert isinstance(error, UsageError) and "only this user may write to" in str(error)
    assert "No such file" in str(refusal(f"{path}.d/file", 0))


async def test_one_that_waits_in_vain_names_rank_0(path: Path) -> None:
    with pytest.raises(RendezvousTimeoutError, match="rank 1 of 2 has waited 0.05 s for rank 0"):
        await aiocoll.connect(f"session://{path}", rank=1, size=2, timeout=0.05)
    with pytest.raises(UsageError, match="rank= and size= are needed"):
        await aiocoll.connect(f"session://{path}")


async def test_a_child_does_not_take_its_parents_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session._MARK, f"{os.getppid()}:{path}")
    with pytest.raises(UsageError, match=rf"child of the rank \(pid {os.getppid()}\)"):
        await aiocoll.connect(f"session://{path}", rank=0, size=2)
    monkeypatch.setenv(session._MARK, f"{os.getppid()}:/another/job")  # one job within another
    with pytest.raises(RendezvousTimeoutError):
        await aiocoll.connect(f"session://{path}", rank=1, size=2, timeout=0.05)
