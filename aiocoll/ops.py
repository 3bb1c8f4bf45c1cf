"""Reductions: what an op computes, on which dtypes, and in which dtype it accumulates.

Rule of this file: an op is NumPy's binary function on arrays and knows nothing of ranks that talk. Folds are silent:
overflow and NaN give NumPy's values but neither warnings nor errors, since a fold runs on whichever rank and in
whichever callback the bytes arrive, where a warning would be news to nobody and an exception would break a group.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiocoll.errors import UsageError

Array = NDArray[Any]
DType = np.dtype[Any]
Fold = Callable[[Array, Array, Array], object]

# np.errstate costs 1 µs per fold. NumPy keeps its error state in a context variable, and running a ufunc inside this
# context costs next to nothing; a copy of it (O(1)) is for whoever finds another thread in it.
_silent = contextvars.Context()
_silent.run(np.seterr, all="ignore")


def _silently(ufunc: np.ufunc, left: Any, right: Any, out: Array) -> None:
    """Call `ufunc` with NumPy's floating-point warnings off, whatever the caller's errstate says."""
    _silent.copy().run(ufunc, left, right, out=out)


def _elementwise(ufunc: np.ufunc) -> Fold:
    run, copy = _silent.run, _silent.copy

    def fold(left: Array, right: Array, out: Array) -> None:
        try:
            if out.size == 1:  # in place on one element, NumPy makes copies: a new result costs half of that
                out[...] = run(ufunc, left, right)
            else:
                run(ufunc, left, right, out=out)
        except RuntimeError:  # another thread is in there: a context has room for one
            copy().run(ufunc, left, right, out=out)

    return fold


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Op:
    """A reduction; the module's constants (SUM …) and what `op()` returns are instances.

    `fold(left, right, out)` combines two contiguous arrays of the work dtype; `left` comes from lower ranks and `out`
    may be either of them. `commutative` ops may be folded in any order, `splittable` ones piece by piece.
    """

    name: str
    fold: Fold
    commutative: bool = True
    splittable: bool = True
    ufunc: np.ufunc | None = None
    function: Callable[[Array, Array], Any] | None = None
    neutral: Any = None
    mean: bool = False
    logical: bool = False

    def check(self, dtype: DType, rank: int, what: str = "reduction") -> None:
        """Raise UsageError unless this op works on arrays of `dtype`; looks at nothing else."""
        if self.ufunc is not None and _work_dtype(self, dtype) is None:
            able = [other.name for other in _BUILTIN.values() if _work_dtype(other, dtype) is not None]
            hint = f"{dtype} takes {', '.join(able)}" if able else f"{dtype} has no built-in reduction"
            raise UsageError(
                f"{what} on rank {rank}: op {self.name} does not work on dtype {dtype} "
                f"({hint}; aiocoll.op(fn) makes your own)"
            )

    def work_dtype(self, dtype: DType) -> DType:
        """The native dtype to accumulate in: float32 for sums of narrower floats, float64 for integer MEAN."""
        work = _work_dtype(self, dtype)
        if work is None:
            raise UsageError(f"op {self.name} does not work on dtype {dtype}")
        return work

    def result_dtype(self, dtype: DType) -> DType:
        """The dtype of a new result: the input's in native byte order, but float64 for MEAN of integers and bool."""
        return _result_dtype(self, dtype)

    def allows_out(self, dtype: DType, out: DType) -> bool:
        """Whether the result of inputs of `dtype` may be written into an array of dtype `out` (byte order aside)."""
        wanted = _result_dtype(self, dtype)
        return out.newbyteorder("=") == wanted or (
            self.mean and _is_integer(dtype) and (out.kind in "biufc" or _is_ml(out))
        )

    @property
    def finishes(self) -> bool:
        """Whether `finish` does anything: callers skip a pass over the data where it does not."""
        return self.mean or self.logical

    def finish(self, array: Array, size: int) -> None:
        """Turn folded values (work dtype) into the result of `size` ranks in place; works on any slice of them."""
        if self.mean:
            _silently(np.true_divide, array, size, array)
        elif self.logical:
            # A value that met no other (one rank, or the first of a scan) is not 0 or 1 yet; others do not change.
            _silently(np.logical_or, array, array, array)

    def associates(self, dtype: DType) -> bool:
        """Whether the same bits come out however the operands are put together: not where sums or products are rounded,
        minima have signed zeros to choose from, or a user's function decides."""
        if self.ufunc is None or _OWN.get(self.name) is not self:
            return False
        work = self.work_dtype(dtype)
        inexact = work.kind in "fc" or (_is_ml(work) and not _is_integer(work))
        return not inexact or self.logical

    def identity(self, dtype: DType) -> Any:
        """The neutral element as a NumPy value of `dtype`, or None where the op has none."""
        if self.neutral is None:
            return None
        native = dtype.newbyteorder("=")
        if self is BAND:
            return np.invert(np.zeros((), native))[()].astype(native)
        value = np.array(self.neutral, dtype=native)[()]
        lacks_it = _is_ml(native) and not np.ndim(value) and bool(value != value)  # powers of two have no 0
        return None if lacks_it else value

    def identity_array(self, shape: tuple[int, ...], dtype: DType) -> Array | None:
        """A new array of `shape` filled with the neutral element, or None where the op has none."""
        value = self.identity(dtype)
        if value is None:
            return None
        array = np.empty(shape, dtype.newbyteorder("="))
        array[...] = value
        return array

    def bind(self, shape: tuple[int, ...], dtype: DType, *, rank: int = 0, what: str = "reduction") -> Op:
        """This op for one call: a user function then gets whole arrays of `shape` and `dtype`; others stay as they are.

        Refuses an identity that does not fit. The bound fold raises UsageError, chained, for what the function raises
        and for a return value that does not fit.
        """
        if _OWN.get(self.name) is self:
            return self
        native = dtype.newbyteorder("=")
        where = f"{what} on rank {rank}: op {self.name!r}"
        self._check_identity(shape, native, where)
        if self.function is None:
            return self
        return replace(self, fold=_call(self.function, shape, native, where))

    def _check_identity(self, shape: tuple[int, ...], dtype: DType, where: str) -> None:
        if self.neutral is None:
            return
        wrong = f"{where}: identity {_short(self.neutral)} does not fit dtype {dtype} and shape {shape}"
        try:
            value = np.array(self.neutral, dtype=dtype)
            fits = np.broadcast_shapes(value.shape, shape) == shape
            if dtype.kind in "biu":  # np.array(1.5, dtype=int) truncates without a word
                fits = fits and bool(np.all(value == np.asarray(self.neutral)))
        except (TypeError, ValueError, OverflowError) as exc:
            raise UsageError(f"{wrong}: {exc}") from exc
        if not fits:
            raise UsageError(wrong)

    def __repr__(self) -> str:
        if self.function is None and self.name in _OWN:
            return f"aiocoll.{self.name}"
        return f"aiocoll.op({self.name}, commutative={self.commutative}, identity={self.neutral!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Built-in ops stay singletons when pickled or copied; user ops travel as their function."""
        if _OWN.get(self.name) is self:
            return _own, (self.name,)
        return op, (self.function or self.ufunc, self.commutative, self.neutral)


