/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode loop: a prompt in, tokens out, every one drawn by gumbel_sample().
 *
 * Sample j of a call is a sequence of its own, and draws with sample counter first_sample + j; all
 * share the seed. The position counter of a draw is the index of the token that it is drawn behind,
 * as it is in other engines. So a text depends on (model, prompt, seed, temperature, sample
 * counter) alone, not on how many samples run beside it. Rows of the head behind the tokenizer's
 * last token are padding and never drawn.
 */
#ifndef DECODER_GENERATE_H
#define DECODER_GENERATE_H

#include <stdbool.h>

#include "decoder/decoder.h"

/* One drawn token. */
typedef struct generate_token {
    int32_t sample;   /* 0 .. num_samples - 1 */
    int32_t position; /* its index in its sequence, the prompt included */
    int32_t id;
    float logprob; /* natural logarithm, of the distribution that the options name */
    bool last;     /* this sequence ends with it: an eos token, or the limit */
    int32_t rank;  /* as in gumbel_output, where the options ask for it; else 0, as `kept` */
    int32_t kept;
    const int32_t *top_ids;    /* [num_top] the likeliest tokens, until the callback returns */
    const float *top_logprobs; /* [num_top] theirs */
} generate_token;

/* How a call goes on after a token. */
typedef enum generate_next {
    GENERATE_STOP,     /* the whole call ends, and succeeds */
    GENERATE_CONTINUE, /* the sequence goes on, unless the token was its last */
    GENERATE_END_TEXT, /* the sequence ends; the others go on */
} generate_next;

/* Called for every token as it is drawn, samples in order within a step. */
typedef generate_next (*generate_callback)(void *context, const generate_token *token);

/* Rows of one call of gumbel_sample() or a generate_draw at most. */
#define GENERATE_GROUP 8

/* Draws in place of gumbel_sample(), for an engine that keeps the head elsewhere. All pointers are
 * to host memory; `head->weight` is decoder_head(), the same in every call, the hidden states are
 * float32 without gaps. Seeds and sample counters are contiguous, other row parameters have stride
 * GUMBEL_SAME; num_samples is 1; lists and a history have at most GENERATE_GROUP rows. `context` is
 * the pointer that the engine gave. Returns what gumbel_sample() would. */
typedef gumbel_status (*generate_draw)(void *context, const gumbel_head *head,
                                       const gumbel_sampling *sampling, const gumbel_output *output,
                                       gumbel_error *error);

/* Zero in any field but `prompt` and `max_tokens` is its default. */
typedef struct generate_options {
    const int32_t *prompt; /* [prompt_count] token ids */
    int32_t prompt_count;  /* >= 1 */
    int32_t max_tokens;  /* drawn for each sample, >= 1; prompt and these fit into max_positions */
    int32_t num_samples; /* 1..1024; 0: 1 */
    uint32_t first_sample;
    float temperature; /* finite, >= 0; 0 is greedy */
    uint64_t seed;
    bool ignore_eos;            /* draw max_tokens tokens whatever they are */
    generate_callback on_token; /* NULL is allowed */
    void *context;
    generate_draw draw; /* NULL: gumbel_sample() on the device */
    void *draw_context;
    const gumbel_transforms *transforms; /* of one row, for every sample; strides are not read, and
                                            what penalties count is kept here; NULL: none */
    const gumbel_truncation *truncation; /* likewise; NULL: none */
    bool ranks;                          /* tell `rank` of every token */
    bool kept;                           /* tell `kept` */
    int32_t num_top;                     /* 0..128: tell so many of the likeliest tokens */
    gumbel_distribution logprobs_of;     /* of logprob and top_logprobs */
    gumbel_screen screen; /* of decoder_head(), as in gumbel_head; with it no log-probabilities are
                           told: `logprob` is NaN. NULL: none */
} generate_options;

/* Where the time went, in seconds, and how many tokens there were. */
typedef struct generate_times {
    double prefill; /* trunk, the prompt */
    double trunk;   /* trunk, one token a sample and step */
    double head;    /* head product and draw */
    int64_t drawn;  /* tokens, all samples together */
    int32_t steps;  /* in which every unfinished sample drew a token */
} generate_times;

/* generate(): draw texts.
 *  device   of host memory; makes the draws where options->draw does not, and keeps the histories
 *           that penalties count. It may run on the decoder's threads (decoder_parallel_for()).
 *           NULL where neither is asked for.
 *  times    filled on success, and with what had passed on an error; NULL is allowed.
 *  returns  0; -1 with `error` filled: an option out of range, memory, or a row whose logits were
 * not finite. Tokens that the callback has seen by then are right. */
int generate(decoder *d, gumbel_device *device, const generate_options *options,
             generate_times *times, decoder_error *error);

#endif /* DECODER_GENERATE_H */
