"""A small training whose framework tells the daemon how it goes; what the daemon knows of it is written."""

import dataclasses
import json
import os
import sys
import threading
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from neurontools import client
from neurontools.runtime.reporting.training_report import training_log


class Rows(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"value": torch.full((8,), float(index)), "labels": torch.ones(1)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, value, labels):
        return {"loss": nn.functional.mse_loss(self.layer(value), labels)}


def tell():
    known = {"threads": [thread.name for thread in threading.enumerate()]}
    if Path(os.environ["NEURONTOOLS_SOCKET"]).exists():
        with client.connect() as daemon:
            counted = dataclasses.asdict(training_log.counters)
            while any(known.get(total) != counted[total] for total in ("steps_total", "checkpoints_total")):
                process = next(each for each in daemon.snapshot().processes if each.pid == os.getpid())
                known |= dataclasses.asdict(process.training) if process.training else {}
    Path(sys.argv[1], "0").write_text(json.dumps(known))


def telling(callback):
    class Telling(callback):
        def on_train_end(self, *arguments, **keywords):
            self._report.flush()
            tell()
            super().on_train_end(*arguments, **keywords)

    return Telling()


def hf_trainer():
    from transformers import Trainer, TrainingArguments

    from neurontools.runtime.frameworks.hf_trainer import ReportTraining

    arguments = TrainingArguments(
        "checkpoints", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6, save_steps=3,
        use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    Trainer(Model(), arguments, train_dataset=Rows(), callbacks=[telling(ReportTraining)]).train()


def lightning():
    import lightning as li

    from neurontools.runtime.frameworks.lightning import ReportTraining

    class Module(li.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    trainer = li.Trainer(
        max_steps=5, accumulate_grad_batches=2, accelerator="cpu", enable_progress_bar=False, logger=False,
        default_root_dir=".", callbacks=[telling(ReportTraining)],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Rows(), 2))


def accelerate():
    from accelerate import Accelerator

    from neurontools.runtime.frameworks.accelerate import ReportTraining

    reporting = ReportTraining()
    accelerator = Accelerator(cpu=True, log_with=reporting, gradient_accumulation_steps=2)
    accelerator.init_trackers("run")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(), 2))
    for batch in reporting.tracker.batches(loader):
        with accelerator.accumulate(model):
            accelerator.log({"samples": len(batch["value"])})
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    with reporting.tracker.checkpoint():
        accelerator.save_state("state")
    reporting.tracker.flush()
    tell()
    accelerator.end_training()


if __name__ == "__main__":
    {"hf_trainer": hf_trainer, "lightning": lightning, "accelerate": accelerate}[sys.argv[2]]()
