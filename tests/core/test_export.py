"""What a trained model is exported as: a plain network that is right, or a warning that it is not."""

import copy
import io
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp, observe, target_for
from torch import nn

import alrao


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x).tanh())


@pytest.mark.filterwarnings("ignore:the weights of the output layer 'out' are tied")
def test_the_collapsed_form_of_a_tied_network_comes_with_a_remedy():
    model = alrao.Alrao(Tied(), 3)
    with pytest.warns(UserWarning, match="the outputs are wrong") as caught:
        plain = model.collapse()
    x = torch.randint(9, (5,))
    wrong, net = Tied(), Tied()
    wrong.load_state_dict(plain.state_dict())
    assert not torch.allclose(wrong(x), plain(x)), "what the warning is about"
    (remedy,) = re.findall(r"net\.out\.weight = .*$", str(caught[0].message))
    exec(remedy, {"net": net, "nn": nn})
    net.load_state_dict(plain.state_dict())
    assert torch.equal(net(x), plain(x))


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "bernoulli"])
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.(script|save|load)`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.(script|save|load)`:FutureWarning")
def test_the_mixture_can_be_scripted(likelihood, images):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)) if images else mlp()
    x = torch.randn(2, 1, 5, 5) if images else torch.randn(6, 4)
    model = alrao.Alrao(net, 3, likelihood=likelihood)
    observe(model, 0.0, -1.0, 0.5)
    plain = model.eval().collapse(mixture=True)
    scripted = torch.jit.script(plain)
    assert torch.equal(scripted(x), plain(x))
    torch.testing.assert_close(plain(x), model(x).as_subclass(torch.Tensor))


def test_a_pickled_model_loads_as_torch_says():
    model = alrao.Alrao(mlp(), 3)
    optimizer = alrao.SGD(model)
    x = torch.randn(6, 4)
    F.cross_entropy(model(x), target_for("categorical", x)).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="`weights_only` set to `False`"):
        torch.load(file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), model(x))
    assert torch.equal(copy.deepcopy(again).collapse()(x), model.collapse()(x))
