# SPDX-License-Identifier: Apache-2.0
"""bench_vllm_gpu.py with a worker that has no engine: options, turns, results, failures, limits."""

import json
import sys

import pytest
from transformers_fixtures import ROOT

BENCH = ROOT / "bench" / "endtoend"
WORKER = """
import json, os, sys, time

plugin = os.environ.get("VLLM_PLUGINS") != ""
fault = os.environ.get("BENCH_FAULT", "")
drafts = "speculative_config" in json.loads(sys.argv[1])["llm"]
wrong = (fault == "text" and plugin) or (fault == "drafts" and drafts)
steps = 0

def text(kind, row, tokens):
    return [row + (wrong and at == 7 and row == 3) for at in range(tokens)]

def write(kind, requests, tokens, host=False):
    global steps
    if fault == "ends" and plugin and kind == "top_p":
        sys.exit(1)
    if fault == "hangs" and plugin and kind == "top_p":
        time.sleep(60)
    if fault == "raises" and plugin and kind == "top_p":
        raise ValueError("no such kind")
    steps += tokens
    us = (900 if plugin else 1000) * requests
    found = {"seconds": 1e-6 * us * tokens + 0.5, "gaps": [us + at for at in range(tokens)]}
    if host:
        found["host"] = {"sample": [9000] + [us // 10] * tokens,
                         "head_and_sample": [9000] + [us // 5] * tokens}
    return found

def texts(kind, rows, tokens, changes):
    found = {"ids": [text(kind, row, tokens) for row in rows]}
    if kind == "logprobs" or "logprobs" in (changes or {}):
        found["logprobs"] = [[{str(row): -0.5, "7": -1.5}] * tokens for row in rows]
    return found

def counts():
    return {"fused": steps, "logits": 0, "steps": steps} if plugin else {}

def profile(kind, requests, tokens):
    us = 90 if plugin else 100
    return {"gemm": [us * tokens + 7, 2 * tokens + 1], "prompt": [50, 1]}

def change_batches(steps, requests, samples, time_limit):
    found = [{"step": step, "requests": 1, "device": (1 << 30) + step * (not plugin), "host": 1}
             for step in range(0, steps + 1, steps // samples)]
    return {"samples": found, "steps": steps, "written": 3}

def reply(found):
    print(json.dumps(found), flush=True)

if fault == "start" and plugin:
    sys.exit("no weights")
reply({"plugin": plugin and fault != "missing", "vllm": "0.0", "start_s": 1})
for line in sys.stdin:
    arguments = json.loads(line)
    try:
        reply(globals()[arguments.pop("command")](**arguments))
    except Exception as error:
        reply({"error": repr(error)})
"""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """(exit code, results, output) of a run with these options."""
    monkeypatch.syspath_prepend(BENCH)
    import bench_vllm_gpu
    import vllm_engines

    worker = tmp_path / "engineless_worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(vllm_engines, "WORKER", worker)
    path = tmp_path / "found.json"

    def run(*options, fault=""):
        monkeypatch.setenv("BENCH_FAULT", fault)
        common = ["--device", "cpu", "--tiny", "--rounds", "2", "--commit", "none"]
        files = ["--json", str(path), "--cache", str(tmp_path / "cache")]
        monkeypatch.setattr(sys, "argv", ["bench", *common, *files, *options])
        code = bench_vllm_gpu.main()
        found = json.loads(path.read_text()) if path.exists() else None
        return code, found, capsys.readouterr().out

    return run


def test_times_are_differences(run):
    code, found, _ = run("--kind", "greedy,top_p", "--requests", "1,4", "--tokens", "11")
    assert code == 0 and found["skipped"] == [] and found["versions"]["vllm"] == "0.0"
    places = [(p["runner"], p["request"], p["requests"]) for p in found["vllm"]]
    wanted = [(r, k, n) for r in ("V2", "V1") for k in ("greedy", "top_p") for n in (1, 4)]
    assert places == wanted
    for point in found["vllm"]:
        assert point["stock"]["median_us"] == pytest.approx(1000 * point["requests"], abs=0.1)
        assert point["plugin_vs_stock"] == pytest.approx(0.9, abs=1e-3)
        assert point["plugin_vs_stock_rounds"]["p90"] == pytest.approx(0.9, abs=1e-3)
        assert point["counts"]["fused"] == point["counts"]["steps"] == 2 * (11 + 1)


