"""Debug levels, and stretches of a program by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll import observe
from aiocoll.distributed import debug as module
from aiocoll.errors import CollectiveTimeoutError
from tests.distributed.ranks import ranks


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    yield
    dist.set_debug_level(dist.DebugLevel.OFF)


def test_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [level.value for level in dist.DebugLevel] == [0, 1, 2]
    for name in ("OFF", "INFO", "detail"):
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", name)
        dist.set_debug_level_from_env()
        assert dist.get_debug_level().name == name.upper()
        assert observe.active == (name == "detail")
    dist.set_debug_level(dist.DebugLevel.INFO)
    assert dist.get_debug_level() is dist.DebugLevel.INFO and not observe.active
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "LOUD")
    with pytest.raises(RuntimeError, match="must be OFF, INFO, or DETAIL, not 'LOUD'"):
        dist.set_debug_level_from_env()
    monkeypatch.setattr(module._DEBUGGING, "level", None)
    with pytest.raises(RuntimeError, match="not 'LOUD'"):
        dist.init_process_group("tcp", "file:///nowhere", rank=0, world_size=1)
    assert not dist.is_initialized()
    with pytest.raises(TypeError, match="DebugLevel"):
        dist.set_debug_level(2)
    assert dist.default_pg_timeout == timedelta(minutes=30)


def test_what_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "aiocoll.distributed")

    def lines(level: dist.DebugLevel) -> str:
        caplog.clear()
        dist.set_debug_level(level)
        dist.init_process_group("tcp", f"file://{tmp_path}/{level.name}", rank=0, world_size=1)
        dist.new_group([0], group_desc="mine")
        dist.all_reduce(np.ones(2))
        dist.destroy_process_group()
        return caplog.text

    assert lines(dist.DebugLevel.OFF) == ""
    said = lines(dist.DebugLevel.INFO)
    assert "rank 0 of 1 has joined" in said and "'mine'" in said and "left the world" in said
    assert "all_reduce" not in said
    assert "all_reduce" in lines(dist.DebugLevel.DETAIL)


def test_stretches_by_name(tmp_path: Path) -> None:
    def stretches() -> list[tuple[str, str]]:
        flight = dist.group.WORLD.member().asynchronous._endpoint.flight
        return [(fact["kind"], fact["name"]) for fact in flight.facts() if fact["kind"].startswith("stretch")]

    heard: list[tuple[str, object]] = []
    stop = observe.listen(lambda kind, facts: heard.append((kind, facts.get("name"))))
    try:
        with dist.record_comm("before joining"):
            pass
        dist.init_process_group("tcp", f"file://{tmp_path}/meet", rank=0, world_size=1)
        with pytest.raises(ZeroDivisionError), dist.record_comm("layer 1"):
            dist.all_reduce(np.ones(2))
            _ = 1 // 0
        assert stretches() == [("stretch_begins", "layer 1"), ("stretch_ends", "layer 1")]
        dist.destroy_process_group()
    finally:
        stop()
    assert ("stretch_begins", "before joining") in heard and ("stretch_ends", "layer 1") in heard
    with pytest.raises(TypeError, match="must be a str"), dist.record_comm(3):
        pass


@pytest.mark.parametrize("absent", [(1, 3), (3,), (0,), ()])
def test_j4_monitored_barrier_names_who_does_not_come(absent: tuple[int, ...]) -> None:
    """A monitored barrier names all who are absent, in order, on all ranks or on none; in a group, too."""

    def program(rank: int) -> str:
        everybody = dist.new_group([4, 3, 2, 1, 0])
        text = ""
        if rank not in absent:
            try:
                dist.monitored_barrier(everybody, timedelta(seconds=0.5), wait_all_ranks=True)
            except CollectiveTimeoutError as error:
                assert isinstance(error, RuntimeError) and error.missing == absent
                text = str(error)
        dist.barrier()
        return text

    said = ranks(5, program)
    for rank, text in enumerate(said):
        if rank in absent or not absent:
            assert text == ""
        else:
            assert all(str(each) in text for each in absent), text
