"""Measures recall and precision of advice: 32 scripts with one planted fault each, and 32 clean scripts. Limits: 0.95.

Twelve of each kind are files in advice_scripts; eight of them were written without knowledge of the rules. The scripts
train with plain PyTorch, accelerate, Lightning and the Trainer of transformers, in the environment that `make
frameworks` makes. Recall is the share of planted faults for which the right rule names the right line. Precision is the
share of all advice that names a planted fault. `--only NAME` runs the scripts whose name contains NAME.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from neurontools.estimate.rules import RULES
from tests.harness.framework_script import NEURON_RUN, PYTHON
from tests.harness.neuron_run import environment

LEAST = 0.95
STEPS = 40

START = """\
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
class Rows(Dataset):
    def __init__(self, count=320, seconds=0.0, sizes=(8,)):
        self.count, self.seconds, self.sizes = count, seconds, sizes
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(8), torch.zeros((), dtype=torch.long)
def buckets(rows):
    size = (4, 8, 12, 16)[int(torch.randint(0, 4, (1,)))]
    return torch.randn(size, 8), torch.zeros(size, dtype=torch.long)
def ragged(rows):
    size = 1 + int(torch.randint(0, 400, (1,)))
    return torch.randn(size, 8), torch.zeros(size, dtype=torch.long)
cross_entropy = nn.functional.cross_entropy
def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
"""

PLAIN = (
    START
    + """\
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
device = xm.xla_device()
model = network().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
kept = []
def batches(loader):
    return pl.MpDeviceLoader(loader, device)
{setup}
for number, (value, target) in enumerate(batches({loader})):{at_loader}
    optimizer.zero_grad()
    loss = cross_entropy(model(value), target)
    loss.backward()
    optimizer.step()
{body}
"""
)
ACCELERATE = (
    START
    + """\
