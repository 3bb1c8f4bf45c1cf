"""Objects: everything on the documented list comes back with its exact type, the rest is refused with its place."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import pickle
import subprocess
import sys
import uuid
import zoneinfo

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aiocoll.errors import SerializationError
from aiocoll.wire.objects import dumps, loads
from tests.foreign import Foreign


def there_and_back(obj: object, *, allow_pickle: bool = False) -> object:
    return loads(bytearray(b"".join(dumps(obj, allow_pickle=allow_pickle))), allow_pickle=allow_pickle)


def same(a: object, b: object) -> bool:
    """Equal in value and in every type, NaNs included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.str_ | np.bytes_):
        return a == b and len(a) == len(b)
    if isinstance(a, np.longdouble):  # its last bytes are nobody's
        return a == b
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, set | frozenset):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, datetime.datetime | datetime.time):
        return a == b and a.tzinfo == b.tzinfo and a.fold == b.fold
    return repr(a) == repr(b)


CASES = [
    None, True, False, 0, 1, -1, 2**63 - 1, -(2**63), 2**64, -(2**64), 10**400, -(10**400), 1.5, -0.0, math.inf,
    math.nan,
    "", "text", "\ud800 alone", "nul\0", b"", b"bytes", bytes(10000), bytearray(b"changing"), bytearray(10000),
    [], [1, True, 1.0, None], (), (1,), (1, (2, [3, {4}])), set(), {1, "a", (2, 3), frozenset({4})}, frozenset(),
    {}, {1: "int", "1": "str", (1, 2): "tuple", None: 0, b"k": 1, frozenset({1}): 2, 2**70: 3, 1.5: 4},
    1 + 2j, complex(-0.0, math.inf), decimal.Decimal("1.10"), decimal.Decimal("NaN"), decimal.Decimal("-Infinity"),
    decimal.Decimal("1E+999999"), uuid.UUID(int=5), pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/x"),
    pathlib.Path("relative/ü"), pathlib.Path(""), datetime.date(2024, 2, 29), datetime.timedelta(-1, 3, 5),
    datetime.timedelta.max, datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.datetime.max,
    datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-5, seconds=7), "odd")),
    datetime.time(1, 2, 3, 4), datetime.time(1, fold=1, tzinfo=datetime.UTC),
    np.float64(1.5), np.float32(-2), np.int8(-3), np.bool_(True), np.complex64(1 + 2j), np.longdouble(1) / 3,
    np.datetime64("2024-01-01T00:00:00.5"), np.datetime64("NaT", "s"), np.timedelta64(5, "D"), np.str_("é"),
    np.str_("a\0"), np.str_(""),
    np.bytes_(b"x\0"), ml_dtypes.bfloat16(1.5), np.array((1, 2.5), [("a", "i4"), ("b", "f8")])[()],
    np.arange(6.0), np.arange(6).reshape(2, 3).T, np.arange(6)[::-2], np.array(5), np.zeros((0, 3)), np.array(["a",
    "bc"]),
    np.arange(3, dtype=">i4"), np.zeros(4, "S0"), np.arange(2000.0), np.asfortranarray(np.arange(3000.0).reshape(30,
    100)),
    np.arange(4000).reshape(2, 2000)[:, ::2], np.arange(3, dtype=ml_dtypes.bfloat16), np.zeros(2000, [("a", "i4"),
    ("b", "U2")]),
]  # fmt: skip


@pytest.mark.parametrize("obj", CASES, ids=lambda obj: f"{type(obj).__name__}-{repr(obj)[:20]}")
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x, {"k": (x, [x])}]], ids=["bare", "nested"])
def test_types_come_back_exactly(obj: object, wrap) -> None:
    assert same(there_and_back(wrap(obj)), wrap(obj))


def data_with(dtypes: st.SearchStrategy[np.dtype]) -> st.SearchStrategy[object]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
    others = st.decimals() | st.uuids() | st.dates() | st.times() | st.timedeltas() | st.binary().map(bytearray)
    moments = st.datetimes(timezones=st.none() | st.timezones())
    arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
    keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
    return st.recursive(
        scalars | others | moments | arrays,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
            | st.sets(st.integers() | st.text(), max_size=4)
            | st.frozensets(st.binary() | st.tuples(st.booleans()), max_size=4)
        ),
        max_leaves=20,
    )


plain = data_with(hnp.scalar_dtypes())
# NumPy's own pickles forget the byte order of an empty big-endian array of dates, so native dtypes here.
native = data_with(hnp.integer_dtypes(endianness="=") | hnp.floating_dtypes(endianness="="))


@given(plain)
def test_random_plain_data_comes_back(obj: object) -> None:
    assert same(there_and_back(obj), obj)


@given(native)
def test_random_plain_data_comes_back_pickled(obj: object) -> None:
    assert same(there_and_back(obj, allow_pickle=True), obj)


def test_arrays_come_back_in_their_order_writeable_and_as_views_of_a_writeable_message() -> None:
    x = np.asfortranarray(np.arange(3000.0).reshape(30, 100))
    message = bytearray(b"".join(dumps({"x": x, "small": np.arange(3)})))
    result = loads(message)
    assert result["x"].flags.f_contiguous and result["x"].flags.writeable and result["small"].flags.writeable
    assert np.shares_memory(result["x"], np.frombuffer(message, np.uint8))
    frozen = loads(bytes(message))
    assert frozen["x"].flags.writeable and np.array_equal(frozen["x"], x)
    odd = np.frombuffer(b"." + bytes(message), np.uint8)[1:]
    assert loads(odd)["x"].flags.aligned and np.array_equal(loads(odd)["x"], x)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_big_arrays_are_not_copied_into_the_message(allow_pickle: bool) -> None:
    x = np.arange(100_000.0)
    parts = dumps([x], allow_pickle=allow_pickle)
    assert sum(np.shares_memory(np.frombuffer(part, np.uint8), x) for part in parts) == 1
    (back,) = loads(b"".join(parts), allow_pickle=allow_pickle)
    assert back.flags.writeable and np.array_equal(back, x)


