"""Train with Lightning: checkpoints, early stopping, clipping, and a log of the rates.

Needs `pip install 'alrao[lightning,sklearn]'`. Usage:
python examples/lightning_digits.py [--epochs 20] [--folder runs/lightning]
"""

import argparse
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import alrao
from alrao.integrations.lightning import AlraoCallback

# A data set this small needs no workers.
warnings.filterwarnings("ignore", ".*does not have many workers")


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = alrao.Alrao(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        out = self.model(x)
        self.log("valid_loss", F.cross_entropy(out, y), prog_bar=True)
        self.log("valid_accuracy", (out.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return alrao.Auto(self.model)  # no learning rate and no schedule


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", default=tempfile.mkdtemp())
    args = parser.parse_args()
    L.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels))
    train, valid = random_split(data, [0.8, 0.2])

    checkpoint = ModelCheckpoint(monitor="valid_loss", save_last=True)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=CSVLogger(args.folder),
        log_every_n_steps=10,
        enable_progress_bar=False,
        callbacks=[
            checkpoint,
            EarlyStopping("valid_loss", patience=5),
            AlraoCallback(gradient_clip_val=1.0),
        ],
    )
    module = Digits()
    trainer.fit(module, DataLoader(train, 32, shuffle=True), DataLoader(valid, 256))

    best = Digits.load_from_checkpoint(checkpoint.best_model_path, weights_only=True)
    trainer.validate(best, DataLoader(valid, 256), verbose=False)
    accuracy = trainer.callback_metrics["valid_accuracy"]
    print(f"Alrao: accuracy {accuracy:.1%}; log in {trainer.logger.log_dir}")
    print(best.model.collapse())  # an ordinary network, for export


if __name__ == "__main__":
    main()
