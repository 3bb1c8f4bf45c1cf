"""Several collectives of one kind as one call: one number, one description, and one refusal for all of them.

The rule: what is made in a bundle is judged as everywhere else, and takes no number of its own. So a rank that cannot
even say how many calls it was to make refuses one, as its peers have made one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Self

from ..endpoint import Channel
from .calls import Calls, identifier
from .posted import Posted, Turn

_SHOWN_MAX: Final = 8


Part = tuple[str, Callable[[Channel], Awaitable[Any]], Callable[[Any], Any] | None]
"""A description, what runs it, and what becomes of its result."""


@dataclass(slots=True)
class Bundle:
    """The parts of one call, while they are made."""

    turn: Turn
    parts: list[Part] = field(default_factory=list)

    @property
    def description(self) -> str:
        """What all ranks must have alike. A long list is shown in part; the rest of it is compared by a digest."""
        texts = [description for description, _, _ in self.parts]
        if len(texts) == 1:
            return texts[0]
        counted = [(text, len(list(alike))) for text, alike in groupby(texts)]
        shown = "; ".join(text if count == 1 else f"{count} times {text}" for text, count in counted[:_SHOWN_MAX])
        if len(counted) > _SHOWN_MAX:
            shown += f"; … {identifier(*texts):016x}"
        return f"{len(texts)} at once: {shown}"


class Bundles(Calls):
    """See API: coalesced calls."""

    def at_once(self, collective: str, make: Callable[[Self], Sequence[Any]]) -> Posted[list[Any]]:
        """The results of the calls that ``make(group)`` makes, none of them with a timeout or a name, as one call of
        the kind ``collective``. Made at once, done one after the other; if one of them is refused, all are."""
        turn = self._turn(collective, None)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            around, bundle = self._bundle, Bundle(turn)
            self._bundle = bundle
            try:
                make(self)
            finally:
                self._bundle = around

            async def body(ch: Channel) -> list[Any]:
                results = []
                for number, (_, run, then) in enumerate(bundle.parts, 1):
                    ch.call.goes_on = number < len(bundle.parts)
                    result = await run(ch)
                    results.append(result if then is None else then(result))
                    ch.call.give_back()
                return results

            return bundle.description, body

        return self._made(turn, None, prepare)
