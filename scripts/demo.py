"""Sets up aiocoll in this checkout and trains a digit classifier on 4 ranks: python3 scripts/demo.py [-n RANKS]

The rule: a stranger with nothing but Python sees a real job run, and the exit status is the job's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from environment import ROOT, clean_environment, prepare, say


def main() -> int:
    """Runs the demo; gives the job's exit status."""
    parser = argparse.ArgumentParser(description="Train a digit classifier, data-parallel over several processes.")
    parser.add_argument("-n", "--ranks", type=int, default=4, help="how many processes train together (default 4)")
    options = parser.parse_args()
    python = prepare("examples")
    command = [str(python), "-m", "aiocoll", "run", "-n", str(options.ranks), "examples/train_digits.py", "--check"]
    say(f"aiocoll {' '.join(command[3:])}")
    status = subprocess.run(command, cwd=ROOT, env=clean_environment()).returncode
    say("done" if status == 0 else f"the job failed with exit status {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
