# SPDX-License-Identifier: Apache-2.0
"""Texts by Hugging Face transformers, drawn by libgumbel: for generate() and generate_batch().

>>> import gumbel.transformers
>>> model.generate(**inputs, do_sample=True, temperature=0.8, top_k=50, seed=7,
...                custom_generate=gumbel.transformers.generate)

The LM head and the draw are one pass, and no logits are formed: so it is for greedy texts, the
temperature, top_k, top_p, min_p, a repetition penalty, suppressed tokens and a least length. What
else a GenerationConfig or a list of logits processors asks for is done by transformers on logits,
from which the library draws: the texts are those asked for, at the cost of the logits. So are the
texts of a model whose logits are more than a product with its head, a scale and a soft-cap; the log
`gumbel.transformers` then says why, once.

With draft_model= or prompt_lookup_num_tokens= several tokens come of one forward. generate_batch()
serves many prompts by continuous batching, and patch_continuous_batching() every manager of it.

One (seed, prompt) gives one text, alone or in a batch, padded or not, by drafts or without, up to
the rounding of hidden states: the noise of a token depends on the seed, the token and its place in
the text alone. That place, the `position` of a draw, is the index of the input token whose logits
are drawn from; of several texts of a prompt, text s is sample s of one seed. Needs transformers
5.16 or 5.17, and torch.
"""

from ._transformers.batches import BatchError, generate_batch
from ._transformers.batching import patch_continuous_batching
from ._transformers.decoding import generate
from ._transformers.heads import forget

__all__ = ["BatchError", "forget", "generate", "generate_batch", "patch_continuous_batching"]
