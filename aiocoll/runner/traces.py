"""The dumps of this runner's ranks: where they lie, asking for them, and what they say together.

Rule: nothing lies on disk before a rank has something to say, and what the runner chose as a place is gone when it ends
(the warden sees to that where the runner itself is killed).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "AIOCOLL_TRACE_DIR"
ANSWER_S = 0.5
"""So long ranks that are about to be ended may take to say where they are."""
LINES_MAX = 16


@dataclass(frozen=True, slots=True)
class Traces:
    """A directory for dumps; ``private``: chosen by the runner, made by the first rank that dumps."""

    directory: str
    private: bool
    said: bool = True
    """Whether the runner itself says what they say."""

    @classmethod
    def choose(cls, env: Mapping[str, str], log_dir: str, *, said: bool = True) -> Traces:
        """What the user set (the empty string for none), else the logs' directory, else one that nobody can guess."""
        if VARIABLE in env:
            return cls(env[VARIABLE], False, said)
        if log_dir:
            return cls(os.path.abspath(log_dir), False, said)
        name = f"aiocoll-{os.getuid()}-{os.urandom(8).hex()}"
        temporary = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  a name that nobody can guess
        return cls(os.path.join(temporary, name), True, said)

    @property
    def variables(self) -> dict[str, str]:
        """For the ranks."""
        return {VARIABLE: self.directory}

    @property
    def scratch(self) -> str:
        """What is to be removed at the end; "" for nothing."""
        return self.directory if self.private else ""

    def ask(self, pids: Sequence[int]) -> None:
        """Has the ranks behind these processes dump what they know, those that listen and have a place for it."""
        if not self.directory:
            return
        from aiocoll.errors import AiocollError
        from aiocoll.trace.ranks import ask, chosen, everybody

        with contextlib.suppress(AiocollError):  # one may have ended meanwhile: the others' dumps will do
            processes = everybody()
            ask([each for each in chosen([pid for pid in pids if pid in processes], None, processes)], 0.0)

    def words(self, job: str, since: float, before: float, *, all_here: bool) -> list[str]:
        """What the dumps of a ``job`` that were made ``since`` a moment say together; those from ``before`` the ranks
        were ended count most. ``all_here``: all ranks of the job are this runner's, so that one without a dump is worth
        a word. Others may use the directory, too."""
        from aiocoll.errors import AiocollError
        from aiocoll.trace.dumps import files, read
        from aiocoll.trace.verdict import verdict

        try:
            found = [dump for dump in map(read, files([self.directory])) if dump.wall >= since]
        except AiocollError:  # there are none
            return []
        lines = verdict([dump for dump in found if dump.job == job], before, silent=all_here)
        if len(lines) > LINES_MAX:
            lines = [*lines[:LINES_MAX], f"and {len(lines) - LINES_MAX} lines more: aiocoll trace show, with --log-dir"]
        return lines

    def remove(self) -> None:
        """Leaves nothing that this runner made."""
        if self.private:
            with contextlib.suppress(OSError):  # nobody has dumped, or somebody keeps a file of his own there
                for name in os.listdir(self.directory):
                    os.unlink(os.path.join(self.directory, name))
                os.rmdir(self.directory)
