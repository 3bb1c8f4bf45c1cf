"""Where am I: every environment that is recognised, those described by halves, and where the secret comes from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiocoll.errors import UsageError
from aiocoll.place import Place, detect, job_secret, secret, verdicts
from aiocoll.place.torch_variables import read
from tests.place.environments import without

RUNNER = {
    "AIOCOLL_RANK": "2",
    "AIOCOLL_WORLD_SIZE": "4",
    "AIOCOLL_LOCAL_RANK": "0",
    "AIOCOLL_LOCAL_WORLD_SIZE": "2",
    "AIOCOLL_JOB_ID": "job-7",
    "AIOCOLL_RDZV": "tcp://127.0.0.1:4000",
    "AIOCOLL_SECRET": "00ff",
    "AIOCOLL_RESTART_COUNT": "3",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "run-9",
    "TORCHELASTIC_RESTART_COUNT": "1",
}


def test_nobody_says_anything() -> None:
    assert detect({}) == Place()
    assert detect({}).source == "alone"


def test_the_runner() -> None:
    assert detect(RUNNER) == Place(
        rank=2,
        size=4,
        local_rank=0,
        local_size=2,
        job="job-7",
        secret=b"00ff",
        init_method="tcp://127.0.0.1:4000",
        source="aiocoll",
        restart=3,
        store_is_hosted=True,
    )
    assert "00ff" not in repr(detect(RUNNER)) and "\\xff" not in repr(detect(RUNNER))


def test_the_runner_comes_before_torchrun() -> None:
    assert detect(TORCHRUN | RUNNER).source == "aiocoll"


def test_torchrun() -> None:
    place = detect(TORCHRUN)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (1, 4, 1, 2)
    assert (place.job, place.restart, place.source) == ("run-9", 1, "torchrun")
    assert place.init_method == "tcp://node0:29500"
    assert not place.store_is_hosted


def test_torchrun_on_one_host_meets_on_loopback() -> None:
    assert detect(TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}).init_method == "tcp://127.0.0.1:29500"


def test_ipv6_gets_its_brackets() -> None:
    assert detect(TORCHRUN | {"MASTER_ADDR": "fd00::2"}).init_method == "tcp://[fd00::2]:29500"


@pytest.mark.parametrize(("port", "expected"), [("29500", 29501), ("65535", 65534)])
def test_a_port_that_torchruns_agent_has_is_avoided(port: str, expected: int) -> None:
    environ = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": port}
    assert detect(environ).init_method == f"tcp://node0:{expected}"
    assert read(environ).port == expected


def test_rank_and_size_alone_may_be_a_machines() -> None:
    environ = without(TORCHRUN, "LOCAL_RANK", "TORCHELASTIC_RUN_ID")
    assert detect(environ).source == "alone"
    assert any("may describe machines" in verdict.text for verdict in verdicts(environ))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (without(RUNNER, "AIOCOLL_WORLD_SIZE"), "AIOCOLL_WORLD_SIZE is not set"),
        (without(RUNNER, "AIOCOLL_RANK"), "AIOCOLL_RANK is not set"),
        (without(RUNNER, "AIOCOLL_RDZV"), "AIOCOLL_RDZV is not set"),
        (without(TORCHRUN, "MASTER_ADDR", "MASTER_PORT"), "MASTER_ADDR and MASTER_PORT are not set"),
        (RUNNER | {"AIOCOLL_RANK": "4"}, "AIOCOLL_RANK=4 is not a rank"),
        (RUNNER | {"AIOCOLL_RANK": "-1"}, "AIOCOLL_RANK='-1'"),
        (RUNNER | {"AIOCOLL_WORLD_SIZE": "four"}, "AIOCOLL_WORLD_SIZE='four'"),
        (RUNNER | {"AIOCOLL_WORLD_SIZE": "0"}, "AIOCOLL_WORLD_SIZE='0'"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT='99999'"),
    ],
)
def test_halves_are_errors_that_name_the_rest(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        detect(environ)
    assert any(words in verdict.text and not verdict.recognised for verdict in verdicts(environ))


def test_halves_are_nobodys_concern_who_knows_it_all() -> None:
    assert detect(without(RUNNER, "AIOCOLL_RANK") | TORCHRUN, told=True).source == "torchrun"
    assert detect({"PMI_RANK": "1", "PMI_SIZE": "4", "AIOCOLL_SECRET": "s"}, told=True) == Place(secret=b"s")


def test_a_world_of_one_needs_no_address() -> None:
    assert detect({"AIOCOLL_RANK": "0", "AIOCOLL_WORLD_SIZE": "1"}).init_method == ""


def test_every_detector_gives_a_verdict() -> None:
    found = verdicts(RUNNER)
    order = ["aiocoll", "torchrun", "pmi", "openmpi", "slurm", "kubernetes"]
    assert [verdict.detector for verdict in found] == order
    assert [verdict.recognised for verdict in found] == [True] + [False] * 5
    assert all(verdict.text and "\n" not in verdict.text for verdict in found)


# ------------------------------------------------------------------------------------- env:// variables


def test_env_reads_what_is_there() -> None:
    said = read(TORCHRUN)
    assert (said.rank, said.size, said.host, said.port, said.moved) == (1, 4, "node0", 29500, True)
    nothing = read({})
    assert (nothing.rank, nothing.size, nothing.host, nothing.port, nothing.moved) == (None, None, "", 0, False)
    with pytest.raises(UsageError, match="MASTER_PORT='http'"):
        read({"MASTER_PORT": "http"})


def test_a_script_that_moves_the_master_is_noticed() -> None:
    exported = TORCHRUN | {"AIOCOLL_MASTER": "node0:29500"}
    assert not read(exported).moved
    assert not read(exported | {"MASTER_ADDR": "::1", "AIOCOLL_MASTER": "[::1]:29500"}).moved
    assert read(exported | {"MASTER_PORT": "29501"}).moved
    assert read(exported | {"MASTER_ADDR": "127.0.0.1"}).moved
    assert not read(without(exported, "MASTER_ADDR", "MASTER_PORT")).moved


# ------------------------------------------------------------------------------------- secrets


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The process's own environment, and no secret remembered from elsewhere."""
    monkeypatch.setattr(secret, "_from_descriptor", None)
    return monkeypatch


