"""torch CPU tensors in every role, filled in place; torch is imported by the test, never by aiocoll."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import aiocoll.distributed as dist
from tests.distributed.ranks import ranks
from tests.distributed.refusing import Join
from tests.foreign import Foreign


def test_aiocoll_does_not_import_torch() -> None:
    program = "import aiocoll.distributed, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_any_tensor_with_dlpack_is_filled_in_place(joined: Join) -> None:
    joined(0, 2)
    tensor = Foreign(np.arange(4.0))
    dist.all_reduce(tensor)
    assert tensor.array.tolist() == [10, 12, 14, 16]
    strided = Foreign(np.zeros((4, 2))[:, 0])
    dist.broadcast(strided, 1)
    assert strided.array.tolist() == [0, 2, 4, 6]


def test_every_call_on_torch_tensors(joined: Join) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    joined(0, 2)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8):
        x = torch.arange(6, dtype=dtype).reshape(2, 3)
        dist.all_reduce(x)
        assert x.tolist() == [[10, 12, 14], [16, 18, 20]] and x.dtype is dtype
    base = torch.zeros(4, 2)
    dist.broadcast(base[:, 1], 1)
    assert base.tolist() == [[0, 0], [0, 2], [0, 4], [0, 6]]
    transposed = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(transposed)
    assert transposed.tolist() == [[10, 16], [12, 18], [14, 20]]
    parameter = torch.nn.Parameter(torch.arange(3.0))
    dist.all_reduce(parameter)
    assert parameter.tolist() == [10, 12, 14] and parameter.requires_grad
    outputs = [torch.zeros(3) for _ in range(2)]
    dist.all_gather(outputs, torch.arange(3.0))
    assert outputs[1].tolist() == [10, 11, 12]
    dist.gather(torch.ones(3), outputs, 0)
    assert outputs[0].tolist() == [1, 1, 1]
    part = torch.zeros(3)
    dist.scatter(part, [torch.full((3,), 7.0), torch.zeros(3)], 0)
    assert part.tolist() == [7, 7, 7]
    dist.send(torch.ones(2), 1)
    assert dist.recv(part, 1) == 1 and part.tolist() == [100, 101, 102]
    scalar = torch.tensor(4.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 18
    with pytest.raises(TypeError, match="expected a tensor"):
        dist.all_reduce([torch.zeros(1)])
    with pytest.raises(RuntimeError, match="meta|device|CPU"):
        dist.all_reduce(torch.zeros(1, device="meta"))


def test_todays_calls_on_torch_tensors() -> None:
    """Every call of today's API with torch tensors in every role, strided ones and bfloat16 among them."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")

    def program(rank: int) -> None:
        size = dist.get_world_size()
        every = [torch.arange(4.0).reshape(2, 2) + 10 * each for each in range(size)]
        stacked, concatenated = torch.zeros(size, 2, 2), torch.zeros(2, 2 * size).t()
        dist.all_gather_single(stacked, every[rank])
        work = dist.all_gather_into_tensor(concatenated, every[rank].t(), async_op=True)
        assert work is not None and work.get_future().then(lambda future: future.value()[0].sum()).wait() > 0
        assert torch.equal(stacked, torch.stack(every))
        assert torch.equal(concatenated, torch.cat([each.t() for each in every]))
        half = torch.zeros(2, 2, dtype=torch.bfloat16)
        dist.reduce_scatter_single(half, stacked.to(torch.bfloat16))
        assert torch.equal(half.float(), every[rank] * size)
        part = torch.zeros(2, 2)
        dist.reduce_scatter(part, list(stacked), dist.ReduceOp.PREMUL_SUM(torch.tensor([0.5])))
        assert torch.equal(part, every[rank] * size / 2)
        outputs = [torch.zeros(each + 1, dtype=torch.int32) for each in range(size)]
        dist.all_to_all(outputs, [torch.full((rank + 1,), to, dtype=torch.int32) for to in range(size)])
        assert [each.tolist() for each in outputs] == [[rank] * (each + 1) for each in range(size)]
        rows = torch.zeros(size, 2)
        dist.all_to_all_single(rows, torch.arange(2.0 * size).reshape(size, 2) + 100 * rank)
        assert rows.tolist() == [[100 * each + 2 * rank, 100 * each + 2 * rank + 1] for each in range(size)]
        both = [torch.ones(3), torch.ones(2, dtype=torch.int64)]
        dist.all_reduce_coalesced(both)
        lists = [[torch.zeros(3)] for _ in range(size)]
        dist.all_gather_coalesced(lists, [both[0] + rank])
        assert both[1].tolist() == [size] * 2 and lists[1][0].tolist() == [size + 1] * 3
        buffer = torch.zeros(2)
        ops = [dist.P2POp(dist.isend, torch.ones(2) * rank, (rank + 1) % size)]
        ops += [dist.P2POp(dist.irecv, buffer, (rank - 1) % size)]
        assert all(work.wait() for work in dist.batch_isend_irecv(ops)) and buffer[0] == (rank - 1) % size
        table = torch.zeros(size, 2, 2) if rank == 1 else None
        dist.gather_single(every[rank], table, 1)
        assert table is None or torch.equal(table, stacked)
        x = torch.nn.Parameter(every[rank].clone())
        for result, wanted in (
            (dist.functional.all_reduce(x, "sum"), stacked.sum(0)),
            (dist.functional.all_reduce(every[rank].to(torch.bfloat16), "max").float(), every[-1]),
            (dist.functional.all_reduce(every[rank].long(), "avg"), every[1].long()),
            (dist.functional.all_gather_tensor(x, 1), torch.cat(every, 1)),
            (dist.functional.reduce_scatter_tensor(stacked[0].repeat(size, 1), "sum", 0), every[0] * size),
            (dist.functional.broadcast(x, 1), every[1]),
            (dist.functional.permute_tensor(every[rank], [*range(1, size), 0]), every[rank - 1]),
        ):
            assert type(result) is torch.Tensor and torch.equal(result, wanted)
        assert torch.equal(x, every[rank])

    ranks(3, program)


