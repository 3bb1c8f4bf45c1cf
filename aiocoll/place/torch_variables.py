"""MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, as ``env://`` reads them; the rule: they are read, never demanded.

They name ranks only for those who ask for ``env://``; for ``connect()`` without arguments see ``torchrun.py``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from aiocoll.place.aiocoll import script_moved_the_master
from aiocoll.place.base import Environ, whole
from aiocoll.place.torchrun import store_port


@dataclass(frozen=True, slots=True)
class TorchVariables:
    """What is set; None, "" and 0 for what is not."""

    rank: int | None
    size: int | None
    host: str
    port: int
    """Where our store goes; beside MASTER_PORT itself where torchrun's agent has that."""
    moved: bool
    """Under the runner: whether the script has put its own address in place of the runner's."""


def read(environ: Environ | None = None) -> TorchVariables:
    """The variables as they stand now; UsageError for what is no number."""
    env = os.environ if environ is None else environ
    return TorchVariables(
        rank=whole(env, "RANK"),
        size=whole(env, "WORLD_SIZE", least=1),
        host=env.get("MASTER_ADDR", "").strip(),
        port=store_port(env) if env.get("MASTER_PORT", "").strip() else 0,
        moved=script_moved_the_master(env),
    )
