"""The checkout's own virtual environments: made once, reused while pyproject.toml stays the same.

The rule: nothing but Python's standard library, and nothing outside the checkout is changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)


class SetupError(SystemExit):
    """The environment cannot be made; the message says what to do. Ends the script with status 2."""

    def __init__(self, message: str) -> None:
        print(f"\n{message}", file=sys.stderr)
        super().__init__(2)


def prepare(*extras: str) -> Path:
    """The Python of ``.venv`` with this checkout (editable) and ``extras``; makes or completes it when needed."""
    target = f".[{','.join(extras)}]" if extras else "."
    facts = [(ROOT / "pyproject.toml").read_text(), str(ROOT), *sorted(extras)]
    return _complete(".venv", f"aiocoll{target[1:]} and what it needs", ["--editable", target], facts)


def prepare_peer(name: str, *requirements: str) -> Path:
    """The Python of ``.venv-<name>``, an environment of its own for something that aiocoll is compared with."""
    return _complete(f".venv-{name}", " ".join(requirements), list(requirements), list(requirements))


def _complete(folder: str, what: str, install: list[str], facts: list[str]) -> Path:
    """``facts`` change when another install is due; a stamp in the folder remembers those that were seen."""
    if sys.version_info < OLDEST:
        raise SetupError(f"aiocoll needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {sys.version.split()[0]}.")
    home = ROOT / folder
    python = home / "bin" / "python"
    wanted = hashlib.sha256("\0".join([sys.version, *facts]).encode()).hexdigest()[:32]
    stamp = home / "aiocoll-installed.txt"
    if python.exists() and stamp.exists() and wanted in stamp.read_text().split():
        say(f"using {folder} (made earlier; delete that folder to start afresh)")
        return python
    if not _runs(python):
        say(f"making a virtual environment in {folder} with Python {sys.version.split()[0]}")
        _create(home)
    say(f"installing {what} (a minute or two, once)")
    _pip(python, install)
    _compile(python, home / "lib")
    kept = stamp.read_text().split() if stamp.exists() else []
    stamp.write_text("\n".join([*kept, wanted]) + "\n")
    return python


def _pip(python: Path, what: list[str]) -> None:
    """``pip install`` into the environment of ``python``, shown only when it fails."""
    if _runs(python, "-m", "pip", "--version"):
        command = [str(python), "-m", "pip"]
    else:  # an environment that was made without pip: this Python's own pip installs into it
        command = [sys.executable, "-m", "pip", "--python", str(python)]
    command += ["install", "--quiet", "--disable-pip-version-check", "--no-compile", *what]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SetupError(f"{done.stdout}\npip could not install {' '.join(what)} (exit status {done.returncode}).")


def _compile(python: Path, folder: Path) -> None:
    """What pip would do itself, on one processor: the bytecode of all that is installed. Some packages bring files that
    are no Python of today; nobody imports those."""
    command = [str(python), "-m", "compileall", "-q", "-j", "0", str(folder)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would lead a child into another Python environment, or make each of
    the many that are started compile the package anew."""
    misleading = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in misleading}


def say(text: str) -> None:
    """One line about what the script does, shown at once, also in a log file."""
    print(f"== {text}", flush=True)


def _runs(python: Path, *arguments: str) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), *(arguments or ("-c", ""))], capture_output=True).returncode == 0


def _create(home: Path) -> None:
    if importlib.util.find_spec("ensurepip") is not None:
        with_pip = True
    elif importlib.util.find_spec("pip") is not None:
        with_pip = False
    else:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            "This Python can make no virtual environment: it has neither ensurepip nor pip.\n"
            f"On Debian and Ubuntu: apt-get install python3-venv (or python{version}-venv). Then run this again."
        )
    try:
        venv.EnvBuilder(clear=True, symlinks=True, with_pip=with_pip).create(home)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SetupError(f"The virtual environment in {home} could not be made: {problem}") from problem
