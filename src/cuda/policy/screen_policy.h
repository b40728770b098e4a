/* SPDX-License-Identifier: Apache-2.0
 *
 * A screened draw on Hopper: the sizes that host and kernels must agree on, and what its kernels
 * tell each other in the workspace. Read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_SCREEN_POLICY_H
#define GUMBEL_CUDA_SCREEN_POLICY_H

#include "cuda/policy/cuda_policy.h"
#include "maths/screen_bound.h"

/* Rows and columns of a tile. */
#define CUDA_SCREEN_TILE 128
/* Rows of a batch that are screened: each is two columns of the product, one a plane. */
#define CUDA_SCREEN_ROWS_MAX 64
/* Rows of a batch that are scored together, as columns of the narrowest wgmma. */
#define CUDA_SCREEN_GROUP  8
#define CUDA_SCREEN_GROUPS (CUDA_SCREEN_ROWS_MAX / CUDA_SCREEN_GROUP)

/* Where a screened draw is measured to be faster than the full pass, in .48 to .69 of its time
 * (findings/screening.md); both are right anywhere, so that a caller may prefer either. */
#define CUDA_SCREEN_WEIGHTS_MIN (INT64_C(1) << 28)
static inline int cuda_screen_is_faster(int64_t vocab, int64_t columns)
{
    return vocab * columns >= CUDA_SCREEN_WEIGHTS_MIN;
}

/* Rows that are cut, and the hidden size to which they are faster by a screen than by the full
 * pass: .58 to .86 of its time at 1 to 32 rows of D = 2048 and 4096, and 1.07 at 64
 * (findings/screening.md). At D = 8192 a row has, as reckoned, some 940 tokens scored, for which
 * there is hardly room. */
#define CUDA_SCREEN_TRUNCATED_ROWS_MAX   32
#define CUDA_SCREEN_TRUNCATED_HIDDEN_MAX 4096
static inline int cuda_screen_truncated_is_faster(int64_t batch, int64_t hidden_size)
{
    return batch <= CUDA_SCREEN_TRUNCATED_ROWS_MAX &&
           hidden_size <= CUDA_SCREEN_TRUNCATED_HIDDEN_MAX;
}

/* What a call asks of a screened draw. Each case has kernels of its own, without the code of what
 * it rules out (screen_case.cuh). */
typedef enum cuda_screen_case {
    CUDA_SCREEN_PLAIN,     /* a draw a row, of any token */
    CUDA_SCREEN_ANY,       /* rows have samples, or masks */
    CUDA_SCREEN_TRUNCATED, /* rows are cut to few first tokens, and may have masks */
    CUDA_SCREEN_CASES,
} cuda_screen_case;

static inline cuda_screen_case cuda_screen_case_of(const gumbel_problem *p)
{
    const int is_plain = p->sampling.num_samples == 1 && !(p->request & GUMBEL_REQUEST_MASK);
    if (p->request & GUMBEL_REQUEST_TRUNCATION)
        return CUDA_SCREEN_TRUNCATED;
    return is_plain ? CUDA_SCREEN_PLAIN : CUDA_SCREEN_ANY;
}

/* What is screened of a call's rows: each of their samples, or, where they are cut, their first
 * tokens, of which all samples are drawn. */
static inline int64_t cuda_screen_draws(const gumbel_problem *p)
{
    return p->batch *
           (cuda_screen_case_of(p) == CUDA_SCREEN_TRUNCATED ? 1 : p->sampling.num_samples);
}

/* First tokens of a row that a screen looks for, at most. */
#define CUDA_SCREEN_RANK_MAX 64

/* Columns of the integer products that exist. */
#define CUDA_SCREEN_WIDTHS 5
static const int cuda_screen_widths[CUDA_SCREEN_WIDTHS] = {8, 16, 32, 64, 128};

