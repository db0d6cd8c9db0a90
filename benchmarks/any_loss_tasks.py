"""Small real tasks whose losses are no likelihoods of one output layer: for any_loss.py.

A task trains its networks with the optimizers that it is given, and returns its measure. What is random in
its data depends on the seed only, never on the method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import pi
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

Make = Callable[[nn.Module], Optimizer]
"""Makes the optimizer of a network; ``agent()`` has the options of an agent of Stable-Baselines3."""


@dataclass(frozen=True)
class Task:
    """A training with a measure.

    Args:
        run: takes a seed, how to make an optimizer, and the part of the steps to take; returns the measure.
        measure: what it is, with its unit.
        best: the best possible value.
        higher: whether more of it is better.
    """

    run: Callable[[int, Any, float], float]
    measure: str
    best: float
    higher: bool = True


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits in [0, 1], 8x8: training and test images, training and test labels."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.3, random_state=0, stratify=labels)
    x, x_test, y, y_test = (torch.as_tensor(part) for part in parts)
    return x.float().view(-1, 1, 8, 8), x_test.float().view(-1, 1, 8, 8), y, y_test


def batches(x: Tensor, size: int, steps: int, generator: Generator) -> Any:
    """Return random batches, one for each step."""
    for _ in range(steps):
        yield x[torch.randint(len(x), (size,), generator=generator)]


def descend(loss: Tensor, *optimizers: Optimizer) -> None:
    """Take one step."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


# A contrastive embedding, and what a linear classifier makes of it.


def contrastive(seed: int, make: Make, part: float) -> float:
    """Return the test accuracy of a logistic regression on 100 labels of a SimCLR embedding."""
    x, x_test, y, y_test = digits()
    generator = Generator().manual_seed(seed)

    def view(images: Tensor) -> Tensor:
        theta = torch.eye(2, 3).repeat(len(images), 1, 1)
        theta[:, :, 2] += 0.5 * (torch.rand(len(images), 2, generator=generator) - 0.5)
        theta[:, :, :2] += 0.3 * torch.randn(len(images), 2, 2, generator=generator)
        moved = F.grid_sample(images, F.affine_grid(theta, list(images.shape), False), align_corners=False)
        return moved + 0.1 * torch.randn(moved.shape, generator=generator)

    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64),
    )  # fmt: skip
    net = nn.Sequential(encoder, nn.ReLU(), nn.Linear(64, 32))
    optimizer = make(net)
    for batch in batches(x, 128, int(400 * part), generator):
        a, b = F.normalize(net(view(batch))), F.normalize(net(view(batch)))
        similar = a @ b.T / 0.2
        target = torch.arange(len(batch))
        descend(F.cross_entropy(similar, target) + F.cross_entropy(similar.T, target), optimizer)
    net.eval()
    with torch.no_grad():
        features, features_test = encoder(x).numpy(), encoder(x_test).numpy()
    if not np.isfinite(features).all():
        return float("nan")
    scale = features.std() + 1e-12
    probe = LogisticRegression(max_iter=2000).fit(features[:100] / scale, y[:100])
    return 100 * float(probe.score(features_test / scale, y_test))


# Generators, by the distance of their samples to real digits in a classifier's features.


@cache
def judge() -> nn.Module:
    """Return the hidden layers of a classifier of digits, the same for all runs."""
    x, _, y, _ = digits()
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(600):
            rows = torch.randint(len(x), (128,))
            noisy = x[rows] + 0.1 * torch.randn(len(rows), 1, 8, 8)
            descend(F.cross_entropy(net(noisy), y[rows]), optimizer)
    return net[:-1].eval().requires_grad_(False)


def distance(samples: Tensor) -> float:
    """Return the Fréchet distance of samples to the test digits, in the classifier's features."""
    if not bool(samples.isfinite().all()):
        return float("nan")
    features = [judge()(images).double() for images in (samples, digits()[1])]
    (m, mean), (c, cov) = [f.mean(0) for f in features], [torch.cov(f.T) for f in features]
    eye = 1e-6 * torch.eye(len(m), dtype=torch.float64)
    values = torch.linalg.eigvals((c + eye) @ (cov + eye)).real.clamp(min=0)
    return float((m - mean).square().sum() + c.trace() + cov.trace() - 2 * values.sqrt().sum())


