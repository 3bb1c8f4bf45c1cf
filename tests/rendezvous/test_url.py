"""Reading init_method, rank and size: every form, and every malformed one quoted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiocoll.errors import UsageError
from aiocoll.rendezvous.url import check_rank, check_size, parse, tcp_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tcp://127.0.0.1:29500", ("tcp", "127.0.0.1", 29500, "", None, None)),
        ("tcp://some-host.example:1/", ("tcp", "some-host.example", 1, "", None, None)),
        ("tcp://[::1]:65535", ("tcp", "::1", 65535, "", None, None)),
        ("tcp://[fe80::1%lo]:5", ("tcp", "fe80::1%lo", 5, "", None, None)),
        ("tcp://h:5?rank=2&world_size=3", ("tcp", "h", 5, "", 2, 3)),
        ("tcp://h:5?size=3", ("tcp", "h", 5, "", None, 3)),
        ("file:///a/b c/%d#1", ("file", "", 0, "/a/b c/%d#1", None, None)),
        ("file:///a?rank=0&size=1", ("file", "", 0, "/a", 0, 1)),
        ("env://", ("env", "", 0, "", None, None)),
        ("env://?rank=1&world_size=2", ("env", "", 0, "", 1, 2)),
    ],
)
def test_forms(text: str, parts: tuple[Any, ...]) -> None:
    url = parse(text)
    assert (url.scheme, url.host, url.port, url.path, url.rank, url.size) == parts
    assert str(url) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp",
        "localhost:29500",
        "tcp:/h:5",
        "TCP://h:5",
        "tcp://",
        "tcp://h",
        "tcp://:5",
        "tcp://h:",
        "tcp://h:0",
        "tcp://h:65536",
        "tcp://h:-1",
        "tcp://h:http",
        "tcp://h:5 ",
        "tcp://h:٣",
        "tcp://::1:5",
        "tcp://[::1]",
        "tcp://[::1:5",
        "tcp://[h]:5",
        "tcp://[::1%]:5",
        "tcp://h:5/path",
        "tcp://user@h:5",
        "tcp://h h:5",
        "tcp://h\n:5",
        "tcp://h:5?ranks=1",
        "tcp://h:5?rank=-1",
        "tcp://h:5?rank",
        "tcp://h:5?rank=1&rank=2",
        "tcp://h:5?size=0",
        "tcp://h:5?rank=3&size=3",
        "file://relative/path",
        "file://",
        "file:///",
        "file:///a\0b",
        "env://somewhere",
    ],
)
def test_malformed_ones_are_quoted(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert f"init_method={text!r} is malformed" in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, b"tcp://h:5", ["tcp://h:5"]])
def test_what_is_no_text(value: object) -> None:
    with pytest.raises(UsageError, match="a str is needed"):
        parse(value)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for candidate in (text, f"tcp://{text}", f"tcp://[{text}]:5", f"file://{text}", f"tcp://h:5?{text}"):
        try:
            url = parse(candidate)
        except UsageError as error:
            assert repr(candidate) in str(error)
        else:
            assert 0 < url.port < 65536 if url.scheme == "tcp" else url.port == 0


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_address_survives(address: Any, port: int) -> None:
    url = parse(tcp_url(str(address), port))
    assert (url.host, url.port) == (str(address), port)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", b"1", [1], np.float64(1), np.bool_(True), 1j])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(UsageError, match="an int is needed"):
        check_size(value)
    with pytest.raises(UsageError, match="an int is needed"):
        check_rank(value, 3)


def test_numbers_out_of_range() -> None:
    for size in (0, -1, np.int64(0)):
        with pytest.raises(UsageError, match="at least 1 rank"):
            check_size(size)
    for rank in (-1, 3, 4):
        with pytest.raises(UsageError, match=rf"rank={rank}: the ranks of a world of 3 are 0\.\.2"):
            check_rank(rank, 3)
    assert check_rank(np.int32(2), 3) == 2 and check_size(np.uint8(3)) == 3
    assert check_rank(None, 3) is None and check_size(None) is None
