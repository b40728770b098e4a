# SPDX-License-Identifier: Apache-2.0
"""bench/endtoend/bench_speculation.py runs on a CPU with small shapes: texts with drafts equal the
text without, counts are those of the acceptance rates that were set, and faults are reported."""

import json
import subprocess
import sys

import numpy as np
import pytest
from transformers_fixtures import ROOT, torch  # noqa: F401, skips without transformers

BENCHES = ROOT / "bench" / "endtoend"


@pytest.fixture(autouse=True)
def benches(monkeypatch):
    """The modules of the bench can be imported, and run on one thread without gradients."""
    monkeypatch.syspath_prepend(BENCHES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def make_decoder(name, batch, slots=64):
    import qwen_shapes
    import speculation_decoder

    model = qwen_shapes.make_model(qwen_shapes.TINY[name], "cpu").float()
    decoder = speculation_decoder.Decoder(model, "cpu")
    decoder.set_batch(batch, slots)
    return model, decoder


def test_it_measures_and_checks(tmp_path):
    path = tmp_path / "speculation.json"
    command = [sys.executable, BENCHES / "bench_speculation.py", "--tiny", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--json", path, "--commit", "none"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert found["skipped"] == [] and found["commit"] == "none"
    places = [(batch, drafts) for batch in (1, 4) for drafts in (2, 3)]
    wholes = {(one["batch"], one["drafts"]): one for one in found["speculation_parts"]}
    assert list(wholes) == places
    assert [(p["batch"], p["drafts"], p["accept_rate"]) for p in found["speculation"]] == [
        (*place, rate) for place in places for rate in (0.5, 0.9)
    ]
    for whole in wholes.values():
        assert whole["torch_failed"] == {} and len(whole["parts_us"]) == 10
        assert whole["torch_plain_vs_plain"] > 0 and whole["torch_cycle_vs_cycle"] > 0
        assert whole["plain_differing"] == 0 and whole["plain_written"] == 24 * whole["batch"]
    for point in found["speculation"]:
        whole = wholes[point["batch"], point["drafts"]]
        check_point(point, whole)
        assert f"{point['differing']} of {point['written']}" in done.stdout


def check_point(point, whole):
    rate, drafts, cycles = point["accept_rate"], point["drafts"], whole["cycles"]
    assert point["differing"] == 0
    tokens = point["written"] / (cycles * point["batch"])
    assert point["tokens_a_cycle"] == pytest.approx(tokens, abs=1e-3)
    assert point["mean_accepted"] == pytest.approx(tokens - 1, abs=1e-3)
    expected = sum(rate**i for i in range(drafts + 1))
    assert point["tokens_a_cycle_expected"] == pytest.approx(expected, abs=1e-3)
    # The rate of the best of many salts, and some draws of a small vocabulary that agree by luck.
    assert -0.05 < tokens - expected < 0.3
    plain, cycle = (each["median_us"] for each in (whole["plain"], point["cycle"]))
    assert point["speed_up"] == pytest.approx(tokens * plain / cycle, rel=1e-2)
    parts = whole["parts_us"]
    draft = parts["draft, 2 tokens"] + (drafts - 1) * parts["draft, 1 token"]
    of_cycle = draft + drafts * parts["draft's draw"] + parts["target, all nodes"]
    of_plain = parts["target, 1 token"] + parts["draw"]
    predicted = expected * of_plain / (of_cycle + parts["verify"])
    assert point["predicted"] == pytest.approx(predicted, rel=1e-2)
    ratio = point["speed_up"] / point["predicted"]
    assert point["measured_vs_predicted"] == pytest.approx(ratio, rel=1e-2)


def test_a_run_that_fails_keeps_the_others(monkeypatch, tmp_path, capsys):
    """A verification of other seeds, and an error, are reported as skipped; the exit is a fault
    only if nothing was measured."""
    import bench_speculation as bench
    import speculation_steps as steps

    def verify(self, decoder, hidden, nodes, right=steps.Library.verify):
        if nodes.shape[1] == 3 and bool((nodes[:, 1] >= 0).all()):  # not while recording
            self.texts.seed.add_(1)
        elif nodes.shape == (4, 4):
            raise RuntimeError("no room")
        return right(self, decoder, hidden, nodes)

    def fail(probs, draft_probs, tokens):
        raise RuntimeError("cannot be captured")

    path = tmp_path / "speculation.json"
    monkeypatch.setattr(steps, "rejection", fail)
    # A CPU captures nothing, so each step runs once instead.
    monkeypatch.setattr(steps.Graphs, "capture", lambda self, step: (step(), step)[1])
    arguments = ["bench", "--tiny", "--device", "cpu", "--rounds", "1", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(steps.Library, "verify", verify)
    assert bench.main() == 0
    found = json.loads(path.read_text())
    reasons = {(one["batch"], one["drafts"]): one["reason"] for one in found["skipped"]}
    assert reasons.keys() == {(1, 2), (4, 2), (4, 3)}
    assert "no room" in reasons[4, 3]
    assert all("differ from the text" in reasons[batch, 2] for batch in (1, 4))
    assert {(p["batch"], p["drafts"]) for p in found["speculation"]} == {(1, 3)}
    (whole,) = found["speculation_parts"]
    assert whole["torch_failed"].keys() == {"torch: verify", "torch: cycle"}
    assert "torch_plain_vs_plain" in whole and "torch_cycle" not in whole
    assert "skipped: torch: cycle: RuntimeError: cannot be captured" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*arguments, "--seconds", "0"])
    assert bench.main() == 1
    late = json.loads(path.read_text())["skipped"]
    assert len(late) == 4 and all("no time" in one["reason"] for one in late)


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--drafts", "24"], "less than 24"),
        (["--drafts", "a"], "such as 1,8"),
        (["--batches", "0"], "at least 1"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_options_are_checked(monkeypatch, capsys, options, reason):
    import bench_speculation as bench

    monkeypatch.setattr(sys, "argv", ["bench", "--tiny", "--device", "cpu", *options])
    with pytest.raises(SystemExit):
        bench.main()
    assert reason in capsys.readouterr().err


def test_a_drafter_equal_to_the_target_is_always_right():
    """With the target as its own drafter, all drafts are accepted although none is replaced by the
    recorded token: caches and noise of both models are in step."""
    import speculation_steps as steps

    batch, drafts, cycles = 3, 4, 6
    (_, target), (_, drafter) = (make_decoder("Qwen3-8B", batch) for _ in range(2))
    for to, of in zip(drafter.caches, target.caches):
        for one, other in zip(to, of):
            one.copy_(other)
    texts = steps.Texts(batch, 16, (drafts + 1) * cycles, drafts, 512, "cpu")
    both, library = steps.Steps(target, drafter, texts), steps.Library(texts)
    # The first step of a draft reads slot 15 again, so both caches must hold its token.
    both.drafter.forward(texts.record[:, 15:16], torch.full((batch, 1), 15))
    both.target.forward(texts.record[:, 15:16], torch.full((batch, 1), 15))
    for _ in range((drafts + 1) * cycles):
        both.record(library, drafts)
    texts.restart()
    for _ in range(cycles):
        both.speculate(library, drafts)
    assert texts.count_differing() == (batch * cycles * (drafts + 1), 0)
    texts.restart()
    texts.seed += 1  # other noise than that of the record
    both.speculate(library, drafts)
    assert texts.count_differing()[1] > 0


def test_steps_do_not_wait():
    """A step calls no operator that reads a value on the host, or copies one from it, as no CUDA
    graph could capture these."""
    import speculation_steps as steps
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = set()

        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            self.names.add(function.name())
            return function(*arguments, **(named or {}))

    waiting = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "lift_fresh"}
    (_, target), (_, drafter) = (make_decoder(f"Qwen3-{size}", 2) for size in ("8B", "1.7B"))
    texts = steps.Texts(2, 16, 24, 3, 512, "cpu")
    both = steps.Steps(target, drafter, texts)
    library, by_torch = steps.Library(texts), steps.Torch(texts)
    with Watch() as watch:
        both.record(library, 3)
        for sampler in (library, by_torch):
            both.decode(sampler)
            both.speculate(sampler, 3)
    called = {name.partition("::")[2].partition(".")[0] for name in watch.names}
    assert {"index_copy_", "multinomial", "verify", "sample"} <= called
    assert called & waiting == set()
    with Watch() as watch:
        bool(texts.agree.any())
    assert "aten::_local_scalar_dense" in watch.names


def test_texts_with_gaps_are_reported():
    import speculation_steps as steps

    texts = steps.Texts(2, 4, 8, 2, 100, "cpu")
    texts.write(torch.tensor([[5, 6, 7], [8, -1, -1]]), torch.tensor([3, 1]))
    assert texts.position.tolist() == [7, 5]
    assert texts.text[:, 5:8].tolist() == [[5, 6, 7], [8, -1, -1]]
    texts.record[:, 5:8] = torch.tensor([[5, 0, 7], [8, 0, 0]])
    assert texts.count_differing() == (4, 1)
    texts.text[0, 6] = -1
    with pytest.raises(ValueError, match="a gap"):
        texts.count_differing()


@pytest.mark.parametrize("name", ["Qwen3-8B", "Qwen3-1.7B"])
def test_the_decoder_is_the_model(name):
    """Steps of one and of several tokens of requests with unequal lengths give the hidden states of
    transformers."""
    model, decoder = make_decoder(name, 2)
    ids = torch.randint(0, 512, (2, 20), generator=torch.Generator().manual_seed(1))
    wanted = model.model(input_ids=ids).last_hidden_state
    first = torch.arange(10).expand(2, 10)
    found = decoder.forward(ids[:, :10], first).view(2, 10, -1)
    torch.testing.assert_close(found, wanted[:, :10], rtol=1e-4, atol=1e-4)
    position = torch.tensor([[10], [7]])  # the second request decodes tokens again
    for count in (1, 4, 1):
        slots = position + torch.arange(count)
        found = decoder.forward(ids.gather(1, slots), slots).view(2, count, -1)
        at = slots[:, :, None].expand_as(found)
        torch.testing.assert_close(found, wanted.gather(1, at), rtol=1e-4, atol=1e-4)
        position = position + torch.tensor([[count], [1]])


def test_layers_are_compiled_once():
    """All layers share code: once for a row, and once for more rows."""
    _, decoder = make_decoder("Qwen3-8B", 1)
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    decoder.compile([1, 2], backend=backend)
    assert decoder.compiled and len(compiled) == 2 * len(decoder.parts)
    _, plain = make_decoder("Qwen3-8B", 1)
    for batch, queries in ((1, 1), (2, 1), (3, 5), (8, 4)):
        ids = torch.arange(batch * queries).view(batch, queries)
        slots = torch.arange(queries).expand(batch, queries)
        for each in (decoder, plain):
            each.set_batch(batch, 64)
        found, wanted = (each.forward(ids, slots) for each in (decoder, plain))
        torch.testing.assert_close(found, wanted)
    assert len(compiled) <= 3 * len(decoder.parts)

    def broken(graph, inputs):
        raise RuntimeError("no compiler")

    torch._dynamo.reset()
    decoder = make_decoder("Qwen3-8B", 1)[1]
    decoder.compile([1], backend=broken)
    assert not decoder.compiled
    ids = torch.zeros(1, 1, dtype=torch.int64)
    assert decoder.forward(ids, ids).shape == (1, 64)


def test_rates_are_met():
    import speculation_rates as rates

    shape = (4, 200)
    for rate in (0.0, 0.5, 0.9, 1.0):
        for drafts in (2, 6):
            cycles = 96 // (drafts + 1)
            agree, emitted = rates.choose_agreement(rate, shape, 50, drafts, cycles)
            expected = rates.expect_tokens(rate, drafts)
            assert agree.shape == shape and emitted.shape == (4,)
            assert emitted.sum() / (4 * cycles) == pytest.approx(expected, abs=0.05)
    uniform = rates.hash_uniformly(7, (50, 400))
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    assert len(np.unique(uniform)) == uniform.size
    assert not np.array_equal(uniform, rates.hash_uniformly(8, (50, 400)))
