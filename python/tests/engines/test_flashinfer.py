# SPDX-License-Identifier: Apache-2.0
"""gumbel.flashinfer: FlashInfer's signatures, dtypes and errors, with exact samples."""

import concurrent.futures
import inspect
import math
import os
import subprocess
import sys

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import gumbel.flashinfer as flashinfer  # noqa: E402
from gumbel.flashinfer import calls  # noqa: E402
from flashinfer_rules import (  # noqa: E402
    DEVICES,
    V,
    chi_squared,
    kept,
    reference,
    rows_for,
    weights,
)

fi = flashinfer.sampling
# Signatures of flashinfer-python 0.7.2.post1.
COMMON = (
    "indices=None, {}deterministic=True, generator=None, check_nan=False, seed=None, offset=None"
)
DRAWN = COMMON.format("")
ORDERED = COMMON.format("filter_apply_order='top_k_first', ")
CHAIN = (
    "draft_probs, draft_token_ids, target_probs, maybe_output_accepted_token_num=None, "
    "maybe_output_emitted_draft_token_num=None, deterministic=True, generator=None, seed=None, "
    "offset=None"
)
CAKE = (
    "probs, top_k, top_p, *, top_k_max=None, generator=None, philox_seed=None, "
    "philox_offset=None, out=None, renorm_out=None, workspace=None, enable_pdl=True"
)
SIGNATURES = {
    "get_seed_and_offset": "increment, generator=None, device=None",
    "softmax": "logits, temperature=None, enable_pdl=None",
    "sampling_from_logits": f"logits, {DRAWN}",
    "sampling_from_probs": f"probs, {DRAWN}, return_valid=False",
    "top_p_sampling_from_probs": f"probs, top_p, {DRAWN}, return_valid=False",
    "top_k_sampling_from_probs": f"probs, top_k, {DRAWN}, return_valid=False",
    "min_p_sampling_from_probs": f"probs, min_p, {DRAWN}, return_valid=False",
    "top_k_top_p_sampling_from_logits": f"logits, top_k, top_p, {ORDERED}",
    "top_k_top_p_sampling_from_probs": f"probs, top_k, top_p, {ORDERED}, return_valid=False",
    "top_p_renorm_probs": "probs, top_p, is_deterministic=False",
    "top_p_renorm_prob": "probs, top_p, is_deterministic=False",
    "top_k_renorm_probs": "probs, top_k, is_deterministic=False",
    "top_k_renorm_prob": "probs, top_k, is_deterministic=False",
    "top_k_mask_logits": "logits, top_k",
    "chain_speculative_sampling": CHAIN,
    "top_k": "input, k, sorted=False, deterministic=False, tie_break=<TopKTieBreak.NONE: 0>, "
    "dsa_graph_safe=False",
    "cake_top_k_top_p_sampling_from_probs": CAKE,
}
DRAWS = 20_000
# Arguments of each call besides its rows, and those of the reference.
CALLS = {
    "sampling_from_logits": ((), {}),
    "sampling_from_probs": ((), {}),
    "top_p_sampling_from_probs": ((0.73,), {"top_p": 0.73}),
    "top_k_sampling_from_probs": ((10,), {"top_k": 10}),
    "min_p_sampling_from_probs": ((0.33,), {"min_p": 0.33}),
    "top_k_top_p_sampling_from_logits": ((12, 0.73), {"top_k": 12, "top_p": 0.73}),
    "top_k_top_p_sampling_from_probs": ((12, 0.73), {"top_k": 12, "top_p": 0.73}),
}
ORDERED_CALLS = [name for name in CALLS if name.startswith("top_k_top_p")]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    function = getattr(flashinfer, name)
    found, starred = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            found.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        found.append(parameter.name + default)
    assert ", ".join(found) == SIGNATURES[name]
    assert function.__doc__


def test_places_of_the_names():
    assert flashinfer.topk.top_k is flashinfer.top_k
    assert flashinfer.sampling.softmax is flashinfer.softmax
    assert set(flashinfer.sampling.__all__) <= set(flashinfer.__all__)
    assert flashinfer.TopKTieBreak.LARGE == 2


