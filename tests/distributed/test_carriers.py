"""The backends "mpi", "gloo" and "nccl": the same answers as aiocoll's own, in real processes; clear words without."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.distributed import carriers, constants
from aiocoll.distributed.carriers import process_groups
from aiocoll.distributed.carriers.process_groups import TorchLibrary
from aiocoll.errors import UsageError
from tests.distributed.processes import ROOT, heard
from tests.distributed.ranks import ranks
from tests.ports import free_port

PROGRAM = Path(__file__).with_name("carried_rank.py")
MPIEXEC = Path(sys.executable).with_name("mpiexec")
SIZE = 3
CARRIED = ["all_gather", "all_gather_object", "all_reduce", "broadcast", "gather", "reduce", "scatter"]


def ended(command: Sequence[str], children: Sequence[subprocess.Popen[str]], killed: int | None = None) -> list[str]:
    """What the children said; they all end well, but for one that kills itself."""
    said = heard(children)
    for number, (child, (_, err)) in enumerate(zip(children, said, strict=True)):
        assert child.returncode == (-9 if number == killed else 0), f"{command}\n{err}"
    return [out for out, _ in said]


def start(*command: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environ}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def answers(backend: str) -> list[dict[str, Any]]:
    """What the ranks of one world say, in rank order."""
    run = [sys.executable, str(PROGRAM), backend]
    if backend == "mpi":
        with tempfile.TemporaryDirectory() as folder:  # mpiexec would mix what they say, now and then within a line
            command = [str(MPIEXEC), "-outfile-pattern", f"{folder}/%r", "-n", str(SIZE), *run]
            ended(command, [start(*command)])
            lines = [Path(folder, str(rank)).read_text() for rank in range(SIZE)]
    else:
        port = str(free_port())
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(SIZE)}
        killed = 2 if backend == "gloo" else None
        lines = ended(run, [start(*run, RANK=str(rank), **where) for rank in range(SIZE)], killed)
    found = [json.loads(line) for line in lines]
    return sorted(found, key=lambda each: int(each["rank"]))


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    """The answers of aiocoll's own."""
    return answers("auto")


def same(mine: dict[str, Any], theirs: dict[str, Any], unable: Sequence[str] = ()) -> None:
    """Answers with a library are those without, but for what it is unable to do."""
    assert mine.pop("carried") == CARRIED
    for name, answer in theirs.items():
        if name in unable:
            assert "cannot do aiocoll.PROD of complex" in mine[name], name
        elif name not in ("backend", "carried", "left"):
            assert mine[name] == answer, f"{name} on rank {mine['rank']}"


def test_mpi_answers_as_documented(expected: list[dict[str, Any]]) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed; it is in the extra 'dev'")
    for mine, theirs in zip(answers("mpi"), expected, strict=True):
        assert mine["backend"] == "mpi" and mine["left"] is False
        same(mine, theirs)


