/* SPDX-License-Identifier: Apache-2.0
 *
 * A llama.cpp sampler that draws with libgumbel: exact, with noise that is a function of (seed,
 * position, token) only. The sampler is the last of its chain: it draws from the candidates that
 * earlier samplers keep, and applies temperature, truncation, penalties, bias and masks itself.
 *
 * Three ways to draw with one sampler; equal logits give equal tokens:
 *   llama_sampler_sample()  as any sampler of a chain, from an array of candidates
 *   gumbel_llama_sample()   from the context's row of logits, without an array of candidates
 *   in the graph            with the chain in llama_context_params.samplers: the token is drawn
 *                           while llama_decode() runs, from ggml's logits. With `fused` it is
 *                           drawn from the hidden state and the LM head's weights, without
 *                           logits; this requires one output, and F32, F16 or BF16 weights in
 *                           host memory. A fused draw does not round hidden states to the
 *                           weights' type, as ggml's product does: logits are more exact, with
 *                           other bits.
 *
 * Compile gumbel_llama*.c with the engine, against the llama.h of the linked library. The layout of
 * its struct llama_sampler_i is not stable; another layout is a compile-time error.
 */
#ifndef GUMBEL_LLAMA_H
#define GUMBEL_LLAMA_H

#include <llama.h>
#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A mask function, which determines the tokens that may be drawn next. Called before each draw; for
 * draws in the graph on a thread of llama_decode().
 *  words    [ceil(n_vocab / 32)], all ones: bit t & 31 of word t >> 5 allows token t. The function
 *           clears bits
 *  returns  true if `words` is to be applied; false to allow all tokens. */
typedef bool (*gumbel_llama_mask)(void *context, int64_t position, uint32_t *words,
                                  int32_t n_vocab);

/* A sequence of tokens that ends the repetitions that DRY counts. */
struct gumbel_llama_breaker {
    const llama_token *tokens; /* [count] */
    int32_t count;             /* >= 1 */
};

/* Parameters of a sampler. Start from gumbel_llama_default_params(). Arrays are copied. */
struct gumbel_llama_params {
    uint64_t seed;      /* default 0 */
    int64_t position;   /* position of the first draw, also after a reset: the index in the text of
                        * the token whose logits are drawn from. n - 1 for a prompt of n tokens, or
                        * -1 if its tokens are passed to llama_sampler_accept(), which advances
                        * the position by one each. Default 0 */
    float temperature;  /* >= 0; 0 is greedy; default 1 */
    int32_t top_k;      /* 0: off, the default */
    float top_p;        /* in (0, 1]; 1: off, the default */
    float min_p;        /* in [0, 1]; 0: off, the default */
    gumbel_order order; /* default GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, llama.cpp's own */
    gumbel_ties ties;

    /* More rules, and their order, which must have every rule that is on. Listed rules that are off
     * do nothing.
     *  samplers  the order, in the words of llama.cpp's --samplers, as in
     *            "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature". The
     *            temperature is required. Penalties, then dry, come before all others; only the
     *            temperature may follow xtc; adaptive_p is applied last, wherever it is listed.
     *            NULL, the default: `order`, or with rules that it lacks the order above, and
     *            adaptive_p
     *  xtc       tokens have the probabilities that they have in llama.cpp on average over its coin
     *  min_keep  number of tokens that no rule but top_k goes below
     *  mirostat  0: off, the default; 2: mirostat 2, the only truncation. Its mu changes when
     *            llama_sampler_accept() gets the drawn token
     *  adaptive  prefers tokens whose probability is near a target. The target of a draw follows
     *            from adaptive_target and from the probabilities of earlier drawn tokens that
     *            llama_sampler_accept() got. A draw reads its row twice. Excludes xtc
     *  dry       by the accepted tokens since the last reset, at most the last
     *            dry_penalty_last_n; -1: all, the default; 0: off */
    const char *samplers;
    float typical_p;         /* in (0, 1]; 1: off, the default */
    float top_n_sigma;       /* <= 0: off; default 0 */
    float xtc_probability;   /* in [0, 1]; 0: off, the default */
    float xtc_threshold;     /* in (0, 1], off above 0.5; default 0.1 */
    float dynatemp_range;    /* >= 0; 0: off, the default */
    float dynatemp_exponent; /* >= 0; default 1 */
    int32_t min_keep;        /* >= 0; default 0 */
    int32_t mirostat;
    float mirostat_tau;         /* target, in bits, >= 0; default 5 */
    float mirostat_eta;         /* learning rate, >= 0; default 0.1 */
    float adaptive_target;      /* in [0, 1]; below 0: off; default -1 */
    float adaptive_decay;       /* of earlier probabilities, in [0, 0.99]; default 0.9 */
    float dry_multiplier;       /* >= 0; 0: off, the default */
    float dry_base;             /* off below 1; default 1.75 */
    int32_t dry_allowed_length; /* >= 0; default 2 */
    int32_t dry_penalty_last_n;
    const struct gumbel_llama_breaker *dry_breakers; /* [dry_breaker_count] */
    int32_t dry_breaker_count;

