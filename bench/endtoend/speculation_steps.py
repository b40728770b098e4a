# SPDX-License-Identifier: Apache-2.0
"""Steps of decoding with a draft model and without: forwards, draws, and updates of the texts.

All state is in tensors that keep their addresses, and no step waits for the host, so that each can
be captured in a CUDA graph and replayed for any texts.
"""

from __future__ import annotations

import gumbel.torch  # noqa: F401, registers torch.ops.gumbel
import torch
from verify_contestants import rejection


class Texts:
    """One text for each of B requests. Slot i of a text is slot i of the caches.

    The slots up to `start`, whose token is the first root, hold a prompt. `record` is the text
    that decoding without drafts wrote, `text` what a run writes, or -1. `position` is the slot of
    the root: the last accepted token. The token after slot p is drawn at position p of the noise.

    After each cycle, the next root is the recorded token and not the written one. As long as both
    are equal, this changes nothing. Products with another number of rows round differently, so
    that a token can differ; thereafter a text of its own would never meet the record again, and its
    drafts would no longer be accepted at the rate that was set.
    """

    def __init__(self, batch, start, tokens, drafts, vocab, device):
        self.batch, self.start, self.end = batch, start, start + tokens
        self.width = self.end + drafts + 2
        generator = torch.Generator().manual_seed(batch)
        shape = (batch, self.width)
        self.record = torch.randint(0, vocab, shape, generator=generator).to(device)
        self.text = torch.full_like(self.record, -1)
        self.agree = torch.zeros(shape, dtype=torch.bool, device=device)
        self.position = torch.full((batch,), start, device=device)
        self.seed = torch.arange(1, batch + 1, device=device)

    def restart(self):
        self.position.fill_(self.start)
        self.text.fill_(-1)

    def get_slots(self, first, count):
        """Slots position + first, ..., int64 [B, count]."""
        return self.position[:, None] + torch.arange(
            first, first + count, device=self.position.device
        )

    def write(self, tokens, emitted):
        """Append the first `emitted` [B] of `tokens` [B, M]; the last slot takes the others."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        slots = self.get_slots(1, tokens.shape[1])
        slots = torch.where(place < emitted[:, None], slots, self.width - 1)
        self.text.scatter_(1, slots, tokens.long())
        self.position += emitted

    def count_differing(self):
        """(tokens that were written, tokens of these that differ from the record). Raises
        ValueError if a text has a gap, or tokens after its last."""
        slots = torch.arange(self.width, device=self.text.device)
        inside = (slots > self.start) & (slots <= self.position[:, None])
        written = (self.text >= 0)[:, :-1]
        if not torch.equal(written, inside[:, :-1]):
            raise ValueError("a text has a gap, or tokens after its last")
        differing = (self.text != self.record) & inside
        return int(inside.sum()), int(differing.sum())


class Library:
    """Draws and verification by libgumbel, from hidden states; draft and target share the noise."""

    def __init__(self, texts):
        self.texts = texts

    def draw(self, decoder, hidden, step=0):
        """Tokens [B, 1] after the slots position + step."""
        return torch.ops.gumbel.sample(
            hidden, decoder.weight, seed=self.texts.seed, position=self.texts.position + step,
            logprobs=None,
        )[0]

    propose = draw  # the draw of a draft token

    def verify(self, decoder, hidden, nodes):
        """Tokens [B, k + 1], and how many of them are emitted [B]; nodes [B, k + 1]."""
        return torch.ops.gumbel.verify(
            hidden, decoder.weight, nodes.int(), seed=self.texts.seed, position=self.texts.position,
            logprobs=None,
        )[:2]


class Torch:
    """Draws as in engines without the library: logits, softmax, multinomial, rejection sampling.

    All work of rejection is done, but the number of accepted drafts is set as for the library: a
    draft is accepted if the drafter proposed the recorded token.
    """

    def __init__(self, texts):
        self.texts, self.draft_probs = texts, {}  # by step

    def _compute_probs(self, decoder, hidden):
        return torch.softmax(hidden @ decoder.weight.t(), -1, dtype=torch.float32)

    def draw(self, decoder, hidden, step=0):
        return torch.multinomial(self._compute_probs(decoder, hidden), 1)

    def propose(self, decoder, hidden, step):
        self.draft_probs[step] = probs = self._compute_probs(decoder, hidden)
        return torch.multinomial(probs, 1)

    def verify(self, decoder, hidden, nodes):
        drafted = nodes[:, 1:]
        draft_probs = [self.draft_probs[step] for step in range(drafted.shape[1])]
        probs = self._compute_probs(decoder, hidden).view(*nodes.shape, -1)
        tokens = rejection(probs, torch.stack(draft_probs, 1), drafted)
        agree = self.texts.agree.gather(1, self.texts.get_slots(1, drafted.shape[1]))
        # Tokens after the first rejected one are -1, but may be within the number that was set.
        return tokens.clamp_min(0), agree.long().cumprod(1).sum(1) + 1


class Steps:
    """Steps of a target and a drafter (Decoder), with draws by `sampler` (Library or Torch)."""

    def __init__(self, target, drafter, texts):
        self.target, self.drafter, self.texts = target, drafter, texts

    def decode(self, sampler):
        """One token without drafts."""
        texts = self.texts
        slots = texts.get_slots(0, 1)
        hidden = self.target.forward(texts.record.gather(1, slots), slots)
        texts.write(sampler.draw(self.target, hidden), torch.ones_like(texts.position))

    def record(self, sampler, drafts):
        """One token without drafts by a step of drafts + 1 nodes, none of which can be accepted;
        the token is written to the record."""
        texts = self.texts
        root = texts.record.gather(1, texts.get_slots(0, 1))
        ids = root.repeat(1, drafts + 1)
        hidden = self.target.forward(ids, texts.get_slots(0, drafts + 1))
        ids[:, 1:].fill_(-1)  # not a token
        tokens, _ = sampler.verify(self.target, hidden, ids)
        texts.record.scatter_(1, texts.get_slots(1, 1), tokens[:, :1].long())
        texts.position += 1

    def draft(self, sampler, drafts):
        """Drafted tokens [B, drafts]. The first step reads two tokens, as the cache of the drafter
        may lack the last accepted draft."""
        texts, drafted = self.texts, []
        slots = texts.get_slots(-1, 2)
        ids = texts.record.gather(1, slots)
        for step in range(drafts):
            hidden = self.drafter.forward(ids, slots)
            last = hidden.view(texts.batch, -1, hidden.shape[-1])[:, -1].contiguous()
            drawn = sampler.propose(self.drafter, last, step)
            slots = texts.get_slots(step + 1, 1)
            known = texts.record.gather(1, slots)
            ids = torch.where(texts.agree.gather(1, slots), known, drawn.long())
            drafted.append(ids)
        return torch.cat(drafted, 1)

    def speculate(self, sampler, drafts):
        """One cycle: drafts, the target's step on root and drafts, and their verification."""
        texts = self.texts
        root = texts.record.gather(1, texts.get_slots(0, 1))
        nodes = torch.cat([root, self.draft(sampler, drafts)], 1)
        hidden = self.target.forward(nodes, texts.get_slots(0, drafts + 1))
        texts.write(*sampler.verify(self.target, hidden, nodes))

    def list_parts(self, samplers, drafts):
        """Functions that run one part of a cycle each, by name, and change no text. They read
        hidden states that were computed before. `samplers` has prefixes of names as keys."""
        texts, parts = self.texts, {}
        root, nodes = texts.get_slots(0, 1), texts.get_slots(0, drafts + 1)
        before = texts.get_slots(-1, 2)
        one, two, ids = (texts.record.gather(1, slots) for slots in (root, before, nodes))
        of_target, of_nodes = self.target.forward(one, root), self.target.forward(ids, nodes)
        of_draft = self.drafter.forward(one, root)
        parts["target, 1 token"] = lambda: self.target.forward(one, root)
        parts["target, all nodes"] = lambda: self.target.forward(ids, nodes)
        parts["draft, 2 tokens"] = lambda: self.drafter.forward(two, before)
        parts["draft, 1 token"] = lambda: self.drafter.forward(one, root)
        for name, sampler in samplers.items():
            for step in range(drafts):  # fills the probabilities that Torch keeps
                sampler.propose(self.drafter, of_draft, step)
            parts[f"{name}draw"] = lambda s=sampler: s.draw(self.target, of_target)
            parts[f"{name}draft's draw"] = lambda s=sampler: s.draw(self.drafter, of_draft)
            parts[f"{name}verify"] = lambda s=sampler: s.verify(self.target, of_nodes, ids)
        return parts


class Graphs:
    """Captured steps, which share memory: only their effects on `texts` last."""

    def __init__(self, device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle() if device == "cuda" else None

    def capture(self, step):
        """A function that runs `step`: a graph, or on a CPU the step itself."""
        if self.device != "cuda":
            return step
        step()  # compiles and allocates before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            step()
        return graph.replay
