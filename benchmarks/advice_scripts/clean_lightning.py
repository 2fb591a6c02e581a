"""Lightning with checkpoints, early stopping, a schedule and metrics by epoch."""

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def loader(count):
    features = torch.randn(count, 10)
    return DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=8, drop_last=True)


callbacks = [
    ModelCheckpoint(monitor="validation"),
    EarlyStopping("validation", patience=3),
    LearningRateMonitor("step"),
]
trainer = lightning.Trainer(max_epochs=4, callbacks=callbacks, logger=CSVLogger("logs"), enable_progress_bar=False)
trainer.fit(Regression(), loader(160), loader(32))
