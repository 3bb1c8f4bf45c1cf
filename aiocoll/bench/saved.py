"""--save and --diff: the rows of a run in a file, and what has changed since.

The rule: a change is only called one where it is larger than the noise: the band that the user set, or the spread of
the blocks of either run, whichever is larger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .records import FORMAT, Cell, Report, Row
from .table import size_text, time_text


@dataclass(frozen=True, slots=True)
class Change:
    """One cell, then and now."""

    row: Row
    place: str
    before: float
    now: float
    band: float
    """The fraction by which the time may differ without meaning anything."""

    @property
    def ratio(self) -> float:
        """Now by then: above 1 is slower."""
        return self.now / self.before

    @property
    def verdict(self) -> str:
        """slower, faster, or same: within the band."""
        if self.ratio > 1 + self.band:
            return "slower"
        return "faster" if self.ratio < 1 / (1 + self.band) else "same"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        key = dict(zip(("collective", "nbytes", "dtype", "op"), self.row.key, strict=False))
        numbers = {name: value for name, value in asdict(self).items() if name not in ("row", "place")}
        return {**key, "place": self.place, **numbers, "ratio": self.ratio, "verdict": self.verdict}


def save(path: Path, report: Report) -> None:
    """Writes the report as JSON."""
    path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Report:
    """The report that ``save`` wrote; UsageError if the file is something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} was not written by aiocoll bench --save (of this version)")
    try:
        return Report(dict(data["machine"]), [Row.from_json(row) for row in data["rows"]])
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error!r}") from error


def changes(before: Report, now: Report, noise: float) -> list[Change]:
    """The cells that both have, in the order of now."""
    known = {(row.key, place): cell for row in before.rows for place, cell in row.cells.items()}
    found = []
    for row in now.rows:
        for place, cell in row.cells.items():
            old = known.get((row.key, place))
            if old is not None and old.seconds > 0:
                found.append(Change(row, place, old.seconds, cell.seconds, _band(noise, old, cell)))
    return found


def _band(noise: float, *cells: Cell) -> float:
    return max(noise, *(cell.spread for cell in cells))


def lines(before: Report, now: Report, found: Sequence[Change], name: str) -> Iterator[str]:
    """What people read."""
    yield f"# against {name} of {before.machine.get('when', 'an unknown time')}:"
    for what in ("cpu", "cpus", "system", "python", "numpy", "hosts"):
        then, here = before.machine.get(what), now.machine.get(what)
        if then != here:
            yield f"#   {what} was {then!r} and is {here!r}: times may differ for that alone"
    for change in found:
        row = change.row
        what = " ".join(filter(None, (row.collective, row.dtype, row.op, row.forced)))
        yield (
            f"#   {what:<32} {size_text(row.nbytes):>10} {change.place:>3}  {time_text(change.before):>10} ->"
            f"{time_text(change.now):>10} us  {100 * (change.ratio - 1):+7.1f} %  (noise {100 * change.band:.0f} %)  "
            f"{change.verdict}"
        )
    cells = sum(len(row.cells) for row in now.rows)
    if len(found) < cells:
        yield f"#   {cells - len(found)} of {cells} cells are not in {name}"
    counts = {word: sum(change.verdict == word for change in found) for word in ("faster", "same", "slower")}
    yield "# " + ", ".join(f"{count} {word}" for word, count in counts.items())
