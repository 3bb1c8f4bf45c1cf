"""The machine's floor is measured between processes, agreed on, and waits for nobody for ever."""

from __future__ import annotations

import os

import pytest

from aiocoll import Group
from aiocoll.bench import floor
from aiocoll.bench.callers import Awaited
from aiocoll.bench.floor import Flags, Machine
from aiocoll.bench.records import Floor
from aiocoll.testing import run


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_of_one_host_have_all_three_floors(size: int) -> None:
    async def main(group: Group) -> tuple[Floor, Floor, float | None, int]:
        before = len(os.listdir("/proc/self/fd"))
        machine = Machine(Awaited(group))
        try:
            await machine.prepare()
            small, large = await machine.floor(8), await machine.floor(1 << 20)
            assert await machine.floor(8) is small  # remembered
        finally:
            machine.close()
        return small, large, machine.flag, len(os.listdir("/proc/self/fd")) - before

    small, large, flag, _ = run(size, main, "process")[0]
    assert flag is not None and 0 < flag < 1
    assert small.memcpy is not None and small.memory is not None and small.socket is not None
    assert large.memcpy is not None and large.memory is not None and large.socket is not None
    assert 0 < small.memcpy < small.memory and 0 < large.memcpy < large.memory
    assert 0 < small.socket < 1 and 0 < large.socket < 10


def test_a_rank_alone_has_none_but_its_own_copies() -> None:
    async def main(group: Group) -> Floor:
        machine = Machine(Awaited(group))
        await machine.prepare()
        found = await machine.floor(4096)
        machine.close()
        return found

    found = run(1, main, "inproc")[0]
    assert found.memcpy is not None and found.memory is None and found.socket is None


def test_ranks_of_several_hosts_have_none_but_their_copies() -> None:
    async def main(group: Group) -> tuple[Floor, float | None]:
        machine = Machine(Awaited(group))
        await machine.prepare()
        found = await machine.floor(4096)
        machine.close()
        return found, machine.flag

    found, flag = run(4, main, "sim", hosts=[0, 0, 1, 1])[0]
    assert flag is None and found.memory is None and found.socket is None and found.memcpy


def test_a_page_and_a_connection_that_cannot_be_had_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(group: Group) -> tuple[Floor, float | None]:
        def refuse(*arguments: object, **options: object) -> int:
            raise OSError("not here")

        if group.rank == 1:  # one rank alone fails, as between containers: both must do without
            os.open = refuse
            floor.socket.create_connection = refuse
        floor._PATIENCE_SECONDS = 0.2
        machine = Machine(Awaited(group))
        await machine.prepare()
        found = await machine.floor(64)
        machine.close()
        return found, machine.flag

    found, flag = run(2, main, "process")[0]
    assert flag is None and found.memory is None and found.socket is None and found.memcpy is not None


def test_whoever_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "_PATIENCE_SECONDS", 0.02)
    fd = os.memfd_create("test")
    os.ftruncate(fd, 4096)
    flags = Flags(fd)
    with pytest.raises(TimeoutError, match="silent"):
        flags.seconds(0)
    flags.close()
