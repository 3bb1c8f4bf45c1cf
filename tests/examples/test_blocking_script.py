"""examples/blocking_script.py works both ways that its readers start it."""

from __future__ import annotations

import pytest

from .conftest import Job

EXAMPLE = "blocking_script.py"


def check(output: str, ranks: int) -> None:
    total = ranks * (ranks - 1) // 2 * 10  # the sum of 10 * rank; plus ranks * (0..4)
    first, last = f"[{total}.", f"{total + 4 * ranks}.]"
    assert f"world of {ranks}, backend tcp: ring and all_reduce agree on" in output
    agreed = next(line for line in output.splitlines() if "agree on" in line)
    assert first in agreed.replace("[ ", "[") and agreed.endswith(last)
    assert "fitted weight [ 1.  -2.   0.5] bias [3.]" in output


@pytest.mark.slow
def test_it_starts_its_own_processes(job: Job) -> None:
    check(job(0, EXAMPLE, "3").stdout, 3)


@pytest.mark.parametrize("ranks", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_runner_starts_it(job: Job, ranks: int) -> None:
    check(job(ranks, EXAMPLE).stdout, ranks)