def gan(seed: int, make: Make, part: float) -> float:
    """Return the distance of a GAN's samples: hinge loss, an optimizer for each of its networks."""
    x = digits()[0].flatten(1)
    generator = Generator().manual_seed(seed)
    maker = nn.Sequential(
        nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid()
    )
    critic = nn.Sequential(
        nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
    )
    of_maker, of_critic = make(maker), make(critic)
    for batch in batches(x, 64, int(2500 * part), generator):
        fake = maker(torch.randn(64, 16, generator=generator))
        real = batch + 0.1 * torch.randn(batch.shape, generator=generator)
        noisy = fake.detach() + 0.1 * torch.randn(batch.shape, generator=generator)
        descend(F.relu(1 - critic(real)).mean() + F.relu(1 + critic(noisy)).mean(), of_critic)
        descend(-critic(fake).mean(), of_maker)
    maker.eval()
    with torch.no_grad():
        return distance(maker(torch.randn(1000, 16, generator=generator)).view(-1, 1, 8, 8))


class Denoiser(nn.Module):
    """Predicts the noise in a digit at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(16, 128)
        self.layers = nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 128)])
        self.out = nn.Linear(128, 64)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * torch.exp(torch.linspace(0, 5, 8))
        time = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        hidden = x
        for i, layer in enumerate(self.layers):
            hidden = F.silu(layer(hidden) + time) + (hidden if i else 0)
        return self.out(hidden)


def diffusion(seed: int, make: Make, part: float) -> float:
    """Return the distance of the samples of a small denoising diffusion model (cosine schedule, DDIM)."""
    x = 2 * digits()[0].flatten(1) - 1
    generator = Generator().manual_seed(seed)
    net = Denoiser()
    optimizer = make(net)
    for batch in batches(x, 128, int(3000 * part), generator):
        t = torch.rand(len(batch), generator=generator)
        signal, noise = (t * pi / 2).cos()[:, None], (t * pi / 2).sin()[:, None]
        e = torch.randn(batch.shape, generator=generator)
        descend(F.mse_loss(net(signal * batch + noise * e, t), e), optimizer)
    net.eval()
    with torch.no_grad():
        sample = torch.randn(1000, 64, generator=generator)
        times = torch.linspace(0.98, 0, 41)
        for t, following in pairwise(times):
            e = net(sample, t.expand(len(sample)))
            clean = ((sample - (t * pi / 2).sin() * e) / (t * pi / 2).cos()).clamp(-1, 1)
            sample = (following * pi / 2).cos() * clean + (following * pi / 2).sin() * e
        return distance((sample.view(-1, 1, 8, 8) + 1) / 2)


# Masks, sequences, an equation.


def scenes(count: int, images: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return 24x24 images with two digits, lines and noise, and the masks of the digits."""
    picture, mask = torch.zeros(count, 1, 24, 24), torch.zeros(count, 1, 24, 24)
    for i in range(count):
        for _ in range(2):
            digit = images[torch.randint(len(images), (), generator=generator)]
            row, column = torch.randint(17, (2,), generator=generator).tolist()
            place = (i, slice(None), slice(row, row + 8), slice(column, column + 8))
            picture[place] = torch.maximum(picture[place], digit)
            mask[place] = torch.maximum(mask[place], (digit > 0.3).float())
        row, column = torch.randint(24, (2,), generator=generator).tolist()
        picture[i, :, row], picture[i, :, :, column] = 0.8, 0.8
    return picture + 0.25 * torch.randn(picture.shape, generator=generator), mask


def dice(out: Tensor, mask: Tensor) -> Tensor:
    """Return the soft Dice coefficient of each image."""
    p = out.sigmoid()
    return (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)


class Segmenter(nn.Module):
    """A small U-net."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.ConvTranspose2d(24, 12, 2, stride=2),
        )  # fmt: skip
        self.up = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        near = self.down(x)
        return self.up(torch.cat([near, self.deep(near)], 1))


def segmentation(seed: int, make: Make, part: float) -> float:
    """Return the test intersection over union of masks learnt with Dice's loss."""
    x, x_test, _, _ = digits()
    pictures, masks = scenes(600, x, Generator().manual_seed(seed))
    unseen, truth = scenes(300, x_test, Generator().manual_seed(1000 + seed))
    generator = Generator().manual_seed(seed)
    net = Segmenter()
    optimizer = make(net)
    for rows in batches(torch.arange(len(pictures)), 32, int(300 * part), generator):
        descend(1 - dice(net(pictures[rows]), masks[rows]).mean(), optimizer)
    net.eval()
    with torch.no_grad():
        found = net(unseen) > 0
        both, either = (found & (truth > 0)).sum(), (found | (truth > 0)).sum()
    return 100 * float(both / either)


class Reader(nn.Module):
    """A recurrent network over frames, with a blank among its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(12, 48, batch_first=True, bidirectional=True)
        self.out = nn.Linear(96, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0]).log_softmax(2)


def sequences(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return noisy frames of six symbols, each shown for two to five frames, and the symbols 1 to 8."""
    shapes = torch.randn(9, 12, generator=Generator().manual_seed(5))
    labels = torch.randint(1, 9, (count, 6), generator=generator)
    lengths = torch.randint(2, 6, (count, 6), generator=generator)
    frames = torch.zeros(count, 36, 12)
    for i in range(count):
        shown = torch.repeat_interleave(shapes[labels[i]], lengths[i], 0)
        frames[i, : len(shown)] = shown
    return frames + 1.0 * torch.randn(frames.shape, generator=generator), labels


