"""Tensors on a GPU, as the backend "nccl" takes them: this process's copy in the memory of the host.

The rule: nothing is imported for it; a tensor that says that it is on a GPU can bring itself here and be filled from
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import as_out
from ..errors import UsageError
from .refusals import TypeUsageError, documented


class OnDevice:
    """A tensor on a GPU; ``array`` is a contiguous copy of it, and ``put_back()`` writes what stands there by then."""

    __slots__ = ("_host", "_tensor", "array")

    def __init__(self, tensor: Any, what: str, rank: int) -> None:
        if not getattr(tensor, "is_cuda", False):
            raise TypeUsageError(
                f"{what} on rank {rank}: backend 'nccl' wants CUDA tensors, got {type(tensor).__name__}: "
                "tensor.cuda() makes one, and the backends 'auto' and 'gloo' take tensors of the CPU"
            )
        self._tensor, self._host = tensor, tensor.detach().cpu().contiguous()
        try:
            self.array: NDArray[Any] = np.asarray(as_out(self._host, what=what, rank=rank))
        except UsageError as error:
            raise documented(error) from error.__cause__

    def put_back(self) -> None:
        """Fills the tensor on the GPU from ``array``."""
        self._tensor.detach().copy_(self._host)

    def __repr__(self) -> str:
        return f"OnDevice({self._tensor!r})"
