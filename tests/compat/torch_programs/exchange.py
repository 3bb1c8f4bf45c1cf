"""Everybody to everybody, in one tensor: all_to_all_single with and without sizes, reduce_scatter_tensor."""

import torch
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

outgoing = torch.arange(size * 2) + 100 * rank
incoming = torch.zeros_like(outgoing)
dist.all_to_all_single(incoming, outgoing)
print("even", incoming.tolist())

# Rank r gives rank d (r + d) % 3 + 1 rows.
sending = [(rank + each) % 3 + 1 for each in range(size)]
receiving = [(each + rank) % 3 + 1 for each in range(size)]
rows = torch.arange(sum(sending) * 2.0).reshape(-1, 2) + 1000 * rank
came = torch.zeros(sum(receiving), 2)
dist.all_to_all_single(came, rows, output_split_sizes=receiving, input_split_sizes=sending)
print("uneven", came.tolist())

whole = torch.arange(size * 3.0) * (rank + 1)
block = torch.zeros(3)
dist.reduce_scatter_tensor(block, whole)
print("block", block.tolist())

# A table of words counted together: who owns which word is decided by its hash.
words = ["to be or not to be", "that is the question", "whether it is nobler to be"][rank].split()
counts = torch.zeros(size, 26, dtype=torch.int64)
for word in words:
    letter = ord(word[0]) - ord("a")
    counts[letter % size, letter] += 1
mine = torch.zeros_like(counts)
dist.all_to_all_single(mine, counts)
print({chr(97 + n): int(c) for n, c in enumerate(mine.sum(0)) if c})
dist.destroy_process_group()
