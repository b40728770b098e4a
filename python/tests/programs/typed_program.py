# SPDX-License-Identifier: Apache-2.0
"""A program that uses the whole public API with types, for mypy --strict; it runs, too."""

from typing import Any, Optional

import gumbel
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Elsewhere:
    """An array of another library with DLPack, as torch's tensors have."""

    def __init__(self, array: Floats) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Any = None) -> Any:
        return self.array.__dlpack__(stream=None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def draws(hidden: Floats, weight: Floats) -> list[gumbel.SampleOutput]:
    logits: Floats = hidden @ weight.T
    tokens: Ints = np.zeros(len(hidden), np.int32)
    return [
        gumbel.sample(hidden, weight, temperature=[0.5] * len(hidden), seed=1, position=17),
        gumbel.sample_logits(logits, top_k=40, top_p=0.9, min_p=0.01, order="vllm", ranks=True),
        gumbel.sample_logits(logits, order=["top_k", "typical_p"], typical_p=0.9, min_keep=2),
        gumbel.sample_logits(
            logits, order=["hf", ["min_p", "eta"]], program=[0] * len(logits), eta=0.01
        ),
        gumbel.sample_logits(logits, banned=[7], logit_bias={3: 1.5}, top_logprobs=2, kept=True),
        gumbel.sample_logits(logits, num_best=4, live_rows=1, isa="reference", threads=1),
        gumbel.score(hidden, weight, tokens, softcap=30.0),
        gumbel.score_logits(logits, tokens, logprobs="raw"),
    ]


def kept_ids(logits: Floats) -> tuple[Ints, Optional[Floats]]:
    sets: gumbel.KeptSets = gumbel.sample_logits(logits, top_k=5, kept_ids=5).kept_sets()
    return sets.ids, sets.logprobs


def rows(logits: Floats) -> tuple[Floats, Floats, Floats, Ints]:
    values, ids = gumbel.top_k(logits, 3)
    return gumbel.process_logits(logits, min_p=0.1), gumbel.softmax(logits), values, ids


def steps(hidden: Floats, weight: Floats) -> Ints:
    position = np.zeros(len(hidden), np.uint64)
    history = gumbel.History(num_slots=len(hidden), vocab_size=len(weight))
    history.start([[1, 2]] * len(hidden))
    call: gumbel.PreparedCall = gumbel.prepare_sample(
        hidden, weight, position=position, history=history, presence_penalty=0.5
    )
    output: gumbel.SampleOutput = call()
    history.update(output.tokens)
    position += 1
    return call(hidden).tokens


def texts_without_loops(logits: Floats) -> Ints:
    rows, vocab = logits.shape
    history = gumbel.History(rows, vocab)
    recent = gumbel.Recent(rows, 64, history=history, window=32)
    recent.start([[1, 2]] * rows)
    lists: gumbel.RowLists = recent.make_lists(dry_multiplier=0.8, bad_words=[[3], [4, 5]])
    updates = gumbel.RuleUpdates(rows, surprise_target=5.0)
    out = gumbel.sample_logits(
        logits, lists=lists, late_bias=None, order="surprise", surprise=updates.surprise
    )
    recent.append(out.tokens)
    lists.update()
    updates.update(out.tokens, out.logprobs)
    return lists.status


def watermarked(logits: Floats, drafts: Ints) -> float:
    rows = len(logits)
    recent = gumbel.Recent(rows, 64)
    watermark = gumbel.Watermark(rows, [b"k" * 16] * rows, context=[4] * rows, seed=3)
    watermark.start(0, slots=[0])
    watermark.update(recent, 5, drafts=drafts)
    out = gumbel.sample_logits(logits, seed=watermark.seed, position=watermark.position)
    nodes = watermark.update_nodes(recent, drafts, position=[5] * rows)
    gumbel.verify_logits(logits, drafts, seed=watermark.seed, node_position=nodes)
    found: gumbel.WatermarkDetection = gumbel.detect_watermark(out.tokens[:, 0], "0f" * 16)
    return found.p_value


def shards(hidden: Floats, weight: Floats) -> Ints:
    first, rest = weight[:64], weight[64:]
    summaries: NDArray[np.void] = gumbel.partial(hidden, first, vocab_size=len(weight), seed=2)
    other = gumbel.partial(hidden, rest, first_token=64, vocab_size=len(weight), seed=2)
    gumbel.merge(summaries, other)
    return gumbel.finish(summaries).tokens


def explained(logits: Floats) -> Optional[float]:
    texts: list[Optional[str]] = [f" {token}" for token in range(logits.shape[1])]
    found: gumbel.DrawExplanation = gumbel.explain_draw(logits, vocabulary=texts, top_k=5, seed=1)
    plain: dict[str, Any] = found.to_dict()
    page: str = found.to_html()
    assert plain["steps"] and page and str(found)
    first = found.steps[0]
    assert first.winner is not None and first.rules[0].examples == ()
    return first.margin


def words() -> tuple[Floats, NDArray[np.uint32], int]:
    noise = gumbel.noise(1, 17, 5)
    return noise, gumbel.philox4x32([1, 2, 3, 4], [5, 6]), gumbel.draft_domain(1)


def verified(hidden: Floats, weight: Floats) -> Ints:
    output: gumbel.VerifyOutput = gumbel.verify(
        hidden, weight, np.array([[0, 5]], np.int32), temperature=0.0, position=3
    )
    return output.tokens


def verified_by_rejection(hidden: Floats, weight: Floats) -> Ints:
    drawn = gumbel.sample(hidden, weight, domain=gumbel.draft_domain())
    logprobs: Optional[Floats] = None if drawn.logprobs is None else drawn.logprobs[:, 0]
    drew: gumbel.Proposal = gumbel.proposal(
        hidden, weight, drawn_lse=drawn.lse, drawn_logprobs=logprobs
    )
    chain = np.array([[0, drawn.tokens[0, 0]]], np.int32)
    return gumbel.verify(hidden, weight, chain, rule="rejection", proposal=drew).accepted


def sampled(hidden: Floats, weight: Floats) -> Ints:
    sampler = gumbel.Sampler(seed=7, num_slots=4)
    sampler.reset(slots=[1, 3], position=5, seed=[2**63, 1])
    state: dict[str, Any] = sampler.state_dict()
    output: gumbel.SampleOutput = sampler.sample(hidden, weight, slots=[1, 3], top_k=5)
    sampler.load_state_dict(state)
    call: gumbel.PreparedCall = sampler.prepare_sample(
        hidden, weight, slots=np.array([1, 3], np.int32), top_k=5
    )
    assert np.array_equal(call().tokens, output.tokens)
    assert (output.status == gumbel.RowStatus.OK).all()
    position: Optional[NDArray[np.uint64]] = sampler.position
    assert position is not None and position.tolist() == [0, 6, 0, 6]
    sampler.position, sampler.seed = 40, [1, 2, 3, 4]
    assert position.tolist() == [40] * 4
    gumbel.advance(position, slots=[0])
    return call().tokens


def first_logprob(output: gumbel.SampleOutput) -> Optional[np.float32]:
    logprobs: Optional[Floats] = output.logprobs
    first: Any = None if logprobs is None else logprobs[0, 0]
    return None if first is None else np.float32(first)


def main() -> None:
    about: gumbel.Info = gumbel.info(threads=1)
    version: str = gumbel.__version__
    hidden = np.eye(2, 32, dtype=np.float32)
    weight = np.cos(np.arange(128 * 32, dtype=np.float32)).reshape(128, 32)
    text: str = gumbel.explain(weight, hidden, top_k=5)
    assert text and about.version == version
    elsewhere = gumbel.sample(Elsewhere(hidden), weight, seed=3)
    assert np.array_equal(elsewhere.tokens, gumbel.sample(hidden, weight, seed=3).tokens)
    assert first_logprob(draws(hidden, weight)[0]) is not None
    assert len(rows(hidden @ weight.T)) == 4
    assert explained(hidden @ weight.T) is not None
    assert np.array_equal(
        shards(hidden, weight), gumbel.sample(hidden, weight, logprobs=None, seed=2).tokens
    )
    assert texts_without_loops(hidden @ weight.T).tolist() == [0, 0]
    assert steps(hidden, weight).shape == (2, 1) and len(words()[0]) == 5
    assert verified(hidden, weight).shape[0] == 1 and sampled(hidden, weight).shape == (2, 1)
    assert verified_by_rejection(hidden, weight).tolist() == [1]  # its draft is the target


if __name__ == "__main__":
    main()