@dataclasses.dataclass
class Config:
    rate: float = 0.1


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


class Text(str):
    __slots__ = ()


class Odd(datetime.tzinfo):
    def utcoffset(self, when: object) -> datetime.timedelta:
        return datetime.timedelta(0)


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (Config(), r"obj is a .*\.Config, which has no plain form"),
        ({"a": [1, 2, Config()]}, r"obj\['a'\]\[2\] is a .*Config"),
        ({"a": ({3: Config()},)}, r"obj\['a'\]\[0\]\[3\] is a .*Config"),
        ([Colour.RED], r"obj\[0\] is a .*Colour, a subclass of int"),
        (Point(1, 2), r"obj is a .*Point, a subclass of tuple"),
        ({Text("k"): 1}, r"obj key 'k' is a .*Text, a subclass of str"),
        (collections.OrderedDict(a=1), "subclass of dict"),
        (lambda: 0, "function"),
        ({"t": Foreign(np.ones(2))}, r"obj\['t'\] is a .*Foreign; NumPy's arrays are plain: .*x\.numpy\(\)"),
        ([object], r"obj\[0\] is a type"),
        (range(3), "range"),
        (memoryview(b"x"), "memoryview"),
        (np.array([None, 1]), "object calls|Python objects"),
        (np.ma.array([1, 2]), "subclass of ndarray"),
        (datetime.datetime(2024, 1, 1, tzinfo=Odd()), r"obj\.tzinfo is a .*Odd"),
        ({1, Point(1, 2)}, r"obj\[\d\] is a .*Point"),
    ],
    ids=lambda x: repr(x)[:30],
)
def test_what_would_lose_its_type_is_refused_with_its_place_and_a_remedy(obj: object, words: str) -> None:
    with pytest.raises(SerializationError, match=words) as caught:
        dumps(obj)
    assert "dataclasses.asdict" in str(caught.value) and "allow_pickle=True" in str(caught.value)


def test_what_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append((loop,))
    with pytest.raises(SerializationError, match="contains itself") as caught:
        dumps(loop)
    assert len(str(caught.value)) < 600


def test_depth_up_to_the_limit_comes_back() -> None:
    for wrap in (lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: frozenset([x])):
        obj: object = 1
        for _ in range(100):
            obj = wrap(obj)
        assert there_and_back(obj) == obj
        with pytest.raises(SerializationError, match="deeper than 100"):
            dumps(wrap(wrap(obj)))


def test_pickle_carries_everything_else_and_only_when_both_allow_it() -> None:
    for obj in (Config(2.0), Point(1, 2), Colour.RED, {Text("k"): object}):
        back = there_and_back(obj, allow_pickle=True)
        assert back == obj and type(back) is type(obj)
    message = b"".join(dumps(Config(), allow_pickle=True))
    with pytest.raises(SerializationError, match="allow_pickle=True"):
        loads(message)
    assert there_and_back([1, (2,)], allow_pickle=True) == [1, (2,)]


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return int, ("no number",)


class Shy:
    def __reduce__(self) -> str:
        raise ValueError("not today")


def test_pickle_that_fails_names_the_type_and_the_cause() -> None:
    for obj, words in ((lambda: 0, "function"), (Shy(), "Shy.*not today"), ((x for x in "a"), "generator")):
        with pytest.raises(SerializationError, match=words) as caught:
            dumps(obj, allow_pickle=True)
        assert caught.value.__cause__ is not None
    with pytest.raises(SerializationError, match="invalid literal"):
        there_and_back(Bomb(), allow_pickle=True)


def test_pickle_is_not_imported_without_being_allowed() -> None:
    code = (
        "import sys; from aiocoll.wire.objects import dumps, loads; had = 'pickle' in sys.modules; "
        "sys.modules['pickle'] = None; loads(b''.join(dumps({'a': (1, {2})})))\n"
        "try: dumps(1, allow_pickle=True)\nexcept ImportError: print('only when allowed')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "only when allowed\n", done.stderr


@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    for form in (data, b"\x01\0\0\0" + bytes(4) + len(data).to_bytes(8, "little") + data):
        try:
            loads(form)
        except SerializationError:
            pass


@given(st.data())
def test_flipped_and_cut_bytes_raise_nothing_else(data: st.DataObject) -> None:
    obj = data.draw(st.sampled_from([CASES, CASES[-10:], [*CASES[30:60]], {"a": np.arange(2000.0)}]))
    message = bytearray(b"".join(dumps(obj)))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)) | st.just(len(message)))
    try:
        loads(message[:cut])
    except SerializationError:
        pass


def test_a_truncated_message_says_so() -> None:
    message = b"".join(dumps([np.arange(1000.0)]))
    for cut in (0, 10, 20, 100, len(message) - 1):
        with pytest.raises(SerializationError):
            loads(message[:cut])
    with pytest.raises(SerializationError, match="came"):
        loads(message + b"\0")


def test_a_pickle_cannot_pose_as_plain_data() -> None:
    with pytest.raises(SerializationError):
        loads(pickle.dumps(Config()))
