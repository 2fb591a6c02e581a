"""A Trainer of transformers with label smoothing, a warm-up and an evaluation after each epoch."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Mails(Dataset):
    def __init__(self, count):
        self.tokens = torch.randint(0, 80, (count, 20))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        mask = torch.ones(20, dtype=torch.long)
        return {"input_ids": self.tokens[index], "attention_mask": mask, "labels": index % 2}


config = BertConfig(vocab_size=80, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
arguments = TrainingArguments(
    "out",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    eval_strategy="epoch",
    label_smoothing_factor=0.1,
    warmup_steps=5,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=Mails(160), eval_dataset=Mails(32)).train()
