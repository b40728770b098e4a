# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: generate() and generate_batch() with tokens drawn by libgumbel.

>>> import gumbel.transformers
>>> model.generate(**inputs, do_sample=True, temperature=0.8, top_k=50, seed=7,
...                custom_generate=gumbel.transformers.generate)

The LM head and the draw are one pass, without logits, for greedy texts, temperature, top_k, top_p,
min_p, a repetition penalty, suppressed tokens and a minimum length; on a CPU, and on GPUs that
support such orders (gumbel/programs.h), also for typical_p, epsilon_cutoff and eta_cutoff. For all
other settings of a GenerationConfig and for custom logits processors, transformers computes and
processes the logits and the library draws from them. A model whose logits are not just the product
with its head, a scale and a soft-cap is also drawn from logits; the log `gumbel.transformers`
states why, once.

draft_model= and prompt_lookup_num_tokens= decode speculatively: several tokens for each forward
pass. generate_batch() serves many prompts by continuous batching; patch_continuous_batching()
enables the library for every continuous-batching manager of the process.

One (seed, prompt) gives one text, alone or in a batch, padded or not, with drafts or without, up to
the rounding of hidden states: the noise of a token depends only on the seed, the token and the
position. The `position` of a draw is the index of the input token whose logits are drawn from. Text
s of several texts of a prompt is sample s of its seed. Requires transformers 5.16 or 5.17, and
torch.
"""

from ._transformers.batches import BatchError, generate_batch
from ._transformers.batching import patch_continuous_batching
from ._transformers.decoding import generate
from ._transformers.heads import forget

__all__ = ["BatchError", "forget", "generate", "generate_batch", "patch_continuous_batching"]
