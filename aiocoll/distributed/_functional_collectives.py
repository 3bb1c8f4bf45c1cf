"""``functional`` under the name that torch's own code imports it by.

The rule: nothing is written here.
"""

from __future__ import annotations

from .functional import (
    all_gather_into_tensor_coalesced,
    all_gather_single,
    all_gather_single_coalesced,
    all_gather_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all_single,
    broadcast,
    permute_tensor,
    reduce_scatter_single,
    reduce_scatter_single_coalesced,
    reduce_scatter_tensor,
    reduce_scatter_tensor_coalesced,
    wait_tensor,
)

__all__ = [
    "all_gather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_gather_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "permute_tensor",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "wait_tensor",
]
