"""The command line: our names, torchrun's and mpirun's, presets, and refusals that say what to do instead."""

from __future__ import annotations

import math

import pytest

from aiocoll.cpus import usable_cpus
from aiocoll.errors import UsageError
from aiocoll.runner.options import GRACE_S, LAST_CALL_S, parse, split_address


def test_what_follows_the_script_is_the_scripts() -> None:
    options = parse(["-n", "4", "train.py", "--lr", "0.1", "-n", "7", "--", "x"], {})
    assert options.command == ("train.py", "--lr", "0.1", "-n", "7", "--", "x")
    assert (options.ranks, options.kind) == (4, "script")


def test_defaults() -> None:
    options = parse(["a.py"], {})
    assert (options.ranks, options.nnodes, options.grace, options.stdin) == (1, 1, GRACE_S, 0)
    assert options.timeout == math.inf and options.shown is None and options.on_failure == "kill"


@pytest.mark.parametrize("option", ["-n", "-np", "--np", "--nproc-per-node", "--nproc_per_node", "--ranks-per-node"])
def test_every_name_of_the_number_of_ranks(option: str) -> None:
    assert parse([option, "3", "a.py"], {}).ranks == 3


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        (["--max_restarts", "2"], "max_restarts", 2),
        (["--max-restarts=2"], "max_restarts", 2),
        (["--local_ranks_filter", "0,2-3"], "shown", frozenset({0, 2, 3})),
        (["--rdzv_id", "job7"], "job", "job7"),
        (["--shutdown-timeout", "5"], "grace", 5.0),
        (["--log_dir", "d"], "log_dir", "d"),
        (["--standalone", "--oversubscribe", "--monitor_interval", "1"], "nnodes", 1),
        (["--nnodes", "1:1"], "nnodes", 1),
        (["--master_addr", "h", "--master_port", "5"], "master", "h:5"),
        (["-x", "A=1", "--env", "B=2"], "env", {"A": "1", "B": "2"}),
        (["-x", "HOME"], "env", {"HOME": "/h"}),
        (["-genv", "A", "1"], "env", {"A": "1"}),
        (["--local-addr", "10.0.0.1"], "env", {"AIOCOLL_HOST": "10.0.0.1"}),
        (["-wdir", "/d"], "chdir", "/d"),
        (["--stdin", "none"], "stdin", None),
        (["-m"], "kind", "module"),
        (["--no_python"], "kind", "program"),
        (["--on_failure", "shrink"], "on_failure", "shrink"),
        (["-n", "auto"], "ranks", usable_cpus()),
    ],
)
def test_option(given: list[str], field: str, value: object) -> None:
    assert getattr(parse([*given, "a.py"], {"HOME": "/h"}), field) == value


def test_torchruns_static_meeting_is_ours() -> None:
    options = parse("--nnodes 2 --node_rank 1 --master_addr h --master_port 29501 a.py".split(), {})
    assert (options.nnodes, options.node_rank, options.rdzv, options.master) == (2, 1, "h:29501", "")


@pytest.mark.parametrize(
    ("given", "policy", "most"),
    [
        ([], "kill", 0),
        (["--on-failure", "kill"], "kill", 0),
        (["--on-failure", "end"], "kill", 0),
        (["--max-restarts", "0"], "kill", 0),
        (["--max-restarts", "5"], "restart", 5),
        (["--on-failure", "restart"], "restart", 3),
        (["--on-failure", "restart", "--max-restarts", "0"], "restart", 0),
        (["--on-failure", "shrink"], "shrink", 0),
        (["--on-failure", "shrink", "--max-restarts", "2"], "shrink", 2),
    ],
)
def test_what_follows_a_failure(given: list[str], policy: str, most: int) -> None:
    options = parse([*given, "a.py"], {})
    assert (options.on_failure, options.max_restarts) == (policy, most)


def test_the_command_lines_policy_wins_over_a_preset_number() -> None:
    assert parse(["--on-failure", "kill", "a.py"], {"PET_MAX_RESTARTS": "3"}).max_restarts == 0
    with pytest.raises(UsageError, match="kill, shrink, restart"):
        parse(["a.py"], {"AIOCOLL_RUN_ON_FAILURE": "shrug"})


