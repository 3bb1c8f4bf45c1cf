"""The launchers of MPI, Slurm and Kubernetes: which variables make a rank, where its world meets, what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aiocoll
from aiocoll.distributed.environment import placed_by_launcher
from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.place import Place, detect, verdicts
from aiocoll.place.hostlist import hosts
from aiocoll.rendezvous.schemes import tcp
from tests.place.environments import without
from tests.ports import free_url

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "prterun-n1-77@1",
    "PMIX_SERVER_TMPDIR": "/tmp/ompi.77",
    "PRTE_LAUNCHED": "1",
}
JOB = {"SLURM_JOB_ID": "41", "SLURM_NTASKS": "6", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[07-09]"}
STEP = JOB | {
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "n[08-09]",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
}
POD = {
    "JOB_COMPLETION_INDEX": "3",
    "AIOCOLL_WORLD_SIZE": "5",
    "HOSTNAME": "train-7-3",
    "AIOCOLL_SUBDOMAIN": "trainers",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (HYDRA, {"rank": 1, "size": 4, "local_rank": 1, "local_size": 2, "init_method": "pmi://", "source": "pmi"}),
        (HYDRA | {"PMI_JOBID": "17.0"}, {"job": "17.0"}),
        (HYDRA | {"AIOCOLL_RDZV": "n1:4000", "PMI_FD": ""}, {"rank": 1, "init_method": "tcp://n1:4000"}),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, {"rank": 0, "size": 1, "init_method": ""}),
        (
            OPENMPI,
            {
                "rank": 2, "size": 3, "local_rank": 2, "local_size": 3, "job": "prterun-n1-77@1", "source": "openmpi",
                "init_method": "session:///tmp/ompi.77/aiocoll-prterun-n1-77@1",
            },
        ),
        (OPENMPI | {"PMIX_NAMESPACE": "../x y?"}, {"init_method": "session:///tmp/ompi.77/aiocoll-.._x_y_"}),
        (OPENMPI | {"AIOCOLL_RDZV": "n1:4000"}, {"init_method": "tcp://n1:4000"}),
        (
            OPENMPI | {"MASTER_ADDR": "fd00::1", "MASTER_PORT": "29500", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            {"init_method": "tcp://[fd00::1]:29500"},
        ),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, {"size": 1, "init_method": ""}),
        (
            STEP,
            {
                "rank": 4, "size": 6, "local_rank": 1, "job": "slurm-41.2", "source": "slurm",
                "init_method": f"tcp://n08:{15_000 + 41 * 257 + 2}",
            },
        ),
        (STEP | {"SLURM_STEP_NODELIST": "n08"}, {"init_method": f"tcp://127.0.0.1:{15_000 + 41 * 257 + 2}"}),
        (STEP | {"AIOCOLL_RDZV": "tcp://n07:4000"}, {"init_method": "tcp://n07:4000"}),
        (STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, {"rank": 0, "size": 1, "init_method": ""}),
        (STEP | {"SLURM_RESTART_COUNT": "2"}, {"restart": 2}),
        (
            POD,
            {
                "rank": 3, "size": 5, "job": "train-7", "source": "kubernetes",
                "init_method": "tcp://train-7-0.trainers:29500",
            },
        ),
        (
            without(POD, "AIOCOLL_SUBDOMAIN") | {"HOSTNAME": "train-7-3.pods.ns.svc.cluster.local"},
            {"init_method": "tcp://train-7-0.pods.ns.svc.cluster.local:29500"},
        ),
        (POD | {"AIOCOLL_RDZV": "head:4000", "HOSTNAME": "renamed"}, {"init_method": "tcp://head:4000"}),
        ({"JOB_COMPLETION_INDEX": "0", "AIOCOLL_WORLD_SIZE": "1"}, {"rank": 0, "size": 1, "init_method": ""}),
    ],
)  # fmt: skip
def test_a_rank_finds_its_place(environ: dict[str, str], expected: dict[str, Any]) -> None:
    place = detect(environ)
    assert {name: getattr(place, name) for name in expected} == expected
    assert not place.store_is_hosted
    (said,) = [each for each in verdicts(environ) if each.recognised]
    assert said.detector == place.source and "\n" not in said.text


@pytest.mark.parametrize(
    "environ",
    [
        JOB,  # the script of sbatch: its SLURM_PROCID is 0, and there is one of it
        without(JOB, "SLURM_PROCID"),  # the shell of salloc
        without(STEP, "SLURM_STEP_ID"),
        {"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"},
        {"HOSTNAME": "train-7-3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    ],
)
def test_what_makes_no_rank(environ: dict[str, str]) -> None:
    assert detect(environ) == Place()
    assert not any(each.recognised or each.halved for each in verdicts(environ))


def test_who_is_asked_first() -> None:
    everything = {"SLURM_PROCID": "0", **POD, **STEP, **OPENMPI, **HYDRA}
    torchrun = {
        "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
    }  # fmt: skip
    sources = []
    for names in (torchrun, HYDRA, OPENMPI, STEP, POD):
        sources.append(detect(everything | torchrun if names is torchrun else everything).source)
        everything = without(everything, *names)
    assert sources == ["torchrun", "pmi", "openmpi", "slurm", "kubernetes"]
    assert detect({**HYDRA, "AIOCOLL_RANK": "0", "AIOCOLL_WORLD_SIZE": "1"}).source == "aiocoll"
    assert detect({**POD, "AIOCOLL_RANK": "0", "AIOCOLL_WORLD_SIZE": "1"}).source == "aiocoll"  # its own world of one


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (without(HYDRA, "PMI_SIZE"), "PMI_SIZE is not set"),
        (without(HYDRA, "PMI_RANK"), "PMI_RANK is not set"),
        (without(HYDRA, "PMI_FD"), r"PMI_FD is not set, but 4 ranks need it to meet.*AIOCOLL_RDZV=host:port"),
        (HYDRA | {"PMI_FD": "nine"}, "PMI_FD='nine'"),
        (HYDRA | {"PMI_RANK": "4"}, "PMI_RANK=4 is not a rank"),
        (without(OPENMPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, r"of which 2 on this host.*AIOCOLL_RDZV=host.*AIOCOLL_SECRET"),
        (without(OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), "of which an unknown number on this host"),
        (without(OPENMPI, "PMIX_SERVER_TMPDIR"), r"PMIX_SERVER_TMPDIR is not set.*AIOCOLL_RDZV=host:port"),
        (OPENMPI | {"MASTER_ADDR": "n1"}, "MASTER_PORT is not set"),
        (OPENMPI | {"MASTER_PORT": "29500"}, "MASTER_ADDR is not set"),
        (OPENMPI | {"MASTER_ADDR": "n1", "MASTER_PORT": "65536"}, "MASTER_PORT='65536'"),
        (without(STEP, "SLURM_STEP_NODELIST"), r"SLURM_STEP_NODELIST is not set, but 6 tasks.*AIOCOLL_RDZV=host:port"),
        (STEP | {"SLURM_STEP_NODELIST": "n[3-"}, r"SLURM_STEP_NODELIST='n\[3-' is malformed"),
        (STEP | {"SLURM_PROCID": "6"}, "SLURM_PROCID=6 is not a rank"),
        (without(POD, "AIOCOLL_WORLD_SIZE"), r"AIOCOLL_WORLD_SIZE is not set, but JOB_COMPLETION_INDEX=3 is.*_RANK=0"),
        (without(POD, "AIOCOLL_SUBDOMAIN"), "AIOCOLL_SUBDOMAIN is not set.*headless service.*AIOCOLL_RDZV"),
        (POD | {"HOSTNAME": "train-7-2"}, "HOSTNAME is no pod's name"),
        (POD | {"AIOCOLL_WORLD_SIZE": "3"}, "JOB_COMPLETION_INDEX=3 is not a rank of a world of AIOCOLL_WORLD_SIZE=3"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        detect(environ)
    assert any(each.halved for each in verdicts(environ))


async def test_the_first_pod_may_get_its_name_late(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def resolve(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
        asked.append((host, port))
        if len(asked) < 3:
            raise RendezvousError(f"store: the host {host!r} cannot be resolved")
        return [(2, ("192.0.2.1", port))]

    monkeypatch.setattr(tcp, "resolve", resolve)
    monkeypatch.setattr(tcp, "NAME_AGAIN_SECONDS", 0.001)
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="without a secret only loopback"):  # so it has got beyond the name
        await aiocoll.connect()
    assert asked == [("train-7-0.trainers", 29_500)] * 3
    del asked[:]
    with pytest.raises(RendezvousTimeoutError, match="rank 3 of 5 has waited 1e-06 s for that name: .*resolved"):
        await aiocoll.connect(timeout=1e-6)
    with pytest.raises(RendezvousError, match="cannot be resolved"):  # a name that was given is final
        await aiocoll.connect("tcp://typo:29500")


async def test_who_says_who_it_is_is_not_asked_for_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An indexed job whose manifest sets torch's variables, say, or a URL that has all of it."""
    url = free_url()
    for name, value in {
        "JOB_COMPLETION_INDEX": "3", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": url.rpartition(":")[2],
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    for told in ("env://", f"{url}?rank=0&world_size=1", f"file://{tmp_path}/meet?size=1"):
        async with aiocoll.connect(told) as group:
            assert (group.rank, group.size) == (0, 1)
    for half in (None, url, f"{url}?rank=0"):
        with pytest.raises(UsageError, match="AIOCOLL_WORLD_SIZE is not set"):
            await aiocoll.connect(half)


def test_the_doctor_says_why_a_batch_script_is_no_rank() -> None:
    (said,) = [each.text for each in verdicts(JOB) if each.detector == "slurm"]
    assert said == (
        "in a job, but no task of a step (SLURM_STEP_ID, SLURM_STEP_NUM_TASKS not set): start the ranks with srun"
    )


def test_the_documented_api_hears_launchers_that_set_none_of_its_variables() -> None:
    assert all(placed_by_launcher(each) for each in (HYDRA, OPENMPI, STEP, POD, without(HYDRA, "PMI_FD")))
    assert not any(placed_by_launcher(each | {"RANK": "0"}) for each in (HYDRA, OPENMPI, STEP, POD))
    assert not any(placed_by_launcher(each) for each in ({}, JOB, {"AIOCOLL_RANK": "0", "AIOCOLL_WORLD_SIZE": "1"}))


def test_steps_that_run_side_by_side_meet_apart() -> None:
    steps = [STEP | {"SLURM_STEP_ID": str(step), "SLURM_JOB_ID": str(job)} for step in range(200) for job in (41, 42)]
    ports = [int(detect(each).init_method.rpartition(":")[2]) for each in steps]
    assert len(set(ports)) == len(ports) and all(15_000 <= port < 32_768 for port in ports)
    far = STEP | {"SLURM_JOB_ID": "67108863", "SLURM_STEP_ID": "4294967290"}
    assert 15_000 <= int(detect(far).init_method.rpartition(":")[2]) < 32_768


# ------------------------------------------------------------------------------------- host lists


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n7", "n7"),
        (" n[1-3,07,010-012],x ", "n1 n2 n3 n07 n010 n011 n012 x"),
        ("gpu-a[1-2]b[3-4].site,c0", "gpu-a1b3.site gpu-a1b4.site gpu-a2b3.site gpu-a2b4.site c0"),
        ("[8-10]", "8 9 10"),
        ("n[098-101]", "n098 n099 n100 n101"),
    ],
)
def test_host_lists(text: str, expected: str) -> None:
    assert hosts(text) == expected.split()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no host name stands at ''"),
        ("n1,", "no host name stands at ''"),
        ("n1;n2", "';n2' follows"),
        ("n[1-2", r"follows a host name"),
        ("n[]", r"follows a host name"),
        ("n[1-2-3]", "'1-2-3' is no range"),
        ("n[,1]", "'' is no range"),
        ("n[5-3]", "'5-3' runs backwards"),
        ("n[0-65536]", "more than 65536 hosts"),
        ("n[1-300]m[1-300]", "more than 65536 hosts"),
        ("a[1-65536],b", "more than 65536 hosts"),
        ("n[0-99999999999999999999999999]", "more than 65536 hosts"),
    ],
)
def test_nonsense_in_a_host_list_is_quoted(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"LIST=.*is malformed: .*{why}"):
        hosts(text, "LIST")
