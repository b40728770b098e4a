# SPDX-License-Identifier: Apache-2.0
"""The ways in which trainers change the weights of a running engine, for vllm_job.py."""

from pathlib import Path

NAME = "model.embed_tokens.weight"  # tied to the head; on CPUs vLLM drops those of other layers


def _tensor(folder):
    import safetensors.torch

    return safetensors.torch.load_file(Path(folder) / "model.safetensors")[NAME]


def _load(worker, folder):
    worker.get_model().load_weights([(NAME, _tensor(folder))])


def _write(worker, folder):
    new = _tensor(folder)
    worker.get_model().lm_head.weight.data[: len(new)].copy_(new)


def _replace(worker, folder):
    import torch

    model = worker.get_model()
    old, new = model.lm_head.weight, _tensor(folder)
    weight = torch.nn.Parameter(old.detach().clone(), requires_grad=False)
    weight.data[: len(new)] = new
    weight.__dict__.update(old.__dict__)
    model.lm_head.weight = model.model.embed_tokens.weight = weight


def _look(worker, folder):
    worker.get_model()


def change(engine, kind, folder):
    """Sets the weights of an engine's workers to those of a model folder."""
    if kind == "reload_weights":
        engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
    elif kind == "unseen":  # a write that the plugin cannot detect, and the call that reports it
        import gumbel.vllm

        _write(engine.llm_engine.model_executor.driver_worker.worker, folder)
        gumbel.vllm.weights_changed()
    else:
        ways = {"load_weights": _load, "data": _write, "parameter": _replace, "look": _look}
        engine.collective_rpc(ways[kind], args=(folder,))
