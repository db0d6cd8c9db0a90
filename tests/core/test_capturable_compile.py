"""torch.compile takes a whole step as one graph, once, whatever changes."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_compile
from support.stepping import same, snapshot
from torch import nn
from torch._dynamo.utils import counters

import alrao

pytestmark = [
    needs_compile,
    pytest.mark.filterwarnings(
        "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
    ),
]

needs_traced_backward = pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch does not trace backward"
)

OPTIMIZERS = {
    "SGD": lambda model, **options: alrao.SGD(model, lr=(1e-4, 0.1), **options),
    "momentum": lambda model, **options: alrao.SGD(
        model, lr=(1e-4, 0.1), momentum=0.9, dampening=0.1, weight_decay=1e-2, **options
    ),
    "AdamW": lambda model, **options: alrao.AdamW(model, lr=(1e-5, 1e-2), **options),
    "Auto": lambda model, **options: alrao.Auto(model, steps=20, **options),
}


WHOLE = [name for name in OPTIMIZERS if name != "Auto"]
"""Those whose step is a graph; Auto's runs between graphs."""


@pytest.fixture(autouse=True)
def _freed():
    yield
    torch._dynamo.reset()
    gc.collect()


def build(optimizer, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = alrao.Alrao(net, 4)
    return model, OPTIMIZERS[optimizer](model, generator=torch.Generator().manual_seed(1), **options)


@pytest.mark.parametrize("optimizer", WHOLE)
def test_a_step_is_compiled_once(optimizer):
    torch._dynamo.reset()
    counters.clear()
    (model, ours), (eager, theirs) = build(optimizer, capturable=True), build(optimizer)
    step = torch.compile(ours.step, fullgraph=True, backend="aot_eager")
    generator = torch.Generator().manual_seed(2)
    for i in range(12):
        x, y = torch.randn(10, 6, generator=generator).double(), torch.randint(3, (10,), generator=generator)
        for net, chosen, update in ((model, ours, step), (eager, theirs, theirs.step)):
            chosen.zero_grad()
            F.cross_entropy(net(x), y).backward()
            update()
        factor = 1 / (1 + i)
        ours.param_groups[0]["lr"].fill_(factor)
        theirs.param_groups[0]["lr"] = factor
        if i == 6:
            for chosen in (ours, theirs):
                chosen.set_interval(body=(1e-4, 1e-3), copies=(1e-3, 1e-2))
    assert counters["stats"]["unique_graphs"] == 1
    ours, theirs = ([*each.parameters(), each.posterior] for each in (model, eager))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_compiled_step_refuses_a_loss_later():
    torch._dynamo.reset()
    model, optimizer = build("SGD", capturable=True)
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.randn(10, 6).double()).exp().sum().backward()
    step()
    assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(RuntimeError, match="earlier step"):
        optimizer.zero_grad()


@needs_traced_backward
@pytest.mark.parametrize("optimizer", WHOLE)
def test_forward_backward_and_step_are_one_graph(optimizer):
    torch._dynamo.reset()
    counters.clear()
    (model, ours), (eager, theirs) = build(optimizer, capturable=True), build(optimizer)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def train(x, y):
        F.cross_entropy(model(x), y).backward()
        ours.step()

    generator = torch.Generator().manual_seed(2)
    for _ in range(12):
        x, y = torch.randn(10, 6, generator=generator).double(), torch.randint(3, (10,), generator=generator)
        ours.zero_grad()
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            train(x, y)
        theirs.zero_grad()
        F.cross_entropy(eager(x), y).backward()
        theirs.step()
    assert counters["stats"]["unique_graphs"] == 1
    trained, expected = ([*each.parameters(), each.posterior] for each in (model, eager))
    for one, other in zip(trained, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("failed", [False, True])
def test_a_large_compiled_head_ignores_a_failed_copy(failed):
    torch._dynamo.reset()
    torch.manual_seed(0)
    copies, classes, d = 4, 64, 512  # so many weights that no masked copy of them is made
    models = [alrao.Alrao(nn.Linear(d, classes), copies)]
    with torch.no_grad():
        if failed:
            models[0].head.weight[1, 3, 5] = torch.inf
    models.append(copy.deepcopy(models[0]))
    z, y = torch.randn(6, d), torch.randint(classes, (6,))
    gradients = []
    for model, backend in zip(models, ("aot_eager", None), strict=True):
        x = z.clone().requires_grad_()
        run = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
        F.cross_entropy(run(x), y).backward()
        gradients.append([x.grad, model.head.weight.grad, model.head.evidence.grad])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert gradients[0][0].isfinite().all()
    assert gradients[0][0].any()


def gradients_of(model, z, y, backend):
    x = z.clone().requires_grad_()
    run = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
    loss = F.cross_entropy(run(x), y)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.head.parameters()), model.head.evidence.grad]


@pytest.mark.parametrize("failed", [None, -torch.inf, torch.nan])
@pytest.mark.parametrize("size", [(12, 8, 5), (12, 8, 40), (700, 200, 3)], ids=["few", "many", "large"])
def test_a_compiled_mixture_is_the_eager_one(size, failed):
    rows, d, classes = size  # few or many classes: two orders of the axes; a large batch is looked at
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Linear(d, classes), 4)
    z, y = torch.randn(rows, d), torch.randint(classes, (rows,))
    y[0] = -100
    model.head.averaging.update([-1.0, -3.0, -0.5, -2.0])
    if failed is not None:
        with torch.no_grad():
            model.head.bias[1, 2] = model.head.weight[2, 1, 3] = failed
            z[1, 0], z[2, 2] = failed, 1e25
    eager = copy.deepcopy(model)
    ours, theirs = gradients_of(model, z, y, "aot_eager"), gradients_of(eager, z, y, None)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert all(gradient.isfinite().all() for gradient in ours[:4])


@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "plain"])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "PerFeature"])
def test_a_compiled_step_that_reads_numbers_does_what_the_step_itself_does(optimizer, wrapped):
    """Without ``capturable``: graphs of parts of it would keep counts as constants."""
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        model = alrao.Alrao(net, 4) if wrapped else net
        if optimizer == "PerFeature":
            chosen = alrao.PerFeature(torch.optim.NAdam, model)
        else:
            chosen = OPTIMIZERS[optimizer](model)
        step = torch.compile(chosen.step, backend="aot_eager") if compiled else chosen.step
        generator = torch.Generator().manual_seed(2)
        for _ in range(12):
            x, y = torch.randn(10, 6, generator=generator), torch.randint(3, (10,), generator=generator)
            chosen.zero_grad()
            F.cross_entropy(model(x), y).backward()
            step()
        ends.append(snapshot(model, chosen))
    assert same(*ends)
