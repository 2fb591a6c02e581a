"""A Lightning module that logs means of each epoch, with a validation after each."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        pixels, digits = batch
        loss = nn.functional.cross_entropy(self.layers(pixels), digits)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        pixels, digits = batch
        self.log("right", (self.layers(pixels).argmax(1) == digits).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)]


def scans(count):
    return DataLoader(TensorDataset(torch.randn(count, 36), torch.randint(0, 10, (count,))), batch_size=16)


trainer = lightning.Trainer(max_epochs=2, enable_checkpointing=False, logger=False, enable_progress_bar=False)
trainer.fit(Digits(), scans(320), scans(64))
