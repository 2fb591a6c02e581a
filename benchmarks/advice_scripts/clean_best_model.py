"""A Trainer of transformers with metrics, saved models, the best one loaded at the end, and every step logged."""

import torch
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 100, (20,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones(20, dtype=torch.long), "labels": index % 2}


def metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


config = DistilBertConfig(vocab_size=100, dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=32)
arguments = TrainingArguments(
    "out",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    report_to=[],
    disable_tqdm=True,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=20,
    save_strategy="steps",
    save_steps=20,
    load_best_model_at_end=True,
    warmup_steps=5,
    lr_scheduler_type="cosine",
    dataloader_drop_last=True,
)
trainer = Trainer(
    DistilBertForSequenceClassification(config),
    arguments,
    train_dataset=Reviews(200),
    eval_dataset=Reviews(32),
    compute_metrics=metrics,
)
trainer.train()
print(trainer.evaluate())