def ctc(seed: int, make: Make, part: float) -> float:
    """Return the label error rate of the best path, after training with the CTC loss."""
    generator = Generator().manual_seed(seed)
    net = Reader()
    optimizer = make(net)
    frames, labels = sequences(1500, generator)
    lengths = torch.full((32,), 36), torch.full((32,), 6)
    for rows in batches(torch.arange(len(frames)), 32, int(400 * part), generator):
        descend(F.ctc_loss(net(frames[rows]).transpose(0, 1), labels[rows], *lengths), optimizer)
    net.eval()
    frames, labels = sequences(300, Generator().manual_seed(1000 + seed))
    with torch.no_grad():
        paths = net(frames).argmax(2)
    errors = [edits(path.unique_consecutive(), label) for path, label in zip(paths, labels, strict=True)]
    return 100 * sum(errors) / labels.numel()


def edits(path: Tensor, label: Tensor) -> int:
    """Return the edit distance of a path without blanks to a label."""
    found, wanted = [c for c in path.tolist() if c], label.tolist()
    row = list(range(len(wanted) + 1))
    for i, c in enumerate(found, 1):
        last, row[0] = row[0], i
        for j, w in enumerate(wanted, 1):
            last, row[j] = row[j], min(last + (c != w), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def equation(seed: int, make: Make, part: float) -> float:
    """Return the relative error of the solution of -u'' + u = f with two frequencies, u(-1) = u(1) = 0."""
    generator = Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = make(net)
    ends = torch.tensor([[-1.0], [1.0]])
    for _ in range(int(2500 * part)):
        x = (2 * torch.rand(64, 1, generator=generator) - 1).requires_grad_()
        u = net(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        f = (pi**2 + 1) * (pi * x).sin() + (16 * pi**2 + 1) / 4 * (4 * pi * x).sin()
        descend((u - ddu - f).square().mean() + 100 * net(ends).square().mean(), optimizer)
    net.eval()
    x = torch.linspace(-1, 1, 401)[:, None]
    truth = (pi * x).sin() + (4 * pi * x).sin() / 4
    with torch.no_grad():
        return 100 * float((net(x) - truth).norm() / truth.norm())


# An agent that acts while it learns.


def ppo(env: str, steps: int, envs: int = 8, **options: Any) -> Callable[[int, Any, float], float]:
    """Return a task that trains PPO, and measures the mean return of 20 episodes.

    Args:
        env: the environment's name.
        steps: the number of steps, of all environments together.
        envs: the number of environments that the agent acts in.
        **options: those of Stable-Baselines3's PPO.
    """

    def run(seed: int, method: Any, part: float) -> float:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy

        def make(count: int, seed: int) -> Any:
            # With Stable-Baselines3's default, "rgb_array", LunarLander also simulates the sparks of its
            # engines, which can take most of the time.
            return make_vec_env(env, count, seed=seed, env_kwargs={"render_mode": None})

        agent = PPO("MlpPolicy", make(envs, seed), seed=seed, device="cpu", **options, **method.agent())
        try:
            agent.learn(int(steps * part))
        except ValueError as error:  # of torch.distributions, for logits that are nan
            if "nan" not in str(error):
                raise
            return float("nan")
        return float(evaluate_policy(agent, make(8, 1000 + seed), n_eval_episodes=20)[0])

    return run


TASKS: dict[str, Task] = {
    "contrastive": Task(contrastive, "accuracy of a linear probe with 100 labels, %", 100),
    "gan": Task(gan, "Fréchet distance", 0, higher=False),
    "diffusion": Task(diffusion, "Fréchet distance", 0, higher=False),
    "segmentation": Task(segmentation, "intersection over union, %", 100),
    "ctc": Task(ctc, "label error rate, %", 0, higher=False),
    "equation": Task(equation, "relative error, %", 0, higher=False),
    "cartpole": Task(
        ppo("CartPole-v1", 32_768, n_steps=128, batch_size=256, n_epochs=8, gamma=0.98, gae_lambda=0.8),
        "return, at most 500",
        500,
    ),
    "lunarlander": Task(
        ppo(
            "LunarLander-v3",
            262_144,
            envs=16,
            n_steps=256,
            batch_size=64,
            n_epochs=4,
            gamma=0.999,
            gae_lambda=0.98,
            ent_coef=0.01,
        ),
        "return, solved at 200",
        300,
    ),
}