def test_other_measurements_share_a_file(run):
    small = ["--kind", "seeds", "--requests", "2", "--runner", "V1"]
    assert run(*small)[0] == 0
    code, found, out = run(
        *small, "--no-times", "--host", "--profile", "min_p:3", "--memory", "40", "--check"
    )
    assert code == 0 and len(found["vllm"]) == 1 and found["skipped"] == []
    assert found["host"][0]["plugin_head_and_sample"]["median_us"] == 360
    assert found["host"][0]["sample_plugin_vs_stock"] == 0.9
    kernels = found["kernels"][0]
    assert (kernels["stock_us"], kernels["plugin_us"], kernels["requests"]) == (100, 90, 3)
    assert kernels["stock_kernels"][0] == [100, 2, "gemm"]
    growth = {point["engine"]: point["growth_bytes"]["device"] for point in found["memory"]}
    assert growth == {"stock": 22, "plugin": 0}
    assert all(each["equal"] == each["of"] for point in found["texts"]
               if point["engine"] == "plugin" for each in point["found"].values())
    assert "V1 plugin and stock, logprobs: differ by at most 0" in out


def test_texts_that_differ_are_a_fault_in_float32(run):
    options = ["--no-times", "--check", "--dtype"]
    assert run(*options, "bfloat16", fault="text")[0] == 0
    code, found, out = run(*options, "float32", fault="text")
    assert code == 1 and "fault: V1 greedy: texts part" in out
    point = found["texts"][-3]
    assert (point["engine"], point["dtype"]) == ("plugin and stock", "float32")
    assert point["found"]["equal"] == 7 and point["found"]["common"][3] == 7


def test_texts_with_drafts_are_compared_with_those_without(run):
    options = ["--no-times", "--check", "--drafts", "--runner", "V1", "--dtype", "float32"]
    code, found, out = run(*options)
    assert code == 0 and "V1 plugin and drafts, seeds: with_drafts 8 of 8 equal" in out
    assert [p["engine"] for p in found["texts"]].count("drafts") == 3
    code, _, out = run(*options, fault="drafts")
    assert code == 1 and "fault: V1 greedy: with_drafts: 7 of 8 texts are equal" in out
    _, found, _ = run("--kind", "greedy", "--requests", "1", "--memory", "20", *options[1:])
    assert [p["engine"] for p in found["memory"]] == ["stock", "plugin"]
    assert found["vllm"][0]["stock"] and "drafts" not in found["vllm"][0]


@pytest.mark.parametrize("fault", ["ends", "raises"])
def test_an_engine_that_fails_is_left_out(run, fault):
    options = ["--kind", "greedy,top_p,min_p", "--requests", "1", "--runner", "V2"]
    code, found, _ = run(*options, fault=fault)
    assert code == 1
    assert [(p["request"], "plugin" in p, "stock" in p) for p in found["vllm"]] == [
        ("greedy", True, True), ("min_p", False, True),
    ]
    (entry,) = found["skipped"]
    assert (entry["of"], entry["engine"], entry["request"]) == ("vllm", "plugin", "top_p")
    again = run(*options)
    assert again[0] == 0 and again[1]["skipped"] == [] and len(again[1]["vllm"]) == 3


@pytest.mark.parametrize("fault", ["start", "missing"])
def test_an_engine_that_does_not_start_is_left_out(run, fault):
    code, found, out = run("--kind", "greedy", "--requests", "1", "--runner", "V1", fault=fault)
    assert code == 1 and "V1 plugin failed" in out
    assert [("plugin" in point, "stock" in point) for point in found["vllm"]] == [(False, True)]
    code, after, _ = run("--engine", "plugin", fault=fault)
    assert code == 1 and after == found  # a run without a point changes no file


