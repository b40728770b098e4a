# SPDX-License-Identifier: Apache-2.0
"""The sampler of integrations/llama.cpp, built against an installed llama-cpp-python: the programs
in C that test it, with and without sanitizers, and the text of `gumbel generate`."""

import re
import shutil
import subprocess
import sys

import pytest
from golden_texts import ROOT, TARGET, TOKENS, assert_one_text

sys.path.insert(0, str(ROOT / "integrations" / "llama.cpp"))
sys.path.append(str(ROOT / "python" / "tests" / "programs"))
import llama_harness as harness  # noqa: E402
from test_guides import program_of  # noqa: E402

pytest.importorskip("gguf")
if not harness.llama_folders():
    pytest.skip("no llama-cpp-python with its headers", allow_module_level=True)
if not shutil.which("cc"):
    pytest.skip("no C compiler", allow_module_level=True)

SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
OPTIONS = {"plain": ["-O2"], "sanitized": SANITIZED}


@pytest.fixture(scope="module", params=OPTIONS)
def programs(request, tmp_path_factory):
    """Builds a program by its name, once a way to compile."""
    folder = tmp_path_factory.mktemp(request.param)

    def program(name):
        out = folder / name
        if not out.exists():
            harness.build(harness.HERE / f"{name}.c", out, OPTIONS[request.param])
        return out

    return program


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Writes kjv-target with matrices of a type, once each."""
    folder = tmp_path_factory.mktemp("models")

    def model(dtype):
        out = folder / f"{dtype}.gguf"
        return out if out.exists() else harness.write_gguf(TARGET, out, dtype)

    return model


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_sampler_on_arrays(programs):
    assert re.search(r"\d{3} checks, 0 failed", run(programs("test_gumbel_llama")))


@pytest.mark.parametrize(
    "subject, digits", [("rules", 6), ("dry", 4), ("states", 3), ("errors", 3)]
)
def test_rules_on_arrays(programs, subject, digits):
    printed = run(programs(f"test_llama_{subject}"))
    assert re.fullmatch(rf"\d{{{digits}}} checks, 0 failed\n", printed)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_sampler_with_a_model(programs, models, dtype):
    assert re.search(r"\d{3} checks, 0 failed", run(programs("test_llama_model"), models(dtype)))


def test_quantised_weights_are_drawn_from_logits(programs, models):
    """With quantised weights all ways take ggml's product, and draw the same tokens."""
    text = [
        run(programs("test_llama_model"), models("q8_0"), way, "3", "48", "0", "1204")
        for way in ("sample", "row", "graph", "fused")
    ]
    assert len(text[0].split()) == 48 and len(set(text)) == 1


@pytest.mark.parametrize("way", ["sample", "row", "graph", "fused"])
def test_one_seed_and_prompt_give_one_text(programs, models, way):
    program = programs("test_llama_model"), models("f32"), way

    def write(ids, seed):
        return map(int, run(*program, str(seed), str(TOKENS), *map(str, ids)).split())

    assert_one_text(write)


def test_unknown_sampler_layouts_are_named(tmp_path):
    """A llama.h whose sampler interface lacks a callback."""
    folder = harness.llama_folders()[0]
    for header in folder.glob("*.h"):
        shutil.copy(header, tmp_path)
    text = (tmp_path / "llama.h").read_text()
    cut = re.sub(r"\n[^\n]*\(\*copy_state\)\([^\n]*", "", text)
    assert cut != text
    (tmp_path / "llama.h").write_text(cut)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        harness.build(harness.HERE / "test_gumbel_llama.c", tmp_path / "out", include=tmp_path)
    assert "this llama.h has another struct llama_sampler_i" in caught.value.stderr


def test_the_example_runs(programs, models):
    lines = run(programs("example_llama"), models("bf16"), "7", "12", "0", "1204").splitlines()
    assert len(lines[0].split()) == 12
    assert "12 in the graph" in lines[1]


def test_the_guide_shows_what_its_program_prints(models, tmp_path):
    _, text, printed = program_of(ROOT / "docs/guides/llama.cpp.md")
    (tmp_path / "program.c").write_text(text)
    harness.build(tmp_path / "program.c", tmp_path / "program")
    assert run(tmp_path / "program", models("f32")) == printed
