# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts: texts equal those of plain decoding, for any drafts."""

import ctypes

import gumbel
import numpy as np
import pytest

V, D, R, LENGTH = 90, 24, 3, 20


@pytest.fixture(scope="module")
def target():
    """A head, and a hidden state for each token at each position of a text."""
    random = np.random.default_rng(5)
    weight = random.standard_normal((V, D)).astype(np.float32) / 3
    states = random.standard_normal((LENGTH + 9, V + 200, D)).astype(np.float32)
    return weight, states


def row_parameters(places=R):
    return {
        "temperature": np.array([0.0, 0.8, 1.2])[:places],
        "top_k": np.array([0, 30, 0])[:places],
        "top_p": 0.95,
        "seed": np.array([7, 8, 9])[:places],
        "presence_penalty": 0.4,
    }


def logits_of(rows, weight):
    """Logits [B, V]; those of a row do not depend on other rows."""
    return (rows.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32)


def decode(target, position, from_logits):
    """R texts, a token a step, and their log-probabilities."""
    weight, states = target
    history = gumbel.History(R, V)
    history.start([[1], [2], [3]])
    root, tokens, logprobs = np.array([1, 2, 3]), [], []
    for place in range(LENGTH):
        rows, common = states[place, root], {"position": position + place, **row_parameters()}
        if from_logits:
            out = gumbel.sample_logits(logits_of(rows, weight), history=history, **common)
        else:
            out = gumbel.sample(rows, weight, history=history, **common)
        history.update(out.tokens)
        root = out.tokens[:, 0]
        tokens.append(root)
        logprobs.append(out.logprobs[:, 0])
    return np.array(tokens).T, np.array(logprobs).T


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("from_logits", [False, True])
def test_chains_of_any_drafts_write_the_targets_text(target, most, from_logits):
    weight, states = target
    position = np.array([3, 2**32 - 5, 11], np.uint64)
    texts, logprobs = decode(target, position, from_logits)
    random = np.random.default_rng(most)
    history = gumbel.History(R, V)
    history.start([[1], [2], [3]])
    at, roots, now = np.zeros(R, int), np.array([1, 2, 3]), position
    while at.max() + most < LENGTH:
        drafts = np.stack([np.r_[roots[r], texts[r, at[r] : at[r] + most - 1]] for r in range(R)])
        wrong = random.random((R, most)) < 0.3
        wrong[:, 0] = False
        drafts[wrong] = random.integers(-1, V + 100, wrong.sum())
        rows = np.concatenate([states[at[r] + np.arange(most), drafts[r]] for r in range(R)])
        common = {"position": now, "history": history, **row_parameters()}
        if from_logits:
            logits = logits_of(rows, weight)
            out = gumbel.verify_logits(logits, drafts.astype(np.int32), **common)
        else:
            out = gumbel.verify(rows, weight, drafts.astype(np.int32), **common)
        history.update(out.tokens, counts=out.emitted)
        for r in range(R):
            count = out.emitted[r]
            assert count == out.accepted[r] + 1
            assert (out.path[r, :count] == r * most + np.arange(count)).all()
            assert out.last_row[r] == r * most + count - 1
            assert (out.tokens[r, count:] == -1).all()
            assert (out.tokens[r, :count] == texts[r, at[r] : at[r] + count]).all()
            assert (out.logprobs[r, :count] == logprobs[r, at[r] : at[r] + count]).all()
            at[r] += count
            roots[r] = texts[r, at[r] - 1]
        assert (out.position == now + out.emitted.astype(np.uint64)).all()
        now = out.position


