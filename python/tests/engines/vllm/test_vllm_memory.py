# SPDX-License-Identifier: Apache-2.0
"""The workspaces of engines: one for each, reserved once, and large enough for every step."""

import types

import pytest
from vllm_jobs import need_vllm

need_vllm()

import torch  # noqa: E402
from gumbel import History  # noqa: E402
from gumbel._vllm import masks, memory  # noqa: E402
from gumbel._vllm.draw_parameters import PENALTIES, DrawParameters, LogprobsRequest  # noqa: E402
from gumbel._vllm.drawer import Drawer  # noqa: E402
from gumbel._vllm.lazy import LazyLogits  # noqa: E402

REQUESTS, COLS, VOCAB = 6, 16, 500


@pytest.fixture
def lines(monkeypatch):
    """The lines of the log; workspaces on the CPU are reserved as on a GPU."""
    found = []
    monkeypatch.setattr(memory, "RESERVED_ON", ("cpu",))
    monkeypatch.setattr(memory.logger, "info", lambda text, *rest: found.append(text % rest))
    return found


def make_runner(drafts=0, requests=REQUESTS):
    """The fields of a runner that the reservation reads."""
    speculative = types.SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
    return types.SimpleNamespace(
        _gumbel_serves=True,
        device=torch.device("cpu"),
        max_num_reqs=requests,
        model_config=types.SimpleNamespace(
            get_vocab_size=lambda: VOCAB, get_hidden_size=lambda: COLS
        ),
        vllm_config=types.SimpleNamespace(speculative_config=speculative),
    )


def make_logits(rows=REQUESTS, seed=0):
    """Deferred logits."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(n, COLS, generator=generator) for n in (rows, VOCAB))
    head = {"bias": None, "scale": 1.0, "softcap": 0.0, "vocab_size": VOCAB}
    return LazyLogits(hidden, weight, head, None)


def make_parameters(entries=REQUESTS, mask_rows=REQUESTS, **more):
    rows = {"seed": torch.arange(entries), "position": torch.arange(entries)}
    rows["temperature"] = torch.ones(entries)
    rows.update(top_k=torch.full((entries,), 40, dtype=torch.int32))
    rows.update(top_p=torch.full((entries,), 0.9), min_p=torch.full((entries,), 0.01))
    for name in PENALTIES:
        rows[name] = torch.full((entries,), 1.5)
    mask = masks.pack_mask(torch.arange(VOCAB).expand(mask_rows, -1) % 7 > 0)
    history = History(entries, VOCAB, like=torch.empty(0))
    history.start([[1, 2]] * entries, [[3, 3]] * entries)
    return DrawParameters(rows, mask=mask, history=history, **more)


def range_of(drawer):
    """The addresses of a drawer's workspace."""
    workspace = drawer.workspace._workspace
    return range(workspace.address.value, workspace.address.value + workspace.size.value)


def test_draws_of_two_engines_use_no_common_memory():
    """Their streams are not ordered, so both may draw at the same time."""
    engines = [Drawer(), Drawer()]
    for drawer in engines:
        drawer.draw(make_logits(), make_parameters(), LogprobsRequest(2, raw=False))
    first, second = map(range_of, engines)
    assert len(first) and len(second)
    assert first.stop <= second.start or second.stop <= first.start


def test_prepared_calls_of_an_engine_share_a_workspace():
    drawer = Drawer()
    for count in (1, 3, REQUESTS):
        rows = {"temperature": torch.ones(count), "seed": torch.arange(count)}
        rows["position"] = torch.arange(count)
        drawer.draw(make_logits(count), DrawParameters(rows))
    held = [known.call._held[-1] for known in drawer.prepared.values()]
    assert len(held) == 3 and all(each is held[0] for each in held)


def test_dummy_runs_reserve_and_log_a_workspace_once(lines):
    drawers = {}
    run = memory.reserve_in_profile(
        lambda runner: None, lambda runner: drawers.setdefault(id(runner), Drawer())
    )
    runners = [make_runner(), make_runner()]
    for runner in runners * 3:
        run(runner)
    assert len(lines) == 2 and "draws have a workspace of" in lines[0]
    for runner in runners:
        drawer = drawers[id(runner)]
        before = range_of(drawer)
        drawer.draw(make_logits(), make_parameters(), LogprobsRequest(5, raw=False))
        assert len(before) and range_of(drawer) == before


def test_runners_whose_draws_are_vllms_reserve_nothing(lines):
    runner, drawer = make_runner(), Drawer()
    memory.reserve(runner, None)
    runner._gumbel_serves = False
    memory.reserve(runner, drawer)
    assert not lines and drawer.workspace.size == 0
