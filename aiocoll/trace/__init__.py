"""What the dumps of several ranks say together: who died, where their calls first differed, who waits for whom.

The rule: dumps are read and put side by side, nothing is guessed; what only one rank could know, and it left no dump,
is said to be missing.

- ``dumps``: reading them; ``verdict``: what they say together; ``timeline``: their facts in one order
- ``ranks``: which processes are ranks, and asking them for dumps; ``command``: ``aiocoll trace``
"""
