"""The backends "gloo" and "nccl": process groups of the installed torch.

The rule: torch's own default group is left alone, so a program may use torch.distributed beside this; NumPy's arrays go
in as tensors over the same memory, and for NCCL by way of the GPU.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from ...errors import UsageError
from .base import Array

_FOLDED = {"gloo": "bBilqfd", "nccl": "bBilqfd"}  # by NumPy's type characters
_LOOPBACK = "127.0.0.1"
_OP = {"PROD": "PRODUCT"}


class TorchComm:
    """One group's process group, the stores in which it met, and the device on which its tensors lie."""

    def __init__(self, torch: Any, group: Any, stores: Any, device: str, size: int) -> None:
        self._torch, self._group, self._stores, self._device, self._size = torch, group, stores, device, size

    def __repr__(self) -> str:
        return f"TorchComm({self._group!r}, {self._device!r})"

    def all_reduce(self, x: Array, op: str) -> Request:
        options = self._torch.distributed.AllreduceOptions()
        options.reduceOp = self._op(op)
        return self._begin(x, lambda tensor: self._group.allreduce([tensor], options))

    def reduce(self, x: Array, op: str, root: int) -> Request:
        options = self._torch.distributed.ReduceOptions()
        options.reduceOp, options.rootRank = self._op(op), root
        return self._begin(x, lambda tensor: self._group.reduce([tensor], options))

    def broadcast(self, data: Array, root: int) -> Request:
        options = self._torch.distributed.BroadcastOptions()
        options.rootRank = root
        return self._begin(data, lambda tensor: self._group.broadcast([tensor], options))

    def all_gather(self, buffer: Array, counts: Sequence[int], rank: int) -> Request:
        """Blocks of one length at once; others padded to the longest, since torch's must be equal."""
        longest, start = max(counts), sum(counts[:rank])
        mine = np.zeros(longest, np.uint8)
        mine[: counts[rank]] = buffer[start : start + counts[rank]]
        even = longest * self._size == len(buffer)
        table = buffer if even else np.empty(longest * self._size, np.uint8)
        tensor = self._tensor(mine)

        def unpack() -> None:
            at = 0
            for source, count in enumerate(counts):
                buffer[at : at + count] = table[source * longest : source * longest + count]
                at += count

        return self._begin(table, lambda out: self._group._allgather_base(out, tensor), None if even else unpack)

    def exchange(self, out: Array, out_counts: Sequence[int], into: Array, into_counts: Sequence[int]) -> Request:
        leaving = self._tensor(out)
        return self._begin(
            into, lambda tensor: self._group.alltoall_base(tensor, leaving, list(into_counts), list(out_counts))
        )

    def free(self) -> None:
        group, self._group, self._stores = self._group, None, None
        if hasattr(group, "shutdown"):  # torch before 2.7 ends one with its last reference
            group.shutdown()

    def _op(self, name: str) -> Any:
        return getattr(self._torch.distributed.ReduceOp, _OP.get(name, name))

    def _tensor(self, x: Array) -> Any:
        tensor = self._torch.from_numpy(_writable(x))
        return tensor if self._device == "cpu" else tensor.to(self._device)

    def _begin(self, x: Array, start: Callable[[Any], Any], after: Callable[[], None] | None = None) -> Request:
        tensor = self._tensor(x)
        work = start(tensor)

        def ended() -> None:
            work.wait()  # it is over: this raises what it raised, and orders streams
            if self._device != "cpu" and x.flags.writeable:
                self._torch.from_numpy(x).copy_(tensor)
            if after is not None:
                after()

        return Request(work, ended)


class Request:
    """A torch Work, and what is left to do after it."""

    def __init__(self, work: Any, ended: Callable[[], None]) -> None:
        self._work, self._ended = work, ended

    def test(self) -> bool:
        if not self._work.is_completed():
            return False
        self._ended()
        return True


class TorchLibrary:
    """Process groups of one kind in this process."""

    name: str
    title: str

    def __init__(self, name: str, device: str | None = None, *, secret: bool = False) -> None:
        """``secret``: whether the ranks of this job know one."""
        import torch
        import torch.distributed

        self._torch: Any = torch
        self.name, self.title = name, f"{name} (torch {torch.__version__})"
        self._secret = secret
        self._device = device or ("cpu" if name == "gloo" else f"cuda:{torch.cuda.current_device()}")
        self._hosted: dict[str, Any] = {}
        """The stores that this rank hosts, by what their guests were told."""

    def __repr__(self) -> str:
        return f"TorchLibrary({self.name!r}, {self._device!r})"

    def reduces(self, dtype: np.dtype[Any], op: str) -> bool:
        if dtype.char not in _FOLDED[self.name]:
            return False
        return op in ("SUM", "PROD", "MIN", "MAX") or (dtype.kind in "iu" and self.name == "gloo")

    def invite(self, hosts: Sequence[str]) -> str:
        """Hosts the store in which the group meets: on loopback unless members are elsewhere. Torch asks nobody for a
        secret; so at least the job must have one, as wherever aiocoll itself listens for other hosts."""
        here = hosts[0]
        host = _LOOPBACK if all(each == here for each in hosts) else here
        if host != _LOOPBACK and not self._secret:
            raise UsageError(
                f"backend {self.name!r} on {here}: without a secret only loopback addresses are used, and this group "
                f"has ranks on {', '.join(dict.fromkeys(hosts))}: give every rank the same AIOCOLL_SECRET, or start "
                "them with 'aiocoll run', which makes one"
            )
        listener = socket.create_server((host if host == _LOOPBACK else "", 0))
        port = int(listener.getsockname()[1])
        store = self._torch.distributed.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._hosted[f"{host} {port}"] = store
        return f"{host} {port}"

    def open(self, meeting: str, tag: int, ranks: Sequence[int], rank: int, seconds: float) -> TorchComm:
        host, port = meeting.split()
        limit = timedelta(seconds=seconds)
        dist = self._torch.distributed
        store = dist.PrefixStore(f"{tag}", dist.TCPStore(host, int(port), timeout=limit, wait_for_workers=False))
        hosted = None if self.name == "nccl" else self._hosted.pop(meeting, None)  # NCCL's watchers look into it later
        if self.name == "gloo":
            options = dist.ProcessGroupGloo._Options()
            options._timeout = limit
            if host == _LOOPBACK:  # or Gloo, which asks nobody for a secret, would listen where others can reach it
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
            else:
                options._devices = [dist.ProcessGroupGloo.create_default_device()]
            group = dist.ProcessGroupGloo(store, rank, len(ranks), options)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            group = dist.ProcessGroupNCCL(store, rank, len(ranks), options)
        return TorchComm(self._torch, group, (store, hosted), self._device, len(ranks))

    def close(self) -> None:
        self._hosted.clear()


class _Seen:
    """Memory that may not be written, for torch, which knows no such tensors and is not asked to write here."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _writable(x: Array) -> Array:
    return x if x.flags.writeable else np.asarray(_Seen(x))
