"""The choice of an algorithm: always there, the same for equal facts, overridden by name, refused with a reason."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import aiocoll.tuning as tuning
from aiocoll.algorithms import find, registry
from aiocoll.errors import UsageError
from aiocoll.ops import SUM, Op
from aiocoll.ops import op as make_op
from aiocoll.tuning import check_override, choose
from aiocoll.tuning.model import Link, cost
from aiocoll.tuning.table import Rule, defaults, parse

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
ORDERED = make_op(lambda left, right: left)  # user ops neither commute nor split unless they say so
SIZES = [1, 2, 3, 4, 7, 8, 16, 33, 1024]
BYTES = [0, 1, 8, 4096, 1 << 16, 1 << 20, 1 << 24, 1 << 30]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("collective", sorted(registry()))
def test_there_is_always_a_choice_and_it_can_serve(collective: str, hosts: int, shared: bool) -> None:
    ops: list[Op | None] = [SUM, make_op(max, commutative=True), ORDERED] if collective in REDUCTIONS else [None]
    if all(each.on == "memory" for each in registry()[collective].values()) and not (shared and hosts == 1):
        with pytest.raises(UsageError, match="no algorithm"):
            choose(collective, nbytes=8, size=4, count=1, hosts=hosts, shared=shared)
        return
    for size in SIZES:
        for nbytes in BYTES:
            for op in ops:
                facts = {"nbytes": nbytes, "size": size, "count": nbytes // 8, "op": op, "hosts": hosts}
                facts |= {"shared": shared, "narrow": op is SUM and nbytes % 3 == 1}
                chosen = choose(collective, **facts)
                assert chosen.on == "" or (chosen.on == "memory" and (shared or facts["narrow"])) or hosts > 1
                assert chosen.collective == collective and chosen.when(size, nbytes)
                if op is not None:
                    assert chosen.keeps_order or op.commutative
                    assert op.splittable or not chosen.splits
                assert choose(collective, **facts) is chosen


def names(collective: str, size: int, op: Op | None = None) -> list[str]:
    chosen = [choose(collective, nbytes=n, size=size, count=n, op=op).name for n in (8, 1 << 16, 1 << 20, 1 << 26)]
    return list(dict.fromkeys(chosen))


def test_latency_first_and_bandwidth_later() -> None:
    assert names("all_reduce", 2, SUM) == ["exchange", "circulant"]
    assert names("all_reduce", 8, SUM)[-1] == "ring"
    assert names("all_reduce", 16, SUM)[0] == "recursive_doubling"
    assert "circulant" in names("all_reduce", 16, SUM)
    assert names("barrier", 64) == ["dissemination"]
    assert names("broadcast", 4)[0] == "linear"
    assert names("broadcast", 64)[0] == "binomial"
    assert names("broadcast", 8)[-1] in {"scatter_all_gather", "chain"}
    assert names("all_to_all", 32)[0] == "bruck" and names("all_to_all", 4)[0] == "post_all"
    assert names("exchange_all", 32)[0] == "bruck" and names("exchange_all", 8)[0] == "post_all"
    assert names("gather", 8)[0] == "linear" and names("gather", 64)[0] == "binomial"
    assert names("scan", 8, SUM)[0] == "recursive_doubling" and names("scan", 8, SUM)[-1] == "chain"


def test_ranks_that_share_memory() -> None:
    def chosen(collective: str, size: int, nbytes: int, **facts: Any) -> str:
        op = SUM if collective in REDUCTIONS else None
        return choose(collective, nbytes=nbytes, size=size, count=nbytes, op=op, shared=True, **facts).name

    assert [chosen("all_reduce", 2, nbytes) for nbytes in (8, 1 << 18, 1 << 20, 1 << 26)] == [
        "swap", "swap", "two_shot", "two_shot",
    ]  # fmt: skip
    for size in (4, 8, 16, 64):
        assert chosen("all_reduce", size, 1 << 24) == "two_shot" != chosen("all_reduce", size, 8)
        assert chosen("reduce_scatter", size, 1 << 24) == "direct"
        assert chosen("all_gather", size, 1 << 24) == "full_mesh"
    assert chosen("broadcast", 8, 1 << 24) == "linear" and chosen("all_to_all", 8, 1 << 20) == "post_all"
    assert find("all_reduce", chosen("all_reduce", 4, 1 << 12, narrow=True)).narrow
    assert find("all_reduce", chosen("all_reduce", 2, 1 << 24, narrow=True)).narrow
    assert choose("all_reduce", nbytes=1 << 24, size=4, count=1 << 23, op=SUM, narrow=True).narrow
    assert all(each.on != "memory" for each in (choose("scan", nbytes=8, size=4, count=8, op=SUM),))


def test_order_is_kept_for_ops_that_need_it() -> None:
    commuting_in_pieces = Op("affine", SUM.fold, commutative=False)
    assert names("all_reduce", 8, commuting_in_pieces)[-1] == "pairwise"
    assert "ring" not in names("all_reduce", 8, ORDERED)
    assert names("reduce", 8, ORDERED) == ["ordered"]
    assert names("reduce_scatter", 8, ORDERED) == ["ordered"]


def test_what_rounds_is_folded_from_rank_0_on_by_the_ranks_of_one_host() -> None:
    """Whatever carries it, and however long it is; on several hosts, and where nothing rounds, speed alone decides."""
    for collective in REDUCTIONS:
        for op in (SUM, ORDERED, make_op(max, commutative=True), Op("pieces", SUM.fold, commutative=False)):
            for size in SIZES:
                for nbytes in BYTES:
                    facts: dict[str, Any] = {"nbytes": nbytes, "size": size, "count": nbytes // 8, "op": op}
                    for shared in (False, True):
                        for narrow in (False, True):
                            here = choose(collective, **facts, shared=shared, narrow=narrow, in_turn=True)
                            assert here.from_left or size <= 2, (here, facts)
                    facts |= {"hosts": 2}
                    assert choose(collective, **facts, in_turn=True) is choose(collective, **facts)
    assert choose("all_reduce", nbytes=8, size=8, count=1, op=SUM).name == "recursive_doubling"
    assert choose("all_reduce", nbytes=8, size=8, count=1, op=SUM, in_turn=True).name == "rooted"
    assert choose("all_reduce", nbytes=1 << 20, size=8, count=1 << 17, op=SUM, in_turn=True).name == "owners"


def test_two_ranks_choose_alike_whether_or_not_it_rounds() -> None:
    for collective in REDUCTIONS:
        for shared in (False, True):
            for nbytes in BYTES:
                facts: dict[str, Any] = {"nbytes": nbytes, "size": 2, "count": nbytes // 8, "op": SUM, "shared": shared}
                assert choose(collective, **facts, in_turn=True) is choose(collective, **facts)


def test_override_wins() -> None:
    assert choose("all_reduce", nbytes=8, size=8, count=1, op=SUM, override={"all_reduce": "ring"}).name == "ring"
    assert choose("barrier", nbytes=0, size=8, count=0, override={"all_reduce": "ring"}).collective == "barrier"


@pytest.mark.parametrize("name", ["exchange", "one_shot", "recursive_doubling", "circulant", "ring", "ordered"])
def test_every_override_serves_a_group_of_one(name: str) -> None:
    assert choose("all_reduce", nbytes=8, size=1, count=1, op=SUM, override={"all_reduce": name}).name == name


def test_override_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"all_reduce has no algorithm 'rnig'; it has exchange, .*ring"):
        choose("all_reduce", nbytes=8, size=8, count=1, op=SUM, override={"all_reduce": "rnig"})
    with pytest.raises(UsageError, match=r"no collective 'allreduce'; there are all_gather, all_reduce"):
        check_override({"allreduce": "ring"})
    check_override({"all_reduce": "ring", "barrier": "dissemination"})


def test_override_that_cannot_serve() -> None:
    with pytest.raises(UsageError, match=r"all_reduce:ring cannot serve .* op .* needs an op that commutes; .*ordered"):
        choose("all_reduce", nbytes=800, size=4, count=100, op=ORDERED, override={"all_reduce": "ring"})
    whole = make_op(max, commutative=True)
    with pytest.raises(UsageError, match="needs an op that works element by element"):
        choose("all_reduce", nbytes=800, size=4, count=100, op=whole, override={"all_reduce": "ring"})
    with pytest.raises(UsageError, match="on 4 ranks with op SUM: it needs two ranks"):
        choose("all_reduce", nbytes=800, size=4, count=100, op=SUM, override={"all_reduce": "exchange"})


def test_the_model_is_the_formula() -> None:
    link = Link(alpha=1.0, overhead=0.1, beta=0.01, gamma=0.001)
    assert cost(find("all_reduce", "circulant"), link, 800, 8) == pytest.approx(6 + 0.6 + 0.01 * 1400 + 0.001 * 700)
    assert cost(find("barrier", "full_mesh"), link, 0, 8) == pytest.approx(1 + 0.7)


def test_costs_grow_with_bytes() -> None:
    link = defaults()[0]["host"]
    for algorithms in registry().values():
        for each in algorithms.values():
            for size in SIZES:
                costs = [cost(each, link, nbytes, size) for nbytes in (0, 1 << 10, 1 << 24)]
                assert costs == sorted(costs) and costs[0] >= 0
                assert size > 1 or each.rounds(1) == 0 == each.sent(1, 4096), each


def test_rules_name_algorithms_that_exist() -> None:
    for rule in defaults()[1]:
        assert find(rule.collective, rule.algorithm) and rule.why


def test_rules_fit_between_their_bounds() -> None:
    _, (rule,) = parse(
        {
            "links": {},
            "rules": [{"collective": "scan", "algorithm": "chain", "why": "", "bytes_min": 10, "size_max": 4}],
        }
    )
    assert rule == Rule("scan", "chain", "", bytes_min=10, size_max=4)
    assert rule.fits("scan", 10, 4, 1, "host") and rule.fits("scan", 1 << 40, 1, 9, "network")
    assert not rule.fits("scan", 9, 4, 1, "host")
    assert not rule.fits("scan", 10, 5, 1, "host")
    assert not rule.fits("exscan", 10, 4, 1, "host")
    here = Rule("scan", "chain", "", link="memory")
    assert here.fits("scan", 10, 4, 1, "memory") and not here.fits("scan", 10, 4, 1, "host")


def test_nothing_here_can_measure_or_differ_by_rank() -> None:
    """No clock, no randomness, no environment: ranks that know the same choose the same."""
    folder = Path(tuning.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"time", "random", "os", "asyncio", "socket", "threading"} & set(names), path
