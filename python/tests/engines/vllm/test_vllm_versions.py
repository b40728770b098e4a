# SPDX-License-Identifier: Apache-2.0
"""Versions of vLLM: known, too old, and newer ones, which are served only if their checks pass."""

import functools
import types

import pytest
from vllm_jobs import PROMPTS, RUNNERS, need_vllm, request, run

need_vllm()

import torch  # noqa: E402
import vllm  # noqa: E402
from gumbel._vllm import lazy, self_check, vllm_versions as versions  # noqa: E402
from gumbel._vllm.draw_parameters import DrawParameters  # noqa: E402
from gumbel._vllm.drawer import Drawer  # noqa: E402

NEWER = "import vllm; vllm.__version__ = '0.99.0'\n"
OTHER_SCALE = """
from gumbel._vllm import lazy
read = lazy._read_head
def read_head(*arguments):
    head = read(*arguments)
    return head and {**head, "scale": 1.5 * head["scale"]}
lazy._read_head = read_head
"""
OTHER_FUNCTIONS = {
    "V1": """
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
sample = GPUModelRunner._sample
def with_state(self, logits, spec_decode_metadata, state=None):
    return sample(self, logits, spec_decode_metadata)
GPUModelRunner._sample = with_state
""",
    "V2": """
from vllm.v1.worker.gpu.model_states.interface import ModelState
ModelState.custom_sampler = lambda self, sampler, state=None: None
""",
}
GREEDY = [request(prompt, 8) for prompt in PROMPTS]
ROWS, COLS, VOCAB = 4, 16, 100


@pytest.mark.parametrize(
    "version, known, refused",
    [
        ("0.23.1", False, True),
        ("0.24.0", True, False),
        ("0.33.4.dev3+g0123", True, False),
        ("0.34.0rc1", False, False),
        ("1.0.0", False, False),
        ("dev", False, True),
    ],
)
def test_versions(version, known, refused):
    assert versions.is_known(version) is known
    assert (versions.unknown_version(version) is not None) is refused


class Stock:
    def exact(self, logits, metadata):
        pass

    def longer(self, logits, metadata, mask=None):
        pass

    def renamed(self, logits, state):
        pass

    def anything(self, *args, **kwargs):
        pass


def hook(self, logits, metadata):
    pass


def passing_hook(self, logits, *arguments, **named):
    pass


@pytest.mark.parametrize(
    "name, function, accepted",
    [
        ("exact", hook, True),
        ("longer", hook, False),
        ("renamed", hook, False),
        ("anything", hook, True),
        ("exact", passing_hook, True),
        ("longer", passing_hook, True),
        ("absent", hook, False),
    ],
)
def test_hooks_of_changed_functions_are_refused(name, function, accepted):
    hooks = [(Stock, name, functools.wraps(getattr(Stock, name, hook))(function))]
    if accepted:
        versions.check_hooks(hooks)
    else:
        with pytest.raises(AttributeError, match=name):
            versions.check_hooks(hooks)


def test_required_parameters_must_be_known():
    versions.check_parameters(Stock, "longer", ("logits", "metadata"))
    with pytest.raises(AttributeError, match="requires state"):
        versions.check_parameters(Stock, "renamed", ("logits", "metadata"))


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    versions.checks_needed.cache_clear()
    yield
    versions.checks_needed.cache_clear()


def deferred(scale=1.0, dtype=torch.float32, rounded=torch.float32):
    """Deferred logits, of which vLLM's are multiplied by `scale`, and parameters."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight = (
        torch.randn(n, COLS, generator=generator).to(dtype) for n in (ROWS, VOCAB)
    )
    head = {"bias": None, "scale": 1.0, "softcap": 0.0, "vocab_size": VOCAB}

    def make():
        return (hidden.float() @ weight.float().T * scale).to(rounded)

    rows = {"seed": torch.arange(ROWS), "position": torch.arange(ROWS)}
    rows["temperature"] = torch.tensor([0.0, 0.5, 1.0, 1.5])
    return lazy.LazyLogits(hidden, weight, head, make), DrawParameters(rows)


def test_a_known_version_is_not_checked():
    owner = types.SimpleNamespace()
    self_check.prove_first_draw(owner, Drawer(), *deferred(scale=2.0))
    assert not vars(owner) and not self_check.is_unproven(owner)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_first_draw_of_a_newer_version_is_compared(newer, dtype):
    owner = types.SimpleNamespace(_gumbel_serves=True)
    logits, parameters = deferred(dtype=dtype, rounded=dtype)
    assert self_check.is_unproven(owner)
    self_check.prove_first_draw(owner, Drawer(), torch.zeros(ROWS, VOCAB), parameters)
    assert self_check.is_unproven(owner)  # logits of vLLM's own prove nothing
    self_check.prove_first_draw(owner, Drawer(), logits, parameters)
    assert not self_check.is_unproven(owner) and lazy.is_lazy(logits)


@pytest.mark.parametrize("scale", [1.5, 0.9, -1.0])
def test_other_logits_leave_the_draws_to_vllm(newer, scale):
    owner = types.SimpleNamespace(_gumbel_serves=True)
    arguments = (owner, Drawer(), *deferred(scale=scale))
    found = self_check.attempt(owner, self_check.prove_first_draw, *arguments)
    assert found is None and owner._gumbel_serves is False and self_check.is_unproven(owner)
    assert self_check.attempt(owner, pytest.fail) is None  # not tried again


@functools.cache
def stock_texts():
    return run([GREEDY, GREEDY], plugin=False).rounds


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_newer_version_is_served_after_its_check(runner):
    if versions.minor_version(vllm.__version__) < (0, 32) and runner == "V2":
        pytest.skip("the V2 runner of this version has other parameters than the newest")
    job = run([GREEDY, GREEDY], runner, before=NEWER)
    assert [job.ids(at) for at in (0, 1)] == [
        [request["texts"][0]["ids"] for request in found["requests"]] for found in stock_texts()
    ]
    assert job.counts(0)["fused"] == job.counts(1)["fused"] == 8
    assert job.log.count("first draw of vLLM 0.99.0 is as expected") == 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_newer_version_with_other_logits_keeps_its_draws(runner):
    if versions.minor_version(vllm.__version__) < (0, 32) and runner == "V2":
        pytest.skip("the V2 runner of this version has other parameters than the newest")
    job = run([GREEDY, GREEDY], runner, before=NEWER + OTHER_SCALE)
    assert [job.ids(at) for at in (0, 1)] == [
        [request["texts"][0]["ids"] for request in found["requests"]] for found in stock_texts()
    ]
    assert job.counts(1)["fused"] == job.counts(0)["fused"] == 0
    assert job.log.count("its first draw was not as expected: ValueError") == 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_newer_version_with_other_functions_keeps_its_draws(runner):
    job = run([GREEDY], runner, before=NEWER + OTHER_FUNCTIONS[runner])
    assert job.counts(0) == dict.fromkeys(job.counts(0), 0)
    assert "draws are vLLM's own, as the code of the" in job.log
