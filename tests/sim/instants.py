"""The shards into which the tests cut the matrix of failures, so that two processes of `scripts/test.py` share them.

The rule: what is wrong is shown with the command that replays it.
"""

from __future__ import annotations

from aiocoll.testing.matrix import Case, Cell, cells, collecting_now_and_then, play

SHARDS = 20
CASES = 5_010
"""In each shard: more than 100,000 in all."""
HERE, ELSEWHERE = range(14), range(14, SHARDS)


_GROWN_SIZE_MAX = 6
"""`scripts/soak.py` has larger ones; each takes as long as ten other cases."""


def everyday() -> list[Cell]:
    """What the shards have of the matrix."""
    return [cell for cell in cells() if cell.size <= _GROWN_SIZE_MAX or not cell.program.startswith("grow")]


def check(cases: list[Case]) -> None:
    """All of them are right."""
    wrong = []
    with collecting_now_and_then() as tidy:
        for case in cases:
            findings = play(case)
            tidy()
            if findings:
                wrong.append(f"python scripts/soak.py --replay '{case}'\n    " + "\n    ".join(findings))
    assert not wrong, f"{len(wrong)} of {len(cases)} cases are wrong:\n" + "\n".join(wrong[:10])
