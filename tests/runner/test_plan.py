"""Command lines and environments of the ranks."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from aiocoll.cpus import usable_cpus
from aiocoll.errors import UsageError
from aiocoll.place import detect
from aiocoll.runner.plan import (
    BLAS_VARIABLES,
    Layout,
    base_environment,
    command_line,
    describe,
    rank_environment,
)

LAYOUT = Layout(size=5, ranks=3, first=2, node_rank=1, nnodes=2, job="j", rdzv="tcp://h:1", master="[::1]:9", restart=1)


def test_scripts_modules_and_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").touch()
    assert command_line("script", ("s.py", "-x"))[-2:] == ["s.py", "-x"]
    assert command_line("script", ("s.py",))[0] == sys.executable
    assert command_line("module", ("pkg.mod", "a"))[-3:] == ["-m", "pkg.mod", "a"]
    assert command_line("program", ("sh", "-c", "true"))[1:] == ["-c", "true"]
    assert command_line("script", ("sh", "x"))[0].endswith("/sh"), "as under mpirun, what is on the PATH is a program"


@pytest.mark.parametrize(("kind", "name"), [("script", "no.py"), ("script", "./no"), ("program", "no-such-program")])
def test_nothing_of_that_name(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        command_line(kind, (name,))


def test_cores_are_shared_out_among_blas_threads() -> None:
    env = base_environment({}, {}, 1)
    assert {env[name] for name in BLAS_VARIABLES} == {str(usable_cpus())}
    assert base_environment({}, {}, 10_000)["OMP_NUM_THREADS"] == "1"


def test_the_users_blas_threads_stand() -> None:
    assert base_environment({"MKL_NUM_THREADS": "7"}, {}, 2)["MKL_NUM_THREADS"] == "7"
    env = base_environment({}, {"OMP_NUM_THREADS": "5"}, 2)
    assert env["OMP_NUM_THREADS"] == "5"
    assert "OPENBLAS_NUM_THREADS" not in env, "it would win over OMP_NUM_THREADS"


def test_nothing_of_an_outer_job_reaches_the_ranks() -> None:
    outer = {"AIOCOLL_SECRET": "x", "AIOCOLL_ERROR_FD": "9", "TORCHELASTIC_USE_AGENT_STORE": "True", "KEEP": "1"}
    env = base_environment(outer, {}, 1)
    assert env["KEEP"] == "1"
    assert not set(env) & {"AIOCOLL_SECRET", "AIOCOLL_ERROR_FD", "TORCHELASTIC_USE_AGENT_STORE"}


def test_the_place_is_what_detect_reads() -> None:
    env = rank_environment(LAYOUT, 1)
    place = detect(env)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (3, 5, 1, 3)
    assert (place.job, place.init_method, place.restart, place.source) == ("j", "tcp://h:1", 1, "aiocoll")


def test_torchs_variables() -> None:
    env = rank_environment(LAYOUT, 0)
    expected = {"RANK": "2", "WORLD_SIZE": "5", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "1",
                "MASTER_ADDR": "::1", "MASTER_PORT": "9", "TORCHELASTIC_RUN_ID": "j"}  # fmt: skip
    assert {name: env[name] for name in expected} == expected
    assert env["AIOCOLL_MASTER"] == "[::1]:9"


def test_the_plan_shows_no_secret() -> None:
    env = {"MY_API_TOKEN": "hidden", "PLAIN": "shown"}
    text = str(describe(LAYOUT, ["python", "s.py"], env, {}))
    assert "hidden" not in text and "shown" in text


def test_a_replacement_has_a_number_of_its_own_and_meets_those_of_its_attempt() -> None:
    env = rank_environment(dataclasses.replace(LAYOUT, replacement=4, join=True), 1)
    assert (env["AIOCOLL_RESTART_COUNT"], env["TORCHELASTIC_RESTART_COUNT"], env["AIOCOLL_JOIN"]) == ("4", "4", "1")
    assert detect(env).restart == 1
    assert "AIOCOLL_JOIN" not in rank_environment(LAYOUT, 1)
    del env["AIOCOLL_ATTEMPT"]
    assert detect(env).restart == 4
