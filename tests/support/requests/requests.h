/* SPDX-License-Identifier: Apache-2.0
 *
 * Test requests: batches in which every row has its own rules and its own logits, ordinary or
 * hostile, generated from a seed with the same bits on every machine. No test framework.
 */
#ifndef TESTS_REQUESTS_H
#define TESTS_REQUESTS_H

#include "inputs.h"
#include "outcome.h"

#include <gumbel/programs.h>

/* Kinds of logits of a row. */
typedef enum row_kind {
    ROW_GAUSSIAN, /* standard deviation 3 */
    ROW_PEAKED,   /* a few tokens far above the rest */
    ROW_EQUAL,    /* one value */
    ROW_LEVELS,   /* four values: ties at every cutoff */
    ROW_TAIL,     /* every other one -inf */
    ROW_LONE,     /* all -inf but one */
    ROW_FLAT,     /* standard deviation 10^-3 */
    ROW_WIDE,     /* standard deviation 100: exponentials underflow */
    ROW_EMPTY,    /* all -inf */
    ROW_NAN,      /* one NaN in a Gaussian row */
    ROW_INFINITE, /* one +inf */
    ROW_KINDS,    /* the kinds above are mixed; kinds below must be selected, and require float32 */
    ROW_MASKED = ROW_KINDS, /* -FLT_MAX for -inf, in most tokens or in all */
    ROW_ALL_KINDS,
} row_kind;

/* values of gumbel_order */
#define REQUEST_ORDERS 6

/* Rules of truncation of a plan with usual values. */
enum { REQUEST_TOP_K = 1, REQUEST_TOP_P = 2, REQUEST_MIN_P = 4 };

/* The request to generate. Zero in any field but the sizes is the default. */
typedef struct request_plan {
    int64_t batch, vocab;            /* B, V */
    int64_t hidden_size;             /* D > 0: the logits come from a product of this size */
    int64_t first_token, vocab_size; /* as in gumbel_logits */
    int32_t samples, num_top;        /* S, n */
    int32_t kept_capacity;           /* places of a row in the list of kept tokens; 0: no list */
    int entropy;                     /* an output, too */
    gumbel_dtype dtype;              /* of the logits; 0: float32 */
    float scale, soft_cap;
    gumbel_order order;
    gumbel_ties ties;
    gumbel_distribution logprobs_of;
    int transforms, truncation; /* whether there are any */
    int no_late_bias;           /* none, as when the digests of `agreement/` were recorded */
    int history;                /* penalties count a gumbel_history instead of lists */
    int given_noise;            /* noise is prepared */
    int usual;                  /* usual temperatures and truncation, none hostile */
    int cuts;                   /* with `usual`: the rules of truncation */
    float top_p;                /* with `usual`: top_p of every row; 0: any */
    int programs;               /* number of random programs, which replace `order`; 0: none */
    int single_rule;            /* with `programs`: each has one rule besides TEMPERATURE */
    int by_program;             /* the order is given as a program, if one lists its rules */
    int kind;                   /* 1 + the row_kind of every row; 0: mixed; D = 0 only */
    uint64_t seed;
} request_plan;

/* A plan for any index >= 0; the options are chosen at random from the index. `fused`: D > 0. */
request_plan request_plan_at_random(int index, int fused);

/* A random request on a shard of a few blocks of 64. `first`, `vocab` and `end` are the first
 * token, V and the end of the valid tokens, modulo 64. A third of the shards have no valid token.
 * */
#define REQUEST_SHARD_TOP 9 /* num_top */
request_plan request_plan_on_shard(int first, int vocab, int end, uint64_t *random);

#define REQUEST_OWNED 64

/* A request, which owns its memory, or a view of some rows of a request. */
typedef struct request {
    request_plan plan;
    gumbel_head head; /* if D > 0 */
    gumbel_logits logits;
    gumbel_sampling sampling; /* points to the structs below */
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_programs programs; /* the truncation points to them */
    gumbel_history history;
    problem *product; /* owner of the head, if D > 0 */
    void *owned[REQUEST_OWNED];
    int owned_count;
} request;

/* Makes a request; free it with request_free(). `device` computes its prepared noise and the logits
 * of the product. */
request *request_make(const request_plan *plan, gumbel_device *device);
void request_free(request *generated);

/* Generates a request without tensors and without prepared noise; the caller sets the tensors of
 * `head` or `logits`. */
request *request_make_rules(const request_plan *plan);

/* Parts of request_make(): a zeroed array that the request owns; token lists of at most `longest`
 * ids a row, with random ones of the `count` values unless NULL; random programs (programs.h) with
 * all their parameters. */
void *request_allocate(request *generated, size_t count, size_t size);
gumbel_token_lists request_make_lists(request *generated, uint32_t longest, const float *values,
                                      size_t count, uint64_t *random);
void request_make_programs(request *generated, uint64_t *random);

/* Replaces the order of a request by a program that lists its rules, which draws the same bits.
 * Returns 0 if there is none. */
int request_set_order_program(request *req);

/* Rows of programs from row `first` on, for request_rows(). */
void request_skip_programs(gumbel_programs *programs, int64_t first);

/* The logit of token i of `vocab`, in rows that defeat the initial guesses of truncation; `shape`
 * is in [0, REQUEST_SHAPES). */
#define REQUEST_SHAPES 8
float request_hostile_logit(int shape, int64_t i, int64_t vocab);

/* A copy of a matrix in a 16-bit dtype, with rows aligned to 16 bytes; freed with the request. */
gumbel_tensor request_narrow_tensor(request *generated, const gumbel_tensor *t, gumbel_dtype dtype);

/* Rows [first, first + count) as a request: views, which need not be freed. */
void request_rows(const request *whole, int64_t first, int64_t count, request *part);

/* One line that describes the plan, in static storage. */
const char *request_describe(const request_plan *plan);

/* One line that describes row b of a request, with its temperature and truncation. */
const char *request_describe_row(const request *req, int64_t b);

/* An outcome with ranks, kept counts, the n most likely tokens, and by the plan also the lists of
 * kept ones and the entropy. */
outcome *request_outcome(const request *req);

/* Poison the outputs, allocate a workspace of exactly the required size, and draw from the logits
 * or from the head. Return the call's status, and print a message unless it is GUMBEL_OK. */
gumbel_status request_draw(gumbel_device *device, const request *req, outcome *into);
gumbel_status request_draw_fused(gumbel_device *device, const request *req, outcome *into);

/* The outcome of a draw from logits without lists and, unless `wide`, without ranks and kept
 * counts. Ends the program on an error of the call. */
outcome *request_draw_rows(gumbel_device *device, const request *req, int wide);

/* Draws each row alone, from logits; 0 if a row has not the bits of `expected`, after a message. */
int request_same_alone(gumbel_device *device, const request *req, const outcome *expected);

/* gumbel_process_logits_into() rows of `dtype` at `stride`, which may be the logits. */
gumbel_status request_process_into(gumbel_device *device, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, void *processed,
                                   gumbel_dtype dtype, int64_t stride);

/* gumbel_process_logits() into [B, V], poisoned first. */
gumbel_status request_process(gumbel_device *device, const gumbel_logits *logits,
                              const gumbel_sampling *sampling, float *processed);

/* The logits of a head, [B, V] float32, as the library computes them: each is the score of a greedy
 * draw from a shard of one token. The caller frees them. */
float *product_logits(gumbel_device *device, const gumbel_head *head);

#endif
