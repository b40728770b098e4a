/* SPDX-License-Identifier: Apache-2.0
 *
 * A sampler of llama.cpp that draws with libgumbel: exact, by noise that is a function of (seed,
 * position, token) alone. It stands at the end of a chain, takes what the samplers before it left,
 * and does temperature, truncation, penalties, bias and masks by itself where it stands alone.
 *
 * Three ways to draw with one sampler; all give one token for equal logits:
 *   llama_sampler_sample()  as any sampler of a chain, from its array of candidates
 *   gumbel_llama_sample()   from the context's row of logits, without an array of candidates
 *   in the graph            the chain is given to llama_context_params.samplers: the token is drawn
 *                           while llama_decode() runs, from ggml's logits; or, with `fused`, from
 *                           the hidden state and the LM head's weights, and no logits are formed:
 *                           of one output, with weights of F32, F16 or BF16 in host memory. Hidden
 *                           states are then not rounded to the weights' type, as ggml's product
 *                           rounds them: logits are more exact, and not the same bits.
 *
 * Compile gumbel_llama*.c with the engine, against the llama.h of the library that is linked: its
 * struct llama_sampler_i has no stable layout, and a header that does not fit is refused there.
 */
#ifndef GUMBEL_LLAMA_H
#define GUMBEL_LLAMA_H

#include <llama.h>
#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which tokens may come next. `words` holds ceil(n_vocab / 32) words, all ones: bit t & 31 of word
 * t >> 5 allows token t. Clear bits, and return true; or return false, and all are allowed. It is
 * called before each draw, in the graph on a thread of llama_decode(). */
typedef bool (*gumbel_llama_mask)(void *context, int64_t position, uint32_t *words,
                                  int32_t n_vocab);

/* Begin with gumbel_llama_default_params(). Arrays are copied. */
struct gumbel_llama_params {
    uint64_t seed;      /* default 0 */
    int64_t position;   /* of the first draw, and after a reset: the index in its text of the token
                        * whose logits are drawn from. A prompt of n tokens: n - 1; or -1 if
                        * its tokens are given to llama_sampler_accept(), each of which moves on
                        * by one. Default 0 */
    float temperature;  /* >= 0; 0 is greedy; default 1 */
    int32_t top_k;      /* 0: off, the default */
    float top_p;        /* in (0, 1]; 1: off, the default */
    float min_p;        /* in [0, 1]; 0: off, the default */
    gumbel_order order; /* default GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, llama.cpp's own */
    gumbel_ties ties;
    float repetition;       /* > 0; 1: off, the default */
    float frequency;        /* default 0 */
    float presence;         /* default 0 */
    int32_t penalty_last_n; /* accepted tokens that penalties count: the last so many; -1: all since
                             * the last reset, the default; 0: none */
    const llama_logit_bias *bias; /* [bias_count] added before all else; -INFINITY bans */
    int32_t bias_count;
    gumbel_llama_mask mask; /* NULL: none. Clones call it with the same context */
    void *mask_context;
    llama_token failed_token; /* stands for what cannot be drawn (NaN, nothing allowed), since
                               * llama.cpp ends the process where no token is chosen; in an array
                               * without it the first candidate does. gumbel_llama_describe() counts
                               * these. Default 0 */
    bool fused; /* in the graph, draw from weights and hidden state where it can be, without logits;
                 * default false: from ggml's logits */
    int32_t threads; /* of draws outside the graph; default 1. In the graph llama.cpp's own serve */
};

struct gumbel_llama_params gumbel_llama_default_params(void);

/* gumbel_llama_init(): a sampler for llama_sampler_chain_add(), which then owns it.
 *  n_vocab  llama_vocab_n_tokens(), V
 *  params   NULL for defaults
 *  error    names the field at fault; may be NULL
 *  threads  one sampler a sequence; a sampler is used by one thread at a time
 *  returns  NULL on an error. Free with llama_sampler_free() what no chain owns. */
struct llama_sampler *gumbel_llama_init(int32_t n_vocab, const struct gumbel_llama_params *params,
                                        gumbel_error *error);

/* What a sampler has done since it was made or reset. */
struct gumbel_llama_report {
    int64_t position;   /* of the next draw */
    int64_t candidates; /* draws from arrays of candidates */
    int64_t rows;       /* draws from the context's rows of logits */
    int64_t in_graph;   /* draws in the graph, from logits */
    int64_t fused;      /* draws in the graph, without logits */
    int64_t failed;     /* draws that gave failed_token */
    gumbel_error error; /* why the last of these did; empty strings before */
};

/* In all calls below `sampler` is one of ours, or a chain that holds one. */

/* Fill the report; false where there is no sampler of ours. */
bool gumbel_llama_describe(const struct llama_sampler *sampler, struct gumbel_llama_report *report);

/* Set the position of the next draw; false where there is no sampler of ours. */
bool gumbel_llama_set_position(struct llama_sampler *sampler, int64_t position);

/* gumbel_llama_sample(): draw from row i of the context's outputs, as llama_sampler_sample() does,
 *  and accept the token. A token drawn in the graph is taken as it is; a chain with other samplers
 *  goes the way of llama_sampler_sample().
 *  returns  the token, or -1 where there is neither a sampler of ours nor logits. */
llama_token gumbel_llama_sample(struct llama_sampler *sampler, struct llama_context *context,
                                int32_t i);

/* Drafts of one sequence: the batch just decoded held the last token that is certain, and behind it
 * the drafts, each with logits. */
struct gumbel_llama_draft {
    const llama_token *tokens; /* [count] */
    int32_t count;             /* 0..1023 */
    int32_t first;             /* index in the batch of the token before the first draft */
    const gumbel_head *head;   /* NULL: from logits. Else its weight [V, D] multiplies the rows of
                                * llama_get_embeddings_ith(); its `hidden` is not read */
};

/* gumbel_llama_verify(): draw behind the last token and behind each draft, and keep drafts as long
 *  as they are what is drawn (GUMBEL_RULE_COUPLED): the text is the one without drafts. The emitted
 *  tokens are accepted by the sampler, or its chain, whose other samplers do nothing else. What is
 *  behind position + emitted has to leave the context's memory: llama_memory_seq_rm().
 *  tokens   [count + 1] receives what is emitted
 *  emitted  how many, accepted drafts + 1; one less if a row could not be drawn
 *  returns  GUMBEL_OK, or why not: GUMBEL_ERROR_UNSUPPORTED with drafts where there is a mask, or a
 *           penalty's window that they would move. On an error nothing has been accepted. */
gumbel_status gumbel_llama_verify(struct llama_sampler *sampler, struct llama_context *context,
                                  const struct gumbel_llama_draft *draft, llama_token *tokens,
                                  int32_t *emitted, gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_LLAMA_H */
