"""An array of a library that nobody knows: CPU memory that only DLPack shows."""

from __future__ import annotations

from typing import Any


class Foreign:
    """The least that a tensor of another library offers: its memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()
