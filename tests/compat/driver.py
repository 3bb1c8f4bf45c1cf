"""Runs all programs of a directory in this process, one after the other, and notes what each has printed.

    driver.py DIRECTORY RESULTS [THERE=HERE] [+ DIRECTORY RESULTS [THERE=HERE]] …

With THERE=HERE the one import line of a program that says THERE says HERE instead; nothing else is changed. What stands
after a + is a second round in the same process: importing torch takes longer than all the programs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path


def run(source: str, path: Path) -> str:
    """What a program prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    return output.getvalue()


def play(directory: str, results: str, exchange: str, ports: list[str]) -> None:
    """One round."""
    printed = {}
    for path in sorted(Path(directory).glob("*.py")):
        source = path.read_text()
        if exchange:
            there, here = exchange.split("=")
            assert source.count(f"{there}\n") == 1, f"{path} must say {there!r} in one line"
            source = source.replace(f"{there}\n", f"{here}\n")
        if ports:  # each meeting has one of its own
            os.environ["MASTER_PORT"] = ports.pop(0)
        printed[path.stem] = run(source, path)
    rank = os.environ.get("RANK") or os.environ["PMI_RANK"]
    Path(results, f"rank{rank}.json").write_text(json.dumps(printed))


def main() -> None:
    ports = os.environ.get("COMPAT_PORTS", "").split(",") if "COMPAT_PORTS" in os.environ else []
    for directory, results, *exchange in _rounds(sys.argv[1:]):
        play(directory, results, exchange[0] if exchange else "", ports)


def _rounds(arguments: list[str]) -> list[list[str]]:
    rounds: list[list[str]] = [[]]
    for each in arguments:
        if each == "+":
            rounds.append([])
        else:
            rounds[-1].append(each)
    return rounds


main()
