"""Algorithm 1 of the paper as it is written: slow, literal, in double precision.

The output layers are a Python list; each has one backward pass for its own loss, with the body detached, and
the body has one for the mixture's loss. Rates are tensors of the size of their parameters. The switch is the
recursion on ``wa`` and ``wb``, not in logarithms. Only the drawn rates and the initial weights come from the
library.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class ReferenceSwitch:
    """The posterior of the switch: ``wa`` may still switch, ``wb`` never will again."""

    def __init__(self, copies, theta=0.999):
        self.copies, self.theta, self.t = copies, theta, 1
        self.wa = torch.full((copies,), theta / copies, dtype=torch.float64)
        self.wb = torch.full((copies,), (1 - theta) / copies, dtype=torch.float64)

    @property
    def weights(self):
        return self.wa + self.wb

    def update(self, log_likelihood):
        p = log_likelihood.exp()
        wa, wb = self.wa * p, self.wb * p
        h = 1 / (self.t + 1)
        pool = h * wa.sum()
        wa = (1 - h) * wa + self.theta * pool / self.copies
        wb = wb + (1 - self.theta) * pool / self.copies
        total = (wa + wb).sum()
        self.wa, self.wb, self.t = wa / total, wb / total, self.t + 1


class ReferenceSGD:
    """torch's SGD, one parameter at a time, with a rate for every entry."""

    def __init__(self, params, rates, momentum=0.0, nesterov=False, weight_decay=0.0):
        self.params = list(params)
        self.rates = [rate.expand_as(p).clone() for p, rate in zip(self.params, rates, strict=True)]
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.velocity = [None] * len(self.params)

    @torch.no_grad()
    def step(self, grads):
        for i, (p, rate, grad) in enumerate(zip(self.params, self.rates, grads, strict=True)):
            g = grad + self.weight_decay * p
            if self.momentum:
                v = g.clone() if self.velocity[i] is None else self.momentum * self.velocity[i] + g
                self.velocity[i] = v
                g = g + self.momentum * v if self.nesterov else v
            p -= rate * g


class Reference:
    """A body, a list of output layers, and the switch, trained as in Algorithm 1.

    Args:
        model: an Alrao model whose network is ``net.out(net.body(x))``.
        optimizer: its optimizer, for the drawn rates.
        **sgd: momentum, nesterov, weight_decay.
    """

    def __init__(self, model, optimizer, **sgd):
        head, body = model.head, model.net.body
        self.body = copy.deepcopy(body)
        self.body_sgd = ReferenceSGD(
            self.body.parameters(), [optimizer.rates(p) for p in body.parameters()], **sgd
        )
        self.layers, self.layer_sgds = [], []
        for j in range(head.copies):
            layer = nn.Linear(head.weight.shape[2], head.weight.shape[1], dtype=torch.float64)
            layer.weight.data.copy_(head.weight[j].detach())
            layer.bias.data.copy_(head.bias[j].detach())
            rates = [optimizer.rates(head.weight)[j], optimizer.rates(head.bias)[j]]
            self.layers.append(layer)
            self.layer_sgds.append(ReferenceSGD(layer.parameters(), rates, **sgd))
        self.switch = ReferenceSwitch(head.copies)

    def step(self, x, y):
        """One step on the batch; returns the loss of the averaged model before the update."""
        z = self.body(x)

        own_grads, log_likelihood = [], []
        for layer in self.layers:  # each copy: its own loss, as if it were the only output
            own_loss = F.nll_loss(layer(z.detach()).flatten(0, -2).log_softmax(-1), y.flatten())
            own_grads.append(torch.autograd.grad(own_loss, list(layer.parameters())))
            log_likelihood.append(-own_loss.detach())

        mixture = sum(
            a * layer(z).flatten(0, -2).softmax(-1)
            for a, layer in zip(self.switch.weights, self.layers, strict=True)
        )
        loss = F.nll_loss(mixture.log(), y.flatten())
        body_grads = torch.autograd.grad(loss, list(self.body.parameters()))  # the body alone

        self.body_sgd.step(body_grads)
        for sgd, grads in zip(self.layer_sgds, own_grads, strict=True):
            sgd.step(grads)
        self.switch.update(torch.stack(log_likelihood))
        return loss.detach()

    def stacked(self, name):
        """The output layers' ``name`` in one tensor, copies first."""
        return torch.stack([getattr(layer, name).detach() for layer in self.layers])
