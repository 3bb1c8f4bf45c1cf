"""What a call could take at best on this machine, in the same language, and what aiocoll takes: in turns, in one run.

    python3 scripts/bench_floor.py [-n RANKS] [CALL ...]     # 2 ranks and all calls, unless you say otherwise

The floor is a bare loop without any contract: no checks of arguments, no other traffic, no deadline, nobody may die.
Ranks meet through words in shared memory at which they look without end; up to 256 KiB data are copied in and out of
shared memory, longer ones are read once out of private memory by the kernel, and folded block by block.

The rule: both sides use the same arrays and take turns in blocks; a block's time is that of its slowest rank.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environment import ROOT, clean_environment, prepare

ROUNDS = 7
BLOCK_SECONDS = 0.03
SLOT_BYTES = 256 << 10
STEP_BYTES = 512 << 10
KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "barrier": (0,),
    "broadcast": (4, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    "all_gather": (4, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    "all_to_all": (4, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    "reduce_scatter": (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    "all_reduce": (4, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
}
"""Bytes of one rank's input."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, metavar="RANKS")
    parser.add_argument("calls", nargs="*", metavar="CALL", help=" ".join(SIZES))
    arguments = parser.parse_args()
    unknown = set(arguments.calls) - set(SIZES)
    if unknown:
        parser.error(f"no such call: {', '.join(sorted(unknown))}")
    if "RANK" not in os.environ:
        python = prepare()
        command = [str(python), "-m", "aiocoll", "run", "-n", str(arguments.n), "--ranks", "0", __file__, *sys.argv[1:]]
        variables = clean_environment() | {"PYTHONPATH": str(ROOT)}
        raise SystemExit(subprocess.run(command, cwd=ROOT, env=variables).returncode)
    import aiocoll.sync

    with aiocoll.sync.connect() as group:
        bare = Bare(group)
        if group.rank == 0:
            print(f"| {group.size} ranks | floor µs | aiocoll µs | aiocoll ÷ floor |", flush=True)
            print("| --- | ---: | ---: | --- |", flush=True)
        for call in arguments.calls or SIZES:
            for nbytes in SIZES[call]:
                compare(group, bare, call, nbytes)


def compare(group: Any, bare: Bare, call: str, nbytes: int) -> None:
    """One line of the table."""
    import numpy as np

    size, rank = group.size, group.rank
    x = np.full(max(nbytes // 4, 1), rank + 1, np.float32)
    table = np.zeros((size, len(x)), np.float32)
    parts = np.array_split(x, size)
    own = np.zeros_like(parts[rank])
    ours: dict[str, Callable[[], Any]] = {
        "barrier": group.barrier,
        "broadcast": lambda: group.broadcast(x, out=x if rank else None),
        "all_gather": lambda: group.all_gather(x, out=table),
        "all_to_all": lambda: group.all_to_all(x),
        "reduce_scatter": lambda: group.reduce_scatter(x, out=own),
        "all_reduce": lambda: group.all_reduce(x, out=x),
    }
    theirs: dict[str, Callable[[], Any]] = {
        "barrier": bare.meet,
        "broadcast": lambda: bare.broadcast(x),
        "all_gather": lambda: bare.all_gather(x, list(table)),
        "all_to_all": lambda: bare.all_to_all(parts, np.array_split(table[0], size)),
        "reduce_scatter": lambda: bare.reduce_scatter(parts, own),
        "all_reduce": lambda: bare.all_reduce(x),
    }
    bare.show(x)
    contestants = (theirs[call], ours[call])
    times: list[list[float]] = [[], []]
    counts = [count_of(group, contestant, x) for contestant in contestants]
    for _ in range(ROUNDS):
        for contestant, count, found in zip(contestants, counts, times, strict=True):
            found.append(seconds_of(group, contestant, count, x))
    floor, mine = (statistics.median(each) for each in times)
    ratios = sorted(b / a for a, b in zip(*times, strict=True))
    if rank == 0:
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f})"
        print(f"| {call} {told(nbytes)} | {floor * 1e6:,.1f} | {mine * 1e6:,.1f} | {ratio} |", flush=True)