def test_a_descriptor_is_read_once(own_environment: pytest.MonkeyPatch) -> None:
    number = os.memfd_create("secret")
    os.write(number, b"\x01secret\x00")
    own_environment.setenv("AIOCOLL_SECRET_FD", str(number))
    assert job_secret() == b"\x01secret\x00"
    assert "AIOCOLL_SECRET_FD" not in os.environ
    with pytest.raises(OSError):
        os.fstat(number)
    assert job_secret() == b"\x01secret\x00"
    assert detect().secret == b"\x01secret\x00"
    assert detect({}).secret == b""


def test_ranks_that_share_the_open_file_all_read_it() -> None:
    number = os.memfd_create("secret")
    os.write(number, b"shared")
    twin = os.dup(number)
    assert job_secret({"AIOCOLL_SECRET_FD": str(number)}) == b"shared"
    assert job_secret({"AIOCOLL_SECRET_FD": str(twin)}) == b"shared"


def test_a_pipe_is_read_to_its_end() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"through a pipe")
    os.close(theirs)
    assert job_secret({"AIOCOLL_SECRET_FD": str(ours)}) == b"through a pipe"


def test_a_descriptor_that_is_none() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    os.close(theirs)
    with pytest.raises(UsageError, match=rf"AIOCOLL_SECRET_FD={ours} cannot be read.*secret="):
        job_secret({"AIOCOLL_SECRET_FD": str(ours)})
    folder = os.open("/", os.O_RDONLY)
    with pytest.raises(UsageError, match="neither a file nor a pipe"):
        job_secret({"AIOCOLL_SECRET_FD": str(folder)})
    os.close(folder)


@pytest.mark.parametrize(("content", "words"), [(b"", "holds no secret"), (b"x" * 5000, "more than 4096 bytes")])
def test_what_is_no_secret(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        job_secret({"AIOCOLL_SECRET_FILE": str(tmp_path / "secret")})


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"pass phrase\n")
    assert job_secret({"AIOCOLL_SECRET_FILE": str(tmp_path / "secret")}) == b"pass phrase"
    with pytest.raises(UsageError, match="cannot be read"):
        job_secret({"AIOCOLL_SECRET_FILE": str(tmp_path / "other")})


def test_text_means_its_utf8_bytes_as_in_connect() -> None:
    assert job_secret({"AIOCOLL_SECRET": "deadbeef"}) == b"deadbeef"
    assert job_secret({"AIOCOLL_SECRET": " öffne dich\n"}) == "öffne dich".encode()


def test_a_newcomer_needs_no_rank() -> None:
    place = detect({"AIOCOLL_JOIN": "1", "AIOCOLL_RDZV": "10.0.0.1:29500", "AIOCOLL_JOB_ID": "j"})
    assert (place.rank, place.size, place.init_method, place.job) == (None, None, "tcp://10.0.0.1:29500", "j")
    assert place.store_is_hosted and place.source == "aiocoll"
    assert detect({"AIOCOLL_JOIN": "0", "AIOCOLL_RDZV": "10.0.0.1:29500"}).init_method == ""
    (verdict,) = [each for each in verdicts({"AIOCOLL_JOIN": "1", "AIOCOLL_RDZV": "a:1"}) if each.recognised]
    assert "newcomer" in verdict.text
