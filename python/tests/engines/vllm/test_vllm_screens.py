# SPDX-License-Identifier: Apache-2.0
"""vLLM with the plugin and screens of heads, if its configuration enables them: the same texts,
and no product of vLLM's where it would be slower."""

import types

import pytest
from vllm_jobs import PROMPTS, RUNNERS, need_vllm, request, run

need_vllm()

import torch  # noqa: E402

GREEDY = [request(prompt, 24) for prompt in PROMPTS]
DRAWN = [
    request(prompt, 12, seed=seed, temperature=0.8, top_k=50, top_p=0.95)
    for prompt, seed in zip(PROMPTS, (7, 2**63 - 1, -3))
]
WITH_SCREEN = {"additional_config": {"gumbel": {"screen": True}}}


@pytest.mark.parametrize("runner", RUNNERS)
def test_texts_by_screens_are_texts_without(runner):
    without, job = run([GREEDY, DRAWN], runner), run([GREEDY, DRAWN], runner, **WITH_SCREEN)
    assert [job.ids(0), job.ids(1)] == [without.ids(0), without.ids(1)]
    assert job.counts(0)["fused"] == 24 and job.counts(0)["materialised"] == 0
    assert job.log.count("a screen of the head takes") == 1
    assert "a screen of the head" not in without.log


def layer_and_head(dtype, rows=3000):
    """Arguments of the hook, with stand-ins for vLLM's classes."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    layer = LogitsProcessor.__new__(LogitsProcessor)
    torch.nn.Module.__init__(layer)
    layer.logits_as_input, layer.scale, layer.soft_cap = False, 1.0, None
    layer.org_vocab_size = rows
    head = torch.nn.Module()
    head.quant_method, head.tp_size = UnquantizedEmbeddingMethod(), 1
    head.weight = torch.nn.Parameter(torch.randn(rows, 96).to(dtype) / 3, requires_grad=False)
    return layer, head


def lazily(monkeypatch, layer, head, hidden):
    """Results of the hook on hidden states; vLLM's own product would be counted."""
    from gumbel._vllm import lazy

    monkeypatch.setattr(
        lazy, "_stock", lambda _, head, hidden, bias: hidden.float() @ head.weight.float().T
    )
    with lazy.defer_products():
        return lazy._forward(layer, head, hidden)


@pytest.fixture
def enabled(monkeypatch):
    from gumbel._vllm import head_screens

    config = types.SimpleNamespace(additional_config={"gumbel": {"screen": True}})
    head_screens.configure(config)
    yield
    head_screens.configure(types.SimpleNamespace(additional_config={}))


def test_rows_of_16_bits_are_deferred_for_a_screen(monkeypatch, enabled):
    import gumbel
    from gumbel._vllm import lazy
    from gumbel._vllm.drawer import DrawParameters, Drawer, LogprobsRequest

    layer, head = layer_and_head(torch.bfloat16)
    hidden = torch.randn(5, 96).to(torch.bfloat16)
    assert not lazy.is_lazy(lazily(monkeypatch, layer, head, hidden))  # the head is in the caches
    monkeypatch.setattr(lazy, "CPU_CACHES", 0)
    many = torch.randn(9, 96).to(torch.bfloat16)
    assert not lazy.is_lazy(lazily(monkeypatch, layer, head, many))
    rows = {
        "temperature": torch.full((5,), 0.7),
        "seed": torch.arange(5),
        "position": torch.arange(5),
        "top_k": torch.full((5,), 40, dtype=torch.int32),
    }
    logits = lazily(monkeypatch, layer, head, hidden)
    assert lazy.is_lazy(logits) and isinstance(logits.screen, gumbel.Screen)
    wanted = gumbel.sample(
        hidden, head.weight, logprobs=None, **{**rows, "seed": rows["seed"].view(torch.uint64)}
    ).tokens
    assert torch.equal(Drawer().draw(logits, DrawParameters(rows)).tokens, wanted)
    assert lazy.is_lazy(logits)
    # A screen has no log-probabilities, and vLLM's product is faster.
    Drawer().draw(logits, DrawParameters(rows), LogprobsRequest(2, True))
    assert not lazy.is_lazy(logits)


def test_no_screen_unless_enabled(monkeypatch):
    from gumbel._vllm import lazy

    layer, head = layer_and_head(torch.float32)
    logits = lazily(monkeypatch, layer, head, torch.randn(2, 96))
    assert lazy.is_lazy(logits) and logits.screen is None
