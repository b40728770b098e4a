# SPDX-License-Identifier: Apache-2.0
"""Draw one token a row from hidden states [B, D] and an LM head [V, D]."""

import gumbel
import numpy as np

rng = np.random.default_rng(0)
hidden = rng.normal(size=(4, 256)).astype(np.float32)
weight = rng.normal(size=(8192, 256)).astype(np.float32) / 16

out = gumbel.sample(hidden, weight, temperature=[0.0, 0.5, 0.8, 1.0], seed=1, position=17)
for token, logprob in zip(out.tokens[:, 0], out.logprobs[:, 0]):
    print(f"token {token:4d}  log-probability {logprob:.3f}")
