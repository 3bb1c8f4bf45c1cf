"""Two hosts made of this one: network namespaces joined by a cable that a test can pull, block or make lossy."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

NOBODY = "02:00:00:00:00:99"
"""The hardware address of nobody: what is sent there is lost without a word."""


class Host:
    """A network namespace that lives as long as a process which does nothing."""

    def __init__(self, number: int) -> None:
        self.number, self.address = number, f"10.77.0.{number + 1}"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != b"ready\n":
            self.end()
            raise OSError("the kernel makes no network namespace for us")

    def __repr__(self) -> str:
        return f"<Host {self.number} at {self.address}>"

    @property
    def pid(self) -> int:
        return self.holder.pid

    @property
    def cable(self) -> str:
        """This host's end of the cable."""
        return f"cable{self.number}"

    def enter(self, *command: str) -> list[str]:
        """A command that runs on this host."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *command]

    def ip(self, *arguments: str) -> None:
        done = subprocess.run(self.enter("ip", *arguments), capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def lose_everything_for(self, other: Host) -> None:
        """What is sent to ``other`` from now on is lost on the way."""
        self.ip("neighbour", "replace", other.address, "lladdr", NOBODY, "dev", self.cable, "nud", "permanent")

    def find_again(self, other: Host) -> None:
        """It arrives again."""
        self.ip("neighbour", "del", other.address, "dev", self.cable)

    def end(self) -> None:
        self.holder.kill()
        self.holder.communicate()


@contextlib.contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Two hosts with a cable between them; the test is skipped where that cannot be had."""
    made: list[Host] = []
    try:
        try:
            made += [Host(0)]
            made += [Host(1)]
            made[0].ip("link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", str(made[1].pid))
            for each in made:
                each.ip("link", "set", "lo", "up")
                each.ip("address", "add", f"{each.address}/24", "dev", each.cable)
                each.ip("link", "set", each.cable, "up")
        except OSError as error:
            pytest.skip(f"no two network namespaces joined by a cable can be had here: {error}")
        yield made
    finally:
        for each in made:
            each.end()
