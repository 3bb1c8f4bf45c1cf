"""Sets up aiocoll in this checkout and runs all its checks: python3 scripts/test.py [--quick] [--coverage] [ARGUMENTS]

ARGUMENTS go to pytest. Without any, tests that mostly compute run beside those that also wait; their output follows.
The rule: lint, types and the import contract are tests too, so pytest's exit status is the script's and pytest's
summary is the last line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import ROOT, clean_environment, prepare, say

BESIDE = (
    "algorithms", "architecture", "buffers", "compat", "docs", "mpi", "observe", "ops", "patterns", "sim", "testing",
    "tuning", "typing", "wire",
)  # fmt: skip
"""The half of the tests that mostly computes: nothing that it does is in the others' way, and it takes as long."""


def main() -> int:
    """Runs the tests; gives pytest's exit status."""
    parser = argparse.ArgumentParser(description="Run all tests, lint and types included.", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="leave out what is marked slow")
    parser.add_argument("--coverage", action="store_true", help="measure coverage; its report comes before the tests'")
    options, rest = parser.parse_known_args()
    python = prepare("dev", "docs", "examples")
    arguments = ["-q", *(["-m", "not slow"] if options.quick else ["--hypothesis-profile=full"]), *rest]
    say("pytest " + " ".join(arguments))
    if options.coverage:
        return _measured(python, arguments)
    return _python(python, "pytest", *arguments) if rest else _side_by_side(python, arguments)


def _python(python: Path, *module: str) -> int:
    return subprocess.run([str(python), "-m", *module], cwd=ROOT, env=clean_environment()).returncode


def _side_by_side(python: Path, arguments: list[str]) -> int:
    """All tests, in two processes at a time; the output of the second one follows that of the first."""
    folders = sorted(each.name for each in (ROOT / "tests").iterdir() if each.is_dir() and each.name != "__pycache__")
    computing = [f"tests/{name}" for name in folders if name in BESIDE]
    others = [f"tests/{name}" for name in folders if name not in BESIDE]
    command = [str(python), "-m", "pytest", *arguments, "-p", "no:cacheprovider", *computing]
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stdout=said, stderr=said) as beside:
            try:
                first = _python(python, "pytest", *arguments, *others)
                second = beside.wait()
            except BaseException:
                beside.terminate()
                raise
        said.seek(0)
        say("and beside it " + " ".join(computing))
        print(said.read(), end="", flush=True)
    return first or second


def _measured(python: Path, arguments: list[str]) -> int:
    """The tests under coverage; their output waits for the report, so that the summary stays last."""
    _python(python, "coverage", "erase")
    command = [str(python), "-m", "coverage", "run", "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    _python(python, "coverage", "combine", "--quiet")
    _python(python, "coverage", "report")
    print(done.stdout, end="", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