    float repetition;       /* > 0; 1: off, the default */
    float frequency;        /* default 0 */
    float presence;         /* default 0 */
    int32_t penalty_last_n; /* number of last accepted tokens that penalties count; -1: all since
                             * the last reset, the default; 0: none */
    const llama_logit_bias *bias; /* [bias_count] added first; -INFINITY bans */
    int32_t bias_count;
    gumbel_llama_mask mask; /* NULL: none. Clones call it with the same context */
    void *mask_context;
    llama_token failed_token; /* returned for a row from which no token can be drawn (NaN, or no
                               * token allowed), because llama.cpp aborts if a sampler selects none.
                               * If it is not a candidate, the first candidate is returned.
                               * gumbel_llama_describe() counts such draws. Default 0 */
    bool fused; /* in the graph, draw from weights and hidden state if possible, without logits;
                 * default false: from ggml's logits */
    int32_t threads; /* of draws outside the graph; default 1. Draws in the graph use llama.cpp's */
};

struct gumbel_llama_params gumbel_llama_default_params(void);

/* gumbel_llama_init(): creates a sampler for llama_sampler_chain_add(); the chain then owns it.
 *  n_vocab  llama_vocab_n_tokens(), V
 *  params   NULL for defaults
 *  error    names the invalid field; may be NULL
 *  threads  use one sampler for each sequence, from one thread at a time
 *  returns  NULL on an error. Free a sampler that no chain owns with llama_sampler_free(). */
struct llama_sampler *gumbel_llama_init(int32_t n_vocab, const struct gumbel_llama_params *params,
                                        gumbel_error *error);

/* Counts of a sampler since it was created or reset. */
struct gumbel_llama_report {
    int64_t position;   /* position of the next draw */
    int64_t candidates; /* draws from arrays of candidates */
    int64_t rows;       /* draws from the context's rows of logits */
    int64_t in_graph;   /* draws in the graph, from logits */
    int64_t fused;      /* draws in the graph, from hidden states and weights */
    int64_t failed;     /* draws that returned failed_token */
    gumbel_error error; /* cause of the last failed draw; empty strings if there is none */
};

/* In all calls below `sampler` comes from gumbel_llama_init(), or is a chain that contains such a
 * sampler. */

/* Fills the report. Returns false if `sampler` is neither. */
bool gumbel_llama_describe(const struct llama_sampler *sampler, struct gumbel_llama_report *report);

/* Sets the position of the next draw. Returns false if `sampler` is neither. */
bool gumbel_llama_set_position(struct llama_sampler *sampler, int64_t position);

/* gumbel_llama_sample(): draw from row i of the context's outputs, as llama_sampler_sample() does,
 *  and accept the token. If the token was drawn in the graph, it is returned; for a chain with
 *  other samplers, llama_sampler_sample() is called.
 *  returns  the token; -1 if `sampler` is neither, or there are no logits. */
llama_token gumbel_llama_sample(struct llama_sampler *sampler, struct llama_context *context,
                                int32_t i);

/* Drafts of one sequence: the batch just decoded has the last token of the text, followed by the
 * drafts, each with logits. */
struct gumbel_llama_draft {
    const llama_token *tokens; /* [count] */
    int32_t count;             /* 0..1023 */
    int32_t first;             /* index in the batch of the token before the first draft */
    const gumbel_head *head;   /* NULL: draw from logits. Else draw from its weight [V, D] and the
                                * rows of llama_get_embeddings_ith(); its `hidden` is not read */
};

/* gumbel_llama_verify(): draw after the last token and after each draft, and accept drafts while
 *  they equal the drawn tokens (GUMBEL_RULE_COUPLED). Drafts do not change the text. The
 *  sampler, or its chain, accepts the emitted tokens; other samplers of the chain are not applied.
 *  The caller must remove later tokens from the context's memory, from position + emitted on:
 *  llama_memory_seq_rm().
 *  tokens   [count + 1] receives the emitted tokens
 *  emitted  their number, accepted drafts + 1; one less if no token can be drawn from a row
 *  returns  GUMBEL_OK or an error; GUMBEL_ERROR_UNSUPPORTED for drafts with a mask, or with a
 *           window of penalties that would move within them; for drafts with DRY; for mirostat and
 *           adaptive_p. On an error no token has been accepted. */
gumbel_status gumbel_llama_verify(struct llama_sampler *sampler, struct llama_context *context,
                                  const struct gumbel_llama_draft *draft, llama_token *tokens,
                                  int32_t *emitted, gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_LLAMA_H */
