"""Which algorithm serves a call: override, then table, then the cheapest by a cost model.

The rule: pure and deterministic, from facts that are equal on all ranks; nothing here measures, and no rank can
choose otherwise than its peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from aiocoll.algorithms import Algorithm, all_of, find, registry
from aiocoll.errors import UsageError
from aiocoll.ops import Op
from aiocoll.tuning.model import cost_among, kind_of
from aiocoll.tuning.table import defaults


def choose(
    collective: str,
    *,
    nbytes: int,
    size: int,
    count: int,
    op: Op | None = None,
    hosts: int = 1,
    shared: bool = False,
    narrow: bool = False,
    in_turn: bool = False,
    override: Mapping[str, str] | None = None,
) -> Algorithm:
    """The algorithm for one call of ``size`` ranks on ``hosts`` machines.

    ``shared``: the ranks of each machine share memory. ``narrow``: the vector is of narrow floats, which some
    algorithms take as they are (the others get it in float32, twice as long).

    ``in_turn``: the result depends on how the operands are put together. Ranks of one host then get an algorithm that
    folds them from rank 0 on, so that the bits are those of all transports, sizes of block and orders of arrival.

    ``nbytes`` are those that ``algorithms.MEASURES`` names for the collective (0 where only some ranks know),
    ``count`` the elements of a vector that is reduced. ``override`` maps collectives to algorithms, as in
    AIOCOLL_ALGORITHM. Raises UsageError, the same on every rank, for an override that does not exist or cannot serve
    this call.
    """
    name = override.get(collective) if override else None
    commutative, splittable = (True, True) if op is None else (op.commutative, op.splittable)
    if name is None:
        whole = op is not None and count < size  # fewer elements than ranks are not worth splitting
        strict = in_turn and size > 2 and hosts == 1  # two operands go together in one way only
        return _choose(collective, nbytes, size, commutative, splittable and not whole, hosts, shared, narrow, strict)
    chosen = find(collective, name)
    reason = _unfit(chosen, nbytes, size, commutative, splittable)
    if reason:
        able = [each.name for each in _able(collective, nbytes, size, commutative, splittable)]
        who = f" with op {op.name}" if op is not None else ""
        raise UsageError(
            f"AIOCOLL_ALGORITHM={collective}:{name} cannot serve {collective} of {nbytes} bytes on {size} ranks{who}: "
            f"it needs {reason}; {', '.join(able)} can"
        )
    return chosen


def check_override(override: Mapping[str, str]) -> None:
    """Raises UsageError for collectives and algorithms that do not exist, with those that do.

    Loads the algorithms, so that the first call on a running loop need not.
    """
    registry()
    for collective, name in override.items():
        find(collective, name)


@lru_cache(4096)
def _choose(
    collective: str, nbytes: int, size: int, commutative: bool, splittable: bool, hosts: int, shared: bool,
    narrow: bool, in_turn: bool,
) -> Algorithm:  # fmt: skip
    link = kind_of(hosts, shared=shared)
    able = [
        each
        for each in _able(collective, nbytes, size, commutative, splittable)
        if not each.on
        or (each.on == "memory" and (link == "memory" or in_turn or (narrow and each.narrow)))
        or (each.on == "hosts" and 1 < hosts < size)
        or (each.on == "turns" and in_turn)
    ]
    if in_turn:
        able = [each for each in able if each.from_left]
    if not able:
        raise UsageError(f"{collective} has no algorithm for {size} ranks joined by {link}")
    if narrow and link == "memory":
        able = [each for each in able if each.narrow] or able
    constants, rules = defaults()
    for rule in rules:
        if rule.fits(collective, nbytes, size, hosts, link, in_turn=in_turn):
            for each in able:
                # Rules know nothing of narrow floats, which are half as long to those who take them as they are.
                if each.name == rule.algorithm and (each.narrow or not narrow):
                    return each

    def seconds(each: Algorithm) -> float:
        travelling = 2 * nbytes if narrow and not each.narrow else nbytes
        return cost_among(each, constants, travelling, size, hosts, shared=shared)

    return min(able, key=seconds)  # the first of equals: the registry's order


def _able(collective: str, nbytes: int, size: int, commutative: bool, splittable: bool) -> list[Algorithm]:
    return [each for each in all_of(collective) if not _unfit(each, nbytes, size, commutative, splittable)]


def _unfit(each: Algorithm, nbytes: int, size: int, commutative: bool, splittable: bool) -> str:
    """What is missing for an algorithm to serve a call; empty if nothing is."""
    if not commutative and not each.keeps_order:
        return "an op that commutes"
    if not splittable and each.splits:
        return "an op that works element by element"
    return "" if each.when(size, nbytes) else each.needs
