"""What is to be measured, as numbers and names that travel to every rank.

The rule: whatever is asked for is checked here, before any rank starts, and a mistake is said in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ..algorithms import all_of, registry
from ..errors import UsageError
from ..ops import Op, as_op

REDUCTIONS: Final = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES: Final = (
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "scan",
    "exscan", "barrier", "ping_pong",
)  # fmt: skip
OPS: Final = ("sum", "prod", "min", "max", "mean", "band", "bor", "bxor", "land", "lor", "lxor")
CALLERS: Final = ("facade", "group", "await")
PLACES: Final = ("out", "in")
SIZES_MAX: Final = 10_000

DTYPES: Final = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
)  # fmt: skip
# The dtype names of nccl-tests, where NumPy has others; and what they call the mean.
_DTYPES: Final = {"half": "float16", "float": "float32", "double": "float64", "char": "int8", "int": "int32"}
_OPS: Final = {"avg": "mean"}
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that the ranks need to know."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of one rank's input."""
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    root: int = 0
    places: tuple[str, ...] = PLACES
    caller: str = "facade"
    transport: str = "auto"
    shared: bool = False
    """Whether the arrays come from ``group.empty()``."""
    algorithms: tuple[str, ...] = ()
    """To be forced, one after the other; none: the group chooses."""
    calls: int = 0
    """Timed per row; 0: as many as fill ``seconds``."""
    seconds: float = 0.2
    warmup: int = 5
    checks: int = 2
    """Calls per row of which every element is checked."""

    def rows(self) -> Iterator[tuple[str, str, str, str, int]]:
        """(collective, algorithm, dtype, op, bytes) of each row, in the order of the table."""
        for collective in self.collectives:
            for algorithm in self.forced(collective):
                if collective == "barrier":
                    yield collective, algorithm, "", "", 0
                    continue
                for dtype in self.dtypes:
                    for op in self.folds(collective, dtype):
                        for nbytes in elements_apart(self.sizes, dtype_named(dtype).itemsize):
                            yield collective, algorithm, dtype, op, nbytes

    def forced(self, collective: str) -> tuple[str, ...]:
        """The algorithms to be forced on a collective; "" is the group's own choice."""
        if not self.algorithms or collective not in registry():
            return ("",)
        mine = names_of(collective)
        if self.algorithms == ("all",):
            return mine
        return tuple(name for name in self.algorithms if name in mine) or ("",)

    def folds(self, collective: str, dtype: str) -> tuple[str, ...]:
        """The ops that make sense for a collective and a dtype."""
        if collective not in REDUCTIONS:
            return ("",)
        return tuple(op for op in self.ops if works(op, dtype))


def names_of(collective: str) -> tuple[str, ...]:
    """The algorithms of a collective, as AIOCOLL_ALGORITHM takes them."""
    found = all_of(collective)
    if collective == "all_to_all":  # sizes travel along, or both sides know them: two registries, one call
        found = (*all_of("exchange_all"), *found)
    return tuple(dict.fromkeys(each.name for each in found))


