"""`execute(cells)`: what the cells of a notebook give on a real kernel.

The rule: the kernel, and the client that drives it, are programs of their own; nothing of them stays in the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXECUTE = Path(__file__).with_name("execute.py")


def execute(cells: dict[str, str], *, kill: bool = False) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as home:  # IPython's files
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "IPYTHONDIR": home}
        done = subprocess.run(
            [sys.executable, str(EXECUTE)], input=json.dumps({"cells": cells, "kill": kill}), env=environ,
            capture_output=True, text=True, timeout=110,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found
