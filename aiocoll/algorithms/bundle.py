"""Several parcels in one message: a head with two lengths before each, then its meta and its data.

The rule: sans I/O, and every length is checked against what is there before anything is made from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from aiocoll.algorithms.channel import Array, Parcel
from aiocoll.errors import WireError

_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
INLINE_BYTES = 2 << 10
"""Parcels of up to this travel inside bundles; longer ones go straight to where they are wanted."""
_DIRECT = 0xFFFFFFFF


def is_small(parcel: Parcel) -> bool:
    return len(parcel.meta) + parcel.data.nbytes <= INLINE_BYTES


def pack(parcels: Iterable[Parcel | None]) -> bytes:
    """A bundle; None stands for a parcel that goes straight."""
    pieces: list[bytes | memoryview] = []
    for parcel in parcels:
        if parcel is None:
            pieces.append(_HEAD.pack(0, _DIRECT))
        else:
            pieces += [_HEAD.pack(len(parcel.meta), parcel.data.nbytes), parcel.meta, parcel.data.data]
    return b"".join(pieces)


def unpack(bundle: Array, count: int) -> list[Parcel | None]:
    """The ``count`` parcels of a bundle (uint8); their data are views of it. WireError for anything else."""
    parcels: list[Parcel | None] = []
    at, end = 0, len(bundle)
    raw = bundle.data
    for _ in range(count):
        if end - at < HEAD_BYTES:
            raise WireError(f"a bundle of {count} parcels ends at byte {end}, inside parcel {len(parcels)}")
        meta_bytes, data_bytes = _HEAD.unpack_from(raw, at)
        at += HEAD_BYTES
        if data_bytes == _DIRECT:
            parcels.append(None)
            continue
        if end - at < meta_bytes + data_bytes:
            raise WireError(f"a bundle of {count} parcels ends at byte {end}, inside parcel {len(parcels)}")
        data_at = at + meta_bytes
        parcels.append(Parcel(bytes(raw[at:data_at]), bundle[data_at : data_at + data_bytes]))
        at = data_at + data_bytes
    if at != end:
        raise WireError(f"a bundle of {count} parcels has {end - at} bytes too many")
    return parcels


def from_bytes(blob: bytes) -> Parcel:
    """A parcel with only data."""
    return Parcel(b"", np.frombuffer(blob, np.uint8))
