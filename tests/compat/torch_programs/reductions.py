"""Sums, products, extremes and averages, to all ranks and to one, in several types."""

import torch
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

for op, name in [
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
]:
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        tensor = (torch.arange(6).reshape(2, 3) + rank + 1).to(dtype)
        result = dist.all_reduce(tensor, op=op)
        print(name, dtype, tensor.tolist(), result)

tensor = torch.full((2, 2), float(rank + 1))
dist.all_reduce(tensor, dist.ReduceOp.AVG)
print("average", tensor.tolist())

bits = torch.tensor([1 << rank, 6])
for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
    some = bits.clone()
    dist.all_reduce(some, op)
    print("bits", some.tolist())

total = torch.arange(4.0) * (rank + 1)
dist.reduce(total, dst=size - 1, op=dist.ReduceOp.SUM)
if rank == size - 1:
    print("reduced", total.tolist())

half = torch.arange(4, dtype=torch.float16) + rank
dist.all_reduce(half)
print("half", half.tolist())
empty = torch.empty(0)
dist.all_reduce(empty)
scalar = torch.tensor(rank + 0.5)
dist.all_reduce(scalar)
print("empty", tuple(empty.shape), "scalar", scalar.item())
dist.destroy_process_group()
