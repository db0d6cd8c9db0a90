"""Auto as it is written down: explicit x, y and z, plain numbers for the centre. Slow, for comparison."""

from math import exp, inf, log

import torch

LOW, HIGH = log(1e-6), log(0.1)


class SlowAuto:
    """The algorithm over a dictionary of weights, in double precision.

    Args:
        weights: the start, by name.
        places: the place of each feature in the interval, by name; copies of the head have none.
        copies: number of copies of the head.
        steps: steps of the search, counted in full.
        slowest: what a step counts while nothing is learned.
    """

    def __init__(
        self, weights, places, copies, *, steps=50, slowest=0.1, weight_decay=0.0, beta=0.7, beta2=0.99,
        eps=1e-8,
    ):  # fmt: skip
        self.y = {name: w.clone() for name, w in weights.items()}
        self.start = {name: w.clone() for name, w in weights.items()}
        self.x = self.z = None
        self.v = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.places, self.copies, self.T = places, copies, steps
        self.weight_decay, self.beta, self.beta2, self.eps = weight_decay, beta, beta2, eps
        self.t, self.k, self.squares = 0, 0, 0.0
        self.counted, self.learned, self.slowest = 0.0, 0.0, slowest
        self.centre = log(1e-3)
        self.R = self.first = None
        self.interval = (log(3e-4), log(3e-3))
        self.share, self.likeness, self.compared, self.last = 1.0, 0.0, 0, None

    def rate(self, name, weight):
        if name in self.places:
            low, high = self.interval
            return torch.exp(low + self.places[name] * (high - low))
        grid = [LOW + j * (HIGH - LOW) / (self.copies - 1) for j in range(self.copies)]
        return torch.tensor(grid, dtype=torch.float64).exp().view([-1] + [1] * (weight.ndim - 1))

    def step(self, grads, log_likelihoods, factor=1.0):
        self.t += 1
        searching = self.counted < self.T
        if not searching:
            self.k += 1
            self.squares += self.k**2
            if self.z is None:
                self.x = {name: y.clone() for name, y in self.y.items()}
                self.z = {name: y.clone() for name, y in self.y.items()}
        now = []
        beta = {
            name: 1 - self.share * (1 - self.beta) if name in self.places else self.beta for name in grads
        }
        for name, g in grads.items():
            y = self.y[name]
            rate = (1.0 if searching else factor) * self.rate(name, y)
            self.v[name] = self.beta2 * self.v[name] + (1 - self.beta2) * g**2
            direction = g / ((self.v[name] / (1 - self.beta2**self.t)).sqrt() + self.eps)
            delta = rate * direction + (rate * self.weight_decay).clamp(max=1) * y
            if searching:
                self.y[name] = y - delta
            else:
                self.z[name] = self.z[name] - delta
                self.x[name] = self.x[name] + self.k**2 / self.squares * (self.z[name] - self.x[name])
                self.y[name] = (1 - beta[name]) * self.z[name] + beta[name] * self.x[name]
                if name in self.places and y.ndim > 1:
                    now += [float(each.sum()) for each in rate / factor * direction]
        if not searching:
            self.turn(torch.tensor(now, dtype=torch.float64))
        if searching:
            pace = 1.0 if self.t == 1 else max(self.slowest, self.learned)
            self.counted = min(self.counted + pace, self.T)
            self.follow(log_likelihoods)

    def turn(self, now):
        if self.k % 4 == 2:
            self.cosine = float(torch.nn.functional.cosine_similarity(now, self.last, dim=0))
        if self.k % 4 == 0:
            self.compared += 1
            self.likeness += (self.cosine - self.likeness) / min(self.compared, 5)
            self.share = min(max(self.share * exp(self.likeness + 0.3), 0.1), 1.0)
        self.last = now

    def follow(self, log_likelihoods):
        seen = [x if abs(x) < inf else -50.0 for x in log_likelihoods]
        if self.t == 1:
            self.first, self.R = seen, [0.0] * len(seen)
        seen = [max(x, min(-50.0, 3 * min(self.first))) for x in seen]
        self.R = [R + (x - R) / min(self.t, 20) for R, x in zip(self.R, seen, strict=True)]
        gains = [R - x for R, x in zip(self.R, self.first, strict=True)]
        top = max(gains)
        G = max(top - gains[0], 1e-6)
        q = [exp(-(top - gain) / (0.1 * G)) for gain in gains]
        rates = [LOW + j * (HIGH - LOW) / (self.copies - 1) for j in range(self.copies)]
        m = sum(a * b for a, b in zip(q, rates, strict=True)) / sum(q)
        P = max(0.0, top)
        a = P**4 / (P**4 + (0.1 * abs(self.first[0])) ** 4)
        self.learned = max(self.learned, a)
        m = a * m + (1 - a) * max(m, log(1e-3))
        self.centre += (m - self.centre) / max(1.0, self.T / 4)
        if self.t % 5 == 0 or self.counted == self.T:
            self.move(self.counted / self.T)

    def move(self, s):
        width = log(10) + s * (log(1.5) - log(10))
        begun = (log(3e-4) + log(3e-3)) / 2
        middle = begun + s * (self.centre - begun)
        middle = max(LOW + width / 2, min(HIGH - width / 2, middle))
        before = {name: self.rate(name, self.y[name]) for name in self.places}
        self.interval = (middle, middle) if s == 1 else (middle - width / 2, middle + width / 2)
        for name, old in before.items():
            part = self.rate(name, self.y[name]) / old
            back = self.start[name] + (self.y[name] - self.start[name]) * part
            self.y[name] = torch.where(part < 1, back, self.y[name])

    def average(self, name):
        return self.y[name] if self.x is None else self.x[name]