@pytest.mark.parametrize("order", ["top_k_first", "joint"])
@pytest.mark.parametrize("name", CALLS)
def test_tokens_have_the_reference_distribution(name, order, device):
    """All tokens that the rules keep are drawn, and no others. Their frequencies pass a chi-squared
    test, which detects a temperature wrong by 25%."""
    more, rules = CALLS[name]
    keywords = {}
    if name in ORDERED_CALLS:
        keywords["filter_apply_order"] = order
        rules = {**rules, "joint": order == "joint"}
    elif order == "joint":
        pytest.skip("takes no order")
    rows = rows_for(name, device)
    for row, weight in enumerate(weights()):
        indices = torch.full((DRAWS,), row, dtype=torch.int64, device=device)
        seeds = torch.arange(DRAWS, device=device) + row * DRAWS
        offset = torch.tensor([11], device=device)
        tokens = getattr(fi, name)(
            rows, *more, indices=indices, seed=seeds, offset=offset, **keywords
        )
        assert tokens.dtype == torch.int64 and tokens.shape == (DRAWS,)
        tokens = tokens.cpu().numpy()
        probs = reference(weight, **rules)
        assert set(tokens) == set(np.flatnonzero(probs))
        assert chi_squared(tokens, probs) < 6
        wrong = probs**1.25
        assert chi_squared(tokens, wrong / wrong.sum()) > 6


def test_the_two_orders_differ():
    """The previous test distinguishes the orders only if their kept sets differ."""
    for row in weights():
        first, joint = (kept(row, top_k=12, top_p=0.73, joint=joint) for joint in (False, True))
        assert first.sum() < joint.sum()


@pytest.mark.parametrize("name", CALLS)
def test_tokens_match_the_package(name, device):
    """(seed, offset) have the meaning of (seed, position)."""
    more, rules = CALLS[name]
    rows = rows_for(name, device)
    logits = rows if name.endswith("logits") else rows.log()
    for seed, offset in ((3, 9), (2**64 - 1, 2**63), (-1, -(2**63))):
        tokens = getattr(fi, name)(rows, *more, seed=seed, offset=offset)
        assert tokens.dtype == torch.int32 and tokens.shape == (3,) and tokens.device == rows.device
        wanted = gumbel.sample_logits(
            logits, seed=seed % 2**64, position=offset % 2**64, **rules
        ).tokens[:, 0]
        assert torch.equal(tokens, wanted)
    seeds, offsets = torch.tensor([5, -1, 7]), torch.tensor([1, 2, -3])
    wanted = gumbel.sample_logits(
        logits, seed=[5, 2**64 - 1, 7], position=[1, 2, 2**64 - 3], **rules
    ).tokens[:, 0]
    for dtype in (torch.int64, torch.uint64):
        given = {"seed": seeds.view(dtype).to(device), "offset": offsets.view(dtype).to(device)}
        assert torch.equal(getattr(fi, name)(rows, *more, **given), wanted)


@pytest.mark.parametrize("name", CALLS)
def test_a_seed_in_another_slot_gives_the_same_token(name, device):
    """Also with limits a row, and in a batch of another size."""
    rows = rows_for(name, device, 8)
    more, _ = CALLS[name]
    more = tuple(
        (
            torch.linspace(0.3, 0.9, 8, device=device)
            if isinstance(value, float)
            else torch.arange(2, 10, device=device)
        )
        for value in more
    )
    seeds, offsets = torch.arange(8, device=device) * 3, torch.arange(8, device=device)
    draw = getattr(fi, name)
    whole = draw(rows, *more, seed=seeds, offset=offsets)
    turn = torch.tensor([6, 1, 3, 0], device=device)
    part = draw(
        rows[turn], *(value[turn] for value in more), seed=seeds[turn], offset=offsets[turn]
    )
    assert torch.equal(part, whole[turn])
    by_index = draw(rows, *more, indices=turn.int(), seed=seeds[turn], offset=offsets[turn])
    assert by_index.dtype == torch.int32 and torch.equal(by_index, whole[turn])
    alone = draw(rows[5:6], *(v[5:6] for v in more), seed=seeds[5:6], offset=offsets[5:6])
    assert torch.equal(alone, whole[5:6])
    one_seed = torch.tensor([4], device=device)
    assert torch.equal(
        draw(rows, *more, seed=one_seed, offset=one_seed), draw(rows, *more, seed=4, offset=4)
    )


