"""detect(): asks each environment's file in turn; the rule: the first that recognises its variables decides alone."""

from __future__ import annotations

import importlib
import os
import pkgutil
from dataclasses import dataclass, replace
from functools import cache

from aiocoll.errors import UsageError
from aiocoll.place.base import Detector, Environ, Place
from aiocoll.place.secret import job_secret

_NOT_DETECTORS = frozenset({"base", "detect", "hostlist", "secret", "torch_variables"})
_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one detector says about an environment."""

    detector: str
    recognised: bool
    text: str
    halved: bool = False
    """Whether it recognises the environment but misses a part: ``detect()`` raises what `text` says."""


def detect(environ: Environ | None = None, *, told: bool = False) -> Place:
    """Where this process is: ``AIOCOLL_*``, then the other environments, else a world of one.

    ``told``: the caller knows rank, size and address without it, or who gives them; then an environment that is
    described by halves, as the children of a rank inherit it, is nobody's concern. Reads the job's secret too (once: a
    descriptor is consumed, see ``secret.py``).
    """
    env = os.environ if environ is None else environ
    for name, detector in detectors().items():
        try:
            place = detector.find(env)
        except UsageError:
            if not told:
                raise
            continue
        if place is not None:
            return replace(place, source=name, secret=job_secret(env))
    return Place(job=env.get("AIOCOLL_JOB_ID", "").strip(), secret=job_secret(env))


def verdicts(environ: Environ | None = None) -> list[Verdict]:
    """Every detector's opinion, in the order in which they are asked; raises nothing, reads no secret."""
    env = os.environ if environ is None else environ
    found = []
    for name, detector in detectors().items():
        try:
            found.append(Verdict(name, detector.find(env) is not None, detector.verdict(env)))
        except UsageError as error:
            found.append(Verdict(name, False, str(error), halved=True))
    return found


@cache
def detectors() -> dict[str, Detector]:
    """Name to detector, the one to be asked first in front."""
    from importlib import metadata  # 10 ms that only a process that looks for its place should pay

    package = importlib.import_module(_PACKAGE)
    names = [item.name for item in pkgutil.iter_modules(package.__path__) if item.name not in _NOT_DETECTORS]
    found: dict[str, Detector] = {name: importlib.import_module(f"{_PACKAGE}.{name}") for name in names}
    for entry in metadata.entry_points(group="aiocoll.place"):
        found.setdefault(entry.name, entry.load())
    return dict(sorted(found.items(), key=lambda item: (item[1].PRIORITY, item[0])))
