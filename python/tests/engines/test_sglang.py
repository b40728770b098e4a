# SPDX-License-Identifier: Apache-2.0
"""gumbel.sglang: the sampler of the backend, on batches as SGLang makes them."""

from types import SimpleNamespace

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.9")
stock = pytest.importorskip("sglang.srt.layers.sampler", exc_type=ImportError)

import gumbel.sglang  # noqa: E402
from flashinfer_rules import V, chi_squared, kept, reference, rows_for, weights  # noqa: E402
from sglang.srt.layers.logprob_processor import OutputLogprobProcessor  # noqa: E402

TOP_K_ALL = 1 << 30
B = 4


@pytest.fixture
def sampler():
    """Without SGLang's runtime, which the sampler's __init__ reads."""
    sampler = gumbel.sglang.GumbelSampler.__new__(gumbel.sglang.GumbelSampler)
    torch.nn.Module.__init__(sampler)
    sampler.rl_on_policy_target, sampler.enable_deterministic = None, True
    sampler.use_log_softmax_logprob = sampler.use_ascend_backend = False
    sampler.sampling_mask_max_tokens = V
    sampler.output_logprob_processor = OutputLogprobProcessor()
    return sampler


def batch(rows=B, seeds=True, **limits):
    """A SamplingBatchInfo of these requests."""
    top_ks = torch.tensor(limits.get("top_k", [TOP_K_ALL] * rows), dtype=torch.int32)
    top_ps = torch.tensor(limits.get("top_p", [1.0] * rows))
    min_ps = torch.tensor(limits.get("min_p", [0.0] * rows))
    return SimpleNamespace(
        temperatures=torch.tensor(limits.get("temperature", [1.0] * rows)).view(-1, 1),
        top_ks=top_ks,
        top_ps=top_ps,
        min_ps=min_ps,
        is_all_greedy=bool((top_ks == 1).all()),
        is_any_greedy=bool((top_ks == 1).any()),
        need_top_k_sampling=bool((top_ks != TOP_K_ALL).any()),
        need_top_p_sampling=bool((top_ps != 1).any()),
        need_min_p_sampling=bool((min_ps > 0).any()),
        sampling_seed=torch.arange(rows) * 7 + 3 if seeds else None,
        has_custom_logit_processor=False,
        sampling_mask_batch_indices=None,
        sampling_support_logprobs_capture_indices=None,
        max_top_k=None,
        grammars=None,
    )


def draw(sampler, logits, info, positions, logprobs=False, nums=None, ids=None):
    output = SimpleNamespace(next_token_logits=logits.clone())
    nums, ids = nums or [0] * len(logits), ids or [None] * len(logits)
    tokens = sampler(output, info, logprobs, nums, ids, positions)
    return tokens, output


MIXED = {
    "temperature": [1.0, 0.7, 1.3, 1.0],
    "top_k": [1, 12, TOP_K_ALL, 20],
    "top_p": [1.0, 0.9, 1.0, 0.8],
    "min_p": [0.0, 0.0, 0.2, 0.1],
}


def test_tokens_are_those_of_seed_and_position(sampler):
    logits = rows_for("logits", "cpu", B)
    positions = torch.tensor([5, 9, 0, 17])
    tokens, _ = draw(sampler, logits, batch(**MIXED), positions)
    wanted = gumbel.sample_logits(
        logits,
        **{**MIXED, "temperature": [0.0, 0.7, 1.3, 1.0]},
        order="sglang",
        seed=[3, 10, 17, 24],
        position=[5, 9, 0, 17],
    ).tokens[:, 0]
    assert tokens.dtype == torch.int32 and torch.equal(tokens, wanted)
    assert tokens[0] == logits[0].argmax()


def test_a_request_does_not_depend_on_its_batch(sampler):
    """Stock SGLang ignores seeds if min_p is set, and draws by rank if another row truncates."""
    logits = rows_for("logits", "cpu", B)
    positions = torch.arange(B) * 3
    whole, _ = draw(sampler, logits, batch(**MIXED), positions)
    for row in range(B):
        info = batch(1, **{name: [values[row]] for name, values in MIXED.items()})
        info.sampling_seed = torch.tensor([row * 7 + 3])
        alone, _ = draw(sampler, logits[row : row + 1], info, positions[row : row + 1])
        assert torch.equal(alone, whole[row : row + 1])


def test_greedy_batches_are_argmax(sampler):
    logits = rows_for("logits", "cpu", B)
    logits[2, [4, 9]] = 50.0
    tokens, _ = draw(sampler, logits, batch(top_k=[1] * B), torch.zeros(B, dtype=torch.int64))
    assert tokens.tolist() == logits.argmax(-1).tolist() and tokens[2] == 4


