# SPDX-License-Identifier: Apache-2.0
"""A sampler for exllamav3: Job(input_ids=ids, sampler=GumbelSampler(seed=1, top_p=0.95), ...)."""

import gumbel
from exllamav3.generator.sampler import Sampler


class GumbelSampler(Sampler):
    """Draws by libgumbel; `how` is that of gumbel.sample_logits(), `logit_bias` and so on included.

    The position of a draw is the index of the last input token: one seed and prompt give one text.
    """

    def __init__(self, seed=0, **how):
        super().__init__()
        self.reqs_past_ids = True  # their count is the position
        self.seed, self.how = seed, how

    def forward(self, logits, sequence_ids=None, rand_u32=None, tokenizer=None, logit_mask=None,
                return_state=False):
        rows, how = logits.view(-1, logits.shape[-1]), dict(self.how)
        vocab = min(rows.shape[1], tokenizer.actual_vocab_size if tokenizer else rows.shape[1])
        if logit_mask is not None and logit_mask.element_size() == 4:  # a bit a token
            vocab = min(vocab, logit_mask.shape[-1] * 32)
            how["mask"] = logit_mask.view(-1, logit_mask.shape[-1])[:, : -(-vocab // 32)]
        elif logit_mask is not None:  # what is added to logits
            vocab = min(vocab, logit_mask.shape[-1])
            rows = rows[:, :vocab] + logit_mask.view(-1, logit_mask.shape[-1])[:, :vocab]
        position = sequence_ids.shape[-1] - 1
        out = gumbel.sample_logits(rows[:, :vocab], seed=self.seed, position=position, **how)
        return out.tokens.view(logits.shape[:-1]).long()
