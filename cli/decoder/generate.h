/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode loop: a prompt in, tokens out, each drawn by gumbel_sample().
 *
 * Sample j of a call is a separate sequence, drawn with sample counter first_sample + j; all
 * samples use one seed. The position counter of a draw is the index of the previous token, as in
 * other engines. A text therefore depends on (model, prompt, seed, temperature, sample counter)
 * only, not on the number of samples. Rows of the head after the tokenizer's last token are padding
 * and never drawn.
 */
#ifndef DECODER_GENERATE_H
#define DECODER_GENERATE_H

#include <stdbool.h>

#include "decoder/decoder.h"

/* One drawn token. */
typedef struct generate_token {
    int32_t sample;   /* 0 .. num_samples - 1 */
    int32_t position; /* its index in the sequence, including the prompt */
    int32_t id;
    float logprob; /* natural logarithm, of the distribution in the options */
    bool last;     /* ends the sequence: an eos token, or the token at the limit */
    int32_t rank;  /* rank and kept: as in gumbel_output if the options request them, else 0 */
    int32_t kept;
    const int32_t *top_ids;     /* [num_top] the likeliest tokens, valid during the callback */
    const float *top_logprobs;  /* [num_top] */
    const int32_t *kept_ids;    /* [kept] the tokens that truncation keeps, by ascending id, as long
                                  as top_ids; NULL: not in the options, or more than these allow */
    const float *kept_logprobs; /* [kept] */
} generate_token;

/* Returned by the callback: whether and how generate() continues after a token. */
typedef enum generate_next {
    GENERATE_STOP,     /* the whole call ends, and succeeds */
    GENERATE_CONTINUE, /* the sequence continues, unless the token was its last */
    GENERATE_END_TEXT, /* the sequence ends; others continue */
} generate_next;

/* Called for every token after its draw, in the order of samples within a step. */
typedef generate_next (*generate_callback)(void *context, const generate_token *token);

/* Largest number of rows of a call of gumbel_sample() or a generate_draw. */
#define GENERATE_GROUP 8

/* Replaces gumbel_sample() for a head on a GPU, or split over ranks. All pointers are to
 * host memory; `head->weight` is decoder_head() in every call, hidden states are contiguous
 * float32. Seeds, positions and sample counters are contiguous, other row parameters have stride
 * GUMBEL_SAME; num_samples is 1; lists and a history have at most GENERATE_GROUP rows. `context` is
 * draw_context of the options. Returns the status of gumbel_sample(). */
typedef gumbel_status (*generate_draw)(void *context, const gumbel_head *head,
                                       const gumbel_sampling *sampling, const gumbel_output *output,
                                       gumbel_error *error);

/* Zero is the default of every field except `prompt` and `max_tokens`. */
typedef struct generate_options {
    const int32_t *prompt; /* [prompt_count] token ids */
    int32_t prompt_count;  /* >= 1 */
    int32_t max_tokens;    /* for each sample, >= 1; prompt_count + max_tokens <= max_positions */
    int32_t num_samples;   /* 1..1024; 0: 1 */
    uint32_t first_sample;
    float temperature; /* finite, >= 0; 0 is greedy */
    uint64_t seed;
    const uint64_t
        *watermark_key;         /* [2] the words of a watermark's key (watermark.h); NULL: none */
    int32_t watermark_context;  /* its context, 0..16 */
    bool ignore_eos;            /* draw max_tokens tokens, also after an eos token */
    generate_callback on_token; /* NULL is allowed */
    void *context;
    generate_draw draw; /* NULL: gumbel_sample() on the device */
    void *draw_context;
    const gumbel_transforms *transforms; /* of one row, for every sample; strides and the history
                                            are not read: generate() has its own; NULL: none */
    const gumbel_truncation *truncation; /* of one row, for every sample; NULL: none */
    bool ranks;                          /* report `rank` of every token */
    bool kept;                           /* report `kept` of every token */
    int32_t num_top;                     /* 0..128: number of likeliest tokens to report */
    int32_t kept_ids; /* >= 0: report the kept tokens of every token of which there are at most as
                         many; also reports `kept` */
    gumbel_distribution logprobs_of; /* of logprob, top_logprobs and kept_logprobs */
    gumbel_screen screen; /* of decoder_head(), as in gumbel_head; with a screen there are no
                             log-probabilities: `logprob` is NaN. Data NULL: none */
} generate_options;

/* Times in seconds, and the number of tokens. */
typedef struct generate_times {
    double prefill; /* of the trunk, on the prompt */
    double trunk;   /* of the trunk, on drawn tokens, one a sample and step */
    double head;    /* of the products with the head, and the draws */
    int64_t drawn;  /* tokens, all samples together */
    int32_t steps;  /* in which every unfinished sample drew a token */
} generate_times;

/* generate(): draws texts.
 *  device   a CPU device, which draws unless options->draw is set, and stores the histories that
 *           penalties count, and the rings of a watermark. The device may run on the decoder's
 *           threads (decoder_parallel_for()). NULL is allowed if options->draw is set and there are
 *           no penalties and no watermark.
 *  times    filled, also after an error; NULL is allowed.
 *  returns  0; -1 with `error` filled: an option out of range, memory, or a row whose logits are
 *           not finite. Tokens already reported to the callback are valid. */
int generate(decoder *d, gumbel_device *device, const generate_options *options,
             generate_times *times, decoder_error *error);

#endif /* DECODER_GENERATE_H */
