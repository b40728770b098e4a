# SPDX-License-Identifier: Apache-2.0
"""torch tensors in, tensors of the same device out, with the values that NumPy arrays give."""

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch")

B, V, D = 3, 500, 32
RNG = np.random.default_rng(2)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = (HIDDEN @ WEIGHT.T).astype(np.float32)
MASK = RNG.integers(-(2**31), 2**31, size=(B, (V + 31) // 32)).astype(np.int32)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
]
FIELDS = ("tokens", "logprobs", "lse", "status")


def assert_equal_outputs(out, wanted, device):
    for name in FIELDS:
        tensor = getattr(out, name)
        assert isinstance(tensor, torch.Tensor) and tensor.device == torch.device(device)
        expected = getattr(wanted, name)
        assert tensor.cpu().numpy().dtype == expected.dtype
        np.testing.assert_allclose(tensor.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_draws_are_those_of_numpy(device, dtype):
    hidden, weight = (torch.tensor(a).to(device, dtype) for a in (HIDDEN, WEIGHT))
    logits = torch.tensor(LOGITS).to(device, dtype)
    common = {"seed": 5, "position": [1, 2, 3], "temperature": 0.8, "num_samples": 4}
    wide = [a.float().cpu().numpy() for a in (hidden, weight, logits)]
    assert_equal_outputs(
        gumbel.sample(hidden, weight, **common), gumbel.sample(*wide[:2], **common), device
    )
    wanted = gumbel.sample_logits(wide[2], **common)
    assert_equal_outputs(gumbel.sample_logits(logits, **common), wanted, device)
    apart = torch.zeros((B, 2 * V), device=device, dtype=dtype)
    apart[:, :V] = logits
    assert_equal_outputs(gumbel.sample_logits(apart[:, :V], **common), wanted, device)


@pytest.mark.parametrize("device", DEVICES)
def test_parameters_may_be_tensors(device):
    common = {
        "seed": np.array([3, 2**40, 9]),
        "position": np.array([1, 2, 2**31 - 1]),
        "temperature": np.array([0.5, 1.0, 2.0], dtype=np.float32),
    }
    wanted = gumbel.sample_logits(LOGITS, **common)
    logits = torch.tensor(LOGITS, device=device)
    tensors = {name: torch.tensor(value) for name, value in common.items()}
    assert_equal_outputs(gumbel.sample_logits(logits, **tensors), wanted, device)
    there = {name: value.to(device) for name, value in tensors.items()}
    assert_equal_outputs(gumbel.sample_logits(logits, **there), wanted, device)
    half = {**there, "temperature": there["temperature"].to(torch.bfloat16)}
    assert_equal_outputs(gumbel.sample_logits(logits, **half), wanted, device)
    assert_equal_outputs(gumbel.sample_logits(logits.requires_grad_(), **there), wanted, device)


@pytest.mark.parametrize("device", DEVICES)
def test_requests(device):
    request = {
        "top_k": [5, 0, 20],
        "top_p": 0.9,
        "banned": [[1], [2, 3], []],
        "logit_bias": {7: 1.5},
        "frequency_penalty": 0.5,
        "output_tokens": [[4, 4], [], [9]],
    }
    logits, mask = torch.tensor(LOGITS, device=device), torch.tensor(MASK, device=device)
    found = gumbel.process_logits(logits, mask=mask, **request)
    wanted = gumbel.process_logits(LOGITS, mask=MASK, **request)
    assert found.device == logits.device and found.dtype == torch.float32
    np.testing.assert_allclose(found.cpu().numpy(), wanted, rtol=1e-6)
    more = {"ranks": True, "kept": True, "top_logprobs": 3, "seed": 0}
    out = gumbel.sample_logits(logits, mask=mask, **request, **more)
    alike = gumbel.sample_logits(LOGITS, mask=MASK, **request, **more)
    assert_equal_outputs(out, alike, device)
    for name in ("ranks", "kept", "top_ids"):
        np.testing.assert_array_equal(getattr(out, name).cpu().numpy(), getattr(alike, name))
    lists = {**request, "banned": [torch.tensor([1]), torch.tensor([2, 3]), []]}
    again = gumbel.process_logits(logits, mask=mask, **lists)
    assert torch.equal(again, found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_standalone_calls(device, dtype):
    logits = torch.tensor(LOGITS).to(device, dtype)
    found = gumbel.softmax(logits)
    assert found.device == logits.device and found.dtype == torch.float32
    torch.testing.assert_close(found, torch.softmax(logits.float(), dim=1), rtol=1e-5, atol=0)
    request = {"temperature": 0.7, "top_p": 0.8, "mask": torch.tensor(MASK[0]).to(device)}
    nucleus = gumbel.softmax(logits, **request)
    z = gumbel.process_logits(logits, **request)
    torch.testing.assert_close(nucleus, torch.softmax(z, dim=1), rtol=1e-5, atol=0)
    values, ids = gumbel.top_k(logits, 20)
    wanted = torch.sort(logits.float(), dim=1, descending=True, stable=True)
    assert torch.equal(values, wanted.values[:, :20])
    assert torch.equal(ids, wanted.indices[:, :20].int())


def numpy_of(tensor):
    return tensor.cpu().numpy()


@pytest.mark.parametrize("device", DEVICES)
def test_scores(device):
    tokens = RNG.integers(0, V, size=(B, 4)).astype(np.int32)
    wanted = gumbel.score_logits(LOGITS, tokens, top_k=50)
    logits = torch.tensor(LOGITS, device=device)
    for given in (tokens, torch.tensor(tokens).to(device), torch.tensor(tokens.astype(np.int64))):
        found = gumbel.score_logits(logits, given, top_k=50)
        assert_equal_outputs(found, wanted, device)
        np.testing.assert_array_equal(numpy_of(found.ranks), wanted.ranks)
    hidden, weight = (torch.tensor(a).to(device) for a in (HIDDEN, WEIGHT))
    assert_equal_outputs(
        gumbel.score(hidden, weight, tokens), gumbel.score(HIDDEN, WEIGHT, tokens), device
    )


@pytest.mark.parametrize("device", DEVICES)
def test_summaries(device):
    logits = torch.tensor(LOGITS, device=device)
    common = {"seed": 3, "num_samples": 2, "vocab_size": V}
    parts = [
        gumbel.partial_logits(logits[:, :128], **common),
        gumbel.partial_logits(logits[:, 128:], first_token=128, **common),
    ]
    assert parts[0].device == logits.device and parts[0].dtype == torch.uint8
    assert parts[0].shape == (B, 2, gumbel.SUMMARY.itemsize)
    wanted = gumbel.sample_logits(LOGITS, **common)
    assert_equal_outputs(gumbel.finish(torch.stack(parts)), wanted, device)
    gumbel.merge(parts[1], parts[0])
    assert_equal_outputs(gumbel.finish(parts[1]), wanted, device)
    with pytest.raises(TypeError, match="^summaries: expected summaries, uint8"):
        gumbel.finish(logits)
    with pytest.raises(ValueError, match="^summaries: .*not contiguous"):
        gumbel.finish(parts[0][::2])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count_bits", [16, 32])
def test_histories(device, count_bits):
    slots, penalties = [3, 0, 1], {"presence_penalty": 0.5, "frequency_penalty": [0.1] * 4}
    logits = torch.tensor(LOGITS, device=device)
    wanted = gumbel.History(4, V, count_bits=count_bits)
    history = gumbel.History(4, V, count_bits=count_bits, like=logits)
    assert history.counts.device == logits.device and history.device == device
    there = torch.tensor(slots, dtype=torch.int32, device=device)
    for kind in (slots, there):
        wanted.start([[1], [], [2, 2]], [7, 7], slots=slots)
        history.start([[1], [], [2, 2]], [7, 7], slots=kind)
        for position in range(3):
            common = {"num_slots": 4, "seed": 3, "position": position, **penalties}
            alike = gumbel.sample_logits(LOGITS, history=wanted, slots=slots, **common)
            found = gumbel.sample_logits(logits, history=history, slots=kind, **common)
            assert_equal_outputs(found, alike, device)
            wanted.update(alike.tokens, slots=slots)
            history.update(found.tokens, slots=kind)
        for name in ("prompt", "output", "counts"):
            bits, expected = numpy_of(getattr(history, name)), getattr(wanted, name)
            np.testing.assert_array_equal(bits.view(expected.dtype), expected, name)


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_and_positions_of_every_dtype(device):
    values = [1, 2, 2**31 - 1]
    wanted = gumbel.sample_logits(LOGITS, seed=values, position=values)
    logits = torch.tensor(LOGITS, device=device)
    for dtype in (torch.int32, torch.uint32, torch.int64, torch.uint64):
        there = torch.tensor(values).to(dtype).to(device)
        assert_equal_outputs(
            gumbel.sample_logits(logits, seed=there, position=there), wanted, device
        )
    large = torch.tensor([2**40, 2**63 - 1, 0], device=device)
    alike = gumbel.sample_logits(LOGITS, seed=numpy_of(large), position=numpy_of(large))
    for there in (large, large.view(torch.uint64)):
        assert_equal_outputs(
            gumbel.sample_logits(logits, seed=there, position=there), alike, device
        )


@pytest.mark.parametrize("device", DEVICES)
def test_first_sample_of_every_dtype(device):
    values = [1, 2**31 - 1, 5]
    wanted = gumbel.sample_logits(LOGITS, first_sample=values, seed=[4] * B)
    logits = torch.tensor(LOGITS, device=device)
    for dtype in (torch.int32, torch.uint32, torch.int64):
        there = torch.tensor(values).to(dtype).to(device)
        assert_equal_outputs(
            gumbel.sample_logits(logits, first_sample=there, seed=[4] * B), wanted, device
        )
    large = torch.tensor([2**32 - 1, 2**31, 0])
    alike = gumbel.sample_logits(LOGITS, first_sample=large.numpy(), seed=[4] * B)
    for there in (large, large.to(torch.uint32)):
        found = gumbel.sample_logits(logits, first_sample=there.to(device), seed=[4] * B)
        assert_equal_outputs(found, alike, device)


@pytest.mark.parametrize("device", DEVICES)
def test_slots_and_live_rows(device):
    slots, spread = [3, 0, 1], np.array([1.0, 2.0, 9.0, 0.5], np.float32)
    common = {"num_slots": 4, "seed": 8}
    wanted = gumbel.sample_logits(LOGITS, slots=slots, temperature=spread, live_rows=2, **common)
    there = {
        "slots": torch.tensor(slots, dtype=torch.int32, device=device),
        "temperature": torch.tensor(spread, device=device),
        "live_rows": torch.tensor([2], dtype=torch.int32, device=device),
    }
    assert_equal_outputs(
        gumbel.sample_logits(torch.tensor(LOGITS, device=device), **there, **common), wanted, device
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_history_of_another_device():
    logits = torch.tensor(LOGITS, device="cuda:0")
    with pytest.raises(ValueError, match="^history: is on cpu, the call on cuda:0"):
        gumbel.sample_logits(logits, history=gumbel.History(B, V), presence_penalty=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_bad_slot_is_a_status_of_its_row():
    logits = torch.tensor(LOGITS, device="cuda:0")
    slots = torch.tensor([0, 9, 1], dtype=torch.int32, device="cuda:0")
    out = gumbel.sample_logits(logits, slots=slots, num_slots=4)
    assert out.status.tolist() == [0, 5, 0] and out.tokens[1].tolist() == [-1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_draws_run_on_the_current_stream():
    """The logits are computed on the stream of the draw, without any other synchronisation."""
    stream = torch.cuda.Stream()
    wanted = gumbel.sample_logits(LOGITS + LOGITS, seed=1)
    with torch.cuda.stream(stream):
        logits = torch.tensor(LOGITS).to("cuda:0", non_blocking=True)
        torch.cuda._sleep(10_000_000)
        out = gumbel.sample_logits(logits + logits, seed=1)
    stream.synchronize()
    assert_equal_outputs(out, wanted, "cuda:0")


@pytest.mark.filterwarnings("ignore:.*(Sparse|nested|quantize)")
@pytest.mark.parametrize("device", DEVICES)
def test_unsupported_tensors_are_named(device):
    waiting = torch.ones(B, dtype=torch.complex64, device=device).conj()
    ones = torch.ones((B, V), device=device)
    odd = [
        waiting,
        waiting.imag,
        waiting.resolve_conj(),
        torch.ones(B, device=device).to_sparse(),
        torch.eye(B, device=device).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], device=device),
        torch.ones(B, device="meta"),
        torch.ones(B, dtype=torch.bool, device=device),
        torch.tensor(True, device=device),
        torch.ones(B, device=device).to(torch.float8_e4m3fn),
    ]
    assert odd[1].is_neg()
    parameters = ("temperature", "top_p", "seed", "position", "top_k", "num_samples", "mask")
    for tensor in odd:
        for name in (*parameters, "banned", "prompt_tokens", "scale", "logit_bias"):
            with pytest.raises((TypeError, ValueError), match=rf"^{name}\S*: "):
                gumbel.sample_logits(ones, **{name: tensor})
        with pytest.raises(TypeError, match=r"^banned\S*: "):
            gumbel.sample_logits(ones, banned=[tensor, [1], [2]])
        with pytest.raises(TypeError, match=r"^top_k\[1\]: "):
            gumbel.sample_logits(ones, top_k=[1, tensor, 2])
        with pytest.raises((TypeError, ValueError), match="^logits: "):
            gumbel.sample_logits(tensor)
    apart = torch.ones((B, V), dtype=torch.complex64, device=device)
    matrices = [apart, apart.conj(), apart.conj().imag, ones.to_sparse(), ones > 0]
    for tensor in matrices:
        with pytest.raises(TypeError, match="^logits: "):
            gumbel.sample_logits(tensor)


def test_conflicting_tensors_are_named():
    hidden, weight = torch.tensor(HIDDEN), torch.tensor(WEIGHT)
    with pytest.raises(TypeError, match="^weight: expected a torch.Tensor, because"):
        gumbel.sample(hidden, WEIGHT)
    with pytest.raises(TypeError, match="^weight: is a torch.Tensor, but hidden is not"):
        gumbel.sample(HIDDEN, weight)
    with pytest.raises(ValueError, match="^weight: is on meta, but hidden is on cpu"):
        gumbel.sample(hidden, weight.to("meta"))
    with pytest.raises(ValueError, match="^logits: is on meta; expected cpu or cuda"):
        gumbel.sample_logits(torch.empty((B, V), device="meta"))
    with pytest.raises(TypeError, match="^logits: dtype float64 "):
        gumbel.sample_logits(torch.tensor(LOGITS).double())
    with pytest.raises(ValueError, match=r"^logits: .* pass logits.contiguous\(\)$"):
        gumbel.sample_logits(torch.tensor(LOGITS).T)
    with pytest.raises(ValueError, match=r"^temperature: .*got \(2,\)"):
        gumbel.sample_logits(torch.tensor(LOGITS), temperature=torch.ones(2))
    with pytest.raises(TypeError, match="^seed: "):
        gumbel.sample_logits(torch.tensor(LOGITS), seed=torch.ones(B))
