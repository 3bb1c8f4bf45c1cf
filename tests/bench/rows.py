"""Rows for tests, with what does not matter filled in."""

from __future__ import annotations

from typing import Any

from aiocoll.bench.records import Cell, Floor, Row


def cell(seconds: float = 1e-5, spread: float = 0.0, wrong: int = 0) -> Cell:
    return Cell(
        call="group.all_reduce(x, out=y)", seconds=seconds, low=seconds * (1 - spread), high=seconds * (1 + spread),
        p99=2 * seconds, calls=50, wrong=wrong,
    )  # fmt: skip


def row(**facts: Any) -> Row:
    made = {name: facts.pop(name) for name in ("seconds", "spread", "wrong") if name in facts}
    usual: dict[str, Any] = {
        "collective": "all_reduce", "nbytes": 4096, "dtype": "float32", "op": "sum", "root": -1, "ranks": 2,
        "transport": "tcp", "algorithm": "exchange", "forced": "", "caller": "facade", "shared": False,
        "floor": Floor(1e-7, 2e-7, 4e-6), "cells": {"out": cell(**made)},
    }  # fmt: skip
    usual.update(facts)
    return Row(count=usual["nbytes"] // 4, **usual)
