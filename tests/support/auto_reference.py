"""Auto as it is written down: explicit x, y and z, one weight tensor at a time. Slow, for comparison."""

import torch


class SlowAuto:
    """The algorithm over a dictionary of weights, in double precision.

    Args:
        weights: the start, by name.
        head: names of the weights of the head, whose first axis is that of the copies.
        matrices: names of the hidden matrices.
        longest: steps of a search that finds nothing.
        steady: steps after the search at the rate found.
    """

    def __init__(
        self,
        weights,
        head,
        matrices,
        *,
        longest=500,
        weight_decay=0.0,
        beta=0.5,
        beta2=0.99,
        eps=1e-8,
        steady=1000,
    ):
        self.y = {name: w.clone() for name, w in weights.items()}
        self.start = {name: w.clone() for name, w in weights.items()}
        self.x = {name: w.clone() for name, w in weights.items()}
        self.z = None
        self.v = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.m = {name: torch.zeros_like(weights[name]) for name in matrices}
        self.head, self.longest, self.steady = head, longest, steady
        self.weight_decay, self.beta, self.beta2, self.eps = weight_decay, beta, beta2, eps
        self.t, self.k, self.squares = 0, 0, 0.0
        self.d, self.gained, self.size, self.noted = 1e-6, 0.0, 0.0, (1e-6, 0)
        self.searching = True

    @property
    def settled(self):
        return self.d > 3e-5 and self.t - self.noted[1] >= 20

    @property
    def eta(self):
        if self.searching:
            return min(6 * self.d, 0.1)
        return self.found * (self.steady / max(self.k, self.steady)) ** 0.5

    @property
    def found(self):
        return min((0.034 * max(self.d, 3e-5)) ** 0.5, 0.1)

    def rate(self, name):
        if self.searching or name not in self.head:
            return torch.tensor(self.eta, dtype=torch.float64)
        copies = len(self.y[name])
        grid = [0.01 * 100 ** (j / (copies - 1)) * self.eta for j in range(copies)]
        return torch.tensor(grid, dtype=torch.float64).view([-1] + [1] * (self.y[name].ndim - 1))

    def step(self, grads, factor=1.0):
        self.t += 1
        if self.searching:
            self.squares += self.t**2
            self.estimate(grads)
        else:
            self.k += 1
            self.squares += self.k**2
        for name, g in grads.items():
            y, rate = self.y[name], self.rate(name) if self.searching else factor * self.rate(name)
            output = name in self.head and y.ndim > 2 and not self.searching
            if name in self.m and not self.searching:
                moves = 5 if self.k >= 5 and self.k % 5 == self.turn(name) else 0
                decay = rate * min(self.weight_decay, 1 / (5 * self.found)) * y
                delta = moves * (decay + rate * self.matrix_step(name, g))
            else:
                self.v[name] = self.beta2 * self.v[name] + (1 - self.beta2) * g**2
                delta = rate * g / ((self.v[name] / (1 - self.beta2**self.t)).sqrt() + self.eps)
                delta = delta + output * rate * min(self.weight_decay, 1 / (5 * self.found)) * y
            if self.searching:
                self.y[name] = y - delta
                self.x[name] = self.x[name] + self.t**2 / self.squares * (self.y[name] - self.x[name])
            else:
                self.z[name] = self.z[name] - delta
                self.x[name] = self.x[name] + self.k**2 / self.squares * (self.z[name] - self.x[name])
                self.y[name] = (1 - self.beta) * self.z[name] + self.beta * self.x[name]
        if self.searching and self.ends:
            self.searching, self.squares = False, 0.0
            self.y = {name: x.clone() for name, x in self.x.items()}
            self.z = {name: x.clone() for name, x in self.x.items()}

    def turn(self, name):
        """The place of a matrix in the period of five: that of its shape among all."""
        sides = {name: tuple(sorted(m.flatten(1).shape)) for name, m in self.m.items()}
        return sorted(set(sides.values())).index(sides[name]) % 5

    def matrix_step(self, name, g):
        self.m[name] = 0.95 * self.m[name] + 0.05 * g
        a, b, c = 3.4445, -4.7750, 2.0315
        X = (0.95 * self.m[name] + 0.05 * g).flatten(1)
        X = X / X.square().sum().sqrt()
        for _ in range(5):
            A = X @ X.T
            X = a * X + (b * A + c * A @ A) @ X
        return 0.2 * max(X.shape) ** 0.5 * X.view(g.shape)

    def estimate(self, grads):
        """Move the estimate of the distance with the gradients at the present weights; for the next step."""
        eta, gained, size = self.eta, 0.0, 0.0
        for name, g in grads.items():
            way, share = self.start[name] - self.y[name], 1 / len(g) if name in self.head else 1
            v = self.v[name] / (1 - self.beta2 ** max(1, self.t - 1))
            gained += share * float((g * way).sum())
            size += share * float((way.abs() * v.sqrt()).sum())
        self.next = 0.98 * self.gained + eta * gained, max(0.98 * self.size, size)

    @property
    def ends(self):
        self.gained, self.size = self.next
        if self.size > 0:
            self.d = max(self.d, min(1.3 * self.d, self.gained / self.size))
        if self.d > 1.05 * self.noted[0]:
            self.noted = self.d, self.t
        return (self.settled and self.t >= 50) or self.t >= self.longest

    def average(self, name):
        return self.x[name]
