"""Broadcast, gather, scatter and all_gather, as lists and into one tensor."""

import torch
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

table = torch.arange(6.0).reshape(2, 3) if rank == 1 else torch.zeros(2, 3)
print(dist.broadcast(table, src=1), table.tolist())

mine = torch.tensor([rank, rank * rank])
everything = [torch.zeros_like(mine) for _ in range(size)]
dist.all_gather(everything, mine)
print("all", [each.tolist() for each in everything])

if rank == 0:
    gathered = [torch.zeros_like(mine) for _ in range(size)]
    dist.gather(mine, gather_list=gathered, dst=0)
    print("gathered", [each.tolist() for each in gathered])
else:
    dist.gather(mine, dst=0)

share = torch.zeros(2)
if rank == 2:
    dist.scatter(share, scatter_list=[torch.full((2,), 10.0 * each) for each in range(size)], src=2)
else:
    dist.scatter(share, src=2)
print("share", share.tolist())

flat = torch.zeros(size * 2, dtype=mine.dtype)
dist.all_gather_into_tensor(flat, mine)
print("one tensor", flat.tolist())

columns = torch.arange(12.0).reshape(3, 4) * (rank + 1)
dist.broadcast(columns[:, :2].contiguous(), src=0)
dist.all_reduce(columns)
print("columns", columns.tolist())
dist.destroy_process_group()
