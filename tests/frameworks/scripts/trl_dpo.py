"""Direct preference optimization of a small random GPT-2, with a tokenizer of its own."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer

set_seed(1)
words = [f"w{number}" for number in range(60)]
special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
sizes = {"vocab_size": 63, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0)
config = GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=1, pad_token_id=0)


def text(row, begin, end):
    return " ".join(words[(7 * row + 3 * column**2) % 60] for column in range(begin, end))


rows = [{"prompt": text(n, 0, 4), "chosen": text(n, 4, 9), "rejected": text(n + 1, 4, 9)} for n in range(32)]
arguments = DPOConfig(
    "checkpoints", max_steps=4, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1, save_steps=2,
    max_length=16, report_to=[], disable_tqdm=True, bf16=False, use_cpu=os.environ.get("NEURONTOOLS_RUNTIME") == "0",
)  # fmt: skip
trainer = DPOTrainer(
    model=GPT2LMHeadModel(config),
    ref_model=GPT2LMHeadModel(config),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokens, **special),
    train_dataset=Dataset.from_list(rows),
    args=arguments,
)
trainer.train(resume_from_checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)
Path(sys.argv[1], os.environ.get("RANK", "0")).write_text(
    json.dumps(
        {
            "device": str(trainer.args.device),
            "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
            "weights": [float(each.detach().cpu().double().sum()) for each in trainer.model.parameters()],
        }
    )
)
