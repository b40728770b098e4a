# SPDX-License-Identifier: Apache-2.0
"""docs/examples/mlx_sampler.py: texts by mlx-lm."""

import json
import shutil
import subprocess
import sys

import gumbel
import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402
from golden_texts import EXAMPLES, GREEDY, HOW, TARGET, TOKENS, assert_one_text  # noqa: E402

sys.path.insert(0, str(EXAMPLES))
from mlx_sampler import sampler  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bundled model, with rope_theta where mlx-lm before 0.32 reads it, too."""
    loaded = tmp_path_factory.mktemp("model")
    shutil.copytree(TARGET, loaded, dirs_exist_ok=True)
    config = json.loads((TARGET / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    (loaded / "config.json").write_text(json.dumps(config))
    return loaded


@pytest.fixture(scope="module")
def model(folder):
    loaded, _ = load_model(folder)
    loaded.set_dtype(mx.float32)
    return loaded


def text(model, ids, tokens=16, **how):
    draw = sampler(len(ids), **how)
    steps = generate_step(mx.array(ids), model, max_tokens=tokens, sampler=draw)
    return [token for token, _ in steps]


@pytest.mark.parametrize("golden", GREEDY, ids=lambda golden: golden["prompt"])
def test_greedy_texts(model, golden):
    wanted = golden["greedy_ids"]
    assert text(model, golden["prompt_ids"], len(wanted), temperature=0) == wanted


def test_texts_are_those_of_seed_and_position(model):
    """Each token is drawn from the logits after the text so far, at the last input token."""
    prompt = GREEDY[0]["prompt_ids"]
    loaded = text(model, prompt, seed=5, **HOW)
    assert loaded == text(model, prompt, seed=5, **HOW)
    assert loaded != text(model, prompt, seed=6, **HOW)
    ids = prompt + loaded
    logits = np.array(model(mx.array([ids]))[0])
    for place in range(len(prompt), len(ids)):
        row = logits[place - 1 : place]
        drawn = gumbel.sample_logits(row, seed=5, position=place - 1, **HOW).tokens[0, 0]
        assert drawn == ids[place]


def test_texts_are_those_of_the_command(model):
    assert_one_text(lambda ids, seed: text(model, ids, TOKENS, seed=seed, **HOW))


def test_the_program(folder):
    command = [sys.executable, EXAMPLES / "mlx_sampler.py", folder, "In the beginning", "3"]
    runs = [subprocess.run(command, capture_output=True, text=True) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout and len(runs[0].stdout) > 20
