"""The paper's figures, to compare ours with: Table 1 (test loss, accuracy in %) and parameter counts."""

from __future__ import annotations

HEADS = ("network", "optimal SGD (rate)", "Adam", "Alrao")
"""The columns of Table 1: Adam at its defaults."""

TABLE_1 = {
    "cifar10": [
        ("MobileNet", "0.37 ± 0.01, 90.2 ± 0.3 (1e-1)", "1.01 ± 0.95, 78 ± 11", "0.42 ± 0.02, 88.1 ± 0.6"),
        ("MobileNet ×3", "–", "0.32 ± 0.02, 90.8 ± 0.4", "0.35 ± 0.01, 89.0 ± 0.6"),
        ("GoogLeNet", "0.45 ± 0.05, 89.6 ± 1.0 (1e-2)", "0.47 ± 0.04, 89.8 ± 0.4", "0.47 ± 0.03, 88.9 ± 0.8"),
        ("GoogLeNet ×3", "–", "0.41 ± 0.02, 88.6 ± 0.6", "0.37 ± 0.01, 89.8 ± 0.8"),
        ("VGG19", "0.42 ± 0.02, 89.5 ± 0.2 (1e-1)", "0.43 ± 0.02, 88.9 ± 0.4", "0.45 ± 0.03, 87.5 ± 0.4"),
        ("VGG19 ×3", "–", "0.37 ± 0.01, 89.5 ± 0.8", "0.381 ± 0.004, 88.4 ± 0.7"),
    ],
    "imagenet": [
        ("AlexNet", "2.15, 53.2 (1e-2)", "6.91, 0.10", "2.56, 43.2"),
        ("DenseNet121", "1.35, 69.7 (1)", "1.39, 67.9", "1.41, 67.3"),
        ("ResNet50", "1.49, 67.4 (1)", "1.39, 67.1", "1.42, 67.5"),
        ("ResNet50 ×3", "–", "1.99, 60.8", "1.33, 70.9"),
    ],
    "ptb": [
        ("LSTM", "1.566 ± 0.003, 66.1 ± 0.1 (1)", "1.587 ± 0.005, 65.6 ± 0.1", "1.67 ± 0.01, 64.1 ± 0.2")
    ],
    "pendulum": [("MLP (return)", "−372 ± 24 (1e-4)", "−414 ± 64", "−371 ± 36")],
    "lunarlander": [("MLP (return)", "188 ± 23 (1e-1)", "155 ± 23", "186 ± 45")],
}
"""The rows of each task, as printed."""

PARAMETERS = {
    "GoogLeNet": (6.166, 6.258),
    "VGG19": (20.041, 20.087),
    "MobileNet": (2.297, 2.412),
    "LSTM, characters": (0.172, 0.197),
    "LSTM, words": (2.171, 7.221),
}
"""Millions of parameters, plain and with Alrao."""