def test_mpi_says_who_has_not_joined() -> None:
    """MPI's own calls would wait for ever. What was said in vain is not taken for an answer the next time."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed; it is in the extra 'dev'")
    program = """if True:
        from mpi4py import MPI
        import sys, numpy as np, aiocoll.distributed as dist
        world = MPI.COMM_WORLD
        said = ""
        pair = world.Split(world.rank == 1)
        if world.rank != 1:
            pair.Barrier()  # both come in time
            try:
                dist.init_process_group("mpi", timeout=1.5)
            except TimeoutError as error:
                said = f"{error.missing} {error}"
        world.barrier()
        dist.init_process_group("mpi", timeout=60)
        x = np.array([1.0 + world.rank])
        dist.all_reduce(x)
        sys.stdout.write(f"{world.rank} {x[0]} {said}\\n")  # in one piece
    """
    command = [str(MPIEXEC), "-n", "3", sys.executable, "-c", program]
    words = "(1,) init_process_group: backend 'mpi' waited 1.5 s for ranks [1] of MPI's world of 3 to call it, too"
    lines = sorted(ended(command, [start(*command)])[0].splitlines())
    assert lines == [f"0 6.0 {words}", "1 6.0 ", f"2 6.0 {words}"]


def test_mpi_without_mpiexec_is_a_world_of_one() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed; it is in the extra 'dev'")
    program = "import aiocoll.distributed as dist; dist.init_process_group('MPI', world_size=7); " + (
        "print(dist.get_rank(), dist.get_world_size(), dist.get_backend(), dist.is_mpi_available())"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    assert ended(command, [start(*command)]) == ["0 1 mpi True\n"]


def test_gloo_answers_as_documented_and_names_the_dead(expected: list[dict[str, Any]]) -> None:
    pytest.importorskip("torch", reason="torch is not installed; it is in the extra 'dev'")
    for mine, theirs in zip(answers("gloo"), expected, strict=True):
        assert mine["backend"] == "gloo"
        same(mine, theirs, ("F PRODUCT", "D PRODUCT"))
        assert mine.get("lost") == (None if mine["rank"] == 2 else ["PeerLostError", 2])


@pytest.mark.leaks("torch's first store in a process keeps a pipe for good")
def test_arrays_by_way_of_a_device() -> None:
    """The tensors of NCCL's way, on a device that is not named as the memory of NumPy's arrays is."""
    pytest.importorskip("torch", reason="torch is not installed; it is in the extra 'dev'")
    dist.Backend.register_backend("by_device", lambda *_: TorchLibrary("gloo", "cpu:0"))
    try:
        said = ranks(2, by_device, "by_device")
    finally:
        for names in (constants.PLUGINS, constants.NUMBER_OF_BACKEND):
            del names["by_device"]
        del dist.Backend.BY_DEVICE
    both = [[1.0, 3.0], [4.0, 4.0, 4.0], [[0], [1, 1]]]
    assert said == [[*both, [0, 10]], [*both, [1, 11]]]


def by_device(rank: int) -> Any:
    x, y = np.arange(2.0) + rank, np.full(3, 4.0 * rank)
    y.flags.writeable = rank == 0  # a root's tensor is only read
    dist.all_reduce(x)
    dist.broadcast(y, 1)
    parts = [np.zeros(1, int), np.zeros(2, int)]
    dist.all_gather(parts, np.full(1 + rank, rank))
    z = np.zeros(2, int)
    dist.all_to_all_single(z, np.array([0, 1]) + 10 * rank)
    return [x.tolist(), y.tolist(), [part.tolist() for part in parts], z.tolist()]


@pytest.mark.leaks("torch's first store in a process keeps a pipe for good")
def test_gloo_keeps_nothing_of_groups_that_have_gone() -> None:
    pytest.importorskip("torch", reason="torch is not installed; it is in the extra 'dev'")

    def program(rank: int) -> list[int]:
        open_now = []
        for _ in range(8):
            group, x = dist.new_group(), np.ones(1)
            dist.all_reduce(x, group=group)
            dist.destroy_process_group(group)
            dist.barrier()
            open_now.append(len(os.listdir("/proc/self/fd")))
            dist.barrier()
        return open_now

    for open_now in ranks(2, program, "gloo"):
        assert open_now[-1] <= open_now[0] + 4  # a group has twelve


@pytest.mark.leaks("torch's first store in a process keeps a pipe for good")
def test_gloo_listens_for_other_hosts_only_where_the_job_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed; it is in the extra 'dev'")
    real = TorchLibrary.invite
    monkeypatch.setattr(TorchLibrary, "invite", lambda self, hosts: real(self, ["here", *hosts[1:-1], "there"]))
    monkeypatch.delenv("AIOCOLL_SECRET", raising=False)

    def program(rank: int) -> None:
        raise AssertionError("it has joined")

    with pytest.raises(UsageError, match="on here: without a secret .* ranks on here, there: give every rank"):
        ranks(2, program, "gloo")
    known = TorchLibrary("gloo", secret=True)
    host, port = real(known, ["localhost", "there"]).split()
    assert host == "localhost" and int(port) > 0
    known.close()


def test_gloo_counts_on_a_secret_of_pmi_where_its_ranks_meet_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "TorchLibrary", lambda name, secret: secret)
    monkeypatch.setattr(carriers, "missing", lambda name: "")
    monkeypatch.setattr(carriers, "_carried", lambda world, made: made(world))
    for name, value in (("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "9")):
        monkeypatch.setenv(name, value)

    def secret(url: str | None, **options: Any) -> object:
        nobody: Any = None  # _carried() has it made for nobody, here
        return carriers.join("gloo", lambda *_, **__: nobody, url, options)

    assert secret(None) is True
    assert secret("tcp://127.0.0.1:29500", rank=0, size=2) is False
    assert secret(None, store=object(), rank=0, size=2) is False
    monkeypatch.delenv("PMI_FD")  # as a process that a rank has started
    assert secret("tcp://127.0.0.1:29500", rank=0, size=2) is False


@pytest.mark.parametrize("backend", ["mpi", "gloo", "nccl", "GLOO"])
def test_backends_that_are_not_there_name_the_extra(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    extra = "mpi" if backend == "mpi" else "torch"
    with pytest.raises(RuntimeError, match=rf"'{backend.lower()}' is not available.*aiocoll\[{extra}\]") as caught:
        dist.init_process_group(backend, rank=0, world_size=1)
    assert isinstance(caught.value, UsageError) and not dist.is_initialized()
    assert not dist.is_backend_available(backend)
    assert not (dist.is_mpi_available() or dist.is_gloo_available() or dist.is_nccl_available())


def test_mpi4py_without_an_mpi_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> object:
        if name == "mpi4py.MPI":
            raise RuntimeError("cannot load MPI library\nlibmpi.so: no such file")
        return object()

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert carriers.missing("mpi").startswith("cannot load MPI library: backend 'mpi' runs on mpi4py and an MPI")


def test_nccl_wants_a_torch_that_has_it_and_a_gpu() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra 'dev'")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="'nccl' is not available.*(built without nccl|sees no GPU)"):
            dist.init_process_group("nccl", rank=0, world_size=1)
        assert not dist.is_nccl_available()
    assert dist.is_gloo_available()
