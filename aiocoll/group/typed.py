"""What type checkers are told of arguments and results: who gives an array of a dtype gets one of that dtype.

The rule: a result is never said to be more than it is. MEAN of integers is float64, Python numbers and foreign arrays
become NumPy's, and what another rank decides alone is Any; all ranks are taken to run the same line of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

Dtype = TypeVar("Dtype", bound=np.generic)
"""The dtype of an array, or a NumPy scalar."""

Inexact = TypeVar("Inexact", bound=np.inexact[Any])
"""The same for floats and complex numbers, which every op keeps."""

Out = TypeVar("Out")
"""What is given as ``out`` comes back."""

Obj = TypeVar("Obj")
"""Plain data, of one type on all ranks."""


Blocks: TypeAlias = NDArray[Dtype] | Sequence[NDArray[Dtype]]
"""One block per rank: an array that is cut along axis 0, or a list."""


class Timeout(TypedDict, total=False):
    """What every message takes."""

    timeout: float | None


class Limits(Timeout, total=False):
    """What every collective takes."""

    name: str | None