def test_trees_stops_and_limits(target):
    weight, states = target
    common = {"seed": 4, "position": 0, "temperature": 0.7}
    first = gumbel.sample(states[0, [1]], weight, **common).tokens[0, 0]
    second = gumbel.sample(states[1, [first]], weight, **{**common, "position": 1}).tokens[0, 0]
    other = (first + 1) % V
    # Root, a wrong child, the right child, and its child: the second token, a leaf.
    tokens = np.array([1, other, first, second], np.int32)
    parents = np.array([0, 0, 0, 2], np.int32)
    rows = states[[0, 1, 1, 2], tokens]
    out = gumbel.verify(
        rows, weight, tokens, offsets=np.array([0, 4], np.int32), parents=parents, **common
    )
    assert out.path[0].tolist() == [0, 2, 3, -1] and out.emitted[0] == 3
    assert out.tokens[0, :2].tolist() == [first, second] and out.finished[0] == 0
    out = gumbel.verify(
        rows, weight, tokens[None], parents=parents[None], stop=[int(second)], **common
    )
    assert out.emitted[0] == 2 and out.finished[0] == 1
    out = gumbel.verify(rows, weight, tokens[None], parents=parents[None], limit=[1], **common)
    assert out.emitted[0] == 1 and out.finished[0] == 2
    out = gumbel.verify(rows, weight, tokens[None], nodes=[0], **common)
    assert out.emitted[0] == 0 and out.status[0] == 6 and (out.path == -1).all()


def test_raw_logprobs_are_those_of_a_draw(target):
    weight, states = target
    rows, tokens = states[0, [1, 2]], np.array([[1], [2]], np.int32)
    common = {"seed": np.array([1, 2]), "temperature": 0.5, "logprobs": "raw"}
    drawn = gumbel.sample(rows, weight, **common)
    out = gumbel.verify(rows, weight, tokens, **common)
    assert (out.tokens == drawn.tokens).all() and (out.logprobs == drawn.logprobs).all()
    assert gumbel.verify(rows, weight, tokens, logprobs=None).logprobs is None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"tokens": np.zeros((2, 3), np.int32)}, "tokens"),
        ({"tokens": np.zeros(4, np.int32)}, "tokens"),
        ({"tokens": np.zeros((2, 2))}, "tokens"),
        ({"offsets": np.array([0, 3], np.int32), "max_nodes": 2}, "offsets"),
        ({"offsets": np.array([3, 1], np.int32), "max_nodes": 2}, "offsets"),
        ({"offsets": np.array([0, 9], np.int32), "max_nodes": 9}, "offsets"),
        ({"max_nodes": 3}, "max_nodes"),
        ({"nodes": [3, 1]}, "nodes"),
        ({"nodes": [1]}, "nodes"),
        ({"parents": np.array([[0, 1], [0, 0]], np.int32)}, "parents"),
        ({"parents": np.array([[0, 0]], np.int32)}, "parents"),
        ({"limit": [1, -1]}, "limit"),
        ({"stop": [-3]}, "stop"),
        ({"num_samples": 2}, "num_samples"),
        ({"given": [[1]]}, "given"),
        ({"mask": np.zeros((2, 3), np.int32)}, "mask"),
    ],
)
def test_invalid_drafts_are_named(target, changed, name):
    weight, states = target
    arguments = {"tokens": np.zeros((2, 2), np.int32), **changed}
    tokens = arguments.pop("tokens")
    if "offsets" in changed:
        tokens = tokens.reshape(-1)
    with pytest.raises((ValueError, TypeError), match=name):
        gumbel.verify(states[0, :4], weight, tokens, **arguments)


def softmax(logits):
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_drafts_of_another_model_keep_the_target_distribution(rule):
    requests, most, tokens = 20000, 3, 5
    random = np.random.default_rng(3)
    p, q = random.standard_normal((2, tokens)).astype(np.float32)
    seed = random.integers(0, 2**63, requests).astype(np.uint64)
    drafts = np.zeros((requests, most), np.int32)
    for step in range(most - 1):
        drawn = gumbel.sample_logits(
            np.tile(q, (requests, 1)),
            temperature=0.7,
            seed=seed,
            position=step,
            domain=gumbel.draft_domain(step if rule == "block" else 0),
        )
        drafts[:, step + 1] = drawn.tokens[:, 0]
    rows = requests * most
    drew = gumbel.proposal_logits(np.tile(q, (rows, 1)), temperature=0.7)
    out = gumbel.verify_logits(
        np.tile(p, (rows, 1)), drafts, rule=rule, proposal=drew, seed=seed, position=0
    )
    wanted, drafted = softmax(p), softmax(q / np.float32(0.7))
    found = np.bincount(out.tokens[:, 0], minlength=tokens) / requests
    assert (abs(found - wanted) < 5 * np.sqrt(wanted / requests)).all()
    alike = np.minimum(wanted, drafted).sum()
    if rule == "rejection":
        assert abs((out.accepted > 0).mean() - alike) < 5 * np.sqrt(alike / requests)
    logprobs = np.log(wanted)[out.tokens[:, 0]]
    assert np.allclose(out.logprobs[:, 0], logprobs, atol=1e-5)


