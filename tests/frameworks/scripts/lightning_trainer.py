"""Lightning's Trainer with nothing but defaults, or with the accelerator that the second argument names."""

import json
import os
import sys
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.losses, self.validated = [], []

    def training_step(self, batch, _index):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _index):
        self.log("validation", nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.validated.append(float(self.trainer.callback_metrics["validation"]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def on_train_end(self):
        Path(sys.argv[1], str(self.global_rank)).write_text(
            json.dumps(
                {
                    "device": str(self.device),
                    "strategy": type(self.trainer.strategy).__name__,
                    "world_size": self.trainer.world_size,
                    "losses": [loss.item() for loss in self.losses],
                    "validated": self.validated,
                    "weights": [float(parameter.detach().cpu().double().sum()) for parameter in self.parameters()],
                }
            )
        )


def data(seed, count):
    numbers = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 8, generator=numbers), torch.randn(count, 1, generator=numbers))


if __name__ == "__main__":
    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        max_epochs=int(os.environ.get("EPOCHS", "2")),
        gradient_clip_val=float(os.environ.get("CLIP", "1.0")) or None,
        devices=int(os.environ.get("DEVICES", "0")) or "auto",
        log_every_n_steps=1,
        enable_progress_bar=False,
        accelerator=sys.argv[2] if len(sys.argv) > 2 else "auto",
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint("checkpoints", save_last=True)],
    )
    trainer.fit(
        Net(),
        DataLoader(data(0, 32), 8),
        DataLoader(data(1, 16), 8),
        ckpt_path=sys.argv[3] if len(sys.argv) > 3 else None,
    )
