"""Parts of small training scripts, which tests put together."""

BEGINNING = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
"""
TRAINED = """
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
def step(value, target):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(value), target)
    loss.backward()
    optimizer.step()
    return loss
"""
LOOP = """
for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=8), device, batches_per_execution=4):
    step(value, target)
"""
PLAIN = "for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=8), device):\n"
