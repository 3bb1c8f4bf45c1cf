"""Executes cells on a real kernel, as a notebook would; a program, so that what a kernel needs stays out of the tests.

The rule: on standard input a JSON object {"cells": {name: source}, "kill": bool}, on standard output the outputs of
each cell by name. A cell that prints INTERRUPT is interrupted at that moment, by the kernel's own means.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

MARK = "INTERRUPT"


class Client(NotebookClient):
    """Interrupts the kernel when it is asked to."""

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        for _ in range(str(msg["content"].get("text", "")).count(MARK) if msg["msg_type"] == "stream" else 0):
            self.interrupting = asyncio.ensure_future(self.km.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


async def execute(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in job["cells"].values()]
    client = Client(notebook, timeout=60, allow_errors=True, km=AsyncKernelManager(kernel_name="python3"))
    async with client.async_setup_kernel():
        for index, cell in enumerate(notebook.cells):
            await client.async_execute_cell(cell, index)
        await client.km.shutdown_kernel(now=job.get("kill", False))
    return {name: told(cell) for name, cell in zip(job["cells"], notebook.cells, strict=True)}


def told(cell: Any) -> dict[str, Any]:
    """stdout, stderr and value as text; the error's name and what is shown of it."""
    found: dict[str, Any] = {"stdout": "", "stderr": "", "value": "", "error": "", "shown": ""}
    for output in cell.outputs:
        if output.output_type == "stream":
            found[output.name] += output.text
        elif output.output_type == "error":
            found["error"], found["shown"] = output.ename, "\n".join(output.traceback)
        else:
            found["value"] += output.data["text/plain"]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(execute(json.load(sys.stdin)))))
