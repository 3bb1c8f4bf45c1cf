"""Usable CPUs: affinity, and the quotas of both kinds of control groups, as files in the kernel's own layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiocoll import cpus

A = "cpu,cpuacct/jobs/a"
V1 = "7:cpuset:/jobs\n3:cpu,cpuacct:/jobs/a\n0::/\n"


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "wanted"),
    [
        ("0::/\n", {}, []),
        ("0::/\n", {"cpu.max": "max 100000\n"}, []),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, [1.5]),
        ("0::/a/b\n", {"cpu.max": "800000 100000\n", "a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 1"}, [3, 8]),
        ("0::/../elsewhere/c\n", {"cpu.max": "50000 100000\n"}, [0.5]),
        ("0::/\n", {"cpu.max": "nonsense\n"}, []),
        ("0::/\n", {"cpu.max": "5 0\n"}, []),
        (V1, {f"{A}/cpu.cfs_quota_us": "250000", f"{A}/cpu.cfs_period_us": "100000"}, [2.5]),
        (V1, {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, [2]),
        (V1, {"cpu/jobs/cpu.cfs_quota_us": "-1", "cpu/jobs/cpu.cfs_period_us": "50000"}, []),
        ("4:memory:/x\n", {"memory/x/cpu.cfs_quota_us": "1"}, []),
    ],
)
def test_quotas_of_all_groups_around(
    tmp_path: Path, membership: str, files: dict[str, str], wanted: list[float]
) -> None:
    mount = lay_out(tmp_path / "cgroup", files)
    mine = tmp_path / "mine"
    mine.write_text(membership)
    assert list(cpus.quotas(mount, mine)) == wanted


def test_no_control_groups(tmp_path: Path) -> None:
    assert list(cpus.quotas(tmp_path, tmp_path / "missing")) == []


@pytest.mark.parametrize(
    ("allowed", "quota", "usable"),
    [(8, [], 8), (8, [2.5, 4.0], 3), (8, [0.2], 1), (2, [6.0], 2), (1, [0.1], 1), (4, [4.0], 4)],
)
def test_the_least_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, allowed: int, quota: list[float], usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.setattr(cpus, "quotas", lambda: iter(quota))
    assert cpus.usable_cpus() == usable


def test_this_process_has_some() -> None:
    assert 1 <= cpus.usable_cpus() <= (os.cpu_count() or 1)