def test_torchs_own_reductions_are_taken_by_their_names() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    theirs = torch.distributed.ReduceOp
    given = [np.arange(1, 4) * (2 * rank + 2) for rank in range(2)]
    wanted = {
        "SUM": given[0] + given[1],
        "PRODUCT": given[0] * given[1],
        "MIN": np.minimum(*given),
        "MAX": np.maximum(*given),
        "BAND": given[0] & given[1],
        "BOR": given[0] | given[1],
        "BXOR": given[0] ^ given[1],
        "AVG": (given[0] + given[1]) // 2,
    }

    def program(rank: int) -> None:
        for name, want in wanted.items():
            for op in (getattr(theirs, name), theirs(getattr(theirs, name)), getattr(theirs.RedOpType, name)):
                x = given[rank].copy()
                # one rank may say it in torch's words, the other one in ours
                dist.all_reduce(x, op if rank else getattr(dist.ReduceOp, name))
                assert x.tolist() == want.tolist(), name
            assert dist.functional.all_reduce(given[rank], getattr(theirs, name)).tolist() == want.tolist()
        row = torch.ones(2) * (rank + 1)
        dist.all_reduce_coalesced([row], theirs.PREMUL_SUM(torch.tensor(0.5)))
        assert row.tolist() == [1.5, 1.5]
        dist.reduce(row, 0, theirs.PREMUL_SUM(2.0))
        assert row.tolist() == ([6, 6] if rank == 0 else [1.5, 1.5])
        assert dist.functional.all_reduce(row, theirs.PREMUL_SUM(0.0)).tolist() == [0, 0]
        with pytest.raises(RuntimeError, match="needs its factor"):
            dist.all_reduce(row, theirs.PREMUL_SUM)
        with pytest.raises(RuntimeError, match="op should be a constant"):
            dist.all_reduce(row, torch.float32)

    ranks(2, program)
