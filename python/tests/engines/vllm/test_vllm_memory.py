# SPDX-License-Identifier: Apache-2.0
"""The workspaces of engines: one for each, reserved once, and large enough for every step."""

import gc
import types
import weakref

import pytest
from vllm_jobs import need_vllm

need_vllm()

import torch  # noqa: E402
from gumbel import History  # noqa: E402
from gumbel._inputs.workspaces import SharedWorkspace  # noqa: E402
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


def make_draft(rows, nodes):
    """Tokens and offsets of verified drafts."""
    return torch.zeros(rows, dtype=torch.int32), torch.arange(0, rows + 1, nodes).int()


def range_of(drawer):
    """The addresses of a drawer's workspace."""
    workspace = drawer.workspace._workspace
    return range(workspace.address.value, workspace.address.value + workspace.size.value)


def test_draws_of_two_engines_use_no_common_memory(monkeypatch):
    """Each engine has a stream of its own, and nothing orders the two."""
    stream, held, used = [""], [], {"first": [], "second": []}
    reserve = SharedWorkspace.reserve

    def record(self, arrays, size):
        found = reserve(self, arrays, size)
        start = found.address.value
        held.append(self._block)  # so that its addresses are not used again
        used[stream[0]].append(range(start, start + found.size.value))
        return found

    monkeypatch.setattr(SharedWorkspace, "reserve", record)
    engines = {name: Drawer() for name in used}
    for count in (2, REQUESTS):  # the second draw needs more
        for stream[0], drawer in engines.items():
            drawer.draw(make_logits(count), make_parameters(count, count))
            plain = {name: torch.ones(count) for name in ("temperature", "top_p")}
            drawer.draw(make_logits(count), DrawParameters(plain), LogprobsRequest(2, raw=False))
            drafts = make_parameters(1, count)
            drawer.verify(make_logits(count), drafts, *make_draft(count, count), count)
    for first in used["first"]:
        for second in used["second"]:
            assert first.stop <= second.start or second.stop <= first.start


def test_prepared_calls_of_an_engine_share_a_workspace():
    drawer = Drawer()
    for count in (1, 3, REQUESTS):
        rows = {"temperature": torch.ones(count), "seed": torch.arange(count)}
        rows["position"] = torch.arange(count)
        drawer.draw(make_logits(count), DrawParameters(rows))
    held = [known.call._held[-1] for known in drawer.prepared.values()]
    assert len(held) == 3 and all(each is held[0] for each in held)


def test_prepared_calls_keep_no_inputs_alive():
    """Each batch size has its own call, and the logits of a batch may take 100 MB."""
    drawer, alive = Drawer(), []
    for count in (1, REQUESTS):
        rows = {"temperature": torch.ones(count), "seed": torch.arange(count)}
        rows["position"] = torch.arange(count)
        for logits in (make_logits(count), torch.zeros(count, VOCAB)):
            alive.append(weakref.ref(getattr(logits, "hidden", logits)))
            drawer.draw(logits, DrawParameters(rows))
    del logits
    gc.collect()
    assert len(drawer.prepared) == 4 and [each() for each in alive] == [None] * 4


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


@pytest.mark.parametrize("drafts", [1, 3, 40])
@pytest.mark.parametrize("stored", [False, True])
def test_a_verification_needs_no_more_than_the_reserved_workspace(lines, drafts, stored):
    runner, drawer, nodes = make_runner(drafts), Drawer(), 1 + drafts
    memory.reserve(runner, drawer)
    before, rows = range_of(drawer), REQUESTS * nodes
    logits = make_logits(rows)
    if stored:
        logits = logits.hidden @ logits.weight.T
    drawer.verify(logits, make_parameters(mask_rows=rows), *make_draft(rows, nodes), nodes)
    assert range_of(drawer) == before


@pytest.mark.parametrize("drafts", [1, 3, 40])
def test_a_verification_is_reserved_beside_the_largest_draw(lines, drafts):
    nodes = 1 + drafts
    rows = REQUESTS * nodes
    verifies, draws, with_drafts, without = (Drawer() for _ in range(4))
    plain = {name: torch.ones(REQUESTS) for name in PENALTIES}
    history = History(REQUESTS, VOCAB, like=torch.empty(0))
    plain = DrawParameters({"temperature": torch.ones(REQUESTS), **plain}, history=history)
    verifies.verify(make_logits(rows), plain, *make_draft(rows, nodes), nodes)
    draws.draw(make_logits(rows), DrawParameters({"temperature": torch.ones(rows)}))
    memory.reserve(make_runner(drafts), with_drafts)
    memory.reserve(make_runner(requests=rows), without)
    carved = 4 * rows * (nodes - 1)  # the drafts before each row
    assert verifies.workspace.size - draws.workspace.size > carved
    assert with_drafts.workspace.size - without.workspace.size > carved + 24 * rows
