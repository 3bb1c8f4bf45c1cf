"""Share: every rank learns every rank's small blob, whose lengths differ and are known to nobody else.

The rule: ``run(channel, blob)`` gives the blobs in rank order. ``n`` is the bytes of all blobs together.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle
from aiocoll.algorithms.channel import Channel, Parcel, finish
from aiocoll.patterns import log2_ceil


@algorithm("share", rounds=lambda p: min(p - 1, 1), messages=lambda p: p - 1, sent=lambda p, n: n * (p - 1) / p)
async def full_mesh(ch: Channel, blob: bytes) -> list[bytes]:
    """Everybody sends everybody its blob."""
    blobs = [blob] * ch.size
    if ch.size == 1:
        return blobs
    peers = patterns.around(ch.rank, ch.size)
    arrivals = [ch.take(peer) for peer in peers]
    sending = ch.publish(blob)
    for peer, arrival in zip(peers, arrivals, strict=True):
        blobs[peer] = (await arrival).data.tobytes()
    await sending
    return blobs


@algorithm("share", rounds=log2_ceil, sent=lambda p, n: (p - 1) * (n / p + bundle.HEAD_BYTES))
async def circulant(ch: Channel, blob: bytes) -> list[bytes]:
    """The all-gather's rounds, each message a bundle of the blobs that I hold."""
    held: list[Parcel | None] = [bundle.from_bytes(blob)]
    for ahead, behind, skip, span in reversed(patterns.circulant(ch.rank, ch.size)):
        arrival, sending = ch.take(ahead), ch.send(behind, bundle.pack(held[: span - skip]))
        held += bundle.unpack((await arrival).data, span - skip)
        await finish([sending])
    blobs = [b""] * ch.size
    for distance, parcel in enumerate(held):
        if parcel is not None:
            blobs[(ch.rank + distance) % ch.size] = parcel.data.tobytes()
    return blobs


async def share(ch: Channel, blob: bytes) -> list[bytes]:
    """All ranks' blobs in rank order, the way that is quicker for so many ranks."""
    return await (full_mesh if ch.size <= 4 else circulant)(ch, blob)
