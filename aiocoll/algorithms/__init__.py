"""The registry of algorithms: one file per collective in this directory, one decorated coroutine per algorithm.

The rule: an algorithm is control flow over the verbs of a ``Channel`` and nothing else. What it declares here
(rounds, bytes, order) is what the tuner chooses by, what the tests hold it to, and what the documentation prints.

Units of what is declared, for ``p`` ranks and ``n`` bytes (see ``MEASURES`` for whose bytes): *rounds* are the
messages on the longest chain in which each waits for the one before; *sent* the bytes that the busiest rank sends,
*path* those that must follow one another on the wire (through shared memory: that one rank copies); *folded* the bytes
of the left operands of all folds that the busiest rank makes. They are exact when p divides the count, and grow with
n; of an algorithm that is *blocked* the rounds are those of one block. *messages* is how many messages the busiest rank
has to handle, one sent and one received counting as one: an estimate, for the cost model only.

An algorithm for several hosts declares the *parts* that it is made of instead, since what it takes depends on where the
ranks are.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from aiocoll.errors import UsageError

MEASURES = {
    "all_gather": "all blocks together",
    "all_reduce": "the vector of one rank",
    "all_to_all": "all blocks of one rank, its own included",
    "announce": "the blob",
    "barrier": "nothing",
    "broadcast": "root's array",
    "exchange_all": "all blocks of one rank, its own included",
    "exscan": "the vector of one rank",
    "gather": "all blocks together",
    "reduce": "the vector of one rank",
    "reduce_scatter": "the vector of one rank",
    "scan": "the vector of one rank",
    "scatter": "all blocks together",
    "share": "all blobs together",
    "show": "all parcels together",
    "spread": "the parcel",
}
"""Which bytes ``n`` counts, by collective."""

Steps = Callable[[int], float]
Volume = Callable[[int, int], float]
Run = Callable[..., Coroutine[Any, Any, Any]]
_Run = TypeVar("_Run", bound=Run)


@dataclass(frozen=True, slots=True)
class Part:
    """One step of an algorithm for several hosts: another algorithm among some of the ranks."""

    among: str
    """"local": the ranks of one host; "hosts": one rank of each."""
    collective: str
    name: str
    shared: bool = False
    """Several ranks of each host do this side by side, each with its share of the bytes."""


@dataclass(frozen=True, slots=True, repr=False)
class Algorithm:
    """One way to do one collective: the coroutine ``run(channel, ...)`` and what it promises."""

    collective: str
    name: str
    run: Run
    rounds: Steps
    sent: Volume
    path: Volume
    folded: Volume
    messages: Steps
    keeps_order: bool
    """Folds in rank order, so that ops that do not commute are welcome."""
    from_left: bool
    """Folds ((x0 op x1) op x2) op ... and nothing else, so that its bits are those of all others that do."""
    splits: bool
    """Folds pieces of the vector, so that only elementwise ops are welcome."""
    when: Callable[[int, int], bool]
    """Whether it can serve (or is ever worth considering for) p ranks and n bytes."""
    needs: str
    """``when`` in words, for the message that refuses an override."""
    on: str
    """"memory": for ranks that share memory; "hosts": for several ranks on each of several hosts; "turns": only where
    operands must be folded from rank 0 on; "": for any."""
    blocked: bool
    """Long arrays go in blocks, which costs rounds and bounds the memory."""
    narrow: bool
    """Takes narrow floats as they are: it folds them in float32, rounds once and finishes the op."""
    parts: tuple[Part, ...]

    @property
    def idea(self) -> str:
        """The first line of the docstring."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def __repr__(self) -> str:
        return f"<algorithm {self.collective}:{self.name}>"


_registered: dict[str, dict[str, Algorithm]] = {}


def _nothing(p: int, n: int) -> float:
    return 0


def _none(p: int) -> float:
    return 0


def _always(p: int, n: int) -> bool:
    return True


def algorithm(
    collective: str,
    *,
    rounds: Steps = _none,
    sent: Volume = _nothing,
    path: Volume | None = None,
    folded: Volume = _nothing,
    messages: Steps | None = None,
    keeps_order: bool = False,
    from_left: bool = False,
    splits: bool = False,
    when: Callable[[int, int], bool] = _always,
    needs: str = "",
    on: str = "",
    blocked: bool = False,
    narrow: bool = False,
    parts: tuple[Part, ...] = (),
) -> Callable[[_Run], _Run]:
    """Registers the coroutine below under its own name; unless given, path is sent and messages are rounds."""

    def register(run: _Run) -> _Run:
        made = Algorithm(
            collective=collective,
            name=run.__name__,
            run=run,
            rounds=rounds,
            sent=sent,
            path=path or sent,
            folded=folded,
            messages=messages or rounds,
            keeps_order=keeps_order or from_left,
            from_left=from_left,
            splits=splits,
            when=when,
            needs=needs,
            on=on,
            blocked=blocked,
            narrow=narrow,
            parts=parts,
        )
        siblings = _registered.setdefault(collective, {})
        if siblings.setdefault(made.name, made) is not made:
            raise UsageError(f"{made!r} is registered twice")
        return run

    return register


@lru_cache(1)
def registry() -> dict[str, dict[str, Algorithm]]:
    """All algorithms by collective and name, in the order of their files; reads this directory once."""
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return dict(sorted(_registered.items()))


def all_of(collective: str) -> tuple[Algorithm, ...]:
    """The algorithms of a collective. UsageError names the collectives there are."""
    found = registry().get(collective)
    if found is None:
        raise UsageError(f"there is no collective {collective!r}; there are {', '.join(registry())}")
    return tuple(found.values())


def find(collective: str, name: str) -> Algorithm:
    """The algorithm ``name`` of ``collective``. UsageError names those there are."""
    names = {each.name: each for each in all_of(collective)}
    if name not in names:
        raise UsageError(f"{collective} has no algorithm {name!r}; it has {', '.join(names)}")
    return names[name]
