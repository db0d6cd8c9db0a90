"""What happens when: each mistake works, or is answered by one sentence with the remedy."""

import re
import warnings
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau

import alrao

torch.manual_seed(0)
X = torch.randn(256, 12)
Y = X[:, :3].argmax(1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))


def train(model, optimizer, steps=60, x=X):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(x), (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), Y[rows]).backward()
        optimizer.step()
    return loss(model, x)


def loss(model, x=X):
    with torch.no_grad():
        return F.cross_entropy(model(x).float(), Y).item()


def trained(wrapped=True, steps=60):
    model = alrao.Alrao(network()) if wrapped else network()
    optimizer = alrao.Auto(model, steps=60)  # a search of 18
    train(model, optimizer, steps)
    return model, optimizer


def optimizer_before_conversion():
    net = network()
    optimizer = alrao.Auto(net)
    train(alrao.Alrao(net), optimizer, 2)


def parameters_before_conversion():
    net = network()
    optimizer = alrao.Auto(net.parameters())
    train(alrao.Alrao(net), optimizer, 4)


def optimizer_of_torch_before_conversion():
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    train(alrao.Alrao(net), optimizer, 4)


def training_in_evaluation_mode():
    model, optimizer = trained()
    model.eval()
    train(model, optimizer, 12)


def training_in_evaluation_mode_of_a_plain_network():
    model, optimizer = trained(wrapped=False)
    model.eval()
    train(model, optimizer, 12)


def evaluation_in_training_mode():
    model, _ = trained()
    for _ in range(12):
        loss(model)


def short_evaluations_in_training_mode():
    model, optimizer = trained()
    for _ in range(12):
        train(model, optimizer, 2)  # and one pass without gradients


def evaluation_of_a_plain_network_in_training_mode():
    model, _ = trained(wrapped=False)
    for _ in range(12):
        loss(model)


def acting_while_learning():
    net = network()
    optimizer = alrao.Auto(net, steps=60, swap=False)
    train(net, optimizer)
    for _ in range(12):
        loss(net)


def passes_without_gradients_of_a_program_that_evaluates():
    for model, optimizer in (trained(), trained(wrapped=False)):
        model.eval(), model.train()
        for _ in range(12):
            train(model, optimizer, 1)


def rate_of_a_group():
    net = network()
    optimizer = alrao.Auto([{"params": net[0].parameters(), "lr": 1e-3}, {"params": net[2].parameters()}])
    train(net, optimizer)
    assert optimizer.interval(0) == (1e-3, 1e-3)


def learning_rate_of_adam():
    alrao.Auto(network(), lr=3e-4)


def decay_of_adam():
    alrao.Auto(network(), weight_decay=5e-4)


def decay_of_adam_in_groups():
    net = network()
    alrao.Auto([{"params": layer.parameters(), "weight_decay": 5e-4} for layer in (net[0], net[2])])


def frozen_random_body():
    net = network()
    model = alrao.Alrao(net)
    optimizer = alrao.Auto(model)
    net[0].requires_grad_(False)
    train(model, optimizer, 40)
    net[0].requires_grad_(True)
    train(model, optimizer, 100)
    assert optimizer.search.over
    assert optimizer.search.rate < 0.03


def body_unfrozen_after_the_search():
    net = network()
    optimizer = alrao.Auto(net, steps=60)
    net[0].requires_grad_(False)
    train(net, optimizer, 60)
    net[0].requires_grad_(True)
    train(net, optimizer, 2)


def plateau():
    model, optimizer = trained()
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(6):
        scheduler.step(1.0)
    train(model, optimizer, 1)


def linear_schedule_of_a_whole_run():
    model, optimizer = trained()
    scheduler = LinearLR(optimizer, 1.0, 0.05, total_iters=4)
    for _ in range(5):
        train(model, optimizer, 10)
        scheduler.step()


def half_precision_on_the_way():
    for wrapped in (True, False):
        model, optimizer = trained(wrapped)
        before = loss(model)
        model.bfloat16()
        assert train(model, optimizer, 30, X.bfloat16()) < 1.2 * before
        model.eval()
        assert loss(model, X.bfloat16()) < 1.2 * before


