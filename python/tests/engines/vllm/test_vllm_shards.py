# SPDX-License-Identifier: Apache-2.0
"""Heads of vLLM split over two processes, without an engine: padded vocabularies, a rank with
padding only, biases, caps, masks, rows that torch multiplies; and unsupported heads."""

import contextlib
import functools
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from vllm_jobs import need_vllm

need_vllm()

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ranks"))

import torch  # noqa: E402
from gloo_ranks import die, on_two_ranks  # noqa: E402

ROWS, COLS = 6, 32
# vocabulary, arguments of the LogitsProcessor, whether the head has a bias
HEADS = {
    "plain": (1024, {}, False),
    "padded": (1000, {"scale": 0.5}, True),
    "blocks not met": (700, {"soft_cap": 4.0}, False),  # 704 rows, 352 a rank
    "one rank is padding": (20, {}, True),  # 64 rows
}
SHORT = torch.bfloat16


def head_of(vocab):
    """Weight, bias and hidden states, the same in every process."""
    random = torch.Generator().manual_seed(vocab)
    shapes = ((vocab, COLS), (vocab,), (ROWS, COLS))
    return tuple(torch.randn(shape, generator=random) for shape in shapes)


def read_parameters(vocab):
    from gumbel._vllm import masks
    from gumbel._vllm.drawer import DrawParameters

    rows = {
        "seed": torch.arange(ROWS) - 2,
        "position": torch.arange(ROWS) + 11,
        "temperature": torch.tensor([0.0, 0.5, 0.8, 1.0, 1.5, 0.0]),
    }
    cut = {
        "top_k": torch.tensor([3, vocab, 5, 9, 2, 1], dtype=torch.int32),
        "top_p": torch.linspace(0.5, 1, ROWS),
    }
    texts = {"prompt_tokens": [[1, 2]] * ROWS, "output_tokens": [[5, 5, vocab - 1]] * ROWS}
    return {
        "plain": DrawParameters(rows),
        "cut": DrawParameters({**rows, **cut}),
        "greedy": DrawParameters({"temperature": torch.zeros(ROWS)}),
        "biased": DrawParameters(rows, {"logit_bias": [{3: 4.0, vocab - 1: 9.0}] * ROWS}),
        "penalised": DrawParameters(
            rows, {"repetition_penalty": 1.5, "presence_penalty": 0.3, **texts}
        ),
        "masked": DrawParameters(
            rows, mask=masks.pack_mask(torch.arange(vocab).expand(ROWS, -1) % 3 > 0)
        ),
    }


def draw_all(logits, vocab, raw):
    """Results of a drawer for all parameters; twice, as prepared calls are kept."""
    from gumbel._vllm.drawer import Drawer, LogprobsRequest

    drawer, found = Drawer(), {}
    for name, parameters in read_parameters(vocab).items():
        for turn in range(2):
            for shown in (None, LogprobsRequest(3, raw=False), LogprobsRequest(0, raw=True)):
                if shown is not None and shown.raw and not (raw and name == "plain"):
                    continue
                parts = vars(drawer.draw(logits(), parameters, shown)).values()
                found[f"{name} {turn} {shown}"] = [
                    None if part is None else part.clone().numpy() for part in parts
                ]
    parameters = read_parameters(vocab)["cut"]
    rows = {key: value[:2] for key, value in parameters.rows.items()}
    tokens = torch.tensor([7, 2, 3, 7, 4, 5], dtype=torch.int32)
    offsets = torch.tensor([0, 3, 6], dtype=torch.int32)
    parameters = type(parameters)(rows, mask=read_parameters(vocab)["masked"].mask)
    parts = drawer.verify(logits(), parameters, tokens, offsets, 3)[:2]
    found["verify"] = [part.numpy() for part in parts]
    return found


@contextlib.contextmanager
def tensor_parallel_rank(rank, folder):
    """Make this process a rank of vLLM's tensor parallelism."""
    os.environ["VLLM_DIST_IDENT"] = Path(folder).name
    from gumbel._vllm import lazy
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(2, rank, f"file://{folder}/vllm", rank, "gloo")
        initialize_model_parallel(2)
        lazy.LogitsProcessor.forward = lazy._forward
        yield