/* Tokens of a tile that wait for their noise, and candidates that a CTA keeps, at most. */
#define CUDA_SCREEN_TILE_QUEUE     768
#define CUDA_SCREEN_CTA_CANDIDATES 512
/* Candidates of a group that the call keeps: so many for each that a list of the header holds. */
#define CUDA_SCREEN_GROUP_CANDIDATES(list_most) (16 * (list_most))
#define CUDA_SCREEN_GROUP_CANDIDATES_MAX        CUDA_SCREEN_GROUP_CANDIDATES(GUMBEL_SCREEN_LIST_MOST)
/* Of a row that is cut, tokens that are listed by both of their ends, at most, and those that are
 * scored, twice as many as a CTA has threads to draw from them. At D = 2048 and 4096 some 1,000 and
 * 2,000 of V = 151936 are as high as the 50th lower end, and 230 and 310 as the 50th value. */
#define CUDA_SCREEN_INTERVALS(list_most) (32 * (list_most))
#define CUDA_SCREEN_EXACT_MAX            1024

/* A row's floor words, where it is cut: its floor (row_thresholds.cuh); how many tokens are listed, and how
 * many of them scored, 32 bits each; the floor by those that were scored first; how many tokens
 * matter. */
enum {
    CUDA_TRUNCATED_THRESHOLD,
    CUDA_TRUNCATED_COUNTS,
    CUDA_TRUNCATED_FIRST_THRESHOLD,
    CUDA_TRUNCATED_RANK
};

/* Shared memory of a CTA beside its ring of stages. */
#define CUDA_SCREEN_SIDE_BYTES (24 * 1024)
#define CUDA_SCREEN_STAGES_MAX 12
#define CUDA_SCREEN_STAGE_BYTES(width)                                                             \
    (CUDA_SCREEN_TILE * CUDA_SCREEN_TILE + (width)*CUDA_SCREEN_TILE)

static inline int cuda_screen_stages(int width)
{
    int stages = (CUDA_SM90_SHARED_BYTES - CUDA_SCREEN_SIDE_BYTES) / CUDA_SCREEN_STAGE_BYTES(width);
    return stages < CUDA_SCREEN_STAGES_MAX ? stages : CUDA_SCREEN_STAGES_MAX;
}

/* Candidates that a CTA scores together, columns that it copies at a time, and its ring. */
#define CUDA_SCREEN_SCORE_TILE 32
#define CUDA_SCREEN_SEGMENT    512
#define CUDA_SCREEN_SEGMENT_BYTES                                                                  \
    ((CUDA_SCREEN_SCORE_TILE + CUDA_SCREEN_GROUP) * 2 * CUDA_SCREEN_SEGMENT)
#define CUDA_SCREEN_SEGMENTS         5
#define CUDA_SCREEN_SCORE_SIDE_BYTES 4608
#define CUDA_SCREEN_SCORE_BYTES                                                                    \
    (CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES + CUDA_SCREEN_SCORE_SIDE_BYTES)
#define CUDA_SCREEN_SCORE_THREADS 128
#define CUDA_SCREEN_SPLIT_THREADS (512 + 32)
#define CUDA_SCREEN_SPLIT_BYTES   1024
#define CUDA_SCREEN_MAKE_THREADS  256
#define CUDA_SCREEN_MAKE_BYTES    128

/* What the roundings of a k16 step of wgmma lose, at most: each of 17 addends, and their sum, is
 * cut at 24 bits of the largest (docs/maths.md, section 14). */
#define CUDA_SCREEN_GAMMA(columns) ((double)(((columns) + 15) / 16) * 18 * 0x1p-23 * 1.01)
/* Subnormal roundings of a sum of fewer than 2^16 products, in any order. */
#define CUDA_SCREEN_TINY 0x1p-109f

/* A token that may win. */
typedef struct cuda_screen_entry {
    float upper; /* what its score is not above */
    uint32_t token;
    uint32_t row; /* of the batch */
    uint32_t unused;
} cuda_screen_entry;

/* Of a row that is cut, a token that may matter; and one that is scored. */
typedef struct cuda_screen_interval {
    float upper, lower; /* of its logit */
    uint32_t token;
    uint32_t unused;
} cuda_screen_interval;
typedef struct cuda_screen_exact {
    float logit;
    uint32_t token;
} cuda_screen_exact;

/* What the kernels of a call tell each other; the first one clears it. */
typedef struct cuda_screen_state {
    unsigned long long ended; /* CTAs that have scored */
    uint32_t again;           /* 1: the full pass must draw this call; told before any scores */
    uint32_t listed[CUDA_SCREEN_GROUPS];
} cuda_screen_state;

#endif