def test_a_range_of_runners() -> None:
    options = parse("--nnodes 2:4 --rdzv h:1 a.py".split(), {})
    assert (options.nnodes_min, options.nnodes, options.node_rank, options.last_call) == (2, 4, None, LAST_CALL_S)
    options = parse("--nnodes 2:4 --rdzv h:1 --node-rank 9 --last-call 1.5 a.py".split(), {})
    assert (options.node_rank, options.last_call) == (9, 1.5)
    options = parse("--nnodes 2:4 --rdzv h:1 --rdzv-conf timeout=9,last_call_timeout=7 a.py".split(), {})
    assert options.last_call == 7.0
    assert parse("--nnodes 3 --rdzv h:1 a.py".split(), {}).node_rank == 0


def test_presets_from_the_environment_and_their_order() -> None:
    environ = {"AIOCOLL_RUN_N": "3", "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "1", "AIOCOLL_RUN_JSON": "1"}
    options = parse(["a.py"], environ)
    assert (options.ranks, options.max_restarts, options.json) == (3, 1, True)
    assert parse(["-n", "5", "a.py"], environ).ranks == 5


def test_secrets_come_as_a_phrase_or_in_a_file(tmp_path: object) -> None:
    assert parse(["a.py"], {"AIOCOLL_SECRET": "00ff"}).secret == b"00ff"
    assert parse(["a.py"], {"AIOCOLL_SECRET": "open sesame"}).secret == b"open sesame"
    path = f"{tmp_path}/secret"
    with open(path, "w") as file:
        file.write("of the file\n")
    options = parse(["--secret-file", path, "a.py"], {"AIOCOLL_SECRET": "00ff"})
    assert options.secret == b"of the file"
    assert "of the file" not in repr(options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "no program given"),
        ("-n 0 a.py", "at least 1"),
        ("-n two a.py", "'two'"),
        ("-n 2.5 a.py", "'2.5'"),
        ("--timeout -1 a.py", "number of seconds"),
        ("--bogus a.py", "--bogus"),
        ("--nnodes 2 a.py", "--rdzv HOST:PORT"),
        ("--nnodes 2 --node-rank 2 --rdzv h:1 a.py", "0..1"),
        ("--nnodes 4:1 --rdzv h:1 a.py", "1:4"),
        ("--nnodes 1:4 a.py", "--rdzv HOST:PORT"),
        ("--nnodes 0:4 --rdzv h:1 a.py", "at least 1"),
        ("--nnodes 1:4 --rdzv h:1 --last-call soon a.py", "--last-call 'soon'"),
        ("--on-failure kill --max-restarts 2 a.py", "--on-failure restart or shrink"),
        ("--nnodes 2 --rdzv h:99999 a.py", "'h:99999'"),
        ("--rdzv-backend etcd a.py", "etcd"),
        ("--run-path a.py", "name the script itself"),
        ("--hostfile h a.py", "--node-rank"),
        ("-H a,b a.py", "--node-rank"),
        ("--virtual_local_rank a.py", "LOCAL_RANK"),
        ("-r 3 a.py", "--log-dir"),
        ("--ranks x a.py", "0,2-3"),
        ("-n 2 --ranks 2,7 a.py", "show nobody: the ranks are 0 to 1"),
        ("--stdin 1 a.py", "nobody would read: the rank is 0"),
        ("-m --no-python a.py", "exclude"),
        ("--on-failure shrug a.py", "shrink"),
    ],
)
def test_refusals_name_the_option_and_the_way_out(arguments: str, words: str) -> None:
    with pytest.raises(UsageError, match="aiocoll run") as refused:
        parse(arguments.split(), {})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), ("[::1]:2", ("::1", 2)), ("tcp://h:3", ("h", 3)), ("h", ("h", 29400))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "::1:2", "h:0", "h:x", "http://h:1", "h:1/path"])
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        split_address(text)
