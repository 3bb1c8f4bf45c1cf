"""Who is there: the first lines of every tutorial."""

import torch
import torch.distributed as dist

print("available:", dist.is_available(), "initialized:", dist.is_initialized())
dist.init_process_group(init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {size}, initialized: {dist.is_initialized()}")
dist.barrier()

tensor = torch.zeros(1)
if rank == 0:
    tensor += 1
    dist.send(tensor=tensor, dst=1)
elif rank == 1:
    sender = dist.recv(tensor=tensor, src=0)
    print("received from", sender)
print("rank", rank, "has", tensor[0].item())

tensor = torch.zeros(1)
request = None
if rank == 0:
    tensor += 7
    request = dist.isend(tensor=tensor, dst=1)
    print("rank 0 started to send")
elif rank == 1:
    request = dist.irecv(tensor=tensor, src=0)
    print("rank 1 started to receive")
if request is not None:
    request.wait()
print("rank", rank, "has", tensor[0].item())
dist.destroy_process_group()
print("initialized:", dist.is_initialized())
