"""A Trainer of transformers with a loss of its own, which counts right answers with NumPy."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 100, (16,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones(16, dtype=torch.long), "labels": index % 2}


class ReviewTrainer(Trainer):
    right = 0

    def compute_loss(self, model, inputs, return_outputs=False, **keywords):
        outputs = model(**inputs)
        guesses = outputs.logits.argmax(-1).cpu().numpy()  # host-read
        self.right += int((guesses == inputs["labels"].shape[0]).sum())
        return (outputs.loss, outputs) if return_outputs else outputs.loss


config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
arguments = TrainingArguments(
    "out",
    max_steps=45,
    per_device_train_batch_size=8,
    report_to=[],
    save_strategy="no",
    logging_steps=15,
    disable_tqdm=True,
)
ReviewTrainer(BertForSequenceClassification(config), arguments, train_dataset=Reviews()).train()