def count_of(group: Any, run: Callable[[], Any], x: Any) -> int:
    """How often it is run in a block."""
    import numpy as np

    warm = max(seconds_of(group, run, 3, x) for _ in range(2))
    counts = group.all_gather(np.array([BLOCK_SECONDS / warm]))
    return int(max(3, min(20_000, max(float(each[0]) for each in counts))))


def seconds_of(group: Any, run: Callable[[], Any], count: int, x: Any) -> float:
    """Seconds per call of the slowest rank."""
    import numpy as np

    x[:] = 0  # what is added up again and again stays what it is
    group.barrier()
    began = time.perf_counter()
    for _ in range(count):
        run()
    elapsed = np.array((time.perf_counter() - began) / count)
    return float(max(group.all_gather(elapsed)))


def told(nbytes: int) -> str:
    """A size for people."""
    if not nbytes:
        return ""
    return f"{nbytes} B" if nbytes < KIB else f"{nbytes // KIB} KiB" if nbytes < MIB else f"{nbytes // MIB} MiB"


class Bare:
    """The calls with nothing around them."""

    def __init__(self, group: Any) -> None:
        import numpy as np

        self.np, self.rank, self.size = np, group.rank, group.size
        self.others = [rank for rank in range(self.size) if rank != self.rank]
        self.group, self.turn, self.addresses = group, 0, [0] * self.size
        with tempfile.TemporaryDirectory() as folder:
            path = Path(group.broadcast_object(folder)) / "words"
            nbytes = 4096 * self.size + 2 * SLOT_BYTES * self.size
            if self.rank == 0:
                path.write_bytes(bytes(nbytes))
            group.barrier()
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), nbytes)
            group.barrier()
        self.words = memoryview(memory).cast("Q")
        slots = np.frombuffer(memory, np.uint8)[4096 * self.size :].reshape(2, self.size, SLOT_BYTES)
        self.slots = [[slots[turn, rank] for rank in range(self.size)] for turn in range(2)]
        self.pids = [int(each[0]) for each in group.all_gather(np.array([os.getpid()]))]
        self._read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        pointers = (ctypes.c_void_p, ctypes.c_ulong)
        self._read.argtypes, self._read.restype = (ctypes.c_int, *pointers, *pointers, ctypes.c_ulong), ctypes.c_ssize_t
        self._spans = np.zeros(4, np.uint64)
        self._at = self._spans.ctypes.data
        self._room = np.zeros((2, STEP_BYTES), np.uint8)

    def __repr__(self) -> str:
        return f"Bare({self.rank} of {self.size})"

    def show(self, x: Any) -> None:
        """Everybody learns where everybody's ``x`` lies."""
        self.addresses = [int(each[0]) for each in self.group.all_gather(self.np.array([x.ctypes.data]))]

    def meet(self) -> None:
        """Nobody goes on before all are here."""
        words, self.turn = self.words, self.turn + 1
        words[self.rank * 512] = wanted = self.turn
        for rank in self.others:
            word = rank * 512
            while words[word] < wanted:
                for _ in range(64):
                    if words[word] >= wanted:
                        break
                else:
                    os.sched_yield()

    def read(self, rank: int, offset: int, into: Any) -> None:
        """What lies ``offset`` bytes into that rank's array."""
        address, spans = into.ctypes.data, self._spans
        spans[0], spans[1], spans[2], spans[3] = address, into.nbytes, self.addresses[rank] + offset, into.nbytes
        got = self._read(self.pids[rank], self._at, 1, self._at + 16, 1, 0)
        if got != into.nbytes:
            raise OSError(ctypes.get_errno(), f"process_vm_readv gave {got} of {into.nbytes} bytes")

    def slot(self, rank: int, nbytes: int) -> Any:
        """That rank's slot in this turn, as float32; of the next turn's nobody is in need yet."""
        return self.slots[self.turn & 1][rank][:nbytes].view(self.np.float32)

    def broadcast(self, x: Any) -> None:
        if x.nbytes <= SLOT_BYTES:
            slot = self.slot(0, x.nbytes)
            if self.rank == 0:
                slot[:] = x
            self.meet()
            if self.rank:
                x[:] = slot
            return
        self.meet()
        if self.rank:
            self.read(0, 0, x)
        self.meet()

    def all_gather(self, x: Any, rows: list[Any]) -> None:
        if x.nbytes <= SLOT_BYTES:
            slots = [self.slot(rank, x.nbytes) for rank in range(self.size)]
            slots[self.rank][:] = rows[self.rank][:] = x
            self.meet()
            for rank in self.others:
                rows[rank][:] = slots[rank]
            return
        self.meet()
        rows[self.rank][:] = x
        for rank in self.others:
            self.read(rank, 0, rows[rank])
        self.meet()

    def all_to_all(self, parts: list[Any], into: list[Any]) -> None:
        nbytes, mine = sum(part.nbytes for part in parts), self.rank
        starts = [sum(part.nbytes for part in parts[:rank]) for rank in range(self.size)]
        if nbytes <= SLOT_BYTES:
            slots = [self.slot(rank, nbytes) for rank in range(self.size)]
            for rank in self.others:
                slots[mine][starts[rank] // 4 :][: len(parts[rank])] = parts[rank]
            into[mine][:] = parts[mine]
            self.meet()
            for rank in self.others:
                into[rank][: len(parts[mine])] = slots[rank][starts[mine] // 4 :][: len(parts[mine])]
            return
        self.meet()
        into[mine][:] = parts[mine]
        for rank in self.others:
            self.read(rank, starts[mine], into[rank][: len(parts[mine])])
        self.meet()

    def reduce_scatter(self, parts: list[Any], out: Any) -> None:
        start, mine = sum(part.nbytes for part in parts[: self.rank]), parts[self.rank]
        if mine.nbytes * self.size <= SLOT_BYTES:
            slots = [self.slot(rank, SLOT_BYTES) for rank in range(self.size)]
            at = 0
            for part in parts:
                slots[self.rank][at : at + len(part)] = part
                at += len(part)
            self.meet()
            terms = [slot[start // 4 : start // 4 + len(mine)] for slot in slots]
            self.np.add(terms[0], terms[1], out=out)
            for term in terms[2:]:
                self.np.add(out, term, out=out)
            return
        self.meet()
        self._fold(mine, start, out)
        self.meet()

    def all_reduce(self, x: Any) -> None:
        if x.nbytes <= SLOT_BYTES:
            slots = [self.slot(rank, x.nbytes) for rank in range(self.size)]
            slots[self.rank][:] = x
            self.meet()
            self.np.add(slots[0], slots[1], out=x)
            for slot in slots[2:]:
                self.np.add(x, slot, out=x)
            return
        parts = self.np.array_split(x, self.size)
        starts = [sum(part.nbytes for part in parts[:rank]) for rank in range(self.size)]
        self.meet()
        self._fold(parts[self.rank], starts[self.rank], parts[self.rank])
        self.meet()
        for rank in self.others:
            self.read(rank, starts[rank], parts[rank])
        self.meet()

    def _fold(self, mine: Any, offset: int, out: Any) -> None:
        """Everybody's block of the share that begins ``offset`` bytes into the arrays, from rank 0 on."""
        np, length = self.np, STEP_BYTES // 4
        for start in range(0, len(mine), length):
            own, into = mine[start : start + length], out[start : start + length]
            rooms = [room[: own.nbytes].view(np.float32) for room in self._room]
            total = own
            if self.rank:
                self.read(0, offset + 4 * start, rooms[0])
                total = rooms[0]
            for rank in range(1, self.size):
                term = own
                if rank != self.rank:
                    self.read(rank, offset + 4 * start, rooms[1])
                    term = rooms[1]
                np.add(total, term, out=into if rank >= self.rank else total)
                total = into if rank >= self.rank else total


if __name__ == "__main__":
    main()
