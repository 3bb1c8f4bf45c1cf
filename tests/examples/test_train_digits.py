"""examples/train_digits.py learns, and ends with the same weights on any number of ranks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from .conftest import Job

EXAMPLE = "train_digits.py"


def accuracy(output: str) -> float:
    found = re.search(r"test accuracy ([\d.]+)%", output)
    assert found, output
    return float(found[1])


@pytest.mark.slow
def test_four_ranks_learn_and_agree_with_one(job: Job) -> None:
    output = job(4, EXAMPLE, "--epochs", "20", "--check").stdout
    assert accuracy(output) >= 95
    assert re.search(r"world of 4: 28,760 images in [\d.]+ s, [\d,]+ images per second", output)
    difference = re.search(r"largest difference .*: ([\d.e+-]+)", output)
    assert difference and float(difference[1]) < 1e-6
    assert "[##############################] epoch  20/20" in output  # the bar of rank 0 alone
    assert output.count("epoch  20/20") == 1


@pytest.mark.slow
def test_separate_jobs_of_different_size_end_with_the_same_weights(job: Job, tmp_path: Path) -> None:
    weights = {}
    for ranks in (0, 3):  # 0: without a runner, a world of one; four are compared above
        file = tmp_path / f"weights{ranks}.npy"
        job(ranks, EXAMPLE, "--epochs", "15", "--save", str(file))
        weights[ranks] = np.load(file)
    assert np.abs(weights[0]).max() > 0.1
    np.testing.assert_allclose(weights[3], weights[0], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_bad_run_is_an_error(job: Job) -> None:
    with pytest.raises(AssertionError, match="below 95 %"):
        job(2, EXAMPLE, "--epochs", "1", "--rate", "0.0001")