from accelerate import Accelerator
accelerator = Accelerator()
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, {loader})
kept = []
{setup}
for number, (value, target) in enumerate(loader):{at_loader}
    optimizer.zero_grad()
    loss = cross_entropy(model(value), target)
    accelerator.backward(loss)
    optimizer.step()
{body}
"""
)
LIGHTNING = (
    START
    + """\
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network, self.kept = network(), []
    def training_step(self, batch, number):
        value, target = batch
        loss = cross_entropy(self.network(value), target)
{body}
        return loss
    def validation_step(self, batch, number):
        self.log("validation", cross_entropy(self.network(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)
{setup}
quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
trainer = lightning.Trainer(max_epochs=1, **quiet, {options})
trainer.fit(Net(), {loader}){at_loader}
"""
)
TRAINER = (
    START
    + """\
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
class Texts(Dataset):
    def __init__(self, sizes=(16,), seconds=0.0):
        self.sizes, self.seconds = sizes, seconds
    def __len__(self):
        return 320
    def __getitem__(self, index):
        time.sleep(self.seconds)
        size = self.sizes[index // 8 % len(self.sizes)]
        row = torch.randint(0, 64, (size,))
        return {"input_ids": row, "labels": row}
def pad(rows):
    size = max(len(row["input_ids"]) for row in rows)
    padded = [nn.functional.pad(row["input_ids"], (0, size - len(row["input_ids"]))) for row in rows]
    return {"input_ids": torch.stack(padded), "labels": torch.stack(padded)}
Own, callbacks = Trainer, []
{setup}
arguments = TrainingArguments("out", max_steps=40, per_device_train_batch_size=8, report_to=[], disable_tqdm=True,
    save_strategy="no", {options})
data = {"train_dataset": {loader}, "eval_dataset": Texts(), "data_collator": pad}
trainer = Own(GPT2LMHeadModel(config), arguments, callbacks=callbacks, **data)
trainer.train(){at_loader}
"""
)
FORMS = {"plain": PLAIN, "accelerate": ACCELERATE, "lightning": LIGHTNING, "transformers": TRAINER}


@dataclass(frozen=True)
class Script:
    """A training script. A comment `# RULE` at the end of a line plants a fault: that rule has to name that line.

    If the comment is a line of its own, the advice has no line.
    """

    name: str
    text: str

    @property
    def faults(self) -> set[tuple[str, int]]:
        found = set()
        for at, line in enumerate(self.text.splitlines(), 1):
            code, _, rule = f" {line}".rpartition(" # ")
            if rule in RULES:
                found.add((rule, at if code else 0))
        return found


def script(
    form: str, name: str, *, setup: str = "", body: str = "", loader: str = "", fault: str = "", options: str = ""
) -> Script:
    indent = " " * (8 if form == "lightning" else 4)
    text = FORMS[form]
    parts = {
        "setup": setup,
        "body": "\n".join(indent + line for line in body.splitlines()) or f"{indent}pass",
        "loader": loader or ("Texts()" if form == "transformers" else "DataLoader(Rows(), batch_size=8)"),
        "at_loader": f"  # {fault}" if fault else "",
        "options": options,
    }
    for part, content in parts.items():
        text = text.replace("{" + part + "}", content)
    return Script(f"{form}: {name}", text)


RAGGED = "DataLoader(Rows(), batch_size=8, collate_fn=ragged)"
BUCKETS = "DataLoader(Rows(), batch_size=8, collate_fn=buckets)"
SLOW = "DataLoader(Rows(seconds=0.02), batch_size=8)"
MANY_SIZES = "Texts(tuple(range(4, 44)))"
OWN_LOSS = """\
class Own(Trainer):
    def compute_loss(self, model, inputs, *arguments, **keywords):
        loss = super().compute_loss(model, inputs, *arguments, **keywords)
        {line}
        return loss
"""
CALLBACK = """\
class Own(Trainer):
    pass
class Watch(TrainerCallback):
    def on_step_end(self, arguments, state, control, model=None, **keywords):
        {line}
callbacks = [Watch()]
"""

PLANTED = (
    script("plain", "reads the loss", body="print(loss.item())  # host-read"),
    script("plain", "ragged batches", loader=RAGGED, fault="recompile"),
    script("plain", "nonzero", body="torch.nonzero(value > 0)  # fallback"),
    script("plain", "reads after the mark", body="xm.mark_step()\nkept.append(loss.item())  # host-read"),
    script("plain", "two marks", body="xm.mark_step()  # two-executions\nkept = [loss * 2]"),
    script("accelerate", "reads the loss", body="kept.append(loss.item())  # host-read"),
    script("accelerate", "ragged batches", loader=RAGGED, fault="recompile"),
    script("accelerate", "slow rows", loader=SLOW, fault="loader-wait"),
    script("accelerate", "branches on a value", body="if loss > 100:  # host-read\n    break"),
    script("accelerate", "sorts on the host", body="torch.unique(target)  # fallback"),
    script("lightning", "reads the loss", body="self.kept.append(loss.item())  # host-read"),
    script("lightning", "ragged batches", loader=RAGGED, fault="recompile"),
    script("lightning", "slow rows", loader=SLOW, fault="loader-wait"),
    script("lightning", "prints", body="print(loss)  # host-read"),
    script("lightning", "nonzero", body="torch.nonzero(value > 0)  # fallback"),
    script("transformers", "reads the loss", setup=OWN_LOSS.replace("{line}", "print(loss.item())  # host-read")),
    script("transformers", "pads to the longest", loader=MANY_SIZES, fault="recompile"),
    script("transformers", "slow rows", loader="Texts(seconds=0.02)", fault="loader-wait"),
    script("transformers", "unique", setup=OWN_LOSS.replace("{line}", "torch.unique(inputs['labels'])  # fallback")),
    script(
        "transformers",
        "weights read in a callback",
        setup=CALLBACK.replace("{line}", "print(next(model.parameters()).sum().item())  # host-read"),
    ),
)
NORM = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
CLEAN = (
    script("plain", "simple"),
    script("plain", "buckets", loader=BUCKETS),
    script("plain", "closure", body="xm.add_step_closure(print, args=(loss,))"),
    script("plain", "reads every ten steps", body="if number % 10 == 9:\n    print(loss.item())"),
    script(
        "plain",
        "scheduler and saves",
        setup="schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)",
        body="schedule.step()\nif number == 20:\n    xm.save(model.state_dict(), 'model.pt')",
    ),
    script("accelerate", "simple"),
    script("accelerate", "buckets", loader=BUCKETS),
    script("accelerate", "clips", body="accelerator.clip_grad_norm_(model.parameters(), 1.0)"),
    script(
        "accelerate",
        "logs every ten steps",
        body="if number % 10 == 9:\n    print(accelerator.gather(loss).mean().item())",
    ),
    script("accelerate", "saves", body="if number == 20:\n    accelerator.save_state('state')"),
    script("lightning", "simple"),
    script("lightning", "buckets", loader=BUCKETS),
    script("lightning", "logs", body="self.log('loss', loss)", options="log_every_n_steps=10"),
    script("lightning", "validates", loader="DataLoader(Rows(), batch_size=8), DataLoader(Rows(32), batch_size=8)"),
    script("lightning", "accumulates and clips", options="accumulate_grad_batches=2, gradient_clip_val=1.0"),
    script("transformers", "simple"),
    script("transformers", "logs every step", options="logging_steps=1"),
    script("transformers", "evaluates", options="eval_strategy='steps', eval_steps=20, logging_steps=10"),
    script("transformers", "buckets", loader="Texts((8, 16, 24))"),
    script("transformers", "accumulates", options="gradient_accumulation_steps=2, logging_steps=10"),
)


WRITTEN_BLIND = tuple(
    Script(path.stem, path.read_text()) for path in sorted((Path(__file__).parent / "advice_scripts").glob("*.py"))
)


def advice_of(one: Script) -> list[tuple[str, str, int]]:
    """Runs a script; returns rule, file name and line of its advice, with line 0 for advice about no line."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "script.py").write_text(one.text)
        run = subprocess.run(
            [PYTHON, *NEURON_RUN, "--summary-json", "out.json", "script.py"],
            cwd=directory,
            env=environment(directory, PYTHONPATH="", HF_HUB_OFFLINE="1", HOME=name, PATH=os.environ["PATH"]),
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise SystemExit(f"{one.name}: exit {run.returncode}\n{run.stderr[-3000:]}")
        document = json.loads((directory / "out.json").read_text())
    found = []
    for each in document["advice"]:
        file, _, line = (each["place"] or ":0").rpartition(":")
        found.append((each["rule"], Path(file).name, int(line)))
    return found


def main(wanted: str) -> int:
    planted = found = right = given = 0
    for one in PLANTED + CLEAN + WRITTEN_BLIND:
        if wanted not in one.name:
            continue
        advice = advice_of(one)
        faults = one.faults
        hits = {(rule, line) for rule, file, line in advice if file in {"script.py", ""}} & faults
        planted, found = planted + len(faults), found + len(hits)
        given, right = given + len(advice), right + len(hits)
        notes = [f"missed {rule} at line {line}" for rule, line in sorted(faults - hits)]
        notes += [f"wrong: {rule} at {file}:{line}" for rule, file, line in advice if (rule, line) not in hits]
        print(f"{'planted' if faults else 'clean':8}{one.name:45}{'; '.join(notes) or 'right'}", flush=True)
    recall, precision = (found / planted if planted else 1.0), (right / given if given else 1.0)
    print(f"recall {recall:.3f} ({found} of {planted}), precision {precision:.3f} ({right} of {given}); limit {LEAST}")
    return 0 if min(recall, precision) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--only"] else ""))
