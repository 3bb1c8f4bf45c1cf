"""What the benchmark is asked for is understood, and what no rank could do is refused before any starts."""

from __future__ import annotations

import pytest

from aiocoll.bench import request as asked
from aiocoll.bench.arguments import parse
from aiocoll.bench.request import Request
from aiocoll.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4", 4), ("0", 0), ("16K", 16 << 10), ("32m", 32 << 20), ("1.5 MiB", 3 << 19), ("2GB", 2 << 30), ("7 B", 7)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert asked.size_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "x", "-4", "4T", "1e3", "4 4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="16K"):
        asked.size_of(text)


def test_sweeps_grow_by_a_factor_or_by_a_step_and_hold_both_ends() -> None:
    assert asked.sweep(4, 64, 2.0) == (4, 8, 16, 32, 64)
    assert asked.sweep(4, 20, 1.5) == (4, 6, 9, 13, 19)
    assert asked.sweep(0, 8, 2.0) == (0, 1, 2, 4, 8)
    assert asked.sweep(8, 32, step=8) == (8, 16, 24, 32)
    assert asked.sweep(5, 5, 2.0) == (5,)


def test_sweeps_that_make_no_sense_are_refused() -> None:
    for arguments in ((8, 4, 2.0), (4, 8, 1.0), (4, 8, 0.5)):
        with pytest.raises(UsageError):
            asked.sweep(*arguments)
    with pytest.raises(UsageError, match="more than"):
        asked.sweep(1, 1 << 30, step=1)


def test_sizes_are_whole_elements_at_least_one_each_once() -> None:
    assert asked.elements_apart((0, 1, 2, 4, 8, 9, 17), 8) == (0, 8, 16)


@pytest.mark.parametrize(
    ("text", "names"),
    [("half,float,double", ("float16", "float32", "float64")), ("f4", ("float32",)), ("int,INT8", ("int32", "int8")),
     ("all", asked.DTYPES), ("bfloat16", ("bfloat16",)), ("uint64, bool", ("uint64", "bool")),
     ("float32,float", ("float32",))],
)  # fmt: skip
def test_dtypes_have_numpys_and_nccl_tests_names(text: str, names: tuple[str, ...]) -> None:
    assert asked.dtypes_of(text) == names


@pytest.mark.parametrize("text", ["", "str", "datetime64", "object", "float99", "int4"])
def test_dtypes_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        asked.dtypes_of(text)


def test_a_dtype_of_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match=r"aiocoll\[ml\]"):
        asked.dtype_named.__wrapped__("float8_e4m3fn")


def test_collectives_may_be_typed_as_elsewhere() -> None:
    assert asked.collectives_of([]) == ("all_reduce",)
    assert asked.collectives_of(["allreduce", "all-gather", "REDUCE_SCATTER"]) == (
        "all_reduce", "all_gather", "reduce_scatter",
    )  # fmt: skip
    assert asked.collectives_of(["scan", "all"])[0] == "scan"
    assert set(asked.collectives_of(["all"])) == set(asked.COLLECTIVES)
    with pytest.raises(UsageError, match="there are all_reduce"):
        asked.collectives_of(["allreduse"])


def test_ops_that_do_not_work_on_a_dtype_are_left_out_or_refused() -> None:
    request = parse(["all_reduce", "-o", "all", "-d", "float32,int8", "-b", "4", "-e", "4"]).request
    rows = {(dtype, op) for _, _, dtype, op, _ in request.rows()}
    assert ("int8", "bxor") in rows and ("float32", "max") in rows and ("float32", "bxor") not in rows
    assert {dtype for _, _, dtype, _, _ in parse(["scan", "-o", "bxor", "-d", "all"]).request.rows()} == {
        "int8", "uint8", "int32", "uint32", "int64", "uint64",
    }  # fmt: skip
    for refused in (["-o", "bxor"], ["-o", "sum,bxor"], ["-d", "int8,complex64", "-o", "max"]):
        with pytest.raises(UsageError, match="bxor|complex64"):
            parse(["all_reduce", *refused])
    assert parse(["broadcast", "-o", "bxor", "-d", "float32"]).request.folds("broadcast", "float32") == ("",)


def test_a_barrier_is_one_row_whatever_the_sizes() -> None:
    request = Request(("barrier", "broadcast"), (4, 8, 16))
    assert [row for row in request.rows() if row[0] == "barrier"] == [("barrier", "", "", "", 0)]
    assert sum(row[0] == "broadcast" for row in request.rows()) == 3


def test_every_registered_algorithm_can_be_forced() -> None:
    request = parse(["all_reduce", "all_to_all", "ping_pong", "--algorithm", "all", "-b", "4", "-e", "4"]).request
    forced = {(row[0], row[1]) for row in request.rows()}
    from aiocoll.algorithms import all_of

    assert {("all_reduce", each.name) for each in all_of("all_reduce")} <= forced
    assert {("all_to_all", each.name) for each in (*all_of("exchange_all"), *all_of("all_to_all"))} <= forced
    assert ("ping_pong", "") in forced
    with pytest.raises(UsageError, match="can use"):
        parse(["all_reduce", "--algorithm", "magic"])


@pytest.mark.parametrize(
    "arguments",
    [["--ranks", "0"], ["--ranks", "two"], ["-n", "-1"], ["-r", "-1"], ["--place", "aside"], ["--transport", "pigeon"],
     ["--json", "--csv"], ["-f", "one"], ["--seconds", "0"], ["--nonsense"], ["-w", "-2"], ["--calls", "loud"],
     ["--noise", "-0.1"], ["-o", ""], ["-o", "plus"]],
)  # fmt: skip
def test_mistakes_on_the_command_line_are_usage_errors(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(arguments)


def test_what_is_not_said_has_a_default() -> None:
    options = parse([])
    assert options.ranks is None and options.form == "text" and options.bar
    assert options.request.sizes[0] == 4 and options.request.sizes[-1] == 16 << 20
    assert options.request.caller == "facade" and options.request.places == ("out", "in")
    assert parse(["--await"]).request.caller == "await"
    assert parse(["-b", "1G"]).request.sizes == (1 << 30,)
