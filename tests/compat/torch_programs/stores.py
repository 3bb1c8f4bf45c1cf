"""A store of one's own: values that ranks leave for one another, and a process group that meets over it."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(
    "localhost", int(os.environ["MASTER_PORT"]), size, is_master=rank == 0, timeout=timedelta(seconds=30)
)
store.set(f"host of {rank}", f"node-{rank}")
print([store.get(f"host of {each}").decode() for each in range(size)])
counter = store.add("arrived", 1)
print(1 <= counter <= size)
store.wait([f"host of {size - 1}"], timedelta(seconds=10))
print(store.check(["host of 0"]), store.check(["nobody"]))

names = dist.PrefixStore("names", store)
if rank == 0:
    names.set("first", "zero")
print(names.get("first"), store.get("names/first"))

dist.init_process_group(
    store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=timedelta(seconds=60)
)
tensor = torch.arange(3) * (rank + 1)
dist.all_reduce(tensor)
print(tensor.tolist(), store.add("arrived", 0))
dist.barrier()

kept = dist.HashStore()
kept.set("key", "value")
print(kept.get("key"), kept.add("number", 5), kept.add("number", 2), kept.num_keys())
try:
    kept.wait(["missing"], timedelta(milliseconds=20))
except Exception as error:
    print("missing is an error:", isinstance(error, RuntimeError))
dist.barrier()
dist.destroy_process_group()
