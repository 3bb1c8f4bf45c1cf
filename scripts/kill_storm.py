"""Kills ranks by SIGKILL at random moments of what they do together, and looks at what their survivors say.

    python scripts/kill_storm.py [--rounds 1000] [--seed 0] [--transport shm|tcp] [--stop] [--only WORLD] [--verbose]

A round is one kill. Worlds of 2 to 8 processes live one after the other; in each, ranks die one by one or in twos, and
whoever is left goes on in a smaller group that was made before. Every survivor must hear who died, within seconds, in
the groups of the dead and in no other; nobody may crash or hang, and nothing may remain: exit status 0 says so.

With --stop a round is one SIGSTOP, one in each world: every survivor must hear at the deadline of its call, and not
before, that this rank is missing, and then go on without it.

The rule: all that happens follows from the seed, but for the moment of a kill. Time in which this process itself was
kept from running counts for nothing; worlds that could not even begin are played again under another number.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Any

from kill_storm_rank import Plan, load_everything, rank_process

HANG_SECONDS = 30.0
SLICE_SECONDS = 0.25
DELAY_SECONDS = 0.0002, 0.06
"""The shortest and longest time from the beginning of a stage to its kill."""


class World:
    """One world of processes, and what becomes of it."""

    def __init__(self, plan: Plan, rng: random.Random, output: Path) -> None:
        self.plan, self.rng, self.output = plan, rng, output
        self.wrong: list[str] = []
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.killed: dict[int, float] = {}
        """When each victim was killed, in this process's own time."""
        self.ready = 0
        """How many ranks have made their groups, which a death would keep them from."""
        self.early = False
        """Whether a kill waits for that alone."""
        self.begun: Counter[int] = Counter()
        self.heard: dict[int, set[int]] = {}
        self.ended: set[int] = set()
        self.unmet = ""
        """Why the world could not begin."""
        self.stood_still = 0.0
        """Seconds during which nobody let this process run."""
        self.stage = 0
        self.pids: dict[int, int] = {}
        self.pipes: dict[int, connection.Connection] = {}

    def __repr__(self) -> str:
        return f"<World {self.plan.number}: {len(self.killed)} of {self.plan.size} killed>"

    def run(self) -> None:
        """From the first fork to the last wait; ``wrong`` is empty if all went well."""
        try:
            self._start()
            self._watch()
        finally:
            self._finish()

    def _start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        for rank in range(self.plan.size):
            ours, theirs = Pipe(duplex=False)
            pid = os.fork()
            if not pid:
                for each in self.pipes.values():
                    each.close()
                ours.close()
                mine = listener if rank == 0 else None
                rank_process(self.plan, rank, listener.getsockname()[1], mine, theirs, self._said_by(rank))
            theirs.close()
            self.pids[rank], self.pipes[rank] = pid, ours
        listener.close()

    def _said_by(self, rank: int) -> str:
        return str(self.output / f"{self.plan.number}-{rank}.txt")

    def _watch(self) -> None:
        """Hears the ranks and kills them, until each of them has ended."""
        listening: dict[Any, int] = {pipe: rank for rank, pipe in self.pipes.items()}
        due: float | None = None
        until = self._now() + HANG_SECONDS
        while listening and not self.unmet:
            now = self._now()
            if due is not None and now >= due:
                due = None
                self._kill()
                until = now + HANG_SECONDS
            if now > until:
                self.wrong.append(f"ranks {sorted(listening.values())} hang")
                return
            for pipe in self._wait(list(listening), min(until if due is None else due, now + SLICE_SECONDS) - now):
                rank = listening[pipe]
                try:
                    said = pipe.recv()
                except (EOFError, ConnectionResetError):
                    del listening[pipe]
                    continue
                if self._hear(rank, *said):
                    due = self._now() + self._delay()

    def _now(self) -> float:
        return time.monotonic() - self.stood_still

    def _wait(self, pipes: list[Any], seconds: float) -> list[Any]:
        """Those with something to say; notices when it took far longer than it should."""
        began = time.monotonic()
        heard = connection.wait(pipes, max(seconds, 0.0))
        self.stood_still += max(time.monotonic() - began - 2 * SLICE_SECONDS, 0.0)
        return heard

    def _delay(self) -> float:
        low, high = DELAY_SECONDS
        return float(low * (high / low) ** self.rng.random())

    def _hear(self, rank: int, what: str, *facts: Any) -> bool:
        """Takes in what a rank says; whether the stage's victims shall die soon."""
        if what == "stage":
            (stage,) = facts
            self.begun[stage] += 1
            if stage == self.stage == len(self.plan.victims) and self.begun[stage] == len(self.plan.members(stage)):
                self._kill_stopped()
            if stage != self.stage or stage >= len(self.plan.victims):
                return False
            members = self.plan.members(stage)
            if self.plan.early[stage]:  # as soon as they are there themselves, wherever the others are
                soon = rank == self.plan.victims[stage][0] or len(self.plan.victims[stage]) == len(members)
                all_ready = self.ready == self.plan.size
                self.early = self.early or (soon and not all_ready)
                return soon and all_ready
            return self.begun[stage] == len(members)
        if what == "ready":
            self.ready += 1
            return self.early and self.ready == self.plan.size
        if what == "lost":
            stage, when, named, wrong = facts
            self.errors.update(named)
            self.wrong += [f"rank {rank} in stage {stage}: {each}" for each in wrong]
            if stage == len(self.plan.victims):
                self.wrong.append(f"rank {rank} heard of a loss in stage {stage}, in which nobody dies")
            elif any(victim not in self.killed for victim in self.plan.victims[stage]):
                self.wrong.append(f"rank {rank} heard of a loss in stage {stage} before anybody was killed")
            else:
                killed = max(self.killed[victim] for victim in self.plan.victims[stage])
                self.latencies.append(max(when - self.stood_still - killed - self.plan.stop_seconds, 0.0))
        elif what == "end":
            self.ended.add(rank)
            self.wrong += [f"rank {rank} left behind: {each}" for each in facts[0]]
        elif what == "unmet":
            (self.unmet,) = facts
        else:
            self.wrong.append(f"rank {rank}: {what} {facts[0]}")
        return False

    def _kill(self) -> None:
        for victim in self.plan.victims[self.stage]:
            self.killed[victim] = self._now()
            os.kill(self.pids[victim], signal.SIGSTOP if self.plan.stop_seconds else signal.SIGKILL)
        self.stage += 1

    def _kill_stopped(self) -> None:
        """The others go on without those who stand still: what rank 0 hosts would wait for them for ever."""
        for victim in self.killed if self.plan.stop_seconds else ():
            os.kill(self.pids[victim], signal.SIGKILL)

    def _finish(self) -> None:
        """Ends whatever still runs, and judges how everybody ended."""
        hung = bool(self.wrong)
        for rank, pid in self.pids.items():
            if hung and rank not in self.killed and rank not in self.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)  # it writes down where it is
        if hung:
            time.sleep(0.5)
        for rank, pid in self.pids.items():
            if rank not in self.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            wanted = -signal.SIGKILL if rank in self.killed else 0
            if status != wanted and not self.unmet:
                self.wrong.append(f"rank {rank} ended with {status} instead of {wanted}")
            self.pipes[rank].close()
        if self.stage < len(self.plan.victims) and not self.wrong and not self.unmet:
            self.wrong.append(f"only {self.stage} of {len(self.plan.victims)} stages were played")

    def report(self) -> Iterator[str]:
        """What went wrong, with what the ranks wrote."""
        yield f"world {self.plan.number}: {self.plan}"
        yield from self.wrong
        for rank in self.pids:
            path = Path(self._said_by(rank))
            if path.exists() and (text := path.read_text().strip()):
                yield f"--- rank {rank} wrote:\n{text}"