def test_no_wait_is_longer_than_the_limit(run, monkeypatch):
    import bench_vllm_gpu

    monkeypatch.setattr(bench_vllm_gpu, "COMMAND_SECONDS_MAX", 3)
    options = ["--kind", "greedy,top_p,min_p", "--requests", "1", "--runner", "V1"]
    code, found, _ = run(*options, fault="hangs")
    assert code == 1
    assert [point["request"] for point in found["vllm"]] == ["greedy", "min_p"]
    assert [entry["reason"] for entry in found["skipped"]] == ["no result within 3 s"]


def test_measurements_without_time_are_named(run):
    options = ["--kind", "greedy", "--requests", "1", "--runner", "V1", "--memory", "20"]
    code, found, out = run(*options, "--seconds", "5")
    assert code == 1 and found is None and out.count("no time was left") == 3


@pytest.mark.parametrize("options", [
    ["--profile", "greedy"], ["--profile", "other:8"], ["--kind", "other"], ["--requests", "0"],
    ["--tokens", "1"], ["--tokens", "2000"], ["--runner", "V3"], ["--llm", "{"], ["--drafts"],
    ["--check", "--drafts", "--engine", "stock"],
])
def test_wrong_options_are_errors(run, options):
    with pytest.raises(SystemExit) as error:
        run(*options)
    assert error.value.code == 2


def test_engine_arguments(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCH)
    from bench_vllm_gpu import parse
    from qwen_shapes import SHAPES
    from vllm_engines import make_llm_arguments, make_variables

    options = parse(["--llm", '{"seed": 7, "enforce_eager": true}', "--requests", "1,200"])
    llm = make_llm_arguments(options, SHAPES["Qwen3-8B"], tmp_path, 4, 145)
    assert llm["seed"] == 7 and llm["enforce_eager"] and llm["max_num_seqs"] == 200
    assert llm["gpu_memory_utilization"] == 0.22
    assert llm["compilation_config"]["cudagraph_capture_sizes"][-2:] == [128, 200]
    needed = 200 * 145 * 2 * 36 * 8 * 128 * 2
    assert needed < llm["kv_cache_memory_bytes"] < 1.5 * needed
    stock = make_variables(options, "V2", False, tmp_path)
    assert stock["VLLM_PLUGINS"] == "" and stock["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "VLLM_PLUGINS" not in make_variables(options, "V1", True, tmp_path)


@pytest.mark.parametrize("plugin", [False, True])
def test_ranks_use_no_all_reduce_of_flashinfer_unless_requested(monkeypatch, tmp_path, plugin):
    monkeypatch.syspath_prepend(BENCH)
    for name in ("USE_FLASHINFER", "USE_SYMM_MEM"):
        monkeypatch.delenv(f"VLLM_ALLREDUCE_{name}", raising=False)
    from bench_vllm_gpu import parse
    from qwen_shapes import SHAPES
    from vllm_engines import make_llm_arguments, make_variables

    def read(*arguments):
        options = parse(list(arguments))
        llm = make_llm_arguments(options, SHAPES["Qwen3-8B"], tmp_path, 4, 145)
        variables = make_variables(options, "V2", plugin, tmp_path)
        config = llm["compilation_config"]
        assert config["cudagraph_capture_sizes"]
        chosen = [value for name, value in variables.items() if name.startswith("VLLM_ALLREDUCE")]
        return config.get("pass_config"), chosen

    assert read("--tp", "2") == ({"fuse_allreduce_rms": False}, ["0", "0"])
    more = '{"compilation_config": {"mode": 0}}'
    assert read("--tp", "2", "--llm", more) == read("--tp", "2")
    assert read("--tp", "2", "--flashinfer-all-reduce") == read("--tp", "1") == (None, [])


def test_requests_of_ranks(monkeypatch):
    """bench_vllm_ranks.py imports its requests from bench_vllm.py."""
    monkeypatch.syspath_prepend(BENCH.parent / "cpu")
    import bench_vllm_ranks

    assert set(bench_vllm_ranks.KINDS) <= bench_vllm_ranks.REQUEST_KINDS.keys()
