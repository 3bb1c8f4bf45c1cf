"""Status: what a program may learn of a message; the rule: filled once, when the message is there."""

from __future__ import annotations

from typing import Any

from .constants import ANY_SOURCE, ANY_TAG, SUCCESS, UNDEFINED
from .datatypes import PREDEFINED, Datatype
from .exceptions import outside


class Status:
    """Of whom a message was, its tag and how long it is."""

    __slots__ = ("_bytes", "_cancelled", "_error", "_source", "_tag")

    def __init__(self) -> None:
        self._source, self._tag, self._error = ANY_SOURCE, ANY_TAG, SUCCESS
        self._bytes, self._cancelled = 0, False

    def note(self, source: int, tag: int, nbytes: int) -> None:
        """Fills it."""
        self._source, self._tag, self._bytes = source, tag, nbytes
        self._error, self._cancelled = SUCCESS, False

    @property
    def source(self) -> int:
        """The sender's rank."""
        return self._source

    @source.setter
    def source(self, source: int) -> None:
        self._source = source

    @property
    def tag(self) -> int:
        """The message's tag."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        self._tag = tag

    @property
    def error(self) -> int:
        """One of the ERR_ constants."""
        return self._error

    @error.setter
    def error(self, error: int) -> None:
        self._error = error

    @property
    def count(self) -> int:
        """The message's length in bytes."""
        return self._bytes

    @property
    def cancelled(self) -> bool:
        """Whether its request was cancelled."""
        return self._cancelled

    @cancelled.setter
    def cancelled(self, flag: bool) -> None:
        self._cancelled = flag

    def Get_source(self) -> int:
        """The sender's rank."""
        return self._source

    def Set_source(self, source: int) -> None:
        """Changes the sender's rank."""
        self._source = source

    def Get_tag(self) -> int:
        """The message's tag."""
        return self._tag

    def Set_tag(self, tag: int) -> None:
        """Changes the tag."""
        self._tag = tag

    def Get_error(self) -> int:
        """One of the ERR_ constants."""
        return self._error

    def Set_error(self, error: int) -> None:
        """Changes the error."""
        self._error = error

    def Get_count(self, datatype: Datatype = PREDEFINED["BYTE"]) -> int:
        """Its length in items of ``datatype``; UNDEFINED if it is no whole number of them."""
        if datatype.size == 0:
            return 0
        return self._bytes // datatype.size if self._bytes % datatype.size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Its length in elements of what ``datatype`` is made of."""
        size = datatype.dtype.itemsize
        return self._bytes // size if self._bytes % size == 0 else UNDEFINED

    def Is_cancelled(self) -> bool:
        """Whether its request was cancelled."""
        return self._cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Changes that."""
        self._cancelled = flag

    def __getattr__(self, name: str) -> Any:
        raise outside("Status", name)

    def __repr__(self) -> str:
        return f"Status(source={self._source}, tag={self._tag}, {self._bytes} bytes)"
