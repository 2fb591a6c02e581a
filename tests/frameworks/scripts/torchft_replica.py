"""A replica of torchft: started again, it has the other's state and goes on with the step that both are in."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
from torch import nn

torch.accelerator.is_available = lambda: False  # else torchft waits for events of the device, which has none

from torchft import Manager, Optimizer, ProcessGroupGloo  # noqa: E402

PATIENCE = timedelta(minutes=5)


def main(name, steps):
    device = xm.xla_device()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def state():
        return xm._maybe_convert_to_cpu({"model": model.state_dict(), "optimizer": plain.state_dict()})

    def load(saved):
        model.load_state_dict(saved["model"])
        plain.load_state_dict(saved["optimizer"])
        print("has the other's state", flush=True)

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=name,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        use_async_quorum=False,
    )
    optimizer = Optimizer(manager, plain)
    while (step := manager.current_step()) < int(steps):
        optimizer.zero_grad()
        torch.manual_seed(manager.current_step())
        inputs = torch.randn(4, 8).to(device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad.cpu()
            manager.allreduce(gradient).wait()
            parameter.grad.copy_(gradient)
        optimizer.step()
        xm.mark_step()
        if manager.current_step() > step:
            print(f"step {manager.current_step()}", flush=True)
    print("weights", sum(value.double().sum().item() for value in model.cpu().parameters()), flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
