# SPDX-License-Identifier: Apache-2.0
"""Workspaces that calls share: they grow, and prepared calls follow."""

import gumbel
import numpy as np
from gumbel._inputs.arrays import NumpyArrays
from gumbel._inputs.workspaces import SharedWorkspace, get_workspace, use_workspace

ARRAYS = NumpyArrays(None, None)
RANDOM = np.random.default_rng(5)


def make_logits(rows):
    return RANDOM.standard_normal((rows, 3000)).astype(np.float32)


def test_shared_workspaces_grow_and_never_shrink():
    shared = SharedWorkspace()
    first = shared.reserve(ARRAYS, 100)
    assert first.size.value >= 100 and first.address.value % 64 == 0
    again = shared.reserve(ARRAYS, 5000)
    assert again is first and first.size.value >= 5000 and first.address.value % 64 == 0
    size, address = first.size.value, first.address.value
    assert shared.reserve(ARRAYS, 1) is first
    assert (first.size.value, first.address.value) == (size, address)


def test_the_innermost_workspace_serves():
    outer, inner = SharedWorkspace(), SharedWorkspace()
    with use_workspace(outer):
        with use_workspace(inner):
            assert get_workspace(ARRAYS, 10) is inner.reserve(ARRAYS, 10)
        assert get_workspace(ARRAYS, 10, own=True) is outer.reserve(ARRAYS, 10)
    assert get_workspace(ARRAYS, 10) is not outer.reserve(ARRAYS, 10)


def test_prepared_calls_follow_a_workspace_that_grew():
    shared, few, many = SharedWorkspace(), make_logits(1), make_logits(64)
    rules = {"seed": 3, "top_k": 40, "top_p": 0.9, "threads": 1}
    with use_workspace(shared):
        call = gumbel.prepare_sample_logits(few, **rules)
        small = shared.reserve(ARRAYS, 0).size.value
        wanted = gumbel.sample_logits(many, **rules).tokens  # needs more
    assert shared.reserve(ARRAYS, 0).size.value > small
    assert (call().tokens == gumbel.sample_logits(few, **rules).tokens).all()
    assert (gumbel.sample_logits(many, **rules).tokens == wanted).all()
