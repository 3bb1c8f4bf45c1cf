"""torch CPU tensors in every role, filled in place; torch is imported by the test, never by aiocoll."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from tests.distributed.fake_group import FakeGroup

Join = Callable[..., FakeGroup]


def test_aiocoll_does_not_import_torch() -> None:
    program = "import aiocoll.distributed, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


class Tensor:
    """The least that a foreign CPU tensor offers: DLPack over memory of its own."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_any_tensor_with_dlpack_is_filled_in_place(joined: Join) -> None:
    joined(0, 2)
    tensor = Tensor(np.arange(4.0))
    dist.all_reduce(tensor)
    assert tensor.array.tolist() == [10, 12, 14, 16]
    strided = Tensor(np.zeros((4, 2))[:, 0])
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
