"""``aiocoll doctor``: what aiocoll finds on this machine, and where ``connect()`` would take this process to be.

The rule: it only looks. Nothing is joined, and no secret is read or shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from .cpus import usable_cpus
from .place import verdicts
from .transport.shm.headroom import available_bytes

_PACKAGES: Final = (  # each with the extra of aiocoll that installs it
    ("torch", "torch", "CPU tensors, and the backends gloo and nccl"),
    ("mpi4py", "mpi", "the backend mpi"),
    ("ml_dtypes", "ml", "bfloat16 and float8 arrays"),
)


def main(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Prints what was found; 1 if ``connect()`` would refuse this environment, else 0."""
    parser = argparse.ArgumentParser(prog="aiocoll doctor", description="What aiocoll finds on this machine.")
    parser.add_argument("--env", action="store_true", help="only what the environment says about this process")
    if not parser.parse_args(list(argv)).env:
        sys.stdout.writelines(f"{line}\n" for line in (*_machine(), ""))
    code = 0
    found = None
    for each in verdicts(environ):
        sign = "halves" if each.halved else "yes" if each.recognised else "no"
        sys.stdout.write(f"{each.detector:12}{sign:8}{each.text}\n")
        if found is None and (each.halved or each.recognised):
            found, code = each, int(each.halved)
    if found is None:
        says = "a world of one"
    else:
        says = f"a UsageError: {found.text}" if found.halved else f"{found.text} ({found.detector})"
    sys.stdout.write(f"\nconnect() without arguments, here: {says}\n")
    return code


def _machine() -> Iterator[str]:
    yield f"{'CPUs':12}{usable_cpus()} usable"
    yield f"{'memory':12}{available_bytes() / 2**30:.1f} GiB available; what ranks of one host share comes out of it"
    for package, extra, gives in _PACKAGES:
        try:
            yield f"{package:12}{version(package)}: {gives}"
        except PackageNotFoundError:
            yield f"{package:12}not installed: {gives}; pip install 'aiocoll[{extra}]'"
