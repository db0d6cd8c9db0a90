"""Search over the architecture of a network with skorch and GridSearchCV, without a learning rate.

Needs `pip install 'alrao[skorch]'`. Usage: python examples/skorch_search.py [--epochs 20]
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from alrao.integrations.skorch import AlraoNetClassifier, GradientNormClipping


class Net(nn.Module):
    def __init__(self, units=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))

    def forward(self, x):
        return self.layers(x)  # logits: no softmax


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X.astype(np.float32), y, random_state=0)

    torch.manual_seed(0)
    net = AlraoNetClassifier(
        Net,
        max_epochs=args.epochs,
        batch_size=32,
        iterator_train__shuffle=True,
        callbacks=[GradientNormClipping(1.0)],
        verbose=0,
    )
    grid = {"alraonetclassifier__module__units": [32, 128], "alraonetclassifier__alrao__copies": [5, 10]}
    search = GridSearchCV(make_pipeline(StandardScaler(), net), grid, cv=2).fit(X_train, y_train)
    print(f"Alrao: accuracy {search.score(X_test, y_test):.1%} with {search.best_params_}")
    print(search.best_estimator_[-1].module_.posterior.numpy().round(2))


if __name__ == "__main__":
    main()
