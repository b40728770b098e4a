# SPDX-License-Identifier: Apache-2.0
"""gumbel.flashinfer: rows, selections, drafts and pipes."""

import math

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import gumbel.flashinfer as flashinfer  # noqa: E402
from gumbel.flashinfer import logits_processor as pipes  # noqa: E402
from flashinfer_rules import (  # noqa: E402
    DEVICES,
    V,
    chi_squared,
    kept,
    reference,
    rows_for,
    weights,
)

DRAFTS, REQUESTS = 3, 20_000


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


# ----------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_softmax_matches_torch(dtype, device):
    logits = (torch.randn(4, V, generator=torch.Generator().manual_seed(1)) * 4).to(device, dtype)
    each = torch.tensor([0.5, 1.0, 2.0, 3.0], device=device)
    for temperature, column in ((None, 1), (0.7, 0.7), (2, 2), (each, each[:, None])):
        for kind in (torch.float32, torch.float64) if column is not None else ():
            given = temperature.to(kind) if isinstance(temperature, torch.Tensor) else temperature
            found = flashinfer.softmax(logits, given)
            assert found.dtype == torch.float32
            wanted = torch.softmax(logits.double() / column, -1).float()
            torch.testing.assert_close(found, wanted, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("top_p_renorm_probs", 0.73, "top_p"),
        ("top_k_renorm_probs", 9, "top_k"),
    ],
)
def test_renormalised(name, value, rule, device):
    probs = rows_for("probs", device)
    call = getattr(flashinfer, name)
    each = torch.full((3,), value, device=device)
    for given in (value, each, each.double() if rule == "top_p" else each.int()):
        found = call(probs, given)
        assert found.dtype == torch.float32
        for row, weight in zip(found.cpu().numpy(), weights()):
            wanted = reference(weight, **{rule: value})
            assert np.array_equal(row > 0, wanted > 0)
            np.testing.assert_allclose(row, wanted, rtol=1e-5)
    half = call(probs.bfloat16(), value)
    assert half.dtype == (torch.float32 if rule == "top_p" else torch.bfloat16)


