/* SPDX-License-Identifier: Apache-2.0
 *
 * A validated call in the form that every backend reads: defaults filled in, strides explicit, a
 * head or logits in one struct.
 */
#ifndef GUMBEL_CORE_PROBLEM_H
#define GUMBEL_CORE_PROBLEM_H

#include "maths/noise.h"
#include "gumbel/gumbel.h"
#include "gumbel/programs.h"

/* Features that a call uses beyond plain sampling: bits of gumbel_problem.features. A field whose
 * value has no effect sets no bit; a plain call has features == 0. */
typedef enum gumbel_feature {
    GUMBEL_FEATURE_MASK = 1 << 0,
    GUMBEL_FEATURE_BANNED = 1 << 1,
    GUMBEL_FEATURE_BIAS = 1 << 2,
    GUMBEL_FEATURE_PENALTIES = 1 << 3,
    GUMBEL_FEATURE_TRUNCATION = 1 << 4,
    GUMBEL_FEATURE_RANKS = 1 << 5,
    GUMBEL_FEATURE_KEPT = 1 << 6,
    GUMBEL_FEATURE_TOP = 1 << 7,    /* num_top > 0, and their ids or log-probabilities */
    GUMBEL_FEATURE_RAW = 1 << 8,    /* log-probabilities, log-normaliser or entropy of raw logits */
    GUMBEL_FEATURE_LOGITS = 1 << 9, /* top_logits */
    GUMBEL_FEATURE_GIVEN = 1 << 10, /* given tokens are scored, none is drawn */
    GUMBEL_FEATURE_ALLOWED = 1 << 11,
    GUMBEL_FEATURE_BEST = 1 << 12,    /* num_best > 0, and their ids or scores */
    GUMBEL_FEATURE_PROGRAM = 1 << 13, /* in place of GUMBEL_FEATURE_TRUNCATION */
    GUMBEL_FEATURE_LATE_BIAS = 1 << 14,
    GUMBEL_FEATURE_KEPT_IDS = 1 << 15,
    GUMBEL_FEATURE_ENTROPY = 1 << 16, /* with GUMBEL_FEATURE_RAW: of the raw logits */
    GUMBEL_FEATURE_END = 1 << 17,
} gumbel_feature;

/* Features that change z alone, which a shard can apply; others require the whole vocabulary. */
#define GUMBEL_FEATURE_TRANSFORMS                                                                  \
    (GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_BANNED | GUMBEL_FEATURE_BIAS |                           \
     GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_ALLOWED | GUMBEL_FEATURE_LATE_BIAS)

/* Outputs that show which tokens a program has removed; an order shows them with their z. */
#define GUMBEL_FEATURES_OF_REMOVED_TOKENS                                                          \
    (GUMBEL_FEATURE_RANKS | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_LOGITS | GUMBEL_FEATURE_GIVEN)

typedef struct gumbel_problem {
    int64_t batch;         /* B */
    int64_t first_row;     /* index of row 0 in the caller's batch, which indexes row parameters */
    void *stream;          /* CUDA stream */
    int64_t vocab;         /* V of this shard */
    int64_t hidden_size;   /* D; 0 if logits are given */
    gumbel_tensor logits;  /* [B, V] if hidden_size is 0 */
    gumbel_tensor hidden;  /* [B, D] */
    gumbel_tensor weight;  /* [V, D] */
    gumbel_tensor bias;    /* [1, V]; data may be NULL */
    const void *screen;    /* of the weights (screen_bound.h), or NULL */
    int32_t screen_format; /* a gumbel_screen_format; the CPU backend reads the screen's header */
    float scale;
    float soft_cap;
    int64_t first_token;
    int64_t end_token;        /* ids from here on are padding; may be <= first_token */
    gumbel_sampling sampling; /* without transforms and truncation, which are below. The stride of
                               * a row parameter is 0 if one value serves all rows */
    uint32_t features;        /* gumbel_feature bits */
    gumbel_transforms transforms; /* history is NULL; fields without a feature bit are not read */
    int mask_by_row;              /* the mask is indexed by row, not by slot */
    int position_by_row;          /* positions are indexed by row, not by slot */
    const int32_t *list_of_row;   /* [B] index of each row's token lists; NULL: the row */
    int with_path;                /* 1: penalties count the tokens in `path` as output, too */
    gumbel_token_lists path;      /* by rows; ids below 0 are skipped */
    gumbel_history history;       /* prompt is NULL if penalties count lists */
    gumbel_truncation truncation; /* without programs, which are below */
    gumbel_programs programs;     /* not read without GUMBEL_FEATURE_PROGRAM */
    int with_mass;                /* an output is, or requires, the log-normaliser */
    int32_t num_top;              /* tokens of output.top_ids; 0 without GUMBEL_FEATURE_TOP */
} gumbel_problem;

/* Whether an id of sampling.token_ids is a token's. */
GUMBEL_INLINE int gumbel_is_token_id(int32_t id) { return id >= 0 && id < INT32_MAX; }

/* Rows [first, first + count) of a problem, as a call that draws the same tokens. Row parameters,
 * masks and histories keep their addresses: first_row indexes them. */
gumbel_problem gumbel_problem_slice(const gumbel_problem *problem, int64_t first, int64_t count);

/* Rows whose given tokens are scored in one slice. */
#define GUMBEL_GIVEN_ROWS 256

/* Rows of a problem that a backend serves in one call: all; with given tokens, whose logits take
 * workspace, at most GUMBEL_GIVEN_ROWS. */
static inline int64_t gumbel_slice_rows_max(const gumbel_problem *problem)
{
    int64_t rows_max =
        problem->features & GUMBEL_FEATURE_GIVEN ? GUMBEL_GIVEN_ROWS : problem->batch;
    return rows_max < problem->batch ? rows_max : problem->batch > 0 ? problem->batch : 1;
}

#endif
