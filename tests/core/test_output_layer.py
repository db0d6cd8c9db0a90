"""Finding the output layer, and refusing what is not one."""

import pytest
import torch
import torch.nn.functional as F
from support.small import TRANSFORMER
from support.vision import torchvision
from torch import nn

import alrao


def mlp(outputs=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


class Recurrent(nn.Module):
    """Returns its state too, as language models do; the output layer is not the last module registered."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.decoder = nn.Linear(6, 7)
        self.lstm = nn.LSTM(5, 6, batch_first=True)

    def forward(self, tokens):
        hidden, state = self.lstm(self.embedding(tokens))
        return self.decoder(hidden), state


class OutOfOrder(nn.Module):
    def __init__(self):
        super().__init__()
        self.answer = nn.Linear(8, 3)
        self.question = nn.Linear(4, 8)

    def forward(self, x):
        return self.answer(self.question(x).tanh())


class Idle(nn.Module):
    """The last layer registered is never called."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.shape = nn.Linear(8, 3)
        self.colour = nn.Linear(8, 5)

    def forward(self, x):
        z = self.body(x).tanh()
        return self.shape(z), self.colour(z)


def assert_sums_to_1(log_p, dim=-1):
    torch.testing.assert_close(log_p.exp().sum(dim), torch.ones_like(log_p.sum(dim)))


class LinearOfAnother(nn.Linear):
    """As in timm: the same, written again."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class NoLinear(nn.Module):
    """As in PyTorch Geometric: no subclass of torch.nn.Linear, but the same."""

    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class NormalisedLinear(nn.Linear):
    """Computes something else."""

    def forward(self, x):
        return F.linear(F.normalize(x), F.normalize(self.weight), self.bias)


# Finding it.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [LinearOfAnother, NoLinear])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_linear_layer_of_another_package(kind, bias, device):
    net = nn.Sequential(nn.Linear(4, 8), kind(8, 3, bias=bias)).to(device)
    with torch.no_grad():
        net[1].weight.zero_()  # as some networks start
    model = alrao.Alrao(net, 3)
    assert model.output_name == "1"
    if device == "cpu":
        assert_sums_to_1(model(torch.randn(6, 4)))
        assert model.collapse()(torch.randn(6, 4)).shape == (6, 3)


def test_a_layer_that_only_looks_linear_is_refused_by_its_full_name():
    net = nn.Sequential(nn.Linear(4, 8), NormalisedLinear(8, 3))
    with torch.no_grad():
        net[1].weight.zero_()
    assert alrao.Alrao(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), NormalisedLinear(8, 3))).output_name == "0"
    with pytest.raises(ValueError, match=r"'1' is a test_output_layer\.NormalisedLinear, which computes"):
        alrao.Alrao(net, output="1")


def test_the_last_linear_of_an_mlp():
    net = mlp()
    model = alrao.Alrao(net, 4)
    assert net[2] is model.head
    assert model.output_name == "2"
    assert model.head.weight.shape == (4, 3, 8)
    assert model.head.bias.shape == (4, 3)
    assert_sums_to_1(model(torch.randn(6, 4)))


def test_a_tuple_with_the_state_of_an_lstm():
    model = alrao.Alrao(Recurrent())
    log_p, (h, c) = model(torch.randint(7, (2, 9)))
    assert model.output_name == "decoder"
    assert log_p.shape == (2, 9, 7)
    assert h.shape == c.shape == (1, 2, 6)
    assert_sums_to_1(log_p)


def test_a_network_that_is_a_linear_layer():
    layer = nn.Linear(4, 3)
    model = alrao.Alrao(layer, 5)
    assert model.net is model.head
    assert_sums_to_1(model(torch.randn(2, 4)))
    assert isinstance(model.collapse(), nn.Linear)


@pytest.mark.parametrize(("conv", "size"), [(nn.Conv1d, (6,)), (nn.Conv2d, (6, 5)), (nn.Conv3d, (2, 3, 4))])
def test_a_convolution_of_kernel_size_1(conv, size):
    model = alrao.Alrao(nn.Sequential(conv(2, 4, 3, padding=1), nn.ReLU(), conv(4, 3, 1)), 3)
    log_p = model(torch.randn(2, 2, *size))
    assert model.head.weight.shape == (3, 3, 4)
    assert log_p.shape == (2, 3, *size)
    assert_sums_to_1(log_p, 1)


def test_grouped_convolutions_are_no_output():
    with pytest.raises(ValueError, match="no output layer"):
        alrao.Alrao(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 2, 1, groups=2)))


def test_a_convolution_that_looks_further_is_no_output():
    with pytest.raises(ValueError, match=r"no output layer.*neither a Linear layer nor a 1x1"):
        alrao.Alrao(nn.Conv2d(4, 3, 3))
    with pytest.raises(ValueError, match=r"'1' is a Conv2d, which computes something else"):
        alrao.Alrao(nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 3, 1, padding=1)), output="1")
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 4), nn.Conv2d(1, 3, 3))
    assert alrao.Alrao(net).output_name == "2"


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("resnet18", "fc"),
        ("vgg11", "classifier.6"),
        ("alexnet", "classifier.6"),
        ("densenet121", "classifier"),
        ("mobilenet_v2", "classifier.1"),
        ("mobilenet_v3_small", "classifier.3"),
        ("efficientnet_b0", "classifier.1"),
        ("shufflenet_v2_x0_5", "fc"),
        ("mnasnet0_5", "classifier.1"),
        ("convnext_tiny", "classifier.2"),
        ("vit_b_16", "heads.head"),
        ("swin_t", "head"),
    ],
)
def test_torchvision_classifiers(name, output):
    with torch.device("meta"):
        model = alrao.Alrao(torchvision.models.get_model(name), 3)
        log_p = model(torch.empty(2, 3, 224, 224))
    assert model.output_name == output
    assert log_p.shape == (2, 1000)


@pytest.mark.parametrize(("name", "size"), [("googlenet", 224), ("inception_v3", 299)])
def test_auxiliary_logits_of_torchvision_are_no_rivals(name, size):
    with torch.device("meta"):
        net = torchvision.models.get_model(name, init_weights=False, aux_logits=True)
        model = alrao.Alrao(net.train(), 3)
        out = model(torch.empty(2, 3, size, size))
    assert model.output_name == "fc"
    assert out.logits.shape == (2, 1000)
    assert set(out._fields) >= {"logits"}
    assert len([part for part in out if part is not None]) > 1


@pytest.mark.parametrize("training", [True, False])
def test_squeezenet(training):
    # What its 1x1 convolution returns goes through a ReLU and a mean: each copy's does.
    model = alrao.Alrao(torchvision.models.squeezenet1_1().train(training), 3)
    x = torch.randn(2, 3, 64, 64)
    with (
        pytest.warns(UserWarning, match=r"'classifier.1' is followed by relu"),
        torch.set_grad_enabled(training),
    ):
        out = model(x)
    assert out.shape == (2, 1000)
    assert_sums_to_1(out.log_softmax(1))


@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
def test_hugging_face_classifiers(kind):
    transformers = pytest.importorskip("transformers", reason="needs alrao[huggingface]")

    if kind == "DistilBert":
        config = transformers.DistilBertConfig(
            dim=16, n_layers=1, n_heads=2, hidden_dim=16, vocab_size=30, num_labels=3
        )
    else:
        config = transformers.BertConfig(num_labels=3, **TRANSFORMER)
    net = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    model = alrao.Alrao(net, 4)
    labels = torch.tensor([0, 1, 2, 0])
    out = model(input_ids=torch.randint(30, (4, 7)), labels=labels)
    assert model.output_name == "classifier"
    assert model.config is config
    assert_sums_to_1(out.logits)
    by_hand = -out.logits.detach()[range(4), labels].mean()
    torch.testing.assert_close(out.loss.detach(), by_hand)


def test_tied_weights_are_untied_with_a_warning():
    transformers = pytest.importorskip("transformers", reason="needs alrao[huggingface]")

    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=True, **TRANSFORMER))
    embedding = net.model.embed_tokens.weight
    assert net.lm_head.weight is embedding
    with pytest.warns(UserWarning, match=r"lm_head.*tied to model\.embed_tokens\.weight"):
        model = alrao.Alrao(net, 4)
    optimizer = alrao.SGD(model)
    before, copies = embedding.detach().clone(), model.head.weight.detach().clone()
    tokens = torch.randint(30, (4, 7))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    assert net.model.embed_tokens.weight is embedding
    assert not torch.equal(embedding, before)
    assert all(not torch.equal(now, then) for now, then in zip(model.head.weight, copies, strict=True))


# Choosing it, and what is refused.


@pytest.mark.parametrize("by", ["name", "module"])
def test_output_chosen(by):
    net = TwoHeads()
    model = alrao.Alrao(net, 3, output="shape" if by == "name" else net.shape)
    shape, colour = model(torch.randn(2, 4))
    assert net.shape is model.head
    assert isinstance(net.colour, nn.Linear)
    assert_sums_to_1(shape)
    assert colour.shape == (2, 5)


def test_wrong_registration_order_is_found_out_in_the_first_forward():
    model = alrao.Alrao(OutOfOrder(), 3)
    for _ in range(2):  # and it stays refused
        with pytest.raises(ValueError, match=r"(?s)'question'.*output=.*answer: Linear"):
            model(torch.randn(2, 4))
    assert_sums_to_1(alrao.Alrao(OutOfOrder(), 3, output="answer")(torch.randn(2, 4)))


@pytest.mark.parametrize("output", [None, "unused"])
def test_a_layer_that_is_not_used_is_found_out(output):
    model = alrao.Alrao(Idle(), 3, output=output)
    with pytest.raises(ValueError, match=r"(?s)'unused'.*not used.*output=.*used: Linear"):
        model(torch.randn(2, 4))


@pytest.mark.parametrize("output", [None, "1"])
def test_a_linear_layer_with_a_forward_of_its_own_is_refused(output):
    # Plain linear copies in its place would compute something else, in silence.
    class Cosine(nn.Linear):
        def forward(self, z):
            return F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=-1))

    with pytest.raises(ValueError, match=r"Cosine|output layer"):
        alrao.Alrao(nn.Sequential(nn.Linear(4, 8), Cosine(8, 3)), 3, output=output)(torch.randn(2, 4))


@pytest.mark.parametrize("parametrized", [False, True])
def test_two_heads_are_ambiguous(parametrized):
    net = TwoHeads()
    if parametrized:
        nn.utils.parametrizations.weight_norm(net.shape)
    model = alrao.Alrao(net, 3)
    with pytest.raises(ValueError, match=r"several layers, 'colour' and \['shape'\].*output="):
        model(torch.randn(2, 4))


@pytest.mark.parametrize(
    ("net", "arguments", "error", "message"),
    [
        (lambda: nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4)), {}, ValueError, "no output layer"),
        (lambda: mlp().forward, {}, TypeError, "nn.Module, got method"),
        (lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)), {}, ValueError, "lazy layers.*a batch"),
        (lambda: mlp(1), {}, ValueError, "(?s)single output.*'bernoulli'.*'gaussian'"),
        (mlp, {"output": "3"}, ValueError, r"(?s)one layer.*got '3'.*\n  2: Linear.*\n  0: Linear"),
        (mlp, {"output": "1"}, ValueError, r"(?s)'1' is a Tanh.*\n  2: Linear.*\n  0: Linear"),
        (mlp, {"output": nn.Linear(8, 3)}, ValueError, "one layer of the network.*got a Linear"),
        (mlp, {"output": ["0", "2"]}, ValueError, r"output takes one layer.*got \['0', '2'\]"),
        (mlp, {"output": 2}, ValueError, "by dotted name or as a module, got 2"),
        (mlp, {"likelihood": "poisson"}, ValueError, "'categorical', 'gaussian', 'bernoulli', got 'poisson'"),
        (mlp, {"copies": 0}, ValueError, "copies must be.*got 0"),
        (mlp, {"copies": -3}, ValueError, "copies must be.*got -3"),
        (mlp, {"copies": 2.0}, ValueError, "copies must be.*got 2.0"),
        (mlp, {"copies": True}, ValueError, "copies must be.*got True"),
        (mlp, {"copies": "10"}, ValueError, "copies must be.*got '10'"),
        (mlp, {"copies": 4, "averaging": alrao.Switch(5)}, ValueError, "over 5 copies, but copies=4"),
        (mlp, {"averaging": "switch"}, TypeError, "Switch.*got 'switch'"),
    ],
)  # fmt: skip
def test_refused_with_the_network_unchanged(net, arguments, error, message):
    net = net()
    if not isinstance(net, nn.Module):
        with pytest.raises(error, match=message):
            alrao.Alrao(net, **arguments)
        return
    modules, parameters = dict(net.named_modules()), dict(net.named_parameters())
    values = {name: p.detach().clone() for name, p in parameters.items() if p.__class__ is nn.Parameter}
    with pytest.raises(error, match=message):
        alrao.Alrao(net, **arguments)
    assert dict(net.named_modules()) == modules
    assert all(p is parameters[name] for name, p in net.named_parameters())
    assert all(torch.equal(net.get_parameter(name), value) for name, value in values.items())


@pytest.mark.parametrize("which", ["model", "net", "inside another"])
def test_a_network_converted_already(which):
    model = alrao.Alrao(mlp(), 3)
    again = {"model": model, "net": model.net, "inside another": nn.Sequential(model, nn.Linear(3, 3))}[which]
    before = dict(again.named_modules())
    with pytest.raises(ValueError, match="converted already"):
        alrao.Alrao(again)
    assert dict(again.named_modules()) == before


class Twice(nn.Module):
    """A network whose output layer has two names."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)])
        self.out = self.layers[-1]

    def forward(self, x):
        return self.out(self.layers[0](x).relu())


@pytest.mark.parametrize("output", [None, "out", "layers.1", Twice])
def test_an_output_layer_with_two_names(output):
    net = Twice()
    model = alrao.Alrao(net, output=net.out if output is Twice else output)
    assert model.net.out is model.net.layers[1] is model.head
    optimizer = alrao.SGD(model)
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    plain = model.collapse()
    assert plain.out is plain.layers[1]
    assert plain(x).shape == (8, 3)
    model.load_state_dict(model.state_dict())
