"""``env://`` in the documented words: which variables it takes, and what happens when they contradict the arguments.

The rule: this file judges the variables; the meeting itself, and the runner's own variables, are the rendezvous's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..place import verdicts
from ..rendezvous.url import Url
from .refusals import RuntimeUsageError


def from_environment(
    size: int | None, rank: int | None, url: Url | None = None, environ: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """World size and rank from WORLD_SIZE and RANK or the arguments; RuntimeError where they differ or are missing.

    What the URL's query says (``env://?rank=0&world_size=2``) wins over the variables, and the arguments over it.
    """
    env = os.environ if environ is None else environ
    if url is not None and size is None and url.size is not None:
        size = url.size
    else:
        size = _settled(env, "WORLD_SIZE", "world_size", size)
    if url is not None and rank is None and url.rank is not None:
        rank = url.rank
    else:
        rank = _settled(env, "RANK", "rank", rank)
    for name in ("MASTER_PORT",) if rank == 0 else ("MASTER_ADDR", "MASTER_PORT"):
        if not env.get(name):
            raise RuntimeUsageError(
                f"failed to read the {name} environmental variable; maybe you forgot to set it? "
                "(env:// needs it; aiocoll run sets it for you)"
            )
    return size, rank


def placed_by_launcher(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher that sets none of these variables (mpiexec, srun, Kubernetes) says where this process is."""
    env = os.environ if environ is None else environ
    if any(env.get(name) for name in ("RANK", "WORLD_SIZE")):
        return False
    first = next((each.detector for each in verdicts(env) if each.recognised or each.halved), None)
    return first not in (None, "aiocoll", "torchrun")


def _settled(env: Mapping[str, str], variable: str, name: str, given: int | None) -> int:
    text = env.get(variable, "")
    if not text:
        if given is None:
            raise RuntimeUsageError(
                f"{name} is not set but it is required for env:// init method: set {variable} or give {name}= "
                "(aiocoll run sets it for you)"
            )
        return given
    try:
        value = int(text)
    except ValueError:
        raise RuntimeUsageError(f"env://: the environmental variable {variable}={text!r} is not a number") from None
    if given is not None and given != value:
        raise RuntimeUsageError(
            f"{name} specified both as an environmental variable and to the initializer: {variable}={value} and "
            f"{name}={given}; give one of them"
        )
    return value