class Storm:
    """All worlds, and the sums of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.worlds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.latencies: list[float] = []
        self.kills = self.failures = self.unmet = 0
        load_everything()
        self.before = belongings()

    def __repr__(self) -> str:
        return f"<Storm: {self.kills} kills in {self.worlds.total()} worlds>"

    def run(self) -> int:
        """Plays worlds until there were as many kills as wanted; the exit status."""
        began = time.monotonic()
        number = 0 if self.options.only is None else self.options.only
        with tempfile.TemporaryDirectory(prefix="kill-storm-") as folder:
            while self.kills < self.options.rounds and self.unmet <= 10 + self.kills // 20:
                self._play(number, Path(folder))
                number += 1
                if self.options.only is not None:
                    break
        left = sorted(belongings() - self.before)
        for each in left:
            print(f"left behind: {each}")
        slowest, median = max(self.latencies, default=0.0), sorted(self.latencies or [0.0])[len(self.latencies) // 2]
        modes = ", ".join(f"{count} {mode}" for mode, count in sorted(self.worlds.items()))
        what, who, since = ("stops", "is missing", "deadline") if self.options.stop else ("kills", "died", "kill")
        print(
            f"{self.kills} {what} in {self.worlds.total()} worlds ({modes}) within {time.monotonic() - began:.0f} s: "
            f"{len(self.latencies)} times a survivor heard who {who} ({median * 1e3:.1f} ms after the {since}, at most "
            f"{slowest * 1e3:.0f} ms; {dict(self.errors)}), {self.failures} worlds went wrong, {self.unmet} could not "
            f"begin, {len(left)} things left"
        )
        return int(bool(self.failures or left or slowest > self.options.seconds or self.unmet > 10 + self.kills // 20))

    def _play(self, number: int, folder: Path) -> None:
        stop_seconds = self.options.stop_seconds if self.options.stop else 0.0
        plan = Plan.of(self.options.seed, number, self.options.transport, stop_seconds)
        world = World(plan, random.Random(f"moments {self.options.seed} {number}"), folder)
        world.run()
        if world.unmet:
            self.unmet += 1
            print(f"world {number} could not begin: {world.unmet}", flush=True)
            return
        self.worlds[plan.mode] += 1
        self.kills += len(world.killed)
        self.errors += world.errors
        self.latencies += world.latencies
        if world.wrong:
            self.failures += 1
            print("\n".join(world.report()), flush=True)
        elif self.options.verbose:
            slowest = max(world.latencies, default=0.0)
            print(f"{self.kills} kills; world {number}: {plan}, {slowest * 1e3:.0f} ms", flush=True)


def belongings() -> set[str]:
    """What this process has, and what lies in /dev/shm that no other process uses."""
    found = {f"descriptor to {os.readlink(each)}" for each in Path("/proc/self/fd").iterdir() if each.exists()}
    found |= {f"child {pid}" for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    used = _used_by_others()
    # Semaphores are other programs': ranks make none.
    lying = [each for each in Path("/dev/shm").iterdir() if not each.name.startswith("sem.")]  # noqa: S108  only looks
    return found | {str(each) for each in lying if str(each) not in used}


def _used_by_others() -> set[str]:
    """Files in /dev/shm that some process has mapped."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            used |= {line.split()[-1] for line in maps.read_text().splitlines() if "/dev/shm/" in line}  # noqa: S108  as above
    return used


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1000, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--stop", action="store_true", help="stop ranks (SIGSTOP) instead of killing them")
    parser.add_argument("--stop-seconds", type=float, default=2.0, help="the deadline of calls in those worlds")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a survivor may take to hear of a death")
    parser.add_argument("--only", type=int, help="the one world to be played")
    parser.add_argument("--verbose", action="store_true")
    return Storm(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
