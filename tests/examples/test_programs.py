"""The smaller examples are right on several numbers of ranks, and all of them are small."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from .conftest import ROOT, Installed, Job


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda each: each.name)
def test_an_example_is_read_in_a_minute(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 80


@pytest.mark.parametrize("ranks", [3])
def test_kmeans_finds_the_spots(job: Job, ranks: int) -> None:
    said = job(ranks, "kmeans.py", "--points", "5000").stdout
    assert f"{5000 * ranks:,} points in a world of {ranks}" in said
    spots = [int(each) for each in re.findall(r"(\d+) degrees", said)]
    around = {72 * round(each / 72) % 360: (each + 36) % 72 - 36 for each in spots}
    assert sorted(around) == [0, 72, 144, 216, 288]
    assert max(map(abs, around.values())) < 4


def pixels(file: Path) -> np.ndarray:
    """The picture that the example has written: (height, width, 3)."""
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, width, height = 8, b"", 0, 0
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_the_heat_is_the_same_on_any_number_of_ranks(job: Job, installed: Installed, tmp_path: Path) -> None:
    files = {ranks: tmp_path / f"{ranks}.png" for ranks in (3, 4)}
    said = {ranks: job(ranks, "heat.py", str(file)).stdout for ranks, file in files.items()}
    said[1], files[1] = job(1, "heat.py").stdout, installed.folder / "heat.png"  # where nothing else is said
    means = {re.search(r"mean ([\d.]+)", each)[1] for each in said.values()}
    assert len(means) == 1 and 0.1 < float(means.pop()) < 0.4
    picture = pixels(files[1])
    assert picture.shape == (400, 400, 3)
    assert picture[0, 200].min() > 50 and picture[200, 200].min() > 250  # the upper edge and the bar are hot
    assert not picture[399].any() and picture[200].sum() > picture[100].sum()
    for ranks in (3, 4):
        assert np.array_equal(pixels(files[ranks]), picture)


@pytest.mark.parametrize("ranks", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_sorting_deals_out_equal_parts(job: Job, ranks: int) -> None:
    said = job(ranks, "sample_sort.py", "--count", "50000").stdout
    found = re.fullmatch(r"(?:\[r0\] )?([\d,]+) numbers sorted; parts of (.*)\n", said)
    assert found and found[1] == f"{50000 * (ranks + 1):,}"
    parts = [int(each.replace(",", "")) for each in found[2].split(", ")]
    assert len(parts) == ranks and sum(parts) == 50000 * (ranks + 1)
    assert max(parts) < 1.1 * sum(parts) / ranks


@pytest.mark.parametrize("ranks", [3])
def test_averaged_parameters_come_to_the_truth(job: Job, ranks: int) -> None:
    said = job(ranks, "parameter_averaging.py").stdout
    apart = [float(each) for each in re.findall(r"were ([\d.]+) apart", said)]
    assert len(apart) == 5 and apart[-1] < 0.1 < apart[0]
    assert f"a world of {ranks} agrees on" in said
