"""A Lightning module that looks for the examples with a high loss by their positions."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Ranker(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3))

    def training_step(self, batch, index):
        rows, labels = batch
        losses = nn.functional.cross_entropy(self.layers(rows), labels, reduction="none")
        hard = torch.nonzero(losses.detach() > 1.0)  # fallback
        self.hard_count = len(hard)
        return losses.mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(400, 16), torch.randint(0, 3, (400,)))
trainer = lightning.Trainer(max_epochs=1, enable_checkpointing=False, logger=False, enable_progress_bar=False)
trainer.fit(Ranker(), DataLoader(data, batch_size=10))
