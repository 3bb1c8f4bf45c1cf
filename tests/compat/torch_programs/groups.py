"""Groups of some ranks; sources and destinations are ranks of the world."""

import torch
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

pair = dist.new_group([0, 2])
tensor = torch.ones(2) * (rank + 1)
dist.all_reduce(tensor, group=pair)
print("pair", tensor.tolist(), dist.get_rank(pair), dist.get_world_size(pair))
if rank in (0, 2):
    print(dist.get_process_group_ranks(pair), dist.get_group_rank(pair, 2), dist.get_global_rank(pair, 1))
    word = torch.tensor([rank * 1.5])
    dist.broadcast(word, src=2, group=pair)
    other = torch.tensor([rank * 1.5])
    dist.broadcast(other, group_src=0, group=pair)
    print(word.item(), other.item())

everyone = dist.new_group()
total = torch.tensor([rank])
dist.all_reduce(total, group=everyone)
print("everyone", total.item())

alone, groups = dist.new_subgroups_by_enumeration([[0], [1, 2]])
mine = torch.tensor([10.0**rank])
dist.all_reduce(mine, group=alone)
print("my subgroup", mine.item(), len(groups), dist.get_world_size(alone))

half = torch.zeros(2)
if rank == 1:
    dist.send(torch.tensor([1.0, 2.0]), dst=2, group=alone, tag=3)
elif rank == 2:
    dist.recv(half, src=1, group=alone, tag=3)
print("half", half.tolist())
dist.barrier(group=everyone)
dist.destroy_process_group()