def test_top_k_mask_logits(device):
    logits = rows_for("logits", device)
    ks = torch.tensor([1, 9, V], device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = logits.to(dtype)
        found = flashinfer.top_k_mask_logits(given, ks)
        assert found.dtype == dtype
        for row, rest, weight, k in zip(given, found, weights(), ks.tolist()):
            stays = torch.from_numpy(kept(weight, top_k=k)).to(device)
            assert torch.equal(rest, row.where(stays, -math.inf))


@pytest.mark.parametrize("tie_break", list(flashinfer.TopKTieBreak))
@pytest.mark.parametrize("k", [1, 7, 128, 150])
def test_top_k_matches_a_stable_sort(k, tie_break, device):
    """Compares with a stable sort; -inf and +inf are ordinary values."""
    rows_in = np.random.default_rng(2).integers(0, 40, (5, 200)).astype(np.float32)
    rows_in[1, 10:190] = -np.inf
    rows_in[2, [3, 77]] = np.inf
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values, ids = flashinfer.top_k(
            torch.from_numpy(rows_in).to(device, dtype), k, sorted=True, tie_break=int(tie_break)
        )
        assert values.dtype == dtype and ids.dtype == torch.int64 and ids.shape == (5, k)
        ids = ids.cpu().numpy()
        high = tie_break is flashinfer.TopKTieBreak.LARGE
        source = rows_in[:, ::-1] if high else rows_in
        order = np.argsort(-source, axis=1, kind="stable")[:, :k]
        order = 199 - order if high else order
        assert np.array_equal(values.float().cpu().numpy(), np.take_along_axis(rows_in, order, 1))
        assert np.array_equal(
            np.take_along_axis(rows_in, ids, 1), np.take_along_axis(rows_in, order, 1)
        )
        if tie_break or k <= 128:
            assert np.array_equal(ids, order)


def test_cake_keeps_exactly_k_tokens(device):
    """Exactly k tokens, lower ids first, and the returned support is that of the draws."""
    probs = rows_for("probs", device)
    ks = torch.tensor([4, 9, 20], dtype=torch.int32, device=device)
    workspace = (
        torch.full((3, 1024), -1.0, device=device),
        torch.full((3, 1024), -1, dtype=torch.int32, device=device),
        torch.zeros(3, dtype=torch.int32, device=device),
    )
    renormalised, out = torch.full((3, 1024), -1.0, device=device), ks.clone()
    draw = flashinfer.cake_top_k_top_p_sampling_from_probs
    more = {"workspace": workspace, "renorm_out": renormalised, "out": out}
    drawn = draw(probs, ks, 0.8, philox_seed=3, philox_offset=1, **more)
    assert drawn is out and workspace[2].tolist() == ks.tolist()
    seen = [set(), set(), set()]
    for offset in range(1500):
        for row, token in enumerate(draw(probs, ks, 0.8, philox_seed=3, philox_offset=offset)):
            seen[row].add(int(token))
    for row, weight in enumerate(weights()):
        k = int(ks[row])
        order = np.argsort(-weight, kind="stable")[:k]
        assert workspace[1][row, :k].tolist() == order.tolist()
        assert (workspace[1][row, k:] == -1).all() and (renormalised[row, k:] == -1).all()
        mass = weight[order]
        left = np.where(np.cumsum(mass) - mass < 0.8 * mass.sum(), mass, 0)
        np.testing.assert_allclose(renormalised[row, :k].cpu(), left / left.sum(), rtol=1e-5)
        assert seen[row] == set(order[left > 0])


# --------------------------------------------------------------------------------------- drafts


def chains(device, requests=REQUESTS):
    """Equal target and draft rows for all requests; drafts drawn from the draft's."""
    generator = np.random.default_rng(8)
    target = generator.integers(1, 9, (DRAFTS + 1, 6)).astype(np.float64)
    draft = generator.integers(1, 9, (DRAFTS, 6)).astype(np.float64)
    target, draft = (rows / rows.sum(-1, keepdims=True) for rows in (target, draft))
    ids = np.stack([generator.choice(6, requests, p=row) for row in draft], 1)

    def spread(rows):
        return torch.from_numpy(rows).to(device, torch.float32).expand(requests, -1, -1)

    return target, draft, spread(draft), torch.from_numpy(ids).to(device), spread(target)


def test_chains_have_the_target_distribution(device):
    target, draft, *given = chains(device)
    seeds = torch.arange(REQUESTS, device=device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    tokens, accepted, emitted = flashinfer.chain_speculative_sampling(
        *given, seed=seeds, offset=zero
    )
    assert tokens.dtype == accepted.dtype == emitted.dtype == torch.int32
    assert tokens.shape == (REQUESTS, DRAFTS + 1) and emitted.shape == accepted.shape == (REQUESTS,)
    places = torch.arange(DRAFTS + 1, device=device)
    inside = places <= emitted[:, None]
    assert torch.equal(tokens >= 0, inside) and (tokens[~inside] == -1).all()
    kept_drafts = (places[:DRAFTS] < emitted[:, None]).cpu()
    assert torch.equal(tokens[:, :DRAFTS].cpu()[kept_drafts], given[1].cpu()[kept_drafts].int())
    for place in range(DRAFTS + 1):
        drawn = tokens[:, place][emitted >= place].cpu().numpy()
        assert chi_squared(drawn, target[place]) < 6
        if place < DRAFTS:
            assert chi_squared(drawn, draft[place]) > 6
    rates = np.minimum(target[:DRAFTS], draft).sum(-1)
    for counts, wanted in (
        (emitted, np.cumprod(rates).sum()),
        (accepted, rates.sum()),
    ):
        assert abs(counts.double().mean().item() - wanted) < 6 * DRAFTS / 2 / REQUESTS**0.5
    assert (accepted >= emitted).all() and rates.sum() - np.cumprod(rates).sum() > 0.2


def test_chains_by_slots_counts_and_generators(device):
    _, _, draft, ids, target = chains(device, 8)
    draft, ids, target = (
        rows.clone().roll(1, 0) if rows.dim() == 2 else rows.contiguous()
        for rows in (draft, ids, target)
    )
    seeds, zero = torch.arange(8, device=device) * 5, torch.zeros(8, dtype=torch.int64)
    zero = zero.to(device)
    whole = flashinfer.chain_speculative_sampling(draft, ids, target, seed=seeds, offset=zero)
    turn = torch.tensor([6, 2, 5], device=device)
    part = flashinfer.chain_speculative_sampling(
        draft[turn], ids[turn], target[turn], seed=seeds[turn], offset=zero[turn]
    )
    for found, wanted in zip(part, whole):
        assert torch.equal(found, wanted[turn])
    proposal = torch.zeros(8, DRAFTS + 1, 6, device=device)
    proposal[:, :DRAFTS] = draft.log()
    nodes = torch.zeros((8, DRAFTS + 1), dtype=torch.int32, device=device)
    nodes[:, 1:] = ids
    wanted = gumbel.verify_logits(
        target.log().view(-1, 6),
        nodes,
        rule="rejection",
        proposal=gumbel.proposal_logits(proposal.view(-1, 6)),
        seed=seeds.tolist(),
    )
    assert torch.equal(whole[0], wanted.tokens) and torch.equal(whole[2], wanted.accepted)
    counts = [torch.full((8,), 10, dtype=torch.int32, device=device) for _ in range(2)]
    added = flashinfer.chain_speculative_sampling(
        draft, ids, target, *counts, seed=seeds, offset=zero
    )
    assert added[1] is counts[0] and added[2] is counts[1]
    for count, plain in zip(counts, whole[1:]):
        assert torch.equal(count, plain + 10)
    by_int = [
        flashinfer.chain_speculative_sampling(draft, ids, target, seed=-7, offset=-1)
        for _ in range(2)
    ]
    assert torch.equal(by_int[0][0], by_int[1][0]) and torch.equal(by_int[0][1], by_int[1][1])
    results = [
        flashinfer.chain_speculative_sampling(
            draft, ids, target, generator=torch.Generator(device).manual_seed(3)
        )[0]
        for _ in range(2)
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda d, i, t: (d[0], i, t), "draft_probs: "),
        (lambda d, i, t: (d, i[:, 1:], t), "draft_token_ids: "),
        (lambda d, i, t: (d, i, t[:, 1:]), "target_probs: "),
        (lambda d, i, t: (d.numpy(), i, t), "draft_probs: "),
    ],
)
def test_chains_of_wrong_shapes_raise(change, text):
    with pytest.raises((TypeError, ValueError), match=text):
        flashinfer.chain_speculative_sampling(*change(*chains("cpu", 2)[2:]))


