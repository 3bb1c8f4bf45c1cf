"""Sets up aiocoll in this checkout and runs all its checks: python3 scripts/test.py [--quick] [--coverage] [ARGUMENTS]

ARGUMENTS go to pytest. The rule: lint, types and the import contract are tests too, so pytest's exit status is the
script's and pytest's summary is the last line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from environment import ROOT, clean_environment, prepare, say


def main() -> int:
    """Runs the tests; gives pytest's exit status."""
    parser = argparse.ArgumentParser(description="Run all tests, lint and types included.", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="leave out what is marked slow")
    parser.add_argument("--coverage", action="store_true", help="measure coverage; its report comes before the tests'")
    options, rest = parser.parse_known_args()
    python = prepare("dev", "examples")
    arguments = ["-q", *(["-m", "not slow"] if options.quick else ["--hypothesis-profile=full"]), *rest]
    say("pytest " + " ".join(arguments))
    return _measured(python, arguments) if options.coverage else _python(python, "pytest", *arguments)


def _python(python: Path, *module: str) -> int:
    return subprocess.run([str(python), "-m", *module], cwd=ROOT, env=clean_environment()).returncode


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
