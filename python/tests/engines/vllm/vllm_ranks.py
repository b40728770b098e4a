# SPDX-License-Identifier: Apache-2.0
"""Runs in tensor-parallel workers of vllm_job.py: counts their steps, and compares each draw of the
ranks bit by bit with a draw of one process from the same hidden states."""

from pathlib import Path

compared = {"draws": 0, "different": []}


def _whole(logits, weight):
    """Deferred logits of the whole head."""
    from gumbel._vllm.lazy import LazyLogits

    deferred = LazyLogits(logits.hidden.clone(), weight, dict(logits.head), None)
    deferred.mask = logits.mask
    return deferred


def _compare(kind, found, wanted):
    import torch

    compared["draws"] += 1
    for one, other in zip(found, wanted):
        if (one is None) != (other is None) or (one is not None and not torch.equal(one, other)):
            compared["different"].append(f"{kind}: {one} and {other}")


def _watch(weight):
    """Repeats every draw of a shard with the whole head, and compares."""
    from gumbel._vllm import drawer
    from gumbel._vllm.counts import Counts
    from gumbel._vllm.lazy import is_lazy

    draw, verify = drawer.Drawer.draw, drawer.Drawer.verify
    ours = drawer.counts

    def again(call, logits, *arguments):
        drawer.counts = Counts()
        try:
            return call(_whole(logits, weight), *arguments)
        finally:
            drawer.counts = ours

    def drawn(self, logits, parameters, requested=None, counted_as="logits"):
        found = draw(self, logits, parameters, requested, counted_as)
        if is_lazy(logits) and logits.shard is not None and logits.columns is None:
            held = tuple(None if part is None else part.clone() for part in vars(found).values())
            whole = again(
                lambda *a: draw(drawer.Drawer(), *a), logits, parameters, requested, counted_as
            )
            _compare("draw", held, vars(whole).values())
        return found

    def verified(self, logits, parameters, *rest):
        found = verify(self, logits, parameters, *rest)
        if is_lazy(logits) and logits.shard is not None and logits.columns is None:
            whole = again(lambda *a: verify(drawer.Drawer(), *a), logits, parameters, *rest)
            _compare("verify", found, whole)
        return found

    drawer.Drawer.draw = drawn
    drawer.Drawer.verify = verified


class Extension:
    """Methods that a worker gets."""

    def gumbel_watch(self, model):
        """Starts the comparison; the folder `model` has the whole head, tied to its embeddings."""
        import safetensors.torch

        tensors = safetensors.torch.load_file(Path(model) / "model.safetensors")
        _watch(tensors["model.embed_tokens.weight"].float())

    def gumbel_report(self):
        """The counts of steps, and the results of comparisons."""
        import gumbel.vllm

        return {"counts": dict(vars(gumbel.vllm.counts())), **compared}