def test_rows_of_one_seed_differ(device):
    rows = torch.zeros((64, 4096), device=device)
    tokens = fi.sampling_from_logits(rows, seed=3, offset=0)
    assert len(tokens.unique()) > 56


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_input_dtypes_and_strides(name, dtype, device):
    rows, (more, rules) = rows_for(name, device, dtype=dtype), CALLS[name]
    same = rows.float()
    wanted = getattr(fi, name)(same, *more, seed=1, offset=2)
    assert torch.equal(getattr(fi, name)(rows, *more, seed=1, offset=2), wanted)
    wide = torch.full((3, 2 * V), 0.5, dtype=dtype, device=device)
    wide[:, :V] = rows
    assert torch.equal(getattr(fi, name)(wide[:, :V], *more, seed=1, offset=2), wanted)
    turned = rows.t().contiguous().t()
    assert torch.equal(getattr(fi, name)(turned, *more, seed=1, offset=2), wanted)


def test_rows_that_cannot_be_drawn_from(device):
    probs = rows_for("probs", device, 5)
    probs[1] = 0
    probs[2, 3] = math.nan
    probs[3, 4] = -0.25
    for name, (more, _) in CALLS.items():
        if name.endswith("probs"):
            tokens, valid = getattr(fi, name)(probs, *more, seed=1, offset=1, return_valid=True)
            assert valid.dtype == torch.bool and valid.tolist() == [True, False, False, False, True]
            assert tokens[1:4].tolist() == [0, 0, 0]
            assert torch.equal(tokens, getattr(fi, name)(probs, *more, seed=1, offset=1))


def test_rows_without_a_token_are_counted_in_the_log(device, caplog, monkeypatch):
    """A line names the reasons, unless return_valid returns which rows they are."""
    monkeypatch.setattr(fi, "WATCH", fi.Watch("gumbel.flashinfer", "and so on", every=True))
    logits = rows_for("logits", device, 3)
    logits[0] = -math.inf
    logits[2, 5] = math.nan
    fi.sampling_from_probs(logits.exp(), seed=1, offset=1, return_valid=True)
    assert not caplog.records
    for _ in range(3):
        fi.sampling_from_logits(logits, seed=1, offset=1)
        if device == "cuda":
            torch.cuda.synchronize()
    fi.sampling_from_logits(logits[1:2], seed=1, offset=1)
    assert len(caplog.records) == 1  # a minute apart
    fi.WATCH.count.flush()
    assert caplog.records[-1].name == "gumbel.flashinfer"
    assert caplog.records[-1].message == (
        "gumbel: 6 rows so far without a token to draw (a logit is NaN: 3; "
        "no token has a finite logit: 3); and so on"
    )


def test_a_temperature_of_0_on_cuda_gives_equal_probabilities():
    """As in FlashInfer, whose kernels multiply by 0 there."""
    if "cuda" not in DEVICES:
        pytest.skip("there is no GPU")
    logits = rows_for("logits", "cuda", 2)
    found = fi.softmax(logits, torch.tensor([0.0, 1.0], device="cuda"))
    torch.testing.assert_close(found[0], torch.full_like(found[0], 1 / V))
    assert torch.equal(found[1], fi.softmax(logits)[1])


@pytest.mark.parametrize("name", CALLS)
def test_check_nan(name, device):
    rows, (more, _) = rows_for(name, device), CALLS[name]
    getattr(fi, name)(rows, *more, check_nan=True)
    rows[1, 1] = math.nan
    getattr(fi, name)(rows, *more)
    what = "logits" if name == "sampling_from_logits" else "probs"
    with pytest.raises(ValueError, match=f"Input {what} contains NaN."):
        getattr(fi, name)(rows, *more, check_nan=True)


@pytest.mark.parametrize("name", CALLS)
def test_generators(name, device):
    rows, (more, _) = rows_for(name, device).repeat(64, 1), CALLS[name]
    draw = getattr(fi, name)

    def series(generator):
        return [draw(rows, *more, generator=generator).tolist() for _ in range(3)]

    drawn_series = series(torch.Generator(device).manual_seed(4))
    assert drawn_series == series(torch.Generator(device).manual_seed(4))
    assert drawn_series[0] != drawn_series[1] != drawn_series[2]
    assert drawn_series != series(torch.Generator(device).manual_seed(5))
    torch.manual_seed(4)
    assert drawn_series == series(None)
    torch.manual_seed(4)  # a seed without an offset comes from the generator, too
    assert drawn_series[0] == draw(rows, *more, seed=9).tolist()


