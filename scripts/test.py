"""Sets up aiocoll in this checkout and runs all its checks: python3 scripts/test.py [--quick] [--coverage] [ARGUMENTS]

ARGUMENTS go to pytest. Without any, the tests run in several processes side by side, each with some folders of tests.
The rule: lint, types and the import contract are tests too, so pytest's exit status is the script's and pytest's
summary, that of all processes together, is the last line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from environment import ROOT, clean_environment, prepare, say

JOBS = (
    "sim", "transport endpoint", "algorithms", "group", "runner notebook", "examples docs", "testing distributed",
    "compat mpi scripts bench", "architecture typing",
)  # fmt: skip
"""Folders that one process tests, those that take longest first; all others are one more job."""
AT_ONCE = min(len(os.sched_getaffinity(0)) + 1, 4)
"""Processes: one more than there are processors, since many tests wait; few, since a container may have less of the
machine than it sees."""


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
    """All tests, some jobs at a time; the output of each is shown when it has ended."""
    folders = {each.name for each in (ROOT / "tests").iterdir() if each.is_dir() and each.name != "__pycache__"}
    jobs = [job.split() for job in JOBS]
    jobs.append(sorted(folders.difference(*jobs)))
    began, running, said, worst = time.monotonic(), list[subprocess.Popen[str]](), Counter[str](), 0

    def run(job: list[str]) -> tuple[int, str]:
        command = [str(python), "-m", "pytest", *arguments, "-p", "no:cacheprovider"]
        command += [f"tests/{each}" for each in job]
        with subprocess.Popen(
            command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            running.append(process)
            output, _ = process.communicate()
        return process.returncode, output

    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(run, job): job for job in jobs}
        try:
            for done in as_completed(waiting):
                status, output = done.result()
                say("tests of " + " ".join(waiting[done]))
                print(output, end="", flush=True)
                said.update(_counts(output))
                worst = worst or abs(status)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    ended = f" (exit status {worst})" if worst else ""
    counts = ", ".join(f"{number} {what}" for what, number in said.items())
    print(f"== {counts} in {time.monotonic() - began:.2f}s{ended} ==", flush=True)
    return worst


def _counts(output: str) -> dict[str, int]:
    """What a summary says: how many have passed, failed, …"""
    summary, _, _ = output.rstrip().rpartition("\n")[2].partition(" in ")
    return {what: int(number) for number, what in re.findall(r"(\d+) ([a-z]+)", summary)}


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
