"""Python objects instead of tensors."""

import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

settings = [{"lr": 0.1, "layers": [3, 4]}, "adam", 12] if rank == 0 else [None, None, None]
dist.broadcast_object_list(settings, src=0)
print(settings)

reports = [None] * size
dist.all_gather_object(reports, {"rank": rank, "losses": [rank / 2, rank / 4]})
print(reports)

gathered = [None] * size if rank == 1 else None
dist.gather_object(("report of", rank), gathered, dst=1)
print(gathered)

task = [None]
tasks = [["read", 1], {"write": 2}, None] if rank == 0 else None
dist.scatter_object_list(task, tasks, src=0)
print(task)

if rank == 0:
    dist.send_object_list(["a letter", 3.5, (1, 2)], dst=1)
elif rank == 1:
    letter = [None, None, None]
    sender = dist.recv_object_list(letter, src=0)
    print(letter, sender)
dist.barrier()
dist.destroy_process_group()
