"""HuggingFace Trainer on a small random GPT-2: accumulation, evaluation, checkpoints."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

DROPOUT = float(os.environ.get("DROPOUT", "0"))
IS_ON_CPU = os.environ.get("USE_TORCH_XLA") == "0"


class Texts(Dataset):
    def __init__(self, seed, count):
        self.rows = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Graphs(TrainerCallback):
    """How many graphs were compiled by the end of each step."""

    def __init__(self):
        self.counts = []

    def on_step_end(self, *_arguments, **_keywords):
        if not IS_ON_CPU:
            import torch_xla.debug.metrics as met

            self.counts.append(met.counter_value("UncachedCompile"))


set_seed(1)
sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), DROPOUT)
config = GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0)
graphs = Graphs()
arguments = TrainingArguments(
    "checkpoints", max_steps=int(os.environ.get("MAX_STEPS", "9")), per_device_train_batch_size=4,
    gradient_accumulation_steps=2, logging_steps=1, eval_strategy="steps", eval_steps=3,
    save_steps=int(os.environ.get("SAVE_STEPS", "3")), report_to=[], disable_tqdm=True, use_cpu=IS_ON_CPU,
)  # fmt: skip
trainer = Trainer(
    GPT2LMHeadModel(config), arguments, train_dataset=Texts(1, 64), eval_dataset=Texts(2, 8), callbacks=[graphs]
)
checkpoint = sys.argv[2] if len(sys.argv) > 2 else None
if checkpoint == "latest":
    checkpoint = get_last_checkpoint("checkpoints") if Path("checkpoints").is_dir() else None
trainer.train(resume_from_checkpoint=checkpoint)
history = [
    {key: row[key] for key in ("step", "loss", "grad_norm", "eval_loss") if key in row}
    for row in trainer.state.log_history
]
weights = [float(parameter.double().sum()) for parameter in trainer.model.cpu().parameters()]
trainer.save_model("saved")
rank = os.environ.get("RANK", "0")
saved = None
if rank == "0":  # which has written it; nobody else waits for that
    saved = [float(parameter.double().sum()) for parameter in GPT2LMHeadModel.from_pretrained("saved").parameters()]
Path(sys.argv[1], rank).write_text(
    json.dumps(
        {
            "device": str(trainer.args.device),
            "world_size": trainer.args.world_size,
            "history": history,
            "losses": [row[key] for row in history for key in ("loss", "eval_loss") if key in row],
            "graphs": graphs.counts,
            "weights": weights,
            "saved": saved,
        }
    )
)
