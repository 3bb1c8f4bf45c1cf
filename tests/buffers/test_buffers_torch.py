"""Torch CPU tensors are arrays: read without a copy, and filled in place when given as out=."""

from __future__ import annotations

import numpy as np
import pytest

from aiocoll.buffers import as_array, as_out
from aiocoll.errors import UsageError

torch = pytest.importorskip("torch", reason="torch is not installed (extra aiocoll[torch])")
NAMES = (
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2"
).split()


def taken(x):
    return as_array(x, what="broadcast", rank=1)[0]


def given(x):
    return as_out(x, what="broadcast", rank=1)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_every_dtype_and_layout_share_memory(name):
    tensor = torch.zeros((4, 6), dtype=getattr(torch, name))
    for view in (tensor, tensor.T, tensor[::2, 1::3], tensor[0, 0], tensor[:0]):
        source, out = taken(view), given(view)
        assert source.dtype.name == out.dtype.name == name and source.shape == out.shape == tuple(view.shape)
        out[...] = np.ones((), out.dtype)
        assert (view == torch.ones((), dtype=view.dtype)).all() if "float8" not in name else (source == out).all()


def test_gradients_and_conjugates():
    parameter = torch.nn.Parameter(torch.zeros(3))
    given(parameter)[:] = 2
    assert parameter.tolist() == [2, 2, 2]
    lazy = torch.tensor([1 + 2j]).conj()
    assert taken(lazy).tolist() == [1 - 2j]
    with pytest.raises(UsageError, match="resolve_conj"):
        given(lazy)


def test_tensors_that_are_no_memory_of_this_process_are_refused():
    for bad in (torch.zeros(3, device="meta"), torch.zeros(3).to_sparse()):
        for take in (taken, given):
            with pytest.raises(UsageError, match="broadcast on rank 1: cannot read this Tensor"):
                take(bad)
    with pytest.raises(UsageError, match="overlap"):
        given(torch.zeros(1).expand(3))


def test_lists_of_tensors_are_stacked():
    assert taken([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