def make_shard(vocab, arguments, biased, dtype=torch.float32, added=0):
    """A layer and a head of vLLM's own, with this rank's rows; hidden states."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    weight, bias, hidden = (part.to(dtype) for part in head_of(vocab))
    head = ParallelLMHead(
        vocab + added, COLS, bias=biased, params_dtype=dtype, org_num_embeddings=vocab
    )
    head.weight_loader(head.weight, weight)
    if biased:
        head.weight_loader(head.bias, bias)
    head.quant_method.process_weights_after_loading(head)
    layer = LogitsProcessor(vocab + added, vocab, **arguments)
    return layer, head, hidden


def _heads(rank, folder):
    from gumbel._vllm import lazy
    from gumbel._vllm.counts import counts

    with tensor_parallel_rank(rank, folder):
        found = {}
        for name, (vocab, arguments, biased) in HEADS.items():
            layer, head, hidden = make_shard(vocab, arguments, biased)

            def deferred():
                with lazy.defer_products():
                    return layer(head, hidden, head.bias)

            found[name] = draw_all(deferred, vocab, not arguments)
            assert counts.materialised == 0 and counts.logits == 0
            # Reading the logits gathers all of them.
            found[name]["gathered"] = [(deferred() + 0).numpy()]
            assert counts.materialised == 1
            counts.materialised = 0
        return found


def draw_whole(vocab, arguments, biased):
    """Results of one process, with deferred or computed logits."""
    from gumbel._vllm.lazy import LazyLogits

    weight, bias, hidden = head_of(vocab)
    scale, cap = arguments.get("scale", 1.0), arguments.get("soft_cap", 0.0)
    given = {
        "bias": bias if biased else None,
        "scale": scale,
        "softcap": scale * cap,
        "vocab_size": vocab,
    }
    deferred = functools.partial(LazyLogits, hidden, weight, given, None)
    found = draw_all(deferred, vocab, not arguments)
    logits = hidden @ weight.T + (bias if biased else 0)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    return found, (logits * scale).numpy()


def test_shards_draw_what_the_whole_draws():
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_two_ranks(_heads, folder)
    for rank in (0, 1):
        assert not isinstance(ranks[rank], str), ranks[rank]
        for name, head in HEADS.items():
            wanted, logits = draw_whole(*head)
            gathered = ranks[rank][name].pop("gathered")[0]
            np.testing.assert_allclose(gathered, logits, rtol=0, atol=1e-5)
            assert ranks[rank][name].keys() == wanted.keys()
            for options, parts in wanted.items():
                for found, part in zip(ranks[rank][name][options], parts):
                    np.testing.assert_array_equal(found, part, f"{name}, {options}")


def _without_peer_memory(rank, folder):
    from gumbel._vllm import lazy
    from gumbel._vllm.counts import counts
    from gumbel._vllm.drawer import Drawer

    with tensor_parallel_rank(rank, folder):
        layer, head, hidden = make_shard(1024, {}, False)
        found, drawer = {}, Drawer()
        for gathers in (False, True):
            for name, parameters in read_parameters(1024).items():
                with lazy.defer_products():
                    logits = layer(head, hidden)
                logits.shard.gathers_truncated = gathers
                before = counts.materialised
                tokens = drawer.draw(logits, parameters).tokens
                gathered = counts.materialised - before
                found[name, gathers] = tokens.view(-1).tolist(), gathered
        return found


def test_truncated_draws_use_gathered_logits_if_their_shards_are_slower():
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_two_ranks(_without_peer_memory, folder)
    for rank in (0, 1):
        assert not isinstance(ranks[rank], str), ranks[rank]
        for (name, gathers), (tokens, gathered) in ranks[rank].items():
            assert gathered == (gathers and name == "cut"), name
            assert tokens == ranks[0][name, False][0], name


def _multiplied(rank, folder):
    """16-bit rows that torch multiplies: ranks draw from their columns of the logits."""
    from gumbel._vllm import lazy
    from gumbel._vllm.counts import counts

    with tensor_parallel_rank(rank, folder):
        layer, head, hidden = make_shard(1000, {"scale": 0.5, "soft_cap": 4.0}, False, SHORT)

        def deferred():
            with lazy.defer_products():
                return layer(head, hidden)

        assert deferred().columns is not None and counts.fused == 0
        found = draw_all(deferred, 1000, False)
        assert counts.fused == 0 and counts.logits > 0 and counts.materialised == 0
        return found, layer(head, hidden).float().numpy()


def test_rows_of_16_bits_are_drawn_from_columns():
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_two_ranks(_multiplied, folder)
    for rank in (0, 1):
        assert not isinstance(ranks[rank], str), ranks[rank]
        found, logits = ranks[rank]
        wanted = draw_all(lambda: torch.from_numpy(logits).to(SHORT), 1000, False)
        for options, parts in wanted.items():
            for one, part in zip(found[options], parts):
                np.testing.assert_array_equal(one, part, options)


def _left_to_vllm(rank, folder):
    from gumbel._vllm import groups, lazy

    with tensor_parallel_rank(rank, folder):
        layer, head, hidden = make_shard(1000, {}, False, added=8)
        with lazy.defer_products():
            logits = layer(head, hidden)
        # If one rank cannot serve a head, no rank does.
        agreed = [groups.all_agree(True), groups.all_agree(rank == 0), groups.all_agree(False)]
        return lazy.is_lazy(logits), tuple(logits.shape), agreed


def test_added_rows_and_a_rank_that_cannot_are_left_to_vllm():
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_two_ranks(_left_to_vllm, folder)
    for rank in (0, 1):
        assert ranks[rank] == (False, (ROWS, 1000), [True, False, False]), ranks[rank]


def _dying(rank, folder):
    os.environ["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = "5"
    from gumbel._vllm import lazy
    from gumbel._vllm.drawer import Drawer

    with tensor_parallel_rank(rank, folder):
        layer, head, hidden = make_shard(1024, {}, False)
        parameters, drawer = read_parameters(1024)["plain"], Drawer()

        def step():
            with lazy.defer_products():
                drawer.draw(layer(head, hidden), parameters)

        step()
        if rank == 1:
            die()
        begin, errors = time.monotonic(), []
        for _ in range(2):
            try:
                step()
            except RuntimeError as problem:
                errors.append(str(problem))
        return errors, time.monotonic() - begin


def test_a_dead_rank_is_an_error_of_the_step():
    with tempfile.TemporaryDirectory() as folder:
        found = on_two_ranks(_dying, folder, answers=1)
    assert not isinstance(found[0], str), found[0]
    errors, waited = found[0]
    assert errors[0].startswith("group: an exchange failed")
    assert errors[1] == "group: an earlier exchange failed" and waited < 15


class OnGpu:
    """A stand-in for a weight on a GPU."""

    is_cpu, is_cuda, device = False, True, torch.device("cuda:1")

    def __len__(self):
        return 32


def _other_meetings(rank, folder):
    """Ranks on GPUs exchange by NCCL. If one rank cannot open its group, no rank uses one."""
    from gumbel._vllm import groups

    options, closed = [], []

    class Group:
        peer_memory = False

        def __init__(self, *places, **named):
            options.append((places, named["device"], named["nccl"], named["peer_memory"]))
            if len(options) == 2 and rank == 1:
                raise RuntimeError("nccl: rank 0 has none")

        def close(self):
            closed.append(len(options))

    with tensor_parallel_rank(rank, folder):
        real, groups._dist.Group = groups._dist.Group, Group
        try:
            found = [groups._open_shard(64, OnGpu()), groups._open_shard(64, OnGpu())]
        finally:
            groups._dist.Group = real
        words = [shard and shard.words for shard in found]
        assert found[0].gathers_truncated
        kinds = [groups.can_draw_together(kind) for kind in ("cpu", "xpu")]
        for lacks in (None, "there is no such library"):
            for wanted in ("0", ""):
                os.environ["GUMBEL_VLLM_GPU_RANKS"] = wanted
                groups.find_nccl_problem = lambda lacks=lacks: lacks
                groups.can_draw_together.cache_clear()
                kinds.append(groups.can_draw_together("cuda"))
        return words, options, closed, kinds


def test_ranks_on_gpus_meet_by_nccl_or_not_at_all():
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_two_ranks(_other_meetings, folder)
    for rank in (0, 1):
        assert not isinstance(ranks[rank], str), ranks[rank]
        words, options, closed, kinds = ranks[rank]
        assert words == [3, None] and closed == ([2] if rank == 0 else [])
        assert options == 2 * [((64, 32), OnGpu.device, True, "allow")]
        assert kinds == [True, False, False, True, False, False]
