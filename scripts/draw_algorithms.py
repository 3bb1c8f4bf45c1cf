"""Writes the tables and drawings of docs/algorithms.md: python scripts/draw_algorithms.py [--check]

The rule: nothing is drawn by hand. The tables are what algorithms declare, and a drawing is a run of the real algorithm
in the simulator, where a message takes one unit of time and bytes take none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiocoll import Group, observe
from aiocoll.algorithms import MEASURES, Algorithm, registry
from aiocoll.config import Settings
from aiocoll.sim import Simulation

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, FOLDER = DOCS / "algorithms.md", DOCS / "drawings"
BEGIN, END = "<!-- generated: begin (scripts/draw_algorithms.py) -->", "<!-- generated: end -->"
COUNT = 840
"""Elements of a vector: what many numbers of ranks divide."""
UNDERNEATH = ("announce", "exchange_all", "share", "show", "spread")
"""Collectives that no user calls: what others are made of."""
DRAWN: dict[str, tuple[int, str]] = {
    "barrier:dissemination": (5, ""),
    "barrier:full_mesh": (4, ""),
    "broadcast:binomial": (8, ""),
    "broadcast:scatter_all_gather": (5, ""),
    "reduce:binomial": (8, ""),
    "all_reduce:rooted": (5, ""),
    "all_reduce:owners": (4, ""),
    "all_reduce:recursive_doubling": (8, ""),
    "all_reduce:circulant": (5, ""),
    "all_reduce:ring": (5, ""),
    "all_reduce:leaders": (6, "000111"),
    "all_gather:circulant": (5, ""),
    "all_gather:ring": (5, ""),
    "reduce_scatter:circulant": (5, ""),
    "reduce_scatter:pairwise": (5, ""),
    "all_to_all:pairwise": (5, ""),
    "all_to_all:bruck": (5, ""),
    "scan:recursive_doubling": (8, ""),
    "scan:chain": (5, ""),
    "gather:binomial": (8, ""),
}
"""Which algorithms are drawn, for how many ranks, and the host of each where there are several."""
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")


@dataclass(frozen=True, slots=True)
class Arrow:
    """One message: sent by a rank at a time, to another one that gets it a unit later."""

    at: float
    source: int
    target: int
    nbytes: int


def call(collective: str, group: Group) -> Awaitable[Any]:
    """A call of that collective with data that its algorithms are for."""
    x = np.zeros(COUNT)
    if collective == "barrier":
        return group.barrier()
    if collective == "broadcast":
        return group.broadcast(x if group.rank == 0 else None)
    if collective == "all_to_all":
        return group.all_to_all([np.zeros(4)] * group.size)
    if collective in ("all_gather", "gather"):
        block: Callable[..., Awaitable[Any]] = getattr(group, collective)
        return block(np.zeros(1000), out=np.zeros(1000 * group.size)) if collective == "all_gather" else block(x[:4])
    reduction: Callable[..., Awaitable[Any]] = getattr(group, collective)
    return reduction(x)


def traffic(each: Algorithm, size: int, hosts: str) -> list[Arrow]:
    """All messages of one call."""
    settings = Settings(algorithm={each.collective: each.name}, stall_seconds=0.0)
    network: dict[str, Any] = {"latency": 1.0, "hosts": tuple(int(host) for host in hosts) if hosts else None}
    simulation = Simulation(size, settings=settings, goodbye=False, **network)
    found: list[Arrow] = []

    def heard(kind: str, facts: dict[str, Any]) -> None:
        if kind == "sent":
            found.append(Arrow(facts["at"], facts["rank"], facts["peer"], facts["nbytes"]))

    async def main(group: Group) -> None:
        await call(each.collective, group)

    stop = observe.listen(heard)
    try:
        simulation.run(main)
    finally:
        stop()
    return sorted(found, key=lambda arrow: (arrow.at, arrow.source, arrow.target))


def svg(each: Algorithm, size: int, hosts: str) -> str:
    """Ranks from top to bottom, time from left to right, an arrow per message, thicker the longer it is."""
    arrows = traffic(each, size, hosts)
    step, row, left, top = 76, 26, 62, 30
    rounds = round(max(arrow.at for arrow in arrows)) + 1
    width, height = left + step * rounds + 22, top + row * size + 4
    heaviest = max(arrow.nbytes for arrow in arrows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f"<title>{each.collective}:{each.name} on {size} ranks</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>',
        "<defs>",
        *(
            f'<marker id="{each.name}{i}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
            for i, colour in enumerate(COLOURS)
        ),
        "</defs>",
    ]
    if hosts:
        for host in sorted(set(hosts)):
            first, many = hosts.index(host), hosts.count(host)
            box = f'x="4" y="{top + row * first + 1}" width="{width - 8}" height="{row * many - 2}"'
            lines.append(f'<rect {box} rx="5" fill="#eef"/>')
    for at in range(rounds + 1):
        x = left + step * at
        lines.append(f'<path d="M{x} {top - 6}V{height - 6}" stroke="#ddd"/>')
        if at < rounds:
            lines.append(f'<text x="{x + step / 2:g}" y="18" text-anchor="middle" fill="#666">round {at + 1}</text>')
    for rank in range(size):
        y = top + row * rank + row / 2
        lines.append(f'<text x="10" y="{y + 4:g}" fill="#222">rank {rank}</text>')
        lines.append(f'<path d="M{left} {y:g}H{left + step * rounds}" stroke="#bbb"/>')
    for arrow in arrows:
        colour = arrow.source % len(COLOURS)
        begin, y = left + step * arrow.at, top + row * arrow.source + row / 2
        there = top + row * arrow.target + row / 2
        thick = 1.2 + 1.6 * arrow.nbytes / heaviest
        lines.append(
            f'<path d="M{begin:g} {y:g}L{begin + step - 2:g} {there:g}" stroke="{COLOURS[colour]}" '
            f'stroke-width="{thick:.1f}" marker-end="url(#{each.name}{colour})"/>'
        )
    return "\n".join([*lines, "</svg>", ""])


def table(algorithms: list[Algorithm]) -> Iterator[str]:
    """What they declare, for eight ranks."""
    yield "| algorithm | idea | rounds, 8 ranks | sent ÷ n, 8 ranks | order | for |"
    yield "| --- | --- | ---: | ---: | --- | --- |"
    for each in algorithms:
        order = "from rank 0 on" if each.from_left else "kept" if each.keeps_order else ""
        made = ", ".join(f"{part.collective}:{part.name} ({part.among})" for part in each.parts)
        where = {"memory": "shared memory", "hosts": f"several hosts: {made}", "turns": "where bits must be equal"}
        rounds = "" if each.parts else f"{each.rounds(8):g}"
        sent = "" if each.parts or each.collective == "barrier" else f"{each.sent(8, 64 << 10) / (64 << 10):.3g}"
        yield f"| `{each.name}` | {each.idea} | {rounds} | {sent} | {order} | {where.get(each.on, each.needs)} |"


def generated() -> str:
    """The part of the page between the marks."""
    text, everything = [BEGIN, ""], registry()
    for name in [*(each for each in everything if each not in UNDERNEATH), *UNDERNEATH]:
        title = f"`{name}`" if name not in UNDERNEATH else f"`{name}` (underneath)"
        text += [f"## {title}", "", f"n counts {MEASURES[name]}.", "", *table(list(everything[name].values())), ""]
        for each in everything[name].values():
            if (key := f"{name}:{each.name}") in DRAWN:
                size, hosts = DRAWN[key]
                where = f", on {len(set(hosts))} hosts" if hosts else ""
                picture = f"![{key} on {size} ranks](drawings/{file_of(each)})"
                text += [f"`{key}`, {size} ranks{where}:", "", picture, ""]
    return "\n".join([*text, END])


def file_of(each: Algorithm) -> str:
    """The name of its drawing."""
    return f"{each.collective}_{each.name}.svg"


def files() -> dict[Path, str]:
    """What the page and all drawings should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    made = {PAGE: before + generated() + rest.partition(END)[2]}
    for key, (size, hosts) in DRAWN.items():
        collective, _, name = key.partition(":")
        each = registry()[collective][name]
        made[FOLDER / file_of(each)] = svg(each, size, hosts)
    return made


def main() -> int:
    """Writes what has changed; with --check only says so, by exit status 1."""
    parser = argparse.ArgumentParser(description="Draws the algorithms.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when something would change")
    options = parser.parse_args()
    made = files()
    changed = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    changed += [path for path in FOLDER.glob("*.svg") if path not in made]
    for path in changed:
        print(path.relative_to(DOCS.parent), "differs" if options.check else "written")
        if not options.check and path in made:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(made[path])
        elif not options.check:
            path.unlink()
    return int(bool(changed) and options.check)


if __name__ == "__main__":
    sys.exit(main())