def test_drafts_of_the_target_are_all_accepted(target):
    weight, states = target
    rows = np.stack([states[place, [1, 2, 3]] for place in range(4)], 1).reshape(-1, D)
    how = {"temperature": np.array([0.7, 0.8, 0.0]), "top_k": 9}
    seed = np.array([4, 5, 6], np.uint64)
    drafts = np.zeros((R, 4), np.int32)
    for step in range(3):
        drawn = gumbel.sample(
            rows[step::4], weight, seed=seed, position=step, domain=gumbel.draft_domain(), **how
        )
        drafts[:, step + 1] = drawn.tokens[:, 0]
    drew = gumbel.proposal(rows, weight, **how)
    out = gumbel.verify(rows, weight, drafts, rule="rejection", proposal=drew, seed=seed, **how)
    assert (out.accepted == 3).all() and (out.tokens[:, :3] == drafts[:, 1:]).all()
    slots = {"slots": np.array([2, 0, 1]), "num_slots": 3}
    moved = {"temperature": np.array([0.8, 0.0, 0.7]), "top_k": 9}
    drew = gumbel.proposal(rows, weight, **moved)
    moved["seed"] = seed[[1, 2, 0]]
    again = gumbel.verify(rows, weight, drafts, rule="rejection", proposal=drew, **moved, **slots)
    assert (again.tokens == out.tokens).all()


def chains_of_another_model(target, requests=40, most=4):
    """Chains that a model close to the target drew from its head, with lse and logprobs."""
    weight, states = target
    random = np.random.default_rng(11)
    rows = np.concatenate([states[place, :requests] for place in range(most)])
    rows = rows.reshape(most, requests, D).swapaxes(0, 1)
    other = (rows + random.standard_normal(rows.shape) / 2).astype(np.float32)
    seed = random.integers(0, 2**63, requests).astype(np.uint64)
    drafts = np.zeros((requests, most), np.int32)
    lse, logprobs = np.full((2, requests, most), np.nan, np.float32)
    for step in range(most - 1):
        drawn = gumbel.sample(
            other[:, step], weight, seed=seed, position=step, domain=gumbel.draft_domain()
        )
        drafts[:, step + 1] = drawn.tokens[:, 0]
        lse[:, step], logprobs[:, step] = drawn.lse, drawn.logprobs[:, 0]
    return rows.reshape(-1, D), other.reshape(-1, D), drafts, seed, lse, logprobs


class Taken:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def record_structs(monkeypatch):
    """Record copies of the draft's lse and logprobs that later calls pass to the library."""
    handed, call = [], gumbel._calls.drafts.verify_draft

    def read(place, count):
        floats = ctypes.c_float * count
        return None if place is None else np.array(floats.from_address(place))

    def spy(function, way_in, request, draft):
        count = way_in[0].hidden.rows
        handed.append([read(getattr(draft.struct, name), count) for name in ("lse", "logprobs")])
        return call(function, way_in, request, draft)

    monkeypatch.setattr(gumbel._calls.drafts, "verify_draft", spy)
    return handed


def test_draft_logprobs_reach_the_library(target, monkeypatch):
    weight, _ = target
    rows, other, drafts, seed, lse, logprobs = chains_of_another_model(target)
    handed = record_structs(monkeypatch)

    def verify(tokens=drafts, **drawn):
        parts = {} if tokens.ndim == 2 else {"offsets": np.arange(0, len(rows) + 1, 4, np.int32)}
        drew = gumbel.proposal(other, weight, **drawn)
        return gumbel.verify(
            rows, weight, tokens, rule="rejection", proposal=drew, seed=seed, **parts
        )

    alone = verify()
    assert handed.pop() == [None, None]
    assert 0 < alone.accepted.mean() < 3
    wide = np.stack([lse, logprobs], -1)  # neither column is contiguous
    for tokens, drawn_by in (
        (drafts, (lse, logprobs)),
        (drafts, (lse.ravel(), logprobs.ravel())),
        (drafts, (wide[..., 0], wide[..., 1])),
        (drafts, (Taken(lse), Taken(logprobs))),
        (drafts.ravel(), (lse.ravel(), logprobs.ravel())),
    ):
        found = verify(tokens, drawn_lse=drawn_by[0], drawn_logprobs=drawn_by[1])
        assert (found.tokens == alone.tokens).all() and (found.accepted == alone.accepted).all()
        for there, wanted in zip(handed.pop(), (lse, logprobs)):
            np.testing.assert_array_equal(there, wanted.ravel())