def test_tokens_have_the_reference_distribution(sampler):
    weight = weights()[2]
    many = 20_000
    logits = rows_for("logits", "cpu")[2:].expand(many, V)
    rules = {"top_k": 14, "top_p": 0.7, "min_p": 0.4}
    info = batch(many, **{name: [value] * many for name, value in rules.items()})
    tokens, _ = draw(sampler, logits, info, torch.full((many,), 4))
    probs = reference(weight, **rules, joint=True)
    assert set(tokens.tolist()) == set(np.flatnonzero(probs))
    without = kept(weight, top_k=14, top_p=0.7, joint=True)
    assert kept(weight, **rules, joint=False).sum() < len(set(tokens.tolist())) < without.sum()
    assert chi_squared(tokens.numpy(), probs) < 6
    wrong = probs**1.4
    assert chi_squared(tokens.numpy(), wrong / wrong.sum()) > 6


def test_without_seeds_the_generator_draws(sampler):
    logits, positions = torch.zeros(64, 512), torch.zeros(64, dtype=torch.int64)
    torch.manual_seed(1)
    series = [draw(sampler, logits, batch(64, seeds=False), positions)[0] for _ in range(2)]
    assert not torch.equal(*series) and len(series[0].unique()) > 48
    torch.manual_seed(1)
    again = draw(sampler, logits, batch(64, seeds=False), positions)[0]
    assert torch.equal(again, series[0])


def test_logprobs_are_those_of_stock(sampler):
    logits = rows_for("logits", "cpu", B).clamp(min=-20)
    positions = torch.arange(B)
    tokens, output = draw(
        sampler, logits, batch(**MIXED), positions, True, [2, 0, 3, 0], [[1, 5], None, None, [2]]
    )
    temperatures = torch.tensor(MIXED["temperature"]).view(-1, 1)
    logprobs = torch.log_softmax(logits / temperatures, -1)
    wanted = logprobs.gather(1, tokens.long().view(-1, 1))[:, 0]
    torch.testing.assert_close(output.next_token_logprobs, wanted)
    top = torch.as_tensor(output.next_token_top_logprobs_val[0])
    torch.testing.assert_close(top[:2].float(), logprobs[0].topk(2).values)


def test_masks_hold_what_may_be_drawn(sampler):
    """SGLang's probabilities give the same tokens."""
    logits = rows_for("logits", "cpu", B)
    info, positions = batch(**MIXED), torch.arange(B)
    plain, _ = draw(sampler, logits, info, positions)
    info.sampling_mask_batch_indices = torch.tensor([1, 3])
    tokens, output = draw(sampler, logits, info, positions)
    assert torch.equal(tokens, plain)
    found = output.sampling_mask_output
    for row, ids, length in zip((1, 3), found.token_ids, found.lengths):
        weight = weights(B)[row] ** (1 / MIXED["temperature"][row])
        rules = {name: MIXED[name][row] for name in ("top_k", "top_p", "min_p")}
        stays = np.flatnonzero(kept(weight, **rules, joint=True))
        assert sorted(ids[: int(length)].tolist()) == stays.tolist()


@pytest.mark.parametrize("limits", [{}, {"top_k": [1] * B}], ids=["drawn", "greedy"])
def test_a_row_of_nothing_gives_a_token_that_exists(sampler, limits, caplog, monkeypatch):
    """The token id is valid, and the log has a line with the count."""
    monkeypatch.setattr(gumbel.sglang, "WATCH", gumbel.sglang.Watch("gumbel.sglang", "so"))
    logits = rows_for("logits", "cpu", B)
    logits[1] = -torch.inf
    tokens, _ = draw(sampler, logits, batch(**limits), torch.zeros(B, dtype=torch.int64))
    assert tokens[1] == 0
    lines = [line.message for line in caplog.records if line.name == "gumbel.sglang"]
    assert lines == [
        "gumbel: 1 row so far without a token to draw (no token has a finite logit: 1); so"
    ]


def test_log_probabilities_of_a_trainer(sampler):
    logits, positions = rows_for("logits", "cpu", B), torch.arange(B)
    sampler.rl_on_policy_target, sampler.use_log_softmax_logprob = "fsdp", True
    tokens, _ = draw(sampler, logits, batch(), positions)
    rounded = torch.log_softmax(logits.bfloat16(), -1)
    wanted = gumbel.sample_logits(rounded, seed=[3, 10, 17, 24], position=[0, 1, 2, 3]).tokens
    assert torch.equal(tokens, wanted[:, 0])


def test_backend_is_registered():
    from sglang.srt.server_args import SAMPLING_BACKEND_CHOICES

    gumbel.sglang.register()
    gumbel.sglang.register()
    assert "gumbel" in SAMPLING_BACKEND_CHOICES
    assert stock._CUSTOM_SAMPLER_FACTORIES["gumbel"] is gumbel.sglang.GumbelSampler


def test_sglang_finds_the_entry_point():
    """By the entry point of the installed package."""
    from importlib.metadata import entry_points

    found = [each for each in entry_points(group="sglang.srt.plugins") if each.name == "gumbel"]
    if not found:
        pytest.skip("the package is not installed, so that it has no entry points")
    assert found[0].load() is gumbel.sglang.register


@pytest.mark.parametrize("version, text", [("0.5.9", "not 0.5.9"), ("1.0", "not 1.0")])
def test_unsupported_versions_raise(version, text, monkeypatch):
    monkeypatch.setattr(gumbel.sglang.metadata, "version", lambda _: version)
    with pytest.raises(ImportError, match=text):
        gumbel.sglang._check_version()