def size_of(text: str) -> int:
    """Bytes: ``4``, ``16K``, ``32M``, ``1.5 MiB``, ``1G``; powers of 1024."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise UsageError(f"size {text!r}: bytes are needed, like 4, 16K, 32M or 1G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def sweep(begin: int, end: int, factor: float = 0.0, step: int = 0) -> tuple[int, ...]:
    """Sizes from ``begin`` to ``end``, each ``factor`` times the one before, or ``step`` bytes more."""
    if end < begin:
        raise UsageError(f"the sizes end (-e {end}) below where they begin (-b {begin})")
    if not step and not factor > 1.0:
        raise UsageError(f"-f {factor:g}: a factor above 1 is needed")
    sizes, size = [], begin
    while size <= end:
        sizes.append(size)
        size = size + step if step else max(size + 1, int(size * factor))
        if len(sizes) > SIZES_MAX:
            raise UsageError(f"-b {begin} -e {end} are more than {SIZES_MAX} sizes: give a larger factor or step")
    return tuple(sizes)


def elements_apart(sizes: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The sizes in whole elements, at least one (but none for a size of 0), each once."""
    return tuple(dict.fromkeys(max(size // itemsize, min(size, 1)) * itemsize for size in sizes))


@lru_cache
def dtype_named(text: str) -> np.dtype[Any]:
    """The dtype by NumPy's name or nccl-tests'; those of ml_dtypes where it is installed."""
    name = _DTYPES.get(text.lower(), text.lower())
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(np.void)
    if dtype.kind in "biufc":
        return dtype
    if dtype.isbuiltin == 1 and dtype.kind != "V":
        raise UsageError(f"dtype {text!r}: numbers are needed")
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            f"dtype {text!r} is none of NumPy's; bfloat16 and its like need ml_dtypes: pip install 'aiocoll[ml]'"
        ) from None
    found = getattr(ml_dtypes, name, None)
    if found is None or "float" not in name or [float(found(value)) for value in (0, 3)] != [0.0, 3.0]:
        raise UsageError(f"dtype {text!r}: NumPy's numbers are needed, or a float of ml_dtypes that holds 0 and 3")
    made: np.dtype[Any] = np.dtype(found)
    return made


def dtypes_of(text: str) -> tuple[str, ...]:
    """Names separated by commas, in NumPy's spelling; ``all``: those of nccl-tests that NumPy has."""
    if text.lower() == "all":
        return DTYPES
    return tuple(dict.fromkeys(dtype_named(name).name for name in _names(text, "-d")))


def ops_of(text: str) -> tuple[str, ...]:
    """Names separated by commas, or ``all``."""
    if text.lower() == "all":
        return OPS
    names = tuple(dict.fromkeys(_OPS.get(name.lower(), name.lower()) for name in _names(text, "-o")))
    for name in names:
        if name not in OPS:
            raise UsageError(f"-o {name}: the ops are {', '.join(OPS)}, and all")
    return names


def collectives_of(names: Sequence[str]) -> tuple[str, ...]:
    """Collectives as they were typed: with dashes, without underscores, or ``all``."""
    if not names:
        return ("all_reduce",)
    plain = {each.replace("_", ""): each for each in COLLECTIVES}
    found: list[str] = []
    for name in names:
        if name == "all":
            found += COLLECTIVES
            continue
        key = name.lower().replace("-", "").replace("_", "")
        if key not in plain:
            raise UsageError(f"no collective {name!r}; there are {', '.join(COLLECTIVES)}, and all")
        found.append(plain[key])
    return tuple(dict.fromkeys(found))


def works(op: str, dtype: str) -> bool:
    """Whether numbers of the dtype can be folded with the op."""
    try:
        as_op(op).check(dtype_named(dtype), 0)
    except UsageError:
        return False
    return True


def op_named(name: str) -> Op:
    """The op of a row; SUM where it has none."""
    return as_op(name or "sum")


def check(request: Request) -> None:
    """UsageError for what no rank could do."""
    if any(each in REDUCTIONS for each in request.collectives):
        unable = [(op, dtype) for dtype in request.dtypes for op in request.ops if not works(op, dtype)]
        several = request.ops == OPS or request.dtypes == DTYPES  # "all" means all that go together
        if unable and not (several and len(unable) < len(request.ops) * len(request.dtypes)):
            op, dtype = unable[0]
            raise UsageError(f"-o {op} -d {dtype}: numbers of that dtype cannot be folded so")
    if request.algorithms and request.algorithms != ("all",):
        known = {name for each in request.collectives if each in registry() for name in names_of(each)}
        for name in request.algorithms:
            if name not in known:
                raise UsageError(
                    f"--algorithm {name}: {', '.join(request.collectives)} can use {', '.join(sorted(known))}, and all"
                )


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} {text!r}: a name is needed")
    return names
