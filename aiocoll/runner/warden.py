"""The parent of one runner's ranks: starts them, reports their ends, and leaves no process behind.

Rule: this file runs as a program of its own (``python -I -S``), so it imports a handful of small standard modules and
nothing of aiocoll. It decides nothing but the end of orphans: policy lives in the runner.

It stands between runner and ranks because only a parent can promise what follows:

* as a *subreaper* it inherits every orphan below it, so a descendant that daemonizes is still found;
* it lives in a session of its own, so neither Ctrl-C nor a KILL of the runner's process group reaches it; the end of
  its control socket tells it that the runner is gone, and then it interrupts the ranks, kills them, and sweeps;
* should the warden itself be killed, each rank holds the read end of a pipe that the kernel watches (``F_SETSIG``):
  when the write end vanishes, the kernel kills that rank's process group. No thread, no polling, no help from the rank.

Control socket, runner to warden: one plan (see `encode_plan`), then lines ``signal NUMBER group|leader RANK,RANK``.
Warden to runner, lines: ``started RANK PID``, ``failed RANK ERRNO``, ``exit RANK STATUS MONOTONIC``, ``stuck PID,PID``,
``done``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

# When a rank has ended, what it left in its session may end by itself (a resource tracker unlinks shared memory);
# these many seconds later it is asked to, and then made to.
LEFTOVER_TERM_S, LEFTOVER_KILL_S = 0.5, 1.5
SWEEP_TERM_S, SWEEP_KILL_S, SWEEP_GIVE_UP_S = 0.3, 1.0, 5.0
ORPHANED_KILL_S = 1.0
TICK_S = 0.05

# Dispositions that a rank gets afresh. HUP is missing on purpose: under nohup it stays ignored.
RESET_SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGPIPE", "SIGXFSZ", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGTSTP")


class Spawn:
    """What one rank is started with; ``fds`` are its stdin, stdout, stderr (-1 is /dev/null), ``keep`` the rest."""

    __slots__ = ("argv", "env", "fds", "keep", "rank")
    rank: int
    argv: list[str]
    env: dict[str, str]
    fds: list[int]
    keep: list[int]

    def __init__(
        self, rank: int, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], keep: Sequence[int]
    ) -> None:
        self.rank, self.argv, self.env = rank, list(argv), dict(env)
        self.fds, self.keep = list(fds), list(keep)

    def __repr__(self) -> str:
        return f"Spawn(rank={self.rank}, argv={self.argv!r}, fds={self.fds}, keep={self.keep})"


def encode_plan(spawns: Iterable[Spawn]) -> bytes:
    """Counts and strings, each ended by a NUL (none of argv and environment can hold one), behind an 8-byte length."""
    fields: list[str] = []
    for spawn in spawns:
        fields += ["rank", str(spawn.rank), *map(str, spawn.fds), str(len(spawn.keep)), *map(str, spawn.keep)]
        fields += [str(len(spawn.argv)), *spawn.argv, str(len(spawn.env))]
        fields += [f"{name}={value}" for name, value in spawn.env.items()]
    body = b"".join(os.fsencode(field) + b"\0" for field in fields)
    return len(body).to_bytes(8, "big") + body


def decode_plan(body: bytes) -> list[Spawn]:
    """The inverse of `encode_plan`, without the length."""
    fields = iter(body.decode(sys.getfilesystemencoding(), "surrogateescape").split("\0")[:-1])

    def take(count: int) -> list[str]:
        return [next(fields) for _ in range(count)]

    spawns = []
    for _ in fields:  # the word "rank"
        rank, *fds = map(int, take(4))
        keep = [int(fd) for fd in take(int(next(fields)))]
        argv = take(int(next(fields)))
        env = dict(entry.split("=", 1) for entry in take(int(next(fields))))
        spawns.append(Spawn(rank, argv, env, fds, keep))
    return spawns


def processes() -> dict[int, tuple[int, int, str]]:
    """pid -> (parent, session, state) of every process that /proc shows; empty where there is no /proc."""
    table: dict[int, tuple[int, int, str]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return table
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            table[int(name)] = (int(fields[1]), int(fields[3]), fields[0].decode())
    return table


def descendants(of: int) -> list[int]:
    """Living descendants of a process, oldest level first."""
    table = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = [of]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        found += level
    return [pid for pid in found if table[pid][2] not in "ZX"]


def become_subreaper() -> None:
    """Orphans below this process become its children (Linux; elsewhere the ranks' process groups must do)."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def tie_to_my_life(read_end: int, group: int) -> None:
    """Has the kernel kill process group `group` when the last write end of this pipe is closed."""
    if not hasattr(fcntl, "F_SETSIG"):
        return
    with contextlib.suppress(OSError):  # the warden itself ends them, if it still can
        fcntl.fcntl(read_end, fcntl.F_SETOWN, -group)
        fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)


