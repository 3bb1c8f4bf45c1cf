"""Calls that go on while the program computes: async_op=True gives a handle."""

import torch
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

tensors = [torch.full((3,), float(rank + each)) for each in range(4)]
works = [dist.all_reduce(each, async_op=True) for each in tensors]
busy = sum(n * n for n in range(1000))
for work in works:
    work.wait()
print(busy, [each.tolist() for each in tensors], [work.is_completed() for work in works])

table = torch.arange(4.0) if rank == 0 else torch.zeros(4)
work = dist.broadcast(table, src=0, async_op=True)
print(type(work.wait()).__name__, table.tolist())

parts = [torch.zeros(2) for _ in range(size)]
work = dist.all_gather(parts, torch.tensor([rank, -rank], dtype=torch.float32), async_op=True)
work.wait()
print([each.tolist() for each in parts])

doubled = torch.full((2,), rank + 1.0)
future = dist.all_reduce(doubled, async_op=True).get_future()
then = future.then(lambda done: done.value()[0] * 2)
print(then.wait().tolist(), future.done())

dist.barrier(async_op=True).wait()
right, left = (rank + 1) % size, (rank - 1) % size
box = torch.zeros(2)
sending = dist.isend(torch.tensor([rank, rank + 0.5]), right, tag=4)
receiving = dist.irecv(box, left, tag=4)
sending.wait()
receiving.wait()
print(box.tolist())
dist.destroy_process_group()