def test_seed_and_offset_of_generators(device):
    generator = torch.Generator(device).manual_seed(12)
    seed, offset = flashinfer.get_seed_and_offset(5, generator, torch.device(device))
    assert seed == 12
    again = flashinfer.get_seed_and_offset(5, generator, torch.device(device))
    assert again[0] == 12 and again[1] != offset
    if device == "cuda":
        assert (offset, again[1]) == (8, 16)


BAD_SEEDS = {
    "both": (torch.tensor([1]), 3),
    "length": (torch.tensor([1, 2]), torch.tensor([1])),
    "1D": (torch.tensor([[1, 2, 3]]), torch.tensor([1])),
    "int64": (torch.tensor([1], dtype=torch.int32), torch.tensor([1])),
    "offset: .*int64": (torch.tensor([1]), torch.tensor([1.0])),
    "offset: .*length": (torch.tensor([1]), torch.tensor([1, 2])),
}


@pytest.mark.parametrize("text", BAD_SEEDS)
def test_invalid_seeds_raise(text):
    seed, offset = BAD_SEEDS[text]
    with pytest.raises(ValueError, match=text):
        fi.sampling_from_logits(torch.zeros(3, V), seed=seed, offset=offset)


PROBS = torch.full((3, V), 1 / V)
REFUSED = [
    (
        lambda: fi.top_k_top_p_sampling_from_logits(PROBS, 5, 0.9, filter_apply_order="first"),
        ValueError,
        "Invalid filter_apply_order: first",
    ),
    (
        lambda: fi.top_k_top_p_sampling_from_probs(PROBS, 5, 0.9, None, ""),
        ValueError,
        "Invalid filter_apply_order",
    ),
    (lambda: fi.top_p_sampling_from_probs(PROBS, torch.tensor(0.5)), ValueError, "top_p: "),
    (lambda: fi.top_p_sampling_from_probs(PROBS, torch.ones(2)), ValueError, "top_p: .*3"),
    (lambda: fi.top_p_sampling_from_probs(PROBS, 1.5), ValueError, "top_p: "),
    (lambda: fi.top_p_sampling_from_probs(PROBS, 0.0), ValueError, "top_p: "),
    (lambda: fi.top_k_sampling_from_probs(PROBS, 0), ValueError, "top_k: "),
    (lambda: fi.top_k_sampling_from_probs(PROBS, 1.5), TypeError, "top_k: "),
    (lambda: fi.min_p_sampling_from_probs(PROBS, -0.1), ValueError, "min_p: "),
    (lambda: fi.sampling_from_probs(PROBS[0]), ValueError, "probs: "),
    (lambda: fi.sampling_from_probs(PROBS.int()), TypeError, "probs: "),
    (lambda: fi.sampling_from_probs(PROBS.numpy()), TypeError, "probs: "),
    (lambda: fi.sampling_from_logits(PROBS, torch.zeros(2)), ValueError, "indices: "),
    (lambda: fi.sampling_from_logits(PROBS, torch.tensor([3])), IndexError, "index"),
    (lambda: fi.softmax(PROBS, torch.ones(2)), ValueError, "temperature: "),
    (lambda: fi.softmax(PROBS, torch.ones(3, 1)), ValueError, "temperature: "),
    (lambda: fi.softmax(PROBS, torch.ones(3, dtype=torch.int32)), ValueError, "temperature: "),
    (lambda: fi.softmax(PROBS, True), TypeError, "temperature: "),
    (lambda: fi.softmax(PROBS, "1"), TypeError, "temperature: "),
    (lambda: fi.softmax(PROBS, 0.0), ValueError, r"temperature: is 0.0; must be in \(0, "),
    (
        lambda: fi.softmax(PROBS, torch.tensor([1.0, 0.0, 1.0])),
        ValueError,
        r"temperature\[1\]: is 0.0; must be in \(0, ",
    ),
    (
        lambda: fi.softmax(PROBS, torch.tensor([1.0, 1.0, math.nan])),
        ValueError,
        r"temperature\[2\]: is nan",
    ),
    (
        lambda: fi.top_k_sampling_from_probs(PROBS, torch.tensor([3, 0, 3])),
        ValueError,
        r"top_k\[1\]: is 0; must be at least 1",
    ),
    (
        lambda: fi.top_k_mask_logits(PROBS, torch.tensor([3, 3, -1], dtype=torch.int32)),
        ValueError,
        r"top_k\[2\]: is -1; must be at least 1",
    ),
    (
        lambda: fi.top_p_renorm_probs(PROBS, torch.tensor([0.0, 1.0, 1.0])),
        ValueError,
        r"top_p\[0\]: is 0.0; must be in \(0, 1\]",
    ),
    (
        lambda: fi.top_p_renorm_probs(PROBS, torch.tensor([1.0, 1.0000002, 1.0])),
        ValueError,
        r"top_p\[1\]: is 1.00000023",
    ),
    (
        lambda: fi.min_p_sampling_from_probs(PROBS, torch.tensor([0.0, 1.0, 2.0])),
        ValueError,
        r"min_p\[2\]: is 2.0; must be in \[0, 1\]",
    ),
    (lambda: fi.top_k_renorm_probs(PROBS.double(), 3), AssertionError, "Unsupported dtype"),
    (lambda: fi.top_k_mask_logits(PROBS.double(), 3), AssertionError, "Unsupported dtype"),
    (lambda: flashinfer.top_k(PROBS, 0), ValueError, "k: "),
    (lambda: flashinfer.top_k(PROBS, V + 1), ValueError, "k: "),
    (
        lambda: flashinfer.cake_top_k_top_p_sampling_from_probs(PROBS, 3, 0.9, philox_seed=1),
        ValueError,
        "given together",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_unsupported_arguments_raise(case):
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        call()


def test_no_rows(device):
    assert fi.sampling_from_logits(torch.zeros((0, V), device=device)).shape == (0,)
    assert fi.top_p_renorm_probs(torch.zeros((0, V), device=device), 0.5).shape == (0, V)


def test_calls_as_engines_make_them(device):
    """vLLM's by keywords and with V as off; SGLang's with its own number for off."""
    probs, logits = rows_for("probs", device), rows_for("logits", device)
    k = torch.tensor([5, V, 2], dtype=torch.int32, device=device)
    p = torch.tensor([0.9, 1.0, 0.5], device=device)
    torch.manual_seed(0)
    for call in (
        lambda: fi.top_p_sampling_from_probs(probs, p, deterministic=True),
        lambda: fi.top_k_sampling_from_probs(probs, k, deterministic=True),
        lambda: fi.top_k_top_p_sampling_from_logits(logits, k, p, deterministic=True),
        lambda: fi.top_k_top_p_sampling_from_probs(probs, k, p, filter_apply_order="joint"),
        lambda: fi.min_p_sampling_from_probs(fi.top_k_renorm_prob(probs, k), p - 0.4),
    ):
        tokens = call()
        assert tokens.dtype == torch.int32 and tokens.shape == (3,)
        assert (probs.gather(1, tokens.long()[:, None]) > 0).all()
    off = torch.full((3,), 1 << 30, dtype=torch.int32, device=device)
    drawn = [
        fi.top_k_top_p_sampling_from_probs(probs, each, 0.9, seed=3, offset=1)
        for each in (off, torch.full_like(off, V), off.long() * 4 + 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
    wanted = fi.top_p_sampling_from_probs(probs, 0.9, seed=3, offset=1)
    assert torch.equal(drawn[0], wanted)


def test_threads_have_calls_of_their_own():
    rows = rows_for("logits", "cpu", 8)
    wanted = [fi.sampling_from_logits(rows, seed=n, offset=n).tolist() for n in range(50)]

    def draw(n):
        return fi.sampling_from_logits(rows, seed=n, offset=n).tolist()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(50))) == wanted


def test_a_forked_child_draws():
    """A child of fork() opens its own device, because it lacks the parent's threads."""
    rows = torch.zeros(64, 4096)
    wanted = fi.sampling_from_logits(rows, seed=1, offset=2)
    child = os.fork()
    if child == 0:
        fresh = not calls._thread.calls  # kept calls would use the parent's device
        same = torch.equal(fi.sampling_from_logits(rows, seed=1, offset=2), wanted)
        os._exit(0 if same and fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "module, package, text",
    [
        ("flashinfer", "torch", "gumbel.flashinfer requires PyTorch: pip install 'torch"),
        ("sglang", "sglang", "gumbel.sglang requires SGLang: pip install 'sglang=="),
    ],
)
def test_absent_packages_are_named(module, package, text):
    code = f"import sys; sys.modules[{package!r}] = None; import gumbel.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"ImportError: {text}" in done.stderr
