/* SPDX-License-Identifier: Apache-2.0
 *
 * A validated call, in the one form that every backend reads: defaults filled in, strides explicit,
 * both ways in side by side.
 */
#ifndef GUMBEL_CORE_PROBLEM_H
#define GUMBEL_CORE_PROBLEM_H

#include "maths/noise.h"
#include "gumbel/gumbel.h"

/* What a call asks for beyond plain sampling, as bits of gumbel_problem.request. A field that is
 * there and has nothing to do sets none, so `request == 0` is the plain call. */
typedef enum gumbel_request {
    GUMBEL_REQUEST_MASK = 1 << 0,
    GUMBEL_REQUEST_BANNED = 1 << 1,
    GUMBEL_REQUEST_BIAS = 1 << 2,
    GUMBEL_REQUEST_PENALTIES = 1 << 3,
    GUMBEL_REQUEST_TRUNCATION = 1 << 4,
    GUMBEL_REQUEST_RANKS = 1 << 5,
    GUMBEL_REQUEST_KEPT = 1 << 6,
    GUMBEL_REQUEST_TOP = 1 << 7,    /* num_top > 0, and ids or log-probabilities of them */
    GUMBEL_REQUEST_RAW = 1 << 8,    /* log-probabilities or log-normaliser of the raw logits */
    GUMBEL_REQUEST_LOGITS = 1 << 9, /* top_logits */
    GUMBEL_REQUEST_GIVEN = 1 << 10, /* tokens are scored, not drawn */
    GUMBEL_REQUEST_ALLOWED = 1 << 11,
    GUMBEL_REQUEST_BEST = 1 << 12, /* num_best > 0, and ids or scores of them */
    GUMBEL_REQUEST_END = 1 << 13,
} gumbel_request;

/* What changes z itself. A shard alone can do these; all others need the whole vocabulary. */
#define GUMBEL_REQUEST_TRANSFORMS                                                                  \
    (GUMBEL_REQUEST_MASK | GUMBEL_REQUEST_BANNED | GUMBEL_REQUEST_BIAS |                           \
     GUMBEL_REQUEST_PENALTIES | GUMBEL_REQUEST_ALLOWED)

typedef struct gumbel_problem {
    int64_t batch;        /* B */
    int64_t first_row;    /* what row 0 is in the caller's batch, whose row parameters these are */
    void *stream;         /* CUDA: what the call is queued on */
    int64_t vocab;        /* V of this shard */
    int64_t hidden_size;  /* D; 0 where logits are given */
    gumbel_tensor logits; /* [B, V] where hidden_size is 0 */
    gumbel_tensor hidden; /* [B, D] */
    gumbel_tensor weight; /* [V, D] */
    gumbel_tensor bias;   /* [1, V], data NULL where absent */
    const void *screen;   /* of the weights (screen_bound.h), or NULL */
    float scale;
    float soft_cap;
    int64_t first_token;
    int64_t end_token;            /* tokens from here on do not count; may be <= first_token */
    gumbel_sampling sampling;     /* transforms and truncation are NULL here; they stand below. The
                                   * stride of a row parameter is 0 where one value serves all */
    uint32_t request;             /* gumbel_request bits */
    gumbel_transforms transforms; /* history is NULL here; what no bit asks for is not looked at */
    int mask_by_row;              /* the mask goes by rows, not by slots */
    int position_by_row;          /* so do positions */
    const int32_t *list_of_row;   /* [B] which of the caller's lists are a row's; NULL: its own */
    int with_path;                /* there are tokens that count as output beside all others: */
    gumbel_token_lists path;      /* by rows; ids below 0 are none */
    gumbel_history history;       /* prompt NULL where the penalties count lists */
    gumbel_truncation truncation;
    int with_mass; /* the log-normaliser will be asked for */
} gumbel_problem;

/* Rows first .. + count of a problem, as a call of its own that draws the same. Row parameters,
 * masks and histories stay where they are: they are found by first_row. */
gumbel_problem gumbel_problem_slice(const gumbel_problem *problem, int64_t first, int64_t count);

/* Rows whose given tokens are scored at once. */
#define GUMBEL_GIVEN_ROWS 256

/* Rows of a problem that are served at once: all, but of given tokens so many that a workspace with
 * their logits stays small. */
static inline int64_t gumbel_slice_rows_max(const gumbel_problem *problem)
{
    int64_t most = problem->request & GUMBEL_REQUEST_GIVEN ? GUMBEL_GIVEN_ROWS : problem->batch;
    return most < problem->batch ? most : problem->batch > 0 ? problem->batch : 1;
}

#endif