def _call(function: Callable[[Array, Array], Any], shape: tuple[int, ...], dtype: DType, where: str) -> Fold:
    """The fold of a user function: whole arrays in, a checked whole array out."""
    context = contextvars.copy_context()  # the function sees its caller's context and errstate, not the transport's

    def fold(left: Array, right: Array, out: Array) -> None:
        # Copies: the function may keep or change what it gets, while the transport may still be sending the originals.
        args = (left.reshape(shape).copy(), right.reshape(shape).copy())
        try:
            result = context.copy().run(function, *args)
        except KeyboardInterrupt:  # the program's, and no mistake of the function
            raise
        except BaseException as exc:  # SystemExit, say, which would end a loop of ours
            raise UsageError(f"{where} raised {type(exc).__name__}: {exc}") from exc
        np.copyto(out.reshape(shape), _checked(result, shape, dtype, where))

    return fold


def _checked(result: Any, shape: tuple[int, ...], dtype: DType, where: str) -> Array:
    """The result of a user function as an array, or UsageError; Python numbers take the call's dtype as in NumPy."""
    wanted = f"it must return a new array of dtype {dtype} and shape {shape}"
    if result is None:
        raise UsageError(f"{where} returned None; {wanted}")
    try:
        array = np.asarray(result)
        if type(result) in (bool, int, float, complex) and np.result_type(dtype, result) == dtype:
            array = np.asarray(result, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as exc:
        raise UsageError(f"{where} returned {_short(result)}; {wanted}: {exc}") from exc
    if array.shape != shape or array.dtype.newbyteorder("=") != dtype:
        raise UsageError(f"{where} returned dtype {array.dtype} and shape {array.shape}; {wanted}")
    return array


def _short(value: Any) -> str:
    return " ".join(repr(value).split())[:100]


def _is_ml(dtype: DType) -> bool:
    """Whether this is a dtype of the ml_dtypes package (which need not be installed to ask)."""
    return dtype.isbuiltin == 2 and dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _is_integer(dtype: DType) -> bool:
    return dtype.kind in "biu" or (_is_ml(dtype) and dtype.name.startswith(("int", "uint")))


def _is_complex(dtype: DType) -> bool:
    return dtype.kind == "c" or (_is_ml(dtype) and "complex" in dtype.name)


# typed: NumPy's long and long long are equal where both have 64 bits, and yet results shall be of the input's type.
@functools.lru_cache(maxsize=4096, typed=True)
def _result_dtype(op: Op, dtype: DType) -> DType:
    return np.dtype(np.float64) if op.mean and _is_integer(dtype) else dtype.newbyteorder("=")


@functools.lru_cache(maxsize=4096, typed=True)
def _work_dtype(op: Op, dtype: DType) -> DType | None:
    """The dtype in which `op` accumulates arrays of `dtype`; None where NumPy cannot do it."""
    dtype = dtype.newbyteorder("=")
    if op.ufunc is None:
        return dtype
    if dtype.hasobject or dtype.kind in "SU" or (dtype.kind == "V" and not _is_ml(dtype)):
        return None
    if op.mean and _is_integer(dtype):
        return np.dtype(np.float64)
    if op.ufunc in (np.add, np.multiply) and op.name in _OWN:
        # Narrow floats lose digits with every partial sum. MIN and MAX are exact: they stay narrow and halve the bytes.
        if dtype == np.float16 or (_is_ml(dtype) and not _is_integer(dtype)):
            return np.dtype(np.complex64 if _is_complex(dtype) else np.float32)
    if op.ufunc in (np.minimum, np.maximum) and _is_complex(dtype):
        return None  # NumPy orders them by real part, then imaginary part: rarely what anyone means
    if op.logical and not _has_zero(dtype):
        return None
    if _can(op, dtype):
        return dtype
    # ml_dtypes' int4 and int2 have sums of their own; for the rest NumPy answers in int8, which holds all their values.
    return np.dtype(np.int8) if _is_ml(dtype) and _is_integer(dtype) else None


def _has_zero(dtype: DType) -> bool:
    """Whether the dtype can say false: ml_dtypes has one of powers of two alone, where 0 becomes NaN."""
    return not _is_ml(dtype) or bool(np.zeros(1).astype(dtype)[0] == 0)


def _can(op: Op, dtype: DType) -> bool:
    """Ask NumPy itself: is there a loop, does it stay in `dtype` (bool for logical ops), can it be written there?"""
    ufunc, probe = op.ufunc, np.zeros(1, dtype)
    if ufunc is None:
        return True
    try:
        result = ufunc.resolve_dtypes((dtype, dtype, None))[2]
        _silently(ufunc, probe, probe, probe)
        if op.mean:
            _silently(np.true_divide, probe, 2, probe)
    except TypeError:
        return False
    return bool(result == (np.bool_ if op.logical else dtype))


class Mean(Op):
    """The type of MEAN: it alone gives integers in another dtype, which type checkers are to know."""

    __slots__ = ()


def _builtin(name: str, ufunc: np.ufunc, neutral: int | None, *, logical: bool = False) -> Op:
    return Op(name, _elementwise(ufunc), ufunc=ufunc, neutral=neutral, logical=logical)


SUM = _builtin("SUM", np.add, 0)
PROD = _builtin("PROD", np.multiply, 1)
MIN = _builtin("MIN", np.minimum, None)
MAX = _builtin("MAX", np.maximum, None)
MEAN = Mean("MEAN", _elementwise(np.add), ufunc=np.add, mean=True)
BAND = _builtin("BAND", np.bitwise_and, -1)
BOR = _builtin("BOR", np.bitwise_or, 0)
BXOR = _builtin("BXOR", np.bitwise_xor, 0)
LAND = _builtin("LAND", np.logical_and, 1, logical=True)
LOR = _builtin("LOR", np.logical_or, 0, logical=True)
LXOR = _builtin("LXOR", np.logical_xor, 0, logical=True)

_BUILTIN = {each.name: each for each in (SUM, PROD, MIN, MAX, MEAN, BAND, BOR, BXOR, LAND, LOR, LXOR)}
PREMUL_SUM = replace(SUM, name="PREMUL_SUM")  # SUM of what the layer above has multiplied: it meets its like only
_ELSEWHERE = {"AVG": "MEAN", "AVERAGE": "MEAN", "ADD": "SUM", "PRODUCT": "PROD", "MULTIPLY": "PROD", "MINIMUM": "MIN",
              "MAXIMUM": "MAX"}  # what others call ours, for the message to whoever says so  # fmt: skip
_OWN = {**_BUILTIN, PREMUL_SUM.name: PREMUL_SUM}  # what is ours, of which users name the built-in ones


def names() -> tuple[str, ...]:
    """The built-in ops there are."""
    return tuple(_BUILTIN)


def op(fn: Callable[[Any, Any], Any], commutative: bool = False, identity: Any = None) -> Op:
    """Make a reduction from an associative function of two whole arrays.

    `fn(left, right)` gets arrays in the shape and dtype of the call, the left one from lower ranks, and returns a new
    array of that shape and dtype. What it raises is raised on all ranks as UsageError. Unless `commutative`, ranks are
    folded in order. `identity` (a number, or an array that broadcasts to the call's shape) is what exscan gives to
    rank 0. A NumPy ufunc of two arguments is known to work element by element and is folded piece by piece.
    """
    if isinstance(fn, Op):
        raise UsageError(f"op(fn): {fn!r} is an op already")
    if not callable(fn):
        raise UsageError(f"op(fn): fn must be a function of two arrays, not {type(fn).__name__}")
    if not isinstance(commutative, (bool, np.bool_)):
        raise UsageError(f"op(fn, commutative=…): True or False, not {commutative!r}")
    name = getattr(fn, "__name__", None) or type(fn).__name__
    if isinstance(fn, np.ufunc) and (fn.nin, fn.nout, fn.signature) == (2, 1, None):
        return Op(name, _elementwise(fn), bool(commutative), ufunc=fn, neutral=identity)
    return Op(name, _unbound(fn), bool(commutative), splittable=False, function=fn, neutral=identity)


def _unbound(function: Callable[[Array, Array], Any]) -> Fold:
    """The fold of a user function whose call is not known: each pair of arrays is a whole call of its own."""

    def fold(left: Array, right: Array, out: Array) -> None:
        where = f"op {getattr(function, '__name__', function)!r}"
        _call(function, left.shape, left.dtype.newbyteorder("="), where)(left, right, out)

    return fold


def as_op(x: Any) -> Op:
    """The op meant by an argument: an Op, or the name of a built-in one in either case ("sum", "SUM")."""
    if isinstance(x, Op):
        return x
    found = _BUILTIN.get(x.upper()) if isinstance(x, str) else None
    if found is not None:
        return found
    hint = "; wrap a function of two arrays in aiocoll.op(fn)" if callable(x) else ""
    word = str(x if isinstance(x, str) else getattr(x, "name", getattr(x, "__name__", ""))).upper()
    if (meant := _ELSEWHERE.get(word, word)) in _BUILTIN:
        hint = f"; did you mean aiocoll.{meant}?"
    known = ", ".join(_BUILTIN)
    raise UsageError(f"op={_short(x)} is no reduction: it is one of {known} or made by aiocoll.op(fn){hint}")


def _own(name: str) -> Op:
    return _OWN[name]


def fold_all(op: Op, arrays: list[Array], out: Array) -> None:
    """Fold arrays (at least one, in rank order) into `out`, which may be the first of them but none of the others."""
    np.copyto(out, arrays[0])
    for each in arrays[1:]:
        op.fold(out, each, out)


def finish_pieces(op: Op, array: Array, size: int, nbytes: int = 1 << 20) -> Iterator[None]:
    """`op.finish` on a flat array in slices of at most `nbytes`, yielding between them: one slice yields nothing."""
    if not op.finishes:
        return
    step = max(1, nbytes // max(1, array.itemsize))
    for start in range(0, array.size, step):
        if start:
            yield
        op.finish(array[start : start + step], size)
