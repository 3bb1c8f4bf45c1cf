"""Runs all programs of a directory in this process, one after the other, and notes what each has printed.

    driver.py DIRECTORY RESULTS [THERE=HERE]

With THERE=HERE the one import line of a program that says THERE says HERE instead; nothing else is changed.
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


def main() -> None:
    directory, results, *exchange = sys.argv[1:]
    printed = {}
    for number, path in enumerate(sorted(Path(directory).glob("*.py"))):
        source = path.read_text()
        for each in exchange:
            there, here = each.split("=")
            assert source.count(f"{there}\n") == 1, f"{path} must say {there!r} in one line"
            source = source.replace(f"{there}\n", f"{here}\n")
        if "COMPAT_PORTS" in os.environ:  # each meeting of torch's has a port of its own
            os.environ["MASTER_PORT"] = os.environ["COMPAT_PORTS"].split(",")[number]
        printed[path.stem] = run(source, path)
    rank = os.environ.get("RANK") or os.environ["PMI_RANK"]
    Path(results, f"rank{rank}.json").write_text(json.dumps(printed))


main()
