"""Memory that is left, read from files that a test writes."""

from __future__ import annotations

from pathlib import Path

from aiocoll.transport.shm.headroom import available_bytes

MIB = 1 << 20


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(root: Path, cgroup: str) -> Path:
    meminfo = f"MemTotal: {1000 * 1024} kB\nMemAvailable: {800 * 1024} kB\n"
    return written(root / "proc", {"meminfo": meminfo, "self/cgroup": cgroup})


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    groups = written(tmp_path / "cg", {"a/memory.max": "max\n", "a/memory.current": f"{5 * MIB}\n"})
    assert available_bytes(machine(tmp_path, "0::/a\n"), groups) == 800 * MIB


def test_the_tightest_group_around_counts(tmp_path: Path) -> None:
    files = {
        "job/memory.max": f"{300 * MIB}\n",
        "job/memory.current": f"{250 * MIB}\n",
        "job/memory.stat": f"anon 7\ninactive_file {20 * MIB}\n",
        "job/step/memory.max": f"{400 * MIB}\n",
        "job/step/memory.current": f"{10 * MIB}\n",
    }
    groups = written(tmp_path / "cg", files)
    assert available_bytes(machine(tmp_path, "0::/job/step\n"), groups) == 70 * MIB


def test_first_version_of_control_groups(tmp_path: Path) -> None:
    files = {
        "memory/box/memory.limit_in_bytes": f"{100 * MIB}\n",
        "memory/box/memory.usage_in_bytes": f"{60 * MIB}\n",
        "memory/box/memory.stat": f"inactive_file 1\ntotal_inactive_file {3 * MIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": f"{60 * MIB}\n",
    }
    groups = written(tmp_path / "cg", files)
    proc = machine(tmp_path, "5:devices:/box\n4:memory:/box\n0::/\n")
    assert available_bytes(proc, groups) == 43 * MIB


def test_a_container_does_not_find_its_own_path(tmp_path: Path) -> None:
    groups = written(tmp_path / "cg", {"memory.max": f"{90 * MIB}\n", "memory.current": f"{50 * MIB}\n"})
    assert available_bytes(machine(tmp_path, "0::/../somewhere/else\n"), groups) == 40 * MIB


def test_over_the_limit_nothing_is_left(tmp_path: Path) -> None:
    groups = written(tmp_path / "cg", {"memory.max": f"{MIB}\n", "memory.current": f"{2 * MIB}\n"})
    assert available_bytes(machine(tmp_path, "0::/\n"), groups) == 0


def test_where_nothing_is_known_nothing_may_be_taken(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none") == 0
    assert available_bytes() > 0