@pytest.mark.parametrize("name", ["drawn_lse", "drawn_logprobs"])
def test_invalid_draft_logprobs_are_named(target, name):
    weight, _ = target
    rows, other, drafts, _, lse, logprobs = chains_of_another_model(target, 2)

    def assert_error(error, match, value, tokens=drafts, **parts):
        drawn = {"drawn_lse": lse, "drawn_logprobs": logprobs, name: value}
        if tokens.ndim == 1:
            drawn = {key: np.ravel(held) for key, held in drawn.items()} | {name: value}
        with pytest.raises(error, match=match):
            drew = gumbel.proposal(other, weight, **drawn)
            gumbel.verify(rows, weight, tokens, rule="rejection", proposal=drew, **parts)

    good = lse if name == "drawn_lse" else logprobs
    shape = rf"proposal\.{name}: expected the shape \(8,\) or \(2, 4\)"
    for wrong in (good[:1], good[:, :3], good.T, good.ravel()[1:], good[..., None], good[0, 0]):
        assert_error((ValueError, TypeError), f"{shape}|{name}: expected a NumPy", wrong)
    ragged = {"offsets": np.array([0, 4, 8], np.int32)}
    assert_error(
        ValueError, rf"{name}: expected the shape \(8,\), got", good, drafts.ravel(), **ragged
    )
    for wrong in (good.astype(np.float64), good.astype(np.float16), drafts):
        assert_error(TypeError, rf"proposal\.{name}: expected float32, got {wrong.dtype}", wrong)
    assert_error(TypeError, rf"proposal\.{name}: expected float32, got >f4", good.astype(">f4"))
    assert_error(TypeError, rf"proposal\.{name}: ", good.tolist())
    assert_error(TypeError, rf"proposal\.{name}: masked arrays", np.ma.masked_invalid(good))
    other_name = {"drawn_lse": "drawn_logprobs", "drawn_logprobs": "drawn_lse"}[name]
    assert_error(ValueError, f"^{other_name}: requires {name}", None)
    with pytest.raises(ValueError, match=f"^{name}: requires {other_name}"):
        gumbel.proposal_logits(other, **{name: good})


def test_invalid_proposals_are_named(target):
    weight, states = target
    rows, drafts = states[0, :4], np.zeros((2, 2), np.int32)

    def verify(match, rule="rejection", error=ValueError, **parameters):
        drew = gumbel.proposal(**{"hidden": rows, "weight": weight, **parameters})
        with pytest.raises(error, match=match):
            gumbel.verify(rows, weight, drafts, rule=rule, proposal=drew)

    verify("proposal: the rule", rule="coupled")
    verify("rule: 'any' is none of", rule="any")
    verify("^rule: blocks", rule="block", error=RuntimeError)
    verify("^proposal: the draft has 3 rows", hidden=states[0, :3])
    verify("^proposal: ", weight=weight[:-1])
    verify("proposal.temperature", temperature=[1.0, 2.0, 3.0])
    verify(r"^proposal\.temperature\[0\]: ", temperature=-1.0)
    verify("^proposal.domain: ", domain=0)
    with pytest.raises(TypeError, match=r"^proposal\(\) has no argument 'bogus'$"):
        gumbel.proposal(rows, weight, bogus=1)
    with pytest.raises(TypeError, match="seed"):
        gumbel.proposal(rows, weight, seed=1)
    with pytest.raises(TypeError, match="proposal: expected"):
        gumbel.verify(rows, weight, drafts, rule="rejection", proposal=weight)
    with pytest.raises(ValueError, match="step"):
        gumbel.draft_domain(1023)
