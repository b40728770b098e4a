# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of bench/endtoend run on a CPU with small shapes: every contestant is measured,
and a contestant that fails is reported as skipped while the others continue. The times are not
checked."""

import argparse
import json
import math
import subprocess
import sys

import pytest
from transformers_fixtures import ROOT, torch  # noqa: F401, skips without transformers

BENCHES = ROOT / "bench" / "endtoend"


def run(name, path, *options):
    command = [sys.executable, BENCHES / name, "--tiny", "--device", "cpu", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--json", path, "--commit", "none", *options],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_texts_of_transformers(tmp_path):
    pytest.importorskip("psutil")
    path = tmp_path / "texts.json"
    patient = ("bench_transformers.py", path, "--seconds", "800")
    first = run(*patient, "--batch", "2", "--model", "Qwen3-1.7B")
    assert first["skipped"] == [] and first["entropy_nats"].keys() == {"Qwen3-1.7B"}
    both = run(*patient, "--batch", "1", "--model", "Qwen3-8B", "--way", "generate_batch")
    assert both["skipped"] == []
    places = [(p["model"], p["batch"], p["way"], p["request"]) for p in both["transformers"]]
    requests = ("plain", "top_k, top_p")
    wanted = [
        ("Qwen3-1.7B", 2, way, a)
        for way in ("generate", "generate_batch", "step")
        for a in requests
    ]
    wanted[2:2] = [("Qwen3-8B", 1, "generate_batch", a) for a in requests]
    assert sorted(places) == sorted(wanted)
    for point in both["transformers"]:
        ways = {"stock", "fused"} | ({"logits"} if point["way"] != "generate_batch" else set())
        ways |= {"trunk", "head"} if point["way"] == "step" else set()
        spreads = {name for name, value in point.items() if isinstance(value, dict)}
        assert spreads == ways
        for name in ways:
            spread = point[name]
            assert 0 < spread["p10_us"] <= spread["median_us"] <= spread["p90_us"]
        ratio = point["fused"]["median_us"] / point["stock"]["median_us"]
        assert point["fused_vs_stock"] == pytest.approx(ratio, abs=1e-3)


def test_draws_of_the_post(tmp_path):
    found = run("bench_post.py", tmp_path / "post.json")
    assert {each["contestant"] for each in found["skipped"]} <= {"FlashInfer"}
    assert [(p["rows"], p["dtype"]) for p in found["post"]] == [
        (rows, dtype) for rows in (4, 8) for dtype in ("float32", "bfloat16")
    ]
    for entry in found["post"]:
        entries = entry["contestants"]
        assert entries["noise made once"]["percent_drawn_anew"] == 0
        for name in ("multinomial", "fresh noise", "gumbel"):
            assert entries[name]["percent_drawn_anew"] > 20 and entries[name]["time"]
    rare = found["rare_tokens"]
    assert abs(rare["gumbel"] - rare["expected"]) < 6 * rare["expected"] ** 0.5


def test_drafts_beside_peers(tmp_path):
    found = run("bench_verify_peers.py", tmp_path / "verify.json", "--seconds", "800")
    assert {each["contestant"] for each in found["skipped"]} <= {"flashinfer"}
    entries = found["verify_peers"]
    assert [(e["requests"], e["drafts"]) for e in entries] == [
        (requests, drafts) for requests in (16, 1) for drafts in (3, 7)
    ]
    accepted = dict.fromkeys(("coupled", "supplied", "kept", "head", "torch"), 0.0)
    for entry in entries:
        contestants = entry["contestants"]
        assert contestants.keys() >= {"plain", *accepted}
        for name in accepted:
            accepted[name] += contestants[name]["accepted"]
        times = {name: one["time"]["median_us"] for name, one in contestants.items()}
        peer = min(times[name] for name in ("torch", "flashinfer") if name in times)
        over = entry["fastest_peer_vs_supplied"]
        assert over == pytest.approx(peer / times["supplied"], abs=2e-3)
    assert accepted["supplied"] == accepted["head"] > 0 and accepted["torch"] > 0


def test_shapes_that_were_measured_are_kept(benches, monkeypatch, tmp_path):
    import bench_verify_peers as bench

    def measure_shape(case, *rest, whole=bench.measure_shape):
        if case.requests == 1:
            raise KeyboardInterrupt
        return whole(case, *rest)

    path = tmp_path / "verify.json"
    monkeypatch.setattr(bench, "measure_shape", measure_shape)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "bench",
            "--device",
            "cpu",
            "--tiny",
            "--rounds",
            "1",
            "--seconds",
            "0",
            "--json",
            str(path),
        ],
    )
    with pytest.raises(KeyboardInterrupt):
        bench.main()
    entries = json.loads(path.read_text())["verify_peers"]
    assert [(e["requests"], e["drafts"]) for e in entries] == [(16, 3), (16, 7)]


def test_flashinfer_gets_its_arguments(benches, monkeypatch):
    """gumbel.flashinfer stands in for FlashInfer, as it has the same signatures."""
    import bench_verify_peers as bench
    import gumbel.flashinfer
    import verify_contestants as peers

    monkeypatch.setitem(sys.modules, "flashinfer", gumbel.flashinfer)
    monkeypatch.setattr(
        bench,
        "CONTESTANTS",
        [one for one in peers.CONTESTANTS if one.name in ("plain", "flashinfer")],
    )
    with torch.no_grad():
        case = peers.Case(bench.make_heads(bench.TINY, "cpu"), 64, 3)
        arguments = argparse.Namespace(device="cpu", rounds=1, seconds=600)
        found = bench.measure_shape(case, arguments, math.inf, None)
        step = peers.by_flashinfer(case)
        assert not torch.equal(step(), step())  # two steps draw different tokens
    assert found["flashinfer"]["accepted"] > 0


def test_chains_that_are_wrong_are_left_out(benches, monkeypatch):
    import bench_verify_peers as bench
    import verify_contestants as peers

    def emits(change):
        def prepare(case):
            step = peers.by_torch(case)
            return lambda: change(step().clone(), case)

        return prepare

    def greedy(tokens, case):  # accepts all
        return torch.cat([case.drafted, tokens.new_zeros(len(tokens), 1).int()], 1)

    def gap(tokens, case):
        tokens[:, 1], tokens[:, 2] = -1, 5
        return tokens

    wrong = {
        "greedy": greedy,
        "gap": gap,
        "outside": lambda tokens, case: torch.where(tokens >= 0, case.vocab, -1),
        "few": lambda tokens, case: tokens[:-1],
        "fails": lambda tokens, case: 1 / 0,
    }
    added = [
        peers.Contestant(name, name, "", False, "rejection", emits(change))
        for name, change in wrong.items()
    ]
    monkeypatch.setattr(bench, "CONTESTANTS", [*peers.CONTESTANTS, *added])
    arguments = argparse.Namespace(device="cpu", rounds=1, seconds=600)
    skipped = []
    with torch.no_grad():
        case = peers.Case(bench.make_heads(bench.TINY, "cpu"), 64, 3)
        found = bench.measure_shape(
            case, arguments, math.inf, lambda name, why: skipped.append(name)
        )
        late = []
        bench.measure_shape(case, arguments, -math.inf, lambda name, why: late.append((name, why)))
    assert set(wrong) == set(skipped) - {"flashinfer"} and "torch" in found
    assert all("were over" in why for _, why in late) and ("torch" in dict(late))
    monkeypatch.setattr(
        bench,
        "CONTESTANTS",
        [
            peers.CONTESTANTS[0],
            peers.Contestant(
                "coupled", "", "", True, "coupled", lambda case: lambda: peers.supplied(case)()
            ),
        ],
    )
    with torch.no_grad(), pytest.raises(ValueError, match="not those of a plain draw"):
        bench.measure_shape(case, arguments, math.inf, None)


@pytest.fixture
def benches(monkeypatch):
    monkeypatch.syspath_prepend(BENCHES)


def test_a_draw_that_is_wrong_is_left_out(benches, monkeypatch):
    import bench_post
    from post_contestants import Contestant

    logits = torch.zeros(64, 512)
    logits[:, 0] = 6
    skipped, real = [], bench_post.contestants

    def with_wrong_ones(device):
        wrong = {
            "warm": lambda rows: lambda: torch.multinomial(torch.softmax(rows / 2, -1), 1),
            "outside": lambda rows: lambda: torch.full((64,), 512),
            "fails": lambda rows: 1 / 0,
        }
        added = [Contestant(name, "", "", True, prepare) for name, prepare in wrong.items()]
        return [*real(device), *added]

    monkeypatch.setattr(bench_post, "contestants", with_wrong_ones)
    found = bench_post.measure_shape(logits, "cpu", 1, lambda name, why: skipped.append(name))
    assert {"warm", "outside", "fails"} == set(skipped) - {"FlashInfer"}
    assert {"multinomial", "gumbel"} <= set(found)


def test_a_wrong_fused_draw_is_reported(benches, monkeypatch):
    """The tokens of the fused step are compared with those from logits."""
    import decode_steps
    import qwen_shapes

    shape = qwen_shapes.TINY["Qwen3-8B"]
    with torch.no_grad():
        model = qwen_shapes.make_model(shape, "cpu")
        steps = decode_steps.Steps(model, shape, 16, "cpu")
        assert not steps.skipped and len(steps.measure(1)) == 8
        monkeypatch.setattr(decode_steps, "make_fused_draw", make_wrong_draw)
        with pytest.raises(ValueError, match="tokens differ, fused or not"):
            decode_steps.Steps(model, shape, 16, "cpu")


def make_wrong_draw(requests, device):
    return lambda step, hidden: torch.ops.gumbel.sample(
        hidden, step.weight, seed=step.seed + 1, position=step.position, logprobs=None
    )[0]
