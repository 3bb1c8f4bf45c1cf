"""What messages cost: latency and bandwidth add up, cards are shared and full duplex."""

from __future__ import annotations

import math
import random

import pytest

from aiocoll.errors import UsageError
from aiocoll.sim.network import Network


def test_a_message_takes_latency_and_its_bytes() -> None:
    network = Network(3, latency=2.0, bandwidth=10.0)
    assert network.delay(0, 1, 50, 1.0) == 1 + 2 + 5
    assert network.delay(1, 0, 50, 1.0) == 1 + 2 + 5, "cards are full duplex"
    assert (network.sent[0].frames, network.sent[0].nbytes, network.sent[2].frames) == (1, 50, 0)


def test_a_sender_and_a_receiver_do_one_message_at_a_time() -> None:
    network = Network(4, latency=2.0, bandwidth=10.0)
    assert [network.delay(0, dst, 10, 0.0) for dst in (1, 2, 3)] == [3, 4, 5]
    network = Network(4, latency=2.0, bandwidth=10.0)
    assert [network.delay(src, 0, 10, 0.0) for src in (1, 2, 3)] == [3, 4, 5]


def test_ranks_of_one_host_share_its_card_and_talk_past_it() -> None:
    network = Network(4, latency=2.0, bandwidth=10.0, hosts=[0, 0, 1, 1], local_latency=0.5, local_bandwidth=100.0)
    assert [network.delay(0, 2, 10, 0.0), network.delay(1, 3, 10, 0.0)] == [3, 4]
    assert [network.delay(0, 1, 10, 0.0), network.delay(1, 0, 10, 0.0)] == [0.6, 0.6]
    assert network.delay(0, 0, 10, 7.0) == 7


def test_order_of_one_pair_holds_under_jitter() -> None:
    network = Network(2, latency=1.0, bandwidth=1e9, jitter=5.0, generator=random.Random(1))
    arrivals = [network.delay(0, 1, 1, float(now)) for now in range(50)]
    assert arrivals == sorted(arrivals) and len(set(arrivals)) == 50


@pytest.mark.parametrize("wrong", [{"latency": -1.0}, {"bandwidth": 0.0}, {"jitter": math.nan}, {"hosts": [0]}])
def test_impossible_networks_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Network(2, **wrong)
