"""``aiocoll`` and ``python -m aiocoll``: commands, help, versions, plans; and what a runner does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from aiocoll import doctor
from aiocoll.cli import main
from aiocoll.cpus import usable_cpus
from aiocoll.place import verdicts


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    assert "run" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert "numpy" in capsys.readouterr().out


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    assert "'dance'\n" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["aiocoll.cli", "aiocoll.runner.options", "aiocoll.runner.supervise"])
def test_ctrl_c_while_it_is_still_being_imported_ends_it_quietly(module: str) -> None:
    program = f"""
import signal, sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["aiocoll", "run", "-n", "1", "--", sys.executable, "-c", "import time; time.sleep(60)"]
from aiocoll.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (130, False), done.stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("rnu -n 2 a.py", "'run'"),
        ("benhc all", "'bench'"),
        ("train.py --lr 1", "'aiocoll run train.py --lr 1'"),
        ("-n 4 train.py", "'aiocoll run -n 4 train.py'"),
    ],
)
def test_what_was_probably_meant(given: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given.split()) == 2
    assert f": did you mean {meant}?\n" in capsys.readouterr().err


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({}, 0, "here: a world of one"),
        (TORCHRUN, 0, "here: rank 1 of 3, meeting at tcp://10.0.0.7:29500 (torchrun)"),
        (TORCHRUN | {"MASTER_PORT": ""}, 1, "here: a UsageError: MASTER_PORT is not set"),
        (TORCHRUN | {"MASTER_PORT": "", "AIOCOLL_RANK": "0", "AIOCOLL_WORLD_SIZE": "1"}, 0, "here: rank 0 of 1"),
    ],
    ids=["nothing", "torchrun", "halves", "halves of what is not asked"],
)
def test_the_doctor_says_what_connect_would_do(
    environ: dict[str, str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.main(["--env"], environ) == code
    said = capsys.readouterr().out
    assert words in said.splitlines()[-1] and "CPUs" not in said
    assert all(f"\n{each.detector:12}" in f"\n{said}" for each in verdicts(environ))


def test_the_doctor_looks_at_the_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_SECRET", "open sesame")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for words in (f"{usable_cpus()} usable", "GiB available", "\ntorch ", "\nmpi4py ", "\nml_dtypes ", "\ntorchrun "):
        assert words in said
    assert "sesame" not in said


def test_help_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0
    for option in "-n --nnodes --rdzv --max-restarts --log-dir --ranks --timeout --dry-run --json".split():
        assert option in text


def test_a_dry_run_starts_nothing_and_shows_no_secret(runner: Any) -> None:
    script = runner.script("open('started', 'w')")
    env = {"AIOCOLL_SECRET": "open sesame"}
    done = runner.run("-n", 2, "--dry-run", "-x", "MY_TOKEN=hidden", script, "arg", env=env)
    assert done.code == 0 and not (runner.directory / "started").exists()
    for words in (f"[r1] {sys.executable}", "AIOCOLL_RANK=1", "AIOCOLL_SECRET_FD=<redacted>"):
        assert words in done.out
    assert "sesame" not in done.out + done.err and "hidden" not in done.out
    plan = json.loads(runner.run("-n", 2, "--dry-run", "--json", script).out)
    assert plan["world_size"] == 2 and [rank["env"]["RANK"] for rank in plan["ranks"]] == ["0", "1"]


def test_ranks_start_before_anything_heavy_is_imported() -> None:
    program = (
        "import sys; import aiocoll.runner.command, aiocoll.runner.processes\n"
        "heavy = 'numpy asyncio uvloop rich cloudpickle msgpack ssl'\n"
        "print([name for name in heavy.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_users_files_do_not_shadow_the_runners_modules(runner: Any) -> None:
    for name in ("queue", "socket", "json", "argparse", "asyncio"):
        (runner.directory / f"{name}.py").write_text("1 / 0")
    assert runner.run("-n", 2, "--no-python", "true").code == 0


def test_a_runner_never_needs_numpy(runner: Any) -> None:
    done = runner.run("-n", 2, "-v", runner.script("pass"), env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.code == 0 and "BLAS threads" in done.err
    assert "aiocoll.runner.supervise" in done.err and "numpy" not in done.err


@pytest.mark.parametrize("command", ["doctor --env", "--help", "--version", "run --help", "run --dry-run -m this"])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = [sys.executable, "-m", "aiocoll", *command.split()]
    with open(writing, "wb") as pipe:
        done = subprocess.run(argv, stdout=pipe, stderr=subprocess.PIPE, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


def test_standard_output_may_be_closed() -> None:
    command = f'exec "{sys.executable}" -m aiocoll doctor --env >&-'
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode in (0, 1) and done.stderr == b""


def test_another_pipe_that_breaks_is_no_reader_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(argv: list[str]) -> int:
        raise BrokenPipeError("of a child, say")

    monkeypatch.setattr(doctor, "main", broken)
    with pytest.raises(BrokenPipeError, match="of a child"):
        main(["doctor"])
