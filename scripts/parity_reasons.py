"""Why signatures of aiocoll.distributed differ from torch's where they do, and where torch has what we have.

The rule: a difference without an entry here is a failed test, and so is an entry without a difference.
"""

from __future__ import annotations

from typing import Final

TORCH_PATHS: Final = {
    "functional": "_functional_collectives",
    "DeviceMesh": "device_mesh.DeviceMesh",
    "init_device_mesh": "device_mesh.init_device_mesh",
    "Request": "Work",
    "reduce_op": "ReduceOp",  # its own name warns
}
"""Where torch has a name that is not in torch.distributed itself."""

REASONS: Final[dict[tuple[str, str, str], str]] = {
    ("*", "group", "default"): "the early API's default; None means the same",
    ("init_process_group", "init_method", "default"): "the early API's default; None means the same",
    ("init_process_group", "enable_reconfigure", "added"): "newer than torch 2.13",
    ("Work.wait", "timeout", "default"): "None says what torch's zero means: no limit of its own",
    ("Request.wait", "timeout", "default"): "None says what torch's zero means: no limit of its own",
    ("functional.all_to_all_single", "*", "default"): "may be left out for equal splits",
    ("*", "weights_only", "added"): "newer than torch 2.13; accepted, since pickle is another switch here",
}
"""(name or *, argument or *, "missing", "added", "moved" or "default"): why."""