class Warden:
    """One attempt of one runner: see the module's docstring."""

    control: int
    scratch: str

    def __init__(self, control: int, scratch: str = "") -> None:
        self.control, self.scratch = control, scratch
        self.pids: dict[int, int] = {}  # rank -> pid, while it lives
        self.left: dict[int, float] = {}  # pid of an ended rank whose session is still to be swept -> when it ended
        self.runner_gone: float | None = None
        self.all_ended: float | None = None
        self.unread: bytes = b""

    def __repr__(self) -> str:
        return f"Warden(pids={self.pids}, left={list(self.left)}, runner_gone={self.runner_gone})"

    def say(self, line: str) -> None:
        if self.runner_gone is None:
            try:
                os.write(self.control, line.encode() + b"\n")
            except OSError:
                self.orphaned()

    # -- starting ---------------------------------------------------------------------------------------------------

    def read_plan(self) -> list[Spawn]:
        data = bytearray()
        while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:8], "big"):
            piece = os.read(self.control, 1 << 20)
            if not piece:
                raise SystemExit(0)  # the runner went before it had a plan
            data += piece
        end = 8 + int.from_bytes(data[:8], "big")
        self.unread = bytes(data[end:])
        return decode_plan(bytes(data[8:end]))

    def start(self, spawns: list[Spawn]) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        reset = [getattr(signal, name) for name in RESET_SIGNALS]
        for spawn in spawns:
            life, _write_end_kept_until_death = os.pipe()
            # From-to pairs of one descriptor only clear close-on-exec, in the child.
            actions = [(os.POSIX_SPAWN_DUP2, null if fd < 0 else fd, target) for target, fd in enumerate(spawn.fds)]
            actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in (*spawn.keep, life)]
            try:
                pid = os.posix_spawnp(
                    spawn.argv[0], spawn.argv, spawn.env,
                    file_actions=actions, setsid=True, setsigmask=[], setsigdef=reset,
                )  # fmt: skip
            except OSError as error:
                self.say(f"failed {spawn.rank} {error.errno or errno.EIO}")
                continue
            tie_to_my_life(life, pid)
            os.close(life)
            self.pids[spawn.rank] = pid
            self.say(f"started {spawn.rank} {pid}")
        for fd in {null, *(fd for spawn in spawns for fd in (*spawn.fds, *spawn.keep) if fd > 2)}:
            os.close(fd)

    # -- watching ---------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        rank_of = {pid: rank for rank, pid in self.pids.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in rank_of:
                now = time.monotonic()
                del self.pids[rank_of[pid]]
                self.left[pid] = now
                self.say(f"exit {rank_of[pid]} {os.waitstatus_to_exitcode(status)} {now!r}")

    def hear(self) -> bool:
        """False when the runner is gone."""
        try:
            data = os.read(self.control, 65536)
        except OSError:
            data = b""
        if not data:
            self.orphaned()
            return False
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            _, number, scope, ranks = line.decode().split(" ")
            self.signal(int(number), [int(rank) for rank in ranks.split(",")], group=scope == "group")
        return True

    def orphaned(self) -> None:
        if self.runner_gone is None:
            self.runner_gone = time.monotonic()
            self.signal(signal.SIGINT, list(self.pids), group=True)

    def signal(self, number: int, ranks: list[int], *, group: bool) -> None:
        for rank in ranks:
            if (pid := self.pids.get(rank)) is not None:
                with contextlib.suppress(OSError):  # it has gone meanwhile
                    (os.killpg if group else os.kill)(pid, number)
                    if number in (signal.SIGINT, signal.SIGTERM):  # a stopped rank shall hear it too
                        os.killpg(pid, signal.SIGCONT)

    # -- sweeping ---------------------------------------------------------------------------------------------------

    def sweep_sessions(self) -> None:
        """Ends what an ended rank left in its session while other ranks go on."""
        now, table = time.monotonic(), processes()
        for leader, ended in list(self.left.items()):
            members = [pid for pid, (_, session, state) in table.items() if session == leader and state not in "ZX"]
            if not members:
                del self.left[leader]
            elif now - ended >= LEFTOVER_TERM_S:
                end(members, signal.SIGKILL if now - ended >= LEFTOVER_KILL_S else signal.SIGTERM)

    def sweep_all(self) -> bool:
        """After the last rank: ends every descendant; True when none is left or can be ended."""
        if self.all_ended is None:
            self.all_ended = time.monotonic()
        alive = descendants(os.getpid())
        if not alive:
            return True
        age = time.monotonic() - self.all_ended
        if age >= SWEEP_GIVE_UP_S:
            self.say("stuck " + ",".join(map(str, alive)))
            return True
        if age >= SWEEP_KILL_S or self.runner_gone is not None:
            end(alive, signal.SIGKILL)
        elif age >= SWEEP_TERM_S:
            end(alive, signal.SIGTERM)
        return False

    def kill_for_a_gone_runner(self) -> bool:
        """True when it is time to give up on ranks that even KILL does not end."""
        if self.runner_gone is None:
            return False
        age = time.monotonic() - self.runner_gone
        if age >= ORPHANED_KILL_S:
            self.signal(signal.SIGKILL, list(self.pids), group=True)
        return age >= ORPHANED_KILL_S + SWEEP_GIVE_UP_S

    def run(self) -> None:
        woken, wake = os.pipe()
        for fd in (woken, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in ("SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)  # meant for the runner, which tells us what to do
        self.start(self.read_plan())
        become_subreaper()
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        while True:
            self.reap()
            if not self.pids and self.sweep_all():
                break
            if self.left:
                self.sweep_sessions()
            if self.kill_for_a_gone_runner():
                break
            busy = self.left or not self.pids or self.runner_gone is not None
            ready = {fd for fd, _ in poll.poll(TICK_S * 1000 if busy else None)}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):  # another look has read it
                    os.read(woken, 4096)
            if self.control in ready and not self.hear():
                poll.unregister(self.control)
        if self.runner_gone is not None:
            clear(self.scratch)
        self.say("done")


def clear(directory: str) -> None:
    """Removes the files in a directory of the runner's, and the directory; "" for none."""
    with contextlib.suppress(OSError):  # somebody else has removed it, or keeps a file of his own there
        for name in os.listdir(directory) if directory else ():
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def end(pids: list[int], number: int) -> None:
    """Signals processes one by one; those that have gone meanwhile are nobody's loss."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def main() -> None:
    """The program: its arguments are the control socket and a directory to remove when the runner is gone."""
    Warden(int(sys.argv[1]), sys.argv[2]).run()
    os._exit(0)  # the runner waits for this process to be gone
