"""init_process_group in all its forms, over real processes where more than one rank is needed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import aiocoll.distributed as dist
from aiocoll.errors import AiocollError, NotInitializedError, UsageError
from tests.distributed.processes import LEAVE, TOTAL, expected, spawn
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("left_behind")


# ---------------------------------------------------------------------------------------------- the forms


def test_tcp() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    assert spawn(3, f"dist.init_process_group('tcp', '{url}', rank=rank, world_size=size); {TOTAL}{LEAVE}") == expected(
        3
    )


def test_env_as_the_tutorials_set_it() -> None:
    body = f"os.environ['RANK'] = str(rank); dist.init_process_group('TCP', world_size=size); {TOTAL}{LEAVE}"
    assert spawn(2, body, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())) == expected(2)


@pytest.mark.slow
def test_env_with_keywords_and_without_destroying() -> None:
    body = f"dist.init_process_group('shm', rank=rank, world_size=size, group_name='g'); {TOTAL}"
    assert spawn(2, body, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())) == expected(2)


@pytest.mark.slow
def test_file_with_ranks_by_arrival_is_gone_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    body = f"""
    dist.init_process_group('tcp', 'file://{path}', world_size=size, group_name='g')
    rank = dist.get_rank(); {TOTAL}; dist.barrier(){LEAVE}
    """
    assert sorted(spawn(3, body)) == expected(3)
    assert not path.exists()


def test_multicast_with_ranks_by_arrival() -> None:
    body = f"""
    dist.init_process_group('tcp', 'tcp://224.66.41.62:{free_port()}', world_size=size, group_name='mine')
    rank = dist.get_rank(); {TOTAL}{LEAVE}
    """
    assert sorted(spawn(2, body)) == expected(2)


def test_k1_again_and_again_in_one_process(tmp_path: Path) -> None:
    body = f"""
    for turn in range(5):
        dist.init_process_group('tcp', 'tcp://127.0.0.1:{free_port()}', rank=rank, world_size=size)
        sub = dist.new_group([0, 1])
        {TOTAL}
        dist.barrier(sub)
        dist.destroy_process_group()
    """
    assert spawn(2, body) == expected(2)


# ---------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize(
    ("backend", "name", "number"),
    [("tcp", "tcp", 0), ("TCP", "tcp", 0), ("shm", "shm", 4), ("auto", "auto", 5), (None, "auto", 5)],
)
def test_backends_and_state(backend: str | None, name: str, number: int, tmp_path: Path) -> None:
    dist.init_process_group(backend, f"file://{tmp_path}/meet", world_size=1, rank=0, timeout=timedelta(seconds=7))
    assert dist.get_backend() == name and dist._backend == number == getattr(dist.dist_backend, name.upper())
    assert dist.is_initialized() and dist._initialized == dist._INITIALIZED_PG
    assert (dist.get_rank(), dist.get_world_size(), dist.group.WORLD.name()) == (0, 1, "world")
    assert "world" in repr(dist.group.WORLD)
    for again in (dist.init_process_group, lambda: dist.init_process_group("tcp")):
        with pytest.raises(RuntimeError, match="trying to initialize torch.distributed twice!") as caught:
            again()
        assert isinstance(caught.value, UsageError)
    handle = dist.new_group(timeout=timedelta(seconds=3))
    assert isinstance(handle, dist.ProcessGroup) and handle.member().timeout == 3
    assert dist.group.WORLD.member().timeout == 7
    dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises(NotInitializedError):
        dist.get_rank()


def test_arrays_that_suit_the_transport(tmp_path: Path) -> None:
    with pytest.raises(NotInitializedError):
        dist.empty(3)
    dist.init_process_group("tcp", f"file://{tmp_path}/meet", world_size=1, rank=0)
    x = dist.zeros((2, 3), "f4")
    assert not x.any() and x.dtype == "f4"
    y = dist.empty(4)
    y[...] = 1
    dist.all_reduce(y)
    assert y.tolist() == [1] * 4
    outside = dist.GroupMember.NON_GROUP_MEMBER
    assert dist.empty(2, group=outside).shape == (2,) and not dist.zeros(2, group=outside).any()


def test_availability() -> None:
    assert dist.is_available() and dist.is_backend_available("tcp")
    assert dist.Backend("GLOO") == "gloo" == dist.Backend.GLOO


# ---------------------------------------------------------------------------------------------- refusals


def refuse(kind: type[Exception], match: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(kind, match=match) as caught:
        dist.init_process_group(*args, **kwargs)
    assert isinstance(caught.value, AiocollError) and not dist.is_initialized()


def test_refused_arguments() -> None:
    refuse(AssertionError, "got unexpected keyword arguments: a,b", "tcp", a=1, b=2)
    for name in ("smoke", "", "tcp "):
        refuse(RuntimeError, f"Invalid distributed backend name: {name}", name)
    refuse(TypeError, "named by a string", 3)
    refuse(TypeError, "init_method must be a URL", "tcp", 5)
    for size in ("2", 2.0, True):
        refuse(TypeError, "world_size must be an int", "tcp", rank=0, world_size=size)
    refuse(TypeError, "timeout must be", "tcp", "tcp://127.0.0.1:1", timeout="1", rank=0, world_size=1)
    refuse(RuntimeError, "must be positive", "tcp", "tcp://127.0.0.1:1", timeout=0, rank=0, world_size=1)
    refuse(RuntimeError, "either a store or an init_method", "tcp", "tcp://127.0.0.1:1", store=object())
    refuse(RuntimeError, "needs rank and world_size", "tcp", store=object(), rank=0)
    for url in ("smoke://x", "tcp://", "tcp://127.0.0.1", "file://", "nonsense"):
        refuse(RuntimeError, url, "tcp", url, rank=0, world_size=1)
    refuse(RuntimeError, "rank", "tcp", "tcp://127.0.0.1:1", world_size=2)
    for rank, size in ((5, 2), (2, 2), (-2, 2), (0, 0)):
        words = rf"worker's rank\({rank}\) is out of range: \[0, {size - 1}\]"
        refuse(RuntimeError, words, "tcp", "tcp://127.0.0.1:1", rank=rank, world_size=size)
    refuse(RuntimeError, "unknown init method: .*smoke://x", "tcp", "smoke://x", rank=0, world_size=1)
    refuse(RuntimeError, "requires manual rank assignment", "tcp", "tcp://127.0.0.1:1", world_size=2)
    refuse(RuntimeError, "world_size is not set - it is required for file://", "tcp", "file:///nowhere/x", rank=0)


def test_env_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(RuntimeError, "world_size is not set but it is required for env:// init method", "tcp")
    refuse(RuntimeError, "rank is not set but it is required for env:// init method", "tcp", world_size=2)
    words = "failed to read the {} environmental variable; maybe you forgot to set it"
    refuse(RuntimeError, words.format("MASTER_PORT"), "tcp", world_size=2, rank=0)
    refuse(RuntimeError, words.format("MASTER_ADDR"), "tcp", world_size=2, rank=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse(
        RuntimeError,
        "rank specified both as an environmental variable and to the initializer: RANK=1 and rank=0",
        "tcp",
        rank=0,
    )
    refuse(RuntimeError, "world_size specified both as an environmental variable", "tcp", "env://", world_size=3)
    monkeypatch.setenv("RANK", "one")
    refuse(RuntimeError, "RANK='one' is not a number", "tcp")


def test_equal_variables_and_keywords_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", str(free_port()))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("tcp", rank=0, world_size=1)
    assert dist.get_world_size() == 1


def test_what_the_url_of_env_says_wins_over_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "9"), ("MASTER_PORT", str(free_port()))):
        monkeypatch.setenv(name, value)
    dist.init_process_group("tcp", "env://?rank=0&world_size=1")
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
