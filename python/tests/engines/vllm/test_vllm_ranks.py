# SPDX-License-Identifier: Apache-2.0
"""vLLM with two tensor-parallel ranks: requests with all parameters have the texts of one rank, and
every draw of the ranks equals the draw of one process with the whole head, bit by bit."""

import functools
import os

import pytest
from vllm_jobs import PROMPTS, RUNNERS, need_vllm, request, run

need_vllm()

from test_vllm_requests import (  # noqa: E402
    DRAWN,
    NAMES,
    NGRAMS,
    WITHOUT_DRAFTS,
    equal_results,
    rounds,
    way_of,
    run_plugin,
)

if len(os.sched_getaffinity(0)) < 2:
    pytest.skip("vLLM requires a processor for each rank", allow_module_level=True)

RANKS = 2


@functools.cache
def by_ranks(runner):
    return run(rounds(NAMES) + rounds(NAMES, **DRAWN), runner, ranks=RANKS)


def check_ranks(job):
    """Checks that both ranks report equal counts, and no failed comparison with one process."""
    last = job.rounds[-1]["ranks"]
    assert len(last) == RANKS and last[0]["counts"] == last[1]["counts"]
    for report in last:
        assert report["different"] == [] and report["draws"] > 0
    assert last[0]["draws"] == last[0]["counts"]["fused"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_draws_are_those_of_one_process_to_the_bit(runner):
    check_ranks(by_ranks(runner))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_texts_are_those_of_one_rank(runner, name):
    for at in (NAMES.index(name), len(NAMES) + NAMES.index(name)):
        found, wanted = (
            job.rounds[at]["requests"] for job in (by_ranks(runner), run_plugin(runner))
        )
        assert equal_results(found, wanted), (found, wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_logits_are_gathered_where_one_rank_would_form_them(runner, name):
    by_ranks(runner).assert_drawn(NAMES.index(name), way_of(name, runner))


def test_drafts_of_ranks_change_no_text():
    names = [name for name in NAMES if name not in WITHOUT_DRAFTS]
    job = run(rounds(names, **DRAWN), ranks=RANKS, speculative_config=NGRAMS)
    check_ranks(job)
    for at, name in enumerate(names):
        wanted = run_plugin("V1").ids(len(NAMES) + NAMES.index(name))
        assert job.ids(at) == wanted, name


def test_batches_of_16_bits_are_multiplied_by_torch_and_drawn_by_ranks():
    """Many rows are not gathered, either. Requests without seeds have equal seeds on all ranks."""
    many = [[request(PROMPTS[row % 3], 6, temperature=0.9) for row in range(12)]]
    few = [[request(PROMPTS[0], 6, temperature=0.9, seed=3)]]
    job = run(many + few, ranks=RANKS, dtype="bfloat16")
    for at in (0, 1):  # torch multiplies one row, too, as this head fits into a cache
        assert job.counts(at)["logits"] == 6 and job.counts(at)["materialised"] == 0
    assert job.rounds[-1]["ranks"][0]["counts"] == job.rounds[-1]["ranks"][1]["counts"]
    assert len({tuple(ids) for ids in job.ids(0)}) == 12
