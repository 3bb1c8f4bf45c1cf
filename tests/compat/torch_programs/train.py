"""Data-parallel training by hand: every rank has its share of the data, gradients are averaged."""

import torch
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

generator = torch.Generator().manual_seed(100 + rank)
inputs = torch.rand(64, 3, generator=generator, dtype=torch.float64)
truth = torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64)
targets = inputs @ truth + 0.25

torch.manual_seed(rank)  # different on every rank: the broadcast below makes them equal
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)

optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= size


for epoch in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    if epoch % 10 == 9:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        print(epoch, f"{mean.item() / size:.6f}")

weights = torch.cat([each.data.flatten() for each in model.parameters()])
copies = [torch.empty_like(weights) for _ in range(size)]
dist.all_gather(copies, weights)
print("all ranks have the same weights:", all(torch.allclose(copies[0], each) for each in copies))
print([round(each, 5) for each in weights.tolist()])
dist.destroy_process_group()
