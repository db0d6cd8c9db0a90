"""What a network does with its output layer's outputs: followed exactly for every copy, or refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import alrao

ROWS, INPUTS, HIDDEN, OUTPUTS, COPIES = 6, 4, 8, 3, 3
NODES = torch.tensor([1, 0, 2, 2, 3, 1])
TO = NODES[:, None].expand(-1, OUTPUTS)
FOLLOWED = pytest.mark.filterwarnings("ignore:the output layer")
CHECKPOINTED = pytest.mark.filterwarnings("ignore:None of the inputs")  # torch's, under no_grad
LIKELIHOODS = ["categorical", "gaussian", "bernoulli"]


class Net(nn.Module):
    """A body, an output layer, and what follows it."""

    def __init__(self, after, inside=lambda output, z: output(z)):
        super().__init__()
        self.body = nn.Linear(INPUTS, HIDDEN)
        self.output = nn.Linear(HIDDEN, OUTPUTS)
        self.after, self.inside = after, inside

    def forward(self, x):
        return self.after(self.inside(self.output, self.body(x).tanh()))


def zeros(rows=ROWS):
    return torch.zeros(rows, OUTPUTS).double()


def in_rows(out):
    result = zeros()
    for i in range(ROWS):
        result[i] += out[i]
    return result


def by_index(out):
    result = zeros(4)
    result[torch.tensor([2, 0, 3])] = 2 * out[:3]
    return result


def to_sum(out):
    result = zeros()
    result += out
    result *= 2
    return result


AFTER = {
    # what graph layers do: PyG's GCNConv and GATConv
    "scatter_add_ into new_zeros": lambda out: out.new_zeros(4, OUTPUTS).scatter_add_(0, TO, out),
    "index_add_ into new_zeros": lambda out: out.new_zeros(4, OUTPUTS).index_add_(0, NODES, out),
    "scatter_add_ into zeros": lambda out: zeros(4).scatter_add_(0, TO, out),
    "index_add_ into zeros": lambda out: zeros(4).index_add_(0, NODES, out),
    "scatter_add": lambda out: zeros(4).scatter_add(0, TO, out),
    "index_add": lambda out: zeros(4).index_add(0, NODES, out),
    "scatter_reduce_": lambda out: zeros(4).scatter_reduce_(0, TO, out, "mean", include_self=False),
    "index_put_": lambda out: zeros(4).index_put_((NODES,), out, accumulate=True),
    "masked_scatter_": lambda out: zeros().masked_scatter_(torch.ones(ROWS, OUTPUTS).bool(), out),
    "index_copy_": lambda out: zeros().index_copy_(0, torch.arange(ROWS), out),
    "copy_ into zeros_like": lambda out: torch.zeros_like(out).copy_(out),
    "copy_ into zeros": lambda out: zeros().copy_(out),
    "+= of a row": in_rows,
    "= at an index": by_index,
    "+= of all": to_sum,
    "cat with others": lambda out: torch.cat([zeros(2), out]),
    "where": lambda out: torch.where(torch.arange(ROWS)[:, None] > 1, out, zeros()),
    "divided by what is detached": lambda out: out / out.detach().abs().amax(1, keepdim=True),
    "checkpoint": lambda out: checkpoint(lambda x: x * 2, out, use_reentrant=False),
}


def converted(net, likelihood, **options):
    model = alrao.Alrao(net, COPIES, likelihood=likelihood, **options)
    model.head.averaging.update([0.0, 1.0, -2.0])
    return model


def scores(out, y, likelihood):
    """Log-likelihoods under a plain network."""
    if likelihood == "categorical":
        return out.log_softmax(1)[range(len(y)), y]
    y = F.one_hot(y, OUTPUTS).double()
    return -(out - y).square().sum(1) / 2 if likelihood == "gaussian" else F.logsigmoid((2 * y - 1) * out)


def loss_of(out, y, likelihood):
    if likelihood == "categorical":
        return F.cross_entropy(out, y)
    y = F.one_hot(y, OUTPUTS).double()
    return (alrao.MixtureMSELoss(full=True) if likelihood == "gaussian" else nn.BCEWithLogitsLoss())(out, y)


@FOLLOWED
@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", AFTER)
def test_every_copy_trains_as_a_plain_network_would(name, likelihood, named):
    torch.manual_seed(0)
    net, x = Net(AFTER[name]).double(), torch.randn(ROWS, INPUTS).double()
    y = torch.arange(len(net(x))) % OUTPUTS
    model = converted(net, likelihood, output="output" if named else None)
    loss_of(model(x), y, likelihood).backward()

    plain = [copy.copy(net) for _ in range(COPIES)]
    for j, each in enumerate(plain):
        each._modules = {**net._modules, "output": model.head.layer(j)}
    own = torch.stack([scores(each(x), y, likelihood) for each in plain])
    log_a = model.head.averaging.weights.log().view([-1] + [1] * (own.ndim - 1))
    mixture = -(own + log_a).logsumexp(0).mean()
    body = torch.autograd.grad(mixture, [net.body.weight, net.body.bias], retain_graph=True)
    torch.testing.assert_close((net.body.weight.grad, net.body.bias.grad), body)
    for j, each in enumerate(plain):
        (grad,) = torch.autograd.grad(-own[j].mean(), each.output.weight, retain_graph=True)
        torch.testing.assert_close(model.head.weight.grad[j], grad)
    alrao.SGD(model).step()


@FOLLOWED
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", AFTER)
def test_a_kept_output_is_the_networks(name, likelihood):
    net, x = Net(AFTER[name]).double(), torch.randn(ROWS, INPUTS).double()
    expected = net(x).detach()
    out = converted(net, likelihood, keep_output=True)(x).detach().as_subclass(torch.Tensor)
    if likelihood == "categorical":
        expected, out = expected.log_softmax(1), out.log_softmax(1)
    torch.testing.assert_close(out, expected)


def test_a_masked_class_keeps_its_logit():
    net = Net(lambda out: out.masked_fill(torch.arange(OUTPUTS) == 1, -torch.inf))
    with pytest.warns(UserWarning, match="followed by Tensor.masked_fill"):
        out = alrao.Alrao(net, COPIES)(torch.randn(ROWS, INPUTS))
    assert (out.detach().as_subclass(torch.Tensor)[:, 1] == -torch.inf).all()


# What cannot be followed.


def of_a_view(out):
    out = out * 1
    out.view(-1).add_(torch.arange(float(ROWS * OUTPUTS)))
    return out


def of_a_view_in_another_shape(out):
    out.view(-1).add_(torch.arange(float(ROWS * OUTPUTS)))
    return out


@FOLLOWED
@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("after", [of_a_view, of_a_view_in_another_shape])
def test_a_change_of_a_view_in_place_is_refused_at_the_first_output(after, likelihood, named):
    net = Net(after)
    model = alrao.Alrao(net, COPIES, likelihood=likelihood, output="output" if named else None)
    for _ in range(2):  # and it stays refused
        with pytest.raises(ValueError, match=r"is not what the plain network returns.*alrao\.Auto\(net\)"):
            model(torch.randn(ROWS, INPUTS))
    assert not model.head.spread


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g


def reentrant(function):
    return lambda *args: checkpoint(function, *args, use_reentrant=True)


GRAPHLESS = {
    "a function": Net(Double.apply),
    "a function beside the output": Net(lambda out: out + Double.apply(out)),
    "a function, then a softmax": Net(lambda out: Double.apply(out).log_softmax(1)),
    "a function, then another operation": Net(lambda out: Double.apply(out) * 2),
    "re-entrant checkpointing after it": Net(reentrant(lambda out: out * 2)),
    "re-entrant checkpointing around both": Net(
        lambda out: out, lambda output, z: checkpoint(lambda z: output(z) * 2, z, use_reentrant=True)
    ),
}


@FOLLOWED
@CHECKPOINTED
@pytest.mark.parametrize("first", ["training", "evaluation"])
@pytest.mark.parametrize("name", GRAPHLESS)
def test_outputs_without_a_graph_are_refused(name, first):
    model, x = alrao.Alrao(copy.deepcopy(GRAPHLESS[name]), COPIES), torch.randn(ROWS, INPUTS)
    if first == "evaluation":
        with torch.no_grad():
            model(x)
    with pytest.raises(RuntimeError, match=r"no gradient would reach the copies.*use_reentrant=False"):
        F.cross_entropy(model(x), torch.arange(ROWS) % OUTPUTS).backward()


@CHECKPOINTED
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("after", [Same.apply, reentrant(lambda out: out.view(ROWS, OUTPUTS))])
@pytest.mark.parametrize("first", ["training", "evaluation"])
def test_predictions_without_a_graph_are_refused(after, likelihood, first):
    model, x = alrao.Alrao(Net(after), COPIES, likelihood=likelihood), torch.randn(ROWS, INPUTS)
    if first == "evaluation":
        with torch.no_grad():
            model(x)
    with pytest.raises(RuntimeError, match=r"no gradient would reach the copies.*use_reentrant=False"):
        loss_of(model(x), torch.arange(ROWS) % OUTPUTS, likelihood).backward()


@pytest.mark.parametrize(
    "net",
    [
        lambda: Net(Same.apply),
        lambda: Net(reentrant(lambda out: out.view(ROWS, OUTPUTS))),
        lambda: Net(lambda out: out, lambda output, z: checkpoint(output, z, use_reentrant=True)),
    ],
    ids=["function", "re-entrant after it", "re-entrant around it"],
)
def test_a_classifier_in_other_shapes_trains_through_both(net):
    torch.manual_seed(0)
    model, x, y = alrao.Alrao(net().double(), COPIES), torch.randn(ROWS, INPUTS).double(), NODES % OUTPUTS
    same = Net(lambda out: out).double()
    same.load_state_dict(model.collapse().state_dict())
    direct = alrao.Alrao(same, COPIES)
    direct.load_state_dict(model.state_dict())
    for each in (model, direct):
        F.cross_entropy(each(x), y).backward()
    for ours, theirs in zip(model.parameters(), direct.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    alrao.SGD(model).step()


@FOLLOWED
def test_evaluation_of_a_custom_function_is_the_mixture():
    model, x = alrao.Alrao(Net(Double.apply), COPIES, keep_output=True), torch.randn(ROWS, INPUTS)
    with torch.no_grad():
        torch.testing.assert_close(model(x).log_softmax(1), model.collapse()(x).log_softmax(1))


class Stateful(nn.Module):
    """Keeps a state as an attribute, and one in its argument; works in place on its input."""

    def __init__(self):
        super().__init__()
        self.body = nn.GRUCell(INPUTS, HIDDEN)
        self.output = nn.Linear(HIDDEN, OUTPUTS)
        self.state, self.calls = None, 0

    def forward(self, x, cache=None):
        self.calls += 1
        self.state = self.body(x.mul_(2), self.state)
        if cache is not None:
            cache.seen.append(self.calls)
        return F.dropout(self.output(self.state) / 2)


class Cache:
    def __init__(self):
        self.seen = []


@FOLLOWED
def test_a_repeated_first_pass_leaves_no_trace():
    torch.manual_seed(0)
    net = Stateful()
    plain, x, caches = copy.deepcopy(net), torch.randn(ROWS, INPUTS), (Cache(), Cache())
    model = alrao.Alrao(net, COPIES, keep_output=True)
    outputs = []
    for each, cache in zip((plain, model), caches, strict=True):
        torch.manual_seed(1)
        seen = x.clone()
        outputs.append([each(seen, cache).detach().as_subclass(torch.Tensor), torch.rand(()), seen])
        outputs[-1].append(each(x.clone()).detach().as_subclass(torch.Tensor))
    for ours, theirs in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert caches[0].seen == caches[1].seen == [1]
    assert net.calls == plain.calls == 2
