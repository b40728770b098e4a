# SPDX-License-Identifier: Apache-2.0
"""torch.ops.gumbel.verify and verify_logits equal the package's calls, for each rule."""

import gumbel
import pytest
from torch_operators import (  # noqa: F401, skips without torch
    B,
    device,
    make_drafts,
    ops,
    row_parameters,
    torch,
)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_drafts(device, rule):
    rows, weight, tokens = make_drafts(device)
    parameters = row_parameters(device)
    if rule == "coupled":
        drawn = ops.sample(rows, weight, seed=parameters["seed"].repeat_interleave(3))[0]
        tokens[:, 1] = drawn.view(B, 3)[:, 0]
    draft, proposal = {}, None
    if rule == "rejection":
        draft = {"draft_hidden": rows.flip(1).contiguous(), "draft_weight": weight}
        proposal = gumbel.proposal(draft["draft_hidden"], weight)
    found = ops.verify(rows, weight, tokens, rule=rule, **draft, **parameters)
    wanted = gumbel.verify(rows, weight, tokens, rule=rule, proposal=proposal, **parameters)
    # Fields that the operator lacks.
    missing = ("seed", "kept", "kept_ids", "kept_logprobs", "entropy")
    wanted = [value for name, value in vars(wanted).items() if name not in missing]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    logits = (rows @ weight.T).float()
    found = ops.verify_logits(logits, tokens, seed=parameters["seed"], logprobs=None)
    wanted = gumbel.verify_logits(logits, tokens, seed=parameters["seed"])
    assert len(found) == 8 and torch.equal(found[0], wanted.tokens)


def chains_of_another_model(device):
    """Chains that another model's head drew at T = 1, and the lse and logprobs of its draws.

    Returns arguments of verify(): rows, weight, tokens; by name the draft's rows and weight; and by
    name the lse and logprobs, which are NaN after the last draft.
    """
    rows, weight, tokens = make_drafts(device)
    other = (rows.float() * 0.8 + 0.3 * rows.float().roll(1, 1)).to(torch.bfloat16)
    lse, logprobs = torch.full((2, B, 3), float("nan"), device=device)
    for step in range(2):
        drawn = gumbel.sample(
            other[step::3],
            weight,
            seed=torch.arange(B, device=device) * 7,
            position=5 + step,
            domain=gumbel.draft_domain(),
        )
        tokens[:, step + 1] = drawn.tokens[:, 0]
        lse[:, step], logprobs[:, step] = drawn.lse, drawn.logprobs[:, 0]
    drawn_values = {"draft_lse": lse, "draft_logprobs": logprobs}
    return rows, weight, tokens, {"draft_hidden": other, "draft_weight": weight}, drawn_values


def test_drafts_with_supplied_logprobs(device):
    rows, weight, tokens, draft, drawn_values = chains_of_another_model(device)
    parameters = {name: row_parameters(device)[name] for name in ("seed", "position")}
    alone = ops.verify(rows, weight, tokens, rule="rejection", **draft, **parameters)
    found = ops.verify(
        rows, weight, tokens, rule="rejection", **draft, **drawn_values, **parameters
    )
    for a, b in zip(found[:-1], alone[:-1], strict=True):
        assert torch.equal(a, b)
    # Products of rows are summed in another order.
    torch.testing.assert_close(found[-1], alone[-1], rtol=0, atol=1e-4, equal_nan=True)
    drew = gumbel.proposal(
        draft["draft_hidden"],
        weight,
        drawn_lse=drawn_values["draft_lse"].ravel(),
        drawn_logprobs=drawn_values["draft_logprobs"].ravel(),
    )
    wanted = gumbel.verify(rows, weight, tokens, rule="rejection", proposal=drew, **parameters)
    assert torch.equal(found[0], wanted.tokens)
    by_logits = {"draft_logits": draft["draft_hidden"].float() @ weight.float().T}
    logits = rows.float() @ weight.float().T
    alone = ops.verify_logits(logits, tokens, rule="rejection", **by_logits, **parameters)
    found = ops.verify_logits(
        logits, tokens, rule="rejection", **by_logits, **drawn_values, **parameters
    )
    assert torch.equal(found[0], alone[0])
    if device == "cuda":  # with q unknown the rule equals the coupled one
        unknown = {
            name: torch.full_like(value, float("nan")) for name, value in drawn_values.items()
        }
        found = ops.verify(rows, weight, tokens, rule="rejection", **draft, **unknown, **parameters)
        assert torch.equal(found[0], ops.verify(rows, weight, tokens, **parameters)[0])


def test_invalid_draft_logprobs_are_named(device):
    rows, weight, tokens, draft, drawn_values = chains_of_another_model(device)

    def assert_error(error, match, draft=draft, **changed):
        given = {
            name: value for name, value in (drawn_values | changed).items() if value is not None
        }
        with pytest.raises(error, match=match):
            ops.verify(rows, weight, tokens, rule="rejection", **draft, **given)

    for name in ("lse", "logprobs"):
        value = drawn_values[f"draft_{name}"]
        shape = rf"proposal\.drawn_{name}: expected the shape \(12,\) or \(4, 3\)"
        assert_error(ValueError, shape, **{f"draft_{name}": value[:, :2].contiguous()})
        assert_error(ValueError, shape, **{f"draft_{name}": value.T})
        assert_error(
            TypeError, rf"drawn_{name}: expected float32", **{f"draft_{name}": value.half()}
        )
        assert_error(ValueError, "requires drawn_", **{f"draft_{name}": None})
    assert_error(ValueError, "^draft_lse: requires", draft={})
