# SPDX-License-Identifier: Apache-2.0
"""The command that pip installs, as `python -m gumbel`."""

import json
import os
import re
import subprocess
import sys

import gumbel
import numpy as np
import pytest
from gumbel._command.chi_squared import compare_counts, upper_gamma


def run_command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "gumbel", *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def run_succeeding(*arguments):
    done = run_command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_failing(*arguments):
    done = run_command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_info_agrees_with_gumbel_info():
    about = gumbel.info()
    text = run_succeeding("info")
    assert f"version   {about.version} (Python package)\n" in text
    assert f"isa       {about.isa} (of {' '.join(about.isas)})\n" in text
    kernels = " ".join(about.cuda_architectures) or "none: this build supports CPUs only"
    assert f"kernels   {kernels}\n" in text
    serves_hopper = (
        "H100, H200, capability 9.0: portable sm_90, tensor sm_90, clusters sm_90, hopper sm_90a\n"
    )
    if re.search(r"^gpu +none", text, re.M):
        assert (serves_hopper in text) == about.cuda_kernels
    found = json.loads(run_succeeding("info", "--json", "--threads", 2))
    assert (found["threads"], found["isas"]) == (2, list(about.isas))


def test_verify_passes_and_skips_nothing():
    text = run_succeeding("verify")
    assert re.search(r"^\d+ passed, 0 failed, 0 skipped$", text.splitlines()[-1])
    for name in ("fused", "from logits", "power", "isa reference", "row alone", "two shards"):
        assert re.search(rf"^passed .*{name}", text, re.M), name


def test_verify_detects_a_wrong_distribution(monkeypatch, capsys):
    """Draws at another temperature, and with another seed for one thread count, are detected."""
    from gumbel._command import verify

    true = verify.sample

    def wrong(hidden, weight, *, temperature, seed, threads=None, **how):
        seed = seed if threads != 3 else np.asarray(seed) + np.uint64(1)
        temperature = temperature if np.ndim(seed) else 1.05 * temperature
        return true(hidden, weight, temperature=temperature, seed=seed, threads=threads, **how)

    monkeypatch.setattr(verify, "sample", wrong)
    with pytest.raises(SystemExit) as ended:
        from gumbel.__main__ import main

        main(["verify", "--json"])
    assert ended.value.code == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    failed = {each["check"] for each in checks if each["result"] == "FAILED"}
    assert failed == {"chi-squared, fused", "3 threads"}


def test_verify_reads_files(tmp_path):
    random = np.random.default_rng(5)
    np.save(tmp_path / "logits.npy", random.standard_normal((3, 200), np.float32))
    text = run_succeeding(
        "verify", "--logits", tmp_path / "logits.npy", "--row", 2, "--draws", 50000
    )
    assert "chi-squared, fused" not in text and "3 rows" in text
    np.save(tmp_path / "w.npy", random.standard_normal((200, 16)).astype(np.float16))
    np.save(tmp_path / "h.npy", random.standard_normal((2, 16)).astype(np.float16))
    head = ("--hidden", tmp_path / "h.npy", "--weights", tmp_path / "w.npy")
    assert "0 failed" in run_succeeding("verify", *head, "--draws", 50000)
    np.save(tmp_path / "nan.npy", np.full((1, 200), np.nan, np.float32))
    message = run_failing("verify", "--logits", tmp_path / "nan.npy")
    assert "--row: no token can be drawn from row 0" in message
    np.save(tmp_path / "empty.npy", np.full((1, 200), -np.inf, np.float32))
    message = run_failing("verify", "--logits", tmp_path / "empty.npy")
    assert "--row: no token can be drawn" in message
    np.save(tmp_path / "wide.npy", np.zeros((1, 200)))
    assert "dtype float64" in run_failing("verify", "--logits", tmp_path / "wide.npy")
    np.save(tmp_path / "none.npy", np.zeros((0, 200), np.float32))
    assert "must hold one 2-D array" in run_failing("verify", "--logits", tmp_path / "none.npy")
    assert "require each other" in run_failing("verify", *head[:2])
    assert "--logits: " in run_failing("verify", "--logits", tmp_path / "missing.npy")
    np.save(tmp_path / "w.npy", np.zeros((200, 8), np.float32))
    assert "--weights: 8 columns; --hidden: 16" in run_failing("verify", *head)


