"""A documented call that is refused, and the tensor with which it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import UsageError
from tests.distributed.fake_group import FakeGroup

Join = Callable[..., FakeGroup]
"""The fixture `joined`."""


def refuse(kind: type[Exception], match: str, use: Callable[[], Any]) -> None:
    """`use` raises the documented class, which is ours as well, with these words."""
    with pytest.raises(kind, match=match) as caught:
        use()
    assert isinstance(caught.value, UsageError)


def x() -> Any:
    return np.arange(4.0)
