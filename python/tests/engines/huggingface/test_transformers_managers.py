# SPDX-License-Identifier: Apache-2.0
"""Heads that change while a manager of continuous batching runs, or between its batches."""

import types

import pytest
from transformers_fixtures import gumbel, heads, torch, transformers
from test_transformers_batches import make_batching, make_config
from test_transformers_heads import (
    IN_PLACE,
    assign_state,
    hook_decoder,
    hook_head,
    put_adapter,
    replace_data,
    replace_forward_of_model,
    replace_head,
    replace_parameter,
    write_in_place,
)
from tiny_models import PROMPT, greedy, make
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

pytest.importorskip("psutil")
COMPILED = transformers.CompileConfig(backend="eager", mode="default")
CHANGES = [
    write_in_place,
    replace_parameter,
    replace_data,
    replace_head,
    assign_state,
    put_adapter,
    hook_head,
    hook_decoder,
    replace_forward_of_model,
]


def generate_batch(model, **more):
    config = make_config(tokens=6, do_sample=False)
    out = gumbel.transformers.generate_batch(
        model, PROMPT.tolist(), config, make_batching(), seed=1, **more
    )
    return out["req_0"].generated_tokens


@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("change", IN_PLACE[1:] + CHANGES, ids=lambda change: change.__name__)
def test_a_batch_comes_from_the_head_as_it_is(change, screen):
    model = make()
    before = generate_batch(model, screen=screen)
    with torch.no_grad():
        change(model)
    assert generate_batch(model, screen=screen) == greedy(model, False) != before


# Steps that transformers compiled ignore new hooks and forward functions, also those of the
# decoder.
RUNS = [(change, False, False) for change in CHANGES]
RUNS += [(change, True, False) for change in (write_in_place, replace_data, put_adapter)]
RUNS += [(change, False, True) for change in (write_in_place, replace_parameter, replace_data)]
RUNS += [(write_in_place, True, True), (put_adapter, False, True), (hook_head, True, True)]


@pytest.mark.parametrize(
    "change, screen, compiled", RUNS, ids=[f"{run[0].__name__}{run[1:]}" for run in RUNS]
)
def test_a_manager_that_runs_follows_its_model(change, screen, compiled, monkeypatch):
    monkeypatch.setattr(ContinuousBatchingManager, "__init__", ContinuousBatchingManager.__init__)
    gumbel.transformers.patch_continuous_batching(screen=screen)
    torch._dynamo.reset()
    configs = {"varlen_compile_config": COMPILED, "decode_compile_config": COMPILED}
    model = make()
    with model.continuous_batching_context_manager(
        make_config(tokens=6, do_sample=False),
        continuous_batching_config=make_batching(**(configs if compiled else {})),
    ) as manager:

        def text():
            manager.add_request(PROMPT[0].tolist())
            out = None
            while out is None:
                out = manager.get_result(timeout=1)
                assert manager.is_running() or out is not None
            assert out.error is None, out.error
            return out.generated_tokens

        before = text()
        with torch.no_grad():
            change(model)
        after = text()
    assert after == greedy(model, False) != before


def test_graphs_of_an_old_head_are_not_replayed():
    model = make()
    manager = types.SimpleNamespace(
        model=model,
        logit_processor=types.SimpleNamespace(
            logits_processor=[],
            tensors_required=0,
            do_processing=False,
            _retrieve_processors_kwargs=lambda: None,
        ),
        generation_config=make_config(do_sample=False),
        num_return_sequences=1,
        continuous_batching_config=make_batching(),
    )
    draw = gumbel._transformers.batching.BatchDraw(manager, heads.find_head(model), True)
    gumbel.transformers.forget(model)  # the manager still uses the head that it read
    draw.follow_model(in_graphs=True)
    screen, head = draw.screen, draw.head
    with torch.no_grad():
        model.lm_head.weight.normal_()
        draw.follow_model(in_graphs=True)
        assert draw.screen is screen
        head._screens[0].screen.verify()
        replace_parameter(model)
    with pytest.raises(RuntimeError, match="its head was replaced while .* CUDA graphs"):
        draw.follow_model(in_graphs=True)
    draw.follow_model(in_graphs=False)
    assert draw.head is heads.get_head(model) is not head