@pytest.mark.parametrize(
    "option",
    ["--row=6", "--row=-1", "--draws=0", "--temperature=0", "--temperature=nan", "--seed=-1",
     "--seed=99999999999999999999"],
)  # fmt: skip
def test_verify_names_invalid_options(option):
    assert f"{option.partition('=')[0]}: " in run_failing("verify", option)


def test_explain_prints_the_rung():
    text = run_succeeding("explain", "--batch", 8)
    assert text.startswith("sizes: B = 8, V = 151936, D = 4096, S = 1, bfloat16\n")
    assert "kernels: " in text
    assert "V = 151936, from logits" in run_succeeding("explain", "--logits")
    assert "not tiles" in run_succeeding("explain", "--logits", "--top-p", 0.9, "--no-logprobs")
    assert "--vocab: 0 " in run_failing("explain", "--vocab", 0)
    assert "--device: 'cpu0' is none of cpu, cuda:0" in run_failing("explain", "--device", "cpu0")
    assert "Unable to allocate" in run_failing(
        "explain", "--vocab", 2**31 - 1, "--hidden-size", 2**20, "--batch", 2**20
    )


@pytest.mark.parametrize("name", ["generate", "sample", "bench"])
def test_commands_of_the_c_program_name_the_build(name):
    text = run_failing(name, "--model", "x")
    assert f"gumbel {name}: not part of the Python package" in text
    assert f"build/release/cli/gumbel {name} --help" in text
    assert "cmake --preset release -DGUMBEL_BUILD_TOOLS=ON\n" in text  # a cached OFF is overwritten


def test_version_names_the_command(tmp_path):
    full = tmp_path / "gumbel"
    full.write_text("#!/bin/sh\n")
    full.chmod(0o755)
    done = run_command("--version", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    first, *others = done.stdout.splitlines()
    assert re.fullmatch(rf"gumbel {re.escape(gumbel.__version__)} \(Python package in .*\)", first)
    assert f"another gumbel: {full}" in others


def run_redirected(arguments, target):
    """The exit code and the errors of a command whose output goes to `target`, in a shell."""
    line = f'exec "{sys.executable}" -m gumbel {arguments} {target}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


OUTPUTS = ["--version", "--cflags", "--help", "info", "info --json", "explain", "info --help"]


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_output_that_cannot_be_written_fails(arguments):
    if os.path.exists("/dev/full"):
        text = "gumbel: cannot write to standard output: No space left on device\n"
        assert run_redirected(arguments, "> /dev/full") == (1, text)
    text = "gumbel: cannot write to standard output: it is closed\n"
    assert run_redirected(arguments, ">&-") == (1, text)


@pytest.mark.parametrize("arguments", [*OUTPUTS, "verify"])
def test_a_closed_pipe_fails_without_a_message(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "gumbel", *arguments.split()],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_chi_squared_matches_scipy():
    """Against values of scipy 1.14: gammaincc(a, x)."""
    values = ((0.5, 0.5, 0.31731050786), (5, 20, 1.694474393e-05), (50, 40, 0.92966493334))
    for a, x, value in values:
        assert upper_gamma(a, x) == pytest.approx(value, rel=1e-6)
    fair = np.full(6, 1 / 6)
    assert compare_counts(np.array([100, 101, 99, 100, 102, 98]), fair).p_value > 0.99
    assert compare_counts(np.array([200, 50, 50, 100, 100, 100]), fair).p_value < 1e-20
    assert compare_counts(np.array([3, 4]), np.array([0.5, 0.5])).degrees == 0
