"""examples/train_digits.py with torch.distributed's Gloo in the place of aiocoll's group; run it under torchrun.

    torchrun --nproc-per-node 4 scripts/bench_digits.py

The rule: the example's own program, and nothing but its group is another.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class TorchGroup:
    """What train_digits asks of a group, by Gloo."""

    def __init__(self) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    async def barrier(self) -> None:
        """All ranks came."""
        dist.barrier()

    async def all_reduce(self, x: Any, out: Any = None) -> Any:
        """The sum; ``out`` is the input itself where it is given."""
        total = np.array(x, dtype=float) if out is None else out
        dist.all_reduce(torch.from_numpy(total))
        return total

    async def broadcast(self, x: Any) -> Any:
        """Rank 0's array."""
        held = [x]
        dist.broadcast_object_list(held, 0)
        return held[0]


def example() -> ModuleType:
    """examples/train_digits.py as a module."""
    path = Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"
    sys.path.insert(0, str(path.parent))  # it has its network and data from a file beside it
    spec = importlib.util.spec_from_file_location("train_digits", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_digits"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    group = TorchGroup()
    asyncio.run(example().main(group))
    dist.destroy_process_group()
