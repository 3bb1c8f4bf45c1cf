"""Training that goes on: ranks die, the others continue without them, and replacements join and get the state.

    aiocoll run -n 4 --on-failure shrink --max-restarts 8 examples/elastic_training.py

The model and the data are those of digits.py; every --kill-every steps one rank kills itself. The rule: ranks
that come together, after a death or with a newcomer, first take the state of the one that is furthest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from dataclasses import astuple
from typing import Any

import numpy as np
from digits import Digits, Network, load
from train_digits import accuracy

import aiocoll

parser = argparse.ArgumentParser(description="Train a digit classifier while ranks die.")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--kill-every", type=int, default=200, metavar="STEPS", help="0: nobody kills itself")
parser.add_argument("--pause", type=float, default=0.005, help="seconds per step, as if the model were larger")


async def furthest(group: aiocoll.Group, state: dict[str, Any]) -> dict[str, Any]:
    """The state of the rank that is furthest: survivors may be a step apart, newcomers begin at -1."""
    steps = await group.all_gather(state["step"])
    state = await group.broadcast_object(state, root=int(np.argmax(steps)))
    return state if state["data"] else {**state, "data": astuple(await load(group, seed=1))}


async def train(group: aiocoll.Group, state: dict[str, Any], options: argparse.Namespace, size_wanted: int) -> Any:
    """Steps of gradient descent, to the end or until newcomers have come; gives the accuracy, or the larger group."""
    network, digits = Network(128, seed=1), Digits(*state["data"])
    network.weights[:] = state["weights"] if state["step"] else network.weights
    while state["step"] < options.steps:
        step = state["step"]
        if group.size < size_wanted and step % 10 == 0 and (grown := await group.grow()).new_ranks:
            return grown
        if step >= state["kill"] and group.rank == step // 100 % group.size and group.size > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = np.random.default_rng(step).choice(len(digits.train_labels), 64, replace=False)
        mine = np.array_split(batch, group.size)[group.rank]
        network.differentiate(digits.train_images[mine], digits.train_labels[mine])
        gradient = (await group.all_reduce(network.gradient))[:-1] / len(batch)
        rate = 0.05 * (1 + np.cos(np.pi * step / options.steps))
        state["velocity"] = 0.9 * state["velocity"] - rate * gradient  # nothing changes before all have the gradient
        network.weights += state["velocity"]
        state.update(weights=network.weights, step=step + 1)
        await asyncio.sleep(options.pause)
    return await accuracy(group, network, digits)


async def main(group: aiocoll.Group) -> None:
    """Trains to the end, whoever dies meanwhile."""
    options, size_wanted = parser.parse_args(), int(os.environ.get("WORLD_SIZE", group.size))
    state: dict[str, Any] = {"step": -1 if group.rank in group.new_ranks else 0, "data": None, "weights": None,
                             "velocity": 0.0, "kill": options.kill_every or np.inf}  # fmt: skip
    result: Any = group
    while isinstance(result, aiocoll.Group):
        group = result
        try:
            state = await furthest(group, state)
            result = await train(group, state, options, size_wanted)
        except (aiocoll.PeerLostError, aiocoll.GroupBrokenError) as error:
            result = await group.shrink()
            state["kill"] = state["step"] + (options.kill_every or np.inf)
            print(f"step {state['step']}: {error}; going on with {result.size}")
    print(f"rank {group.rank} of {group.size}: test accuracy {result:.2%}")
    assert result >= 0.95


if __name__ == "__main__":
    aiocoll.run(main)
