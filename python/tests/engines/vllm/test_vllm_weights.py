# SPDX-License-Identifier: Apache-2.0
"""Weights that change while vLLM runs: each text uses the weights at that moment."""

import shutil
import types

import pytest
from vllm_jobs import PROMPTS, TARGET, need_vllm, request, run

need_vllm()

import torch  # noqa: E402

ROUND = [
    *(request(prompt, 12) for prompt in PROMPTS),
    request(PROMPTS[0], 12, temperature=0.8, seed=7, top_k=50),
]
SCREEN = {"additional_config": {"gumbel": {"screen": True}}}
WAYS = ["reload_weights", "load_weights", "data", "parameter", "unseen"]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model of the same shape with other embeddings, which are also its head."""
    files = pytest.importorskip("safetensors.torch")
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(TARGET, folder)
    tensors = files.load_file(folder / "model.safetensors")
    weight = tensors["model.embed_tokens.weight"]
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    tensors["model.embed_tokens.weight"] = (weight.float() + noise / 20).to(weight.dtype)
    files.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("settings", [SCREEN, {}], ids=["screen", "plain"])
def test_texts_are_those_of_the_weights_of_the_moment(other, settings):
    """Changes the weights to the other model and back, in each way. A read changes nothing, so it
    must not rebuild the screen."""
    folders = [str(other), str(TARGET)]
    changes = {1 + at: [way, folders[at % 2]] for at, way in enumerate(WAYS)}
    changes[len(WAYS) + 1] = ["look", ""]
    job = run([ROUND] * (len(WAYS) + 2), changes=changes, **settings)
    wanted = run([ROUND], model=str(other)).ids(0)
    first = job.ids(0)
    assert first != wanted
    for at, way in enumerate(WAYS):
        assert job.ids(1 + at) == [wanted, first][at % 2], way
        assert job.counts(1 + at)["materialised"] == 0
    assert job.ids(len(WAYS) + 1) == job.ids(len(WAYS))
    rebuilds = len(WAYS) if settings else 0
    assert job.log.count("made again, as the weights have changed") == rebuilds


def test_prepared_calls_follow_weights_and_biases():
    """A replaced tensor, and values written in place, take effect at the next draw."""
    from gumbel._vllm import weights
    from gumbel._vllm.drawer import DrawParameters, Drawer
    from gumbel._vllm.lazy import LazyLogits

    def logits(weight, bias, scale=1.0):
        head = {"bias": bias, "scale": scale, "softcap": 0.0, "vocab_size": 100}
        return LazyLogits(hidden, weight, head, None)

    def greedy(*of):
        return drawer.draw(logits(*of), parameters).tokens.view(-1)

    drawer, hidden = Drawer(), torch.ones(2, 8)
    parameters = DrawParameters({"temperature": torch.zeros(2)})
    weight, bias = torch.zeros(100, 8), torch.zeros(100)
    weight[3], bias[9] = 1, 1
    assert greedy(weight, bias).tolist() == [3, 3]
    weight[5] = 2
    assert greedy(weight, bias).tolist() == [5, 5]
    other = torch.zeros(100)
    other[7] = 99
    assert greedy(weight, other).tolist() == [7, 7]
    assert greedy(weight, bias, -1.0).tolist() == [0, 0]
    assert greedy(weight.clone().neg_(), bias).tolist() == [9, 9]
    assert len(drawer.prepared) == 4
    weights.changed()
    assert not drawer.prepared and greedy(weight, bias).tolist() == [5, 5]


@pytest.mark.parametrize("name", ["sleep", "wake_up", "reload_weights", "any_method"])
def test_calls_of_a_worker_are_events_but_for_those_of_steps(name, monkeypatch):
    from gumbel._vllm import weights

    monkeypatch.setattr(weights.WorkerWrapperBase, "__getattr__", weights._getattr)
    wrapper = weights.WorkerWrapperBase()
    wrapper.worker = types.SimpleNamespace(**{name: lambda: 5}, sample_tokens=lambda: 6)
    before = weights.count_events()
    assert wrapper.sample_tokens() == 6 and weights.count_events() == before
    assert getattr(wrapper, name)() == 5 and weights.count_events() == before + 1
