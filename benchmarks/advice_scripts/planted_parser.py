"""A Trainer of transformers whose data set parses each text again whenever it is read."""

import re

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Pages(Dataset):
    markup = " ".join(f"<p class='{number % 7}'>word {number}</p>" for number in range(12_000))

    def __len__(self):
        return 240

    def __getitem__(self, index):
        words = re.findall(r"<p class='(\d)'>(\w+) (\d+)</p>", self.markup)
        tokens = torch.tensor([(int(number) + index) % 64 for _, _, number in words[:24]])
        return {"input_ids": tokens, "labels": tokens}


config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    "out", max_steps=30, per_device_train_batch_size=8, report_to=[], save_strategy="no", disable_tqdm=True
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Pages())
trainer.train()  # loader-wait