# ---------------------------------------------------------------------------------------- pipes


def test_a_pipe_is_one_call(device):
    logits = rows_for("logits", device)
    pipe = pipes.LogitsPipe(
        [pipes.Temperature(), pipes.Softmax(), pipes.TopK(), pipes.TopP(), pipes.Sample()]
    )
    assert len(pipe.steps) == 1 and pipe.initial_type is pipes.TensorType.LOGITS
    seeds = torch.arange(3, device=device)
    given = {"temperature": 0.8, "top_k": 12, "top_p": 0.73, "seed": seeds, "offset": seeds}
    wanted = gumbel.sample_logits(
        logits, temperature=0.8, top_k=12, top_p=0.73, seed=[0, 1, 2], position=[0, 1, 2]
    ).tokens[:, 0]
    assert torch.equal(pipe(logits, **given), wanted)
    parts = pipes.LogitsPipe(pipe.processors, compile=False)
    assert len(parts.steps) == 5 and torch.equal(parts(logits, **given), wanted)


@pytest.mark.parametrize("joint", [False, True])
def test_joint_pipes(joint, device):
    probs = rows_for("probs", device)
    pipe = pipes.LogitsPipe(
        [pipes.TopK(joint_topk_topp=joint), pipes.TopP(), pipes.Sample()],
        input_type=pipes.TensorType.PROBS,
    )
    order = "joint" if joint else "top_k_first"
    for offset in range(40):
        found = pipe(probs, top_k=12, top_p=0.73, seed=1, offset=offset)
        wanted = flashinfer.top_k_top_p_sampling_from_probs(
            probs, 12, 0.73, filter_apply_order=order, seed=1, offset=offset
        )
        assert torch.equal(found, wanted)


def test_pipes_without_a_sample(device):
    logits = rows_for("logits", device)
    soft = pipes.LogitsPipe([pipes.Softmax(), pipes.MinP(), pipes.TopK()])
    assert len(soft.steps) == 1
    found = soft(logits, min_p=0.33, top_k=9).cpu().numpy()
    for row, weight in zip(found, weights()):
        np.testing.assert_allclose(row, reference(weight, min_p=0.33, top_k=9), rtol=1e-5)
    masked = pipes.LogitsPipe([pipes.Temperature(temperature=2.0), pipes.TopK()])
    found = masked(logits.bfloat16(), top_k=9)
    assert found.dtype == torch.bfloat16
    wanted = flashinfer.top_k_mask_logits((logits.bfloat16().float() / 2).bfloat16(), 9)
    assert torch.equal(found, wanted)
    back = pipes.LogitsPipe([pipes.Softmax(), pipes.TopP(), pipes.TopK(), pipes.Sample()])
    assert len(back.steps) == 2  # no call has this order
    tokens = back(pipes.TaggedTensor.logits(logits), top_p=0.5, top_k=1, seed=0, offset=0)
    assert torch.equal(tokens, logits.argmax(-1).int())


BAD_PIPES = {
    "cannot be empty": [],
    "takes LOGITS and PROBS": [pipes.TopK(), pipes.Sample()],
    "Softmax, does not take PROBS": [pipes.Softmax(), pipes.Softmax()],
    "TopK, does not take INDICES": [pipes.Softmax(), pipes.Sample(), pipes.TopK()],
}


@pytest.mark.parametrize("text", BAD_PIPES)
def test_invalid_pipes_raise(text):
    with pytest.raises(ValueError, match=text):
        pipes.LogitsPipe(BAD_PIPES[text])


def test_invalid_pipe_parameters_raise():
    pipe = pipes.LogitsPipe([pipes.Temperature(), pipes.Softmax(), pipes.MinP()])
    logits = torch.zeros(2, V)
    for given, text in (
        ({"temperature": 1.0}, "min_p: MinP requires it"),
        ({"min_p": 0.1}, "temperature: "),
        ({"min_p": 0.1, "temperature": 1}, "temperature: "),
        ({"min_p": 0.0, "temperature": 1.0}, "min_p: "),
    ):
        with pytest.raises(ValueError, match=text):
            pipe(logits, **given)
    with pytest.raises(TypeError, match="none of gumbel.flashinfer's"):
        pipes.LogitsPipe([object()])