def state_of_copies_in_a_plain_network():
    model, _ = trained()
    network().load_state_dict(model.state_dict())


def training_weights_without_their_average():
    model, _ = trained()
    other = alrao.Alrao(network())
    other.load_state_dict(model.state_dict())
    other.eval()


def optimizer_of_torch():
    model = alrao.Alrao(network())
    train(model, torch.optim.AdamW(model.parameters()), 4)


def two_optimizers():
    net = network()
    older = alrao.Auto(net)
    alrao.Auto(net)
    train(net, older, 1)


def trainer_of_hugging_face(**options):
    from support import hf_models  # skips where transformers is missing

    model = alrao.Alrao(hf_models.classifier())
    optimizer = alrao.Auto(model)
    with TemporaryDirectory() as folder:
        made = hf_models.trainer(folder, model, optimizer, label_names=None, **options)
        made.train()
        return made.evaluate()


def evaluation_without_label_names():
    found = trainer_of_hugging_face(max_steps=4, lr_scheduler_type="constant")
    assert found["eval_loss"] > 0


def default_schedule_of_hugging_face():
    trainer_of_hugging_face(max_steps=60)


ANSWERS = {
    optimizer_before_conversion: (RuntimeError, r"alrao\.Alrao\(net\).*Build the optimizer after that"),
    parameters_before_conversion: (
        UserWarning,
        r"before alrao\.Alrao\(net\).*Build the optimizer after that",
    ),
    optimizer_of_torch_before_conversion: (UserWarning, r"AdamW was built before.*alrao\.Auto\(model\)"),
    training_in_evaluation_mode: (UserWarning, r"in evaluation mode.*call model\.train\(\)"),
    training_in_evaluation_mode_of_a_plain_network: (UserWarning, r"call model\.train\(\)"),
    evaluation_in_training_mode: (UserWarning, r"were in training mode.*call model\.eval\(\)"),
    short_evaluations_in_training_mode: (UserWarning, r"were in training mode.*call model\.eval\(\)"),
    evaluation_of_a_plain_network_in_training_mode: (UserWarning, r"call net\.eval\(\).*swap=False"),
    acting_while_learning: None,
    passes_without_gradients_of_a_program_that_evaluates: None,
    rate_of_a_group: None,
    learning_rate_of_adam: (UserWarning, r"lr=0\.0003.*not a learning rate.*Write 1\.0"),
    decay_of_adam: (UserWarning, r"weight_decay=0\.0005.*has no effect.*Leave it out"),
    decay_of_adam_in_groups: (UserWarning, r"weight_decay=0\.0005.*has no effect.*Leave it out"),
    frozen_random_body: None,
    body_unfrozen_after_the_search: (UserWarning, r"build a new alrao\.Auto when you unfreeze them"),
    plateau: (UserWarning, r"needs no schedule: leave the scheduler out"),
    linear_schedule_of_a_whole_run: (UserWarning, r"has fallen to .* leave the scheduler out"),
    half_precision_on_the_way: None,
    state_of_copies_in_a_plain_network: (RuntimeError, r"averaging\._state"),  # troubleshooting.md has it
    training_weights_without_their_average: (UserWarning, r"training weights.*call model\.eval\(\) before"),
    optimizer_of_torch: (UserWarning, r"AdamW of torch.*build alrao\.Auto\(model\) in its place"),
    evaluation_without_label_names: None,
    default_schedule_of_hugging_face: (UserWarning, r"at the end of Auto's search.*leave the scheduler out"),
    two_optimizers: (RuntimeError, r"step the newer one, or build one Auto for all parameters"),
}


@pytest.mark.parametrize("mistake", ANSWERS, ids=lambda mistake: mistake.__name__)
def test_what_happens_when(mistake):
    answer = ANSWERS[mistake]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            mistake()
            error = None
        except RuntimeError as raised:
            error = raised
    messages = [str(each.message) for each in said if issubclass(each.category, UserWarning)]
    if answer is None:
        assert (error, messages) == (None, [])
        return
    kind, pattern = answer
    found = messages if kind is UserWarning else [str(error)]
    assert len(found) == 1, found
    assert re.search(pattern, found[0], re.DOTALL), found
