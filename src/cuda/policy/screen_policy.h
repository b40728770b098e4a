/* SPDX-License-Identifier: Apache-2.0
 *
 * A draw with a screen: sizes that host and kernels must agree on, and records that its
 * kernels exchange in the workspace. Read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_SCREEN_POLICY_H
#define GUMBEL_CUDA_SCREEN_POLICY_H

#include "gumbel/screen.h"

#include "cuda/policy/cuda_policy.h"
#include "maths/screen_bound.h"

/* Rows and columns of a tile. */
#define CUDA_SCREEN_TILE 128
/* Maximum draws of a call: each is two columns of the product, one for each int8 plane. */
#define CUDA_SCREEN_ROWS_MAX 64
/* Rows of a batch that are scored together: the columns of the narrowest wgmma. */
#define CUDA_SCREEN_GROUP  8
#define CUDA_SCREEN_GROUPS (CUDA_SCREEN_ROWS_MAX / CUDA_SCREEN_GROUP)

/* Whether a draw with a screen is faster than the full pass. From this many weights on it takes
 * 0.48 to 0.69 of the time (findings/screening.md). Both give the same tokens. */
#define CUDA_SCREEN_WEIGHTS_MIN (INT64_C(1) << 28)
static inline int cuda_screen_is_faster(int64_t vocab, int64_t columns)
{
    return vocab * columns >= CUDA_SCREEN_WEIGHTS_MIN;
}

/* Largest hidden size of truncated rows that is planned for a screen. With certain bounds, which
 * the host cannot know, the full pass is faster at 64 rows and at D = 8192, where some 940 tokens
 * of a row are scored (findings/screening.md). */
#define CUDA_SCREEN_TRUNCATED_HIDDEN_MAX 8192

/* Specialisations of a draw with a screen: each omits the code that its case cannot reach
 * (screen_case.cuh). */
typedef enum cuda_screen_case {
    CUDA_SCREEN_PLAIN,     /* one draw a row, without a mask */
    CUDA_SCREEN_ANY,       /* several samples, or masks */
    CUDA_SCREEN_TRUNCATED, /* rows are truncated to few tokens, and may have masks */
    /* These cases of a copy of nibbles. Plain calls read the high nibbles of all tokens, and the
     * low ones of those that may win; the others read both of all tokens. */
    CUDA_SCREEN_NESTED,
    CUDA_SCREEN_NESTED_ANY,
    CUDA_SCREEN_NESTED_TRUNCATED,
    CUDA_SCREEN_CASES,
} cuda_screen_case;

/* The most draws for which reading high nibbles first is faster than reading both nibbles, and the
 * least hidden size for that many draws; for smaller ones it is half of them
 * (findings/screening_nested.md). */
#define CUDA_SCREEN_COARSE_DRAWS   32
#define CUDA_SCREEN_COARSE_COLUMNS 4096
static inline int cuda_screen_reads_high_first(const gumbel_problem *p)
{
    return p->batch <= (p->hidden_size < CUDA_SCREEN_COARSE_COLUMNS ? CUDA_SCREEN_COARSE_DRAWS / 2
                                                                    : CUDA_SCREEN_COARSE_DRAWS);
}

static inline cuda_screen_case cuda_screen_case_of(const gumbel_problem *p)
{
    const int is_plain = p->sampling.num_samples == 1 && !(p->features & GUMBEL_FEATURE_MASK);
    const int nested = p->screen_format == GUMBEL_SCREEN_NIBBLES;
    if (p->features & GUMBEL_FEATURE_TRUNCATION)
        return nested ? CUDA_SCREEN_NESTED_TRUNCATED : CUDA_SCREEN_TRUNCATED;
    if (nested)
        return is_plain && cuda_screen_reads_high_first(p) ? CUDA_SCREEN_NESTED
                                                           : CUDA_SCREEN_NESTED_ANY;
    return is_plain ? CUDA_SCREEN_PLAIN : CUDA_SCREEN_ANY;
}

/* Whether a case truncates rows. */
static inline int cuda_screen_truncates(cuda_screen_case kind)
{
    return kind == CUDA_SCREEN_TRUNCATED || kind == CUDA_SCREEN_NESTED_TRUNCATED;
}

/* The layout of screens of a gumbel_screen_format. */
GUMBEL_INLINE gumbel_screen_layout cuda_screen_layout_of(int32_t format)
{
    return format == GUMBEL_SCREEN_NIBBLES ? GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES
                                           : GUMBEL_SCREEN_LAYOUT_TILES;
}

/* Draws of a call that the screen filters: one for each sample. A truncated row counts once, as all
 * its samples are drawn from one kept set. */
static inline int64_t cuda_screen_draws(const gumbel_problem *p)
{
    return p->batch * (cuda_screen_truncates(cuda_screen_case_of(p)) ? 1 : p->sampling.num_samples);
}

/* Largest top_k or num_top of a truncated row: no more than the tiles of the first wave, less those
 * that may be late, on a GPU of 114 multiprocessors. */
#define CUDA_SCREEN_RANK_MAX 100

/* Widths of the integer product that kernels are compiled for. */
#define CUDA_SCREEN_WIDTHS 5
static const int cuda_screen_widths[CUDA_SCREEN_WIDTHS] = {8, 16, 32, 64, 128};

/* Index of the narrowest product that holds two planes of `draws` draws. */
static inline int cuda_screen_width_for(int64_t draws)
{
    int i = 0;
    while (i < CUDA_SCREEN_WIDTHS - 1 && cuda_screen_widths[i] < 2 * draws)
        i++;
    return i;
}

/* Maximum tokens of a tile that are queued for their noise; maximum candidates of a CTA. */
#define CUDA_SCREEN_TILE_QUEUE     768
#define CUDA_SCREEN_CTA_CANDIDATES 1024
/* Candidates that a call holds for each group, by the `list_max` of the screen's header. */
#define CUDA_SCREEN_GROUP_CANDIDATES(n)  (16 * (n))
#define CUDA_SCREEN_GROUP_CANDIDATES_MAX CUDA_SCREEN_GROUP_CANDIDATES(GUMBEL_SCREEN_LIST_MAX)
/* Candidates by coarse bounds that a call holds for each group: some 500 a row for a Gaussian head,
 * and 1,000 for one with large columns (findings/screening_nested.md). */
#define CUDA_SCREEN_GROUP_COARSE 16384
/* Refining: CTAs of a multiprocessor; shared memory for each 128 columns (screen_refine.cuh), and
 * beside that. */
#define CUDA_SCREEN_REFINE_THREADS     256
#define CUDA_SCREEN_REFINE_CTAS        4
#define CUDA_SCREEN_REFINE_DEPTH_BYTES (2 * CUDA_SCREEN_TILE + 16)
#define CUDA_SCREEN_REFINE_SIDE        4352
#define CUDA_SCREEN_REFINE_BYTES(depths)                                                           \
    (CUDA_SCREEN_REFINE_SIDE + (depths)*CUDA_SCREEN_REFINE_DEPTH_BYTES)
/* Maximum tokens of a truncated row whose interval of the logit is recorded, and whose logit is
 * computed: two for each thread of the CTA that draws. At V = 151936 and D = 2048 / 4096 some 1,000
 * / 2,000 certain upper bounds reach the 50th lower bound; 230 / 310 reach the 50th logit. With
 * probable bounds some 100 do, and no step takes time for places that are not used. */
#define CUDA_SCREEN_INTERVALS(list_max) (32 * (list_max))
#define CUDA_SCREEN_EXACT_MAX           1024

/* Threshold words of a truncated row: its threshold (row_thresholds.cuh); how many tokens are
 * listed and how many of these scored, 32 bits each; the threshold after the first scoring pass;
 * which leading tokens can affect the outputs: pack_bound_word(). */
enum {
    CUDA_TRUNCATED_THRESHOLD,
    CUDA_TRUNCATED_COUNTS,
    CUDA_TRUNCATED_FIRST_THRESHOLD,
    CUDA_TRUNCATED_BOUND,
    /* Of a row of CUDA_SCREEN_NESTED: shared_estimate(). */
    CUDA_SCREEN_ESTIMATE = 1
};

/* The counter of scored tokens counts those of the first pass in its low 16 bits, and those of the
 * second pass above: the second pass, while it counts, reads the scores of the first pass alone. */
#define CUDA_SCREEN_SECOND_PASS (1u << 16)
GUMBEL_INLINE uint32_t cuda_count_first_scored(uint32_t counter)
{
    return counter % CUDA_SCREEN_SECOND_PASS;
}
GUMBEL_INLINE uint32_t cuda_count_scored(uint32_t counter)
{
    return counter % CUDA_SCREEN_SECOND_PASS + counter / CUDA_SCREEN_SECOND_PASS;
}

/* Shared memory of a CTA in addition to the ring of tiles; maximum stages of the ring. */
#define CUDA_SCREEN_SIDE_BYTES (37 * 1024)
#define CUDA_SCREEN_STAGES_MAX 12
/* Bytes of a stage: a tile of the screen, or of its high nibbles alone, and of the planes. */
#define CUDA_SCREEN_TILE_BYTES(is_coarse)                                                          \
    (CUDA_SCREEN_TILE * CUDA_SCREEN_TILE / ((is_coarse) ? 2 : 1))
#define CUDA_SCREEN_STAGE_BYTES(width, is_coarse)                                                  \
    (CUDA_SCREEN_TILE_BYTES(is_coarse) + (width)*CUDA_SCREEN_TILE)

static inline int cuda_screen_stages(int width, int is_coarse)
{
    int stages = (CUDA_SM90_SHARED_BYTES - CUDA_SCREEN_SIDE_BYTES) /
                 CUDA_SCREEN_STAGE_BYTES(width, is_coarse);
    return stages < CUDA_SCREEN_STAGES_MAX ? stages : CUDA_SCREEN_STAGES_MAX;
}

/* For the product by mma.sync: shared memory beside the ring, without the fields of truncated rows;
 * stages of the ring on a GPU with `available` bytes a multiprocessor; fewer than 2: too few. */
#define CUDA_SCREEN_SM80_SIDE_BYTES(width) (25920 + 66 * (width))
static inline int cuda_screen_sm80_stages(int width, int available)
{
    int stages = (available - CUDA_RESERVED_BYTES - CUDA_SCREEN_SM80_SIDE_BYTES(width)) /
                 CUDA_SCREEN_STAGE_BYTES(width, 0);
    return stages < CUDA_SCREEN_STAGES_MAX ? stages : CUDA_SCREEN_STAGES_MAX;
}
static inline int cuda_screen_sm80_bytes(int width, int stages)
{
    return stages * CUDA_SCREEN_STAGE_BYTES(width, 0) + CUDA_SCREEN_SM80_SIDE_BYTES(width);
}

/* The most draws for which the product by mma.sync is faster than the full pass. */
#define CUDA_SCREEN_SM80_DRAWS 32
/* Widths of cuda_sm80_widths that the full pass after such a draw is compiled for. */
#define CUDA_SCREEN_SM80_FALLBACK_WIDTHS 3

/* Scoring: candidates that a CTA scores together, columns of D that it copies at a time, and bytes
 * and number of the segments in its ring. */
#define CUDA_SCREEN_SCORE_TILE 32
#define CUDA_SCREEN_SEGMENT    512
#define CUDA_SCREEN_SEGMENT_BYTES                                                                  \
    ((CUDA_SCREEN_SCORE_TILE + CUDA_SCREEN_GROUP) * 2 * CUDA_SCREEN_SEGMENT)
#define CUDA_SCREEN_SEGMENTS         5
#define CUDA_SCREEN_SCORE_SIDE_BYTES 4608
#define CUDA_SCREEN_SCORE_BYTES                                                                    \
    (CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES + CUDA_SCREEN_SCORE_SIDE_BYTES)
#define CUDA_SCREEN_SCORE_THREADS 128
/* The ring of GPUs whose CTAs have 99 KiB of shared memory. */
#define CUDA_SCREEN_SM80_SEGMENT  256
#define CUDA_SCREEN_SM80_SEGMENTS 4
#define CUDA_SCREEN_SM80_SCORE_BYTES                                                               \
    (CUDA_SCREEN_SM80_SEGMENTS * (CUDA_SCREEN_SCORE_TILE + CUDA_SCREEN_GROUP) * 2 *                \
         CUDA_SCREEN_SM80_SEGMENT +                                                                \
     CUDA_SCREEN_SCORE_SIDE_BYTES)
/* Shared memory of a CTA that multiplies the weights of allowed tokens: the same ring, and tokens
 * that wait. */
#define CUDA_ALLOWED_SIDE_BYTES 5120
#define CUDA_ALLOWED_PRODUCT_BYTES                                                                 \
    (CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES + CUDA_ALLOWED_SIDE_BYTES)
/* Draws of few allowed tokens in one launch: threads of a CTA, 128 that multiply and a warp a row;
 * tokens that it multiplies together; blocks of 64 tokens that it examines at a time; columns of D
 * that it copies at a time; bytes of its ring; and its shared memory. */
#define CUDA_ALLOWED_THREADS     (128 + 32 * CUDA_SCREEN_GROUP)
#define CUDA_ALLOWED_TILE        64
#define CUDA_ALLOWED_WINDOW      128
#define CUDA_ALLOWED_SEGMENT     256
#define CUDA_ALLOWED_RING_BYTES  (207 * 1024)
#define CUDA_ALLOWED_FUSED_BYTES (CUDA_ALLOWED_RING_BYTES + 20 * 1024)
/* Ids of a group's lists that one CTA draws from alone; ids for each CTA if there are more; most
 * ids that CTAs read themselves, rather than masks made of them. */
#define CUDA_ALLOWED_ALONE        16
#define CUDA_ALLOWED_PER_CTA      8
#define CUDA_ALLOWED_READ_MAX     8448
#define CUDA_SCREEN_SPLIT_THREADS (512 + 32)
#define CUDA_SCREEN_SPLIT_BYTES   1024
#define CUDA_SCREEN_MAKE_THREADS  256
#define CUDA_SCREEN_MAKE_BYTES    128

/* Maximum relative rounding error of the k16 steps of wgmma: each of 17 addends, and their sum, is
 * truncated to 24 bits, counted from the largest addend (docs/maths.md, section 14). */
#define CUDA_SCREEN_GAMMA(columns) ((double)(((columns) + 15) / 16) * 18 * 0x1p-23 * 1.01)
/* Maximum relative rounding error of the portable kernels: a k16 step may be several steps of 4
 * elements or more, each of which truncates its addends, the sum before it, and the new sum. */
#define CUDA_SCREEN_SM80_GAMMA(columns) ((double)(((columns) + 15) / 16) * 24 * 0x1p-23 * 1.01)
/* Absolute error from subnormals in a sum of fewer than 2^16 products, in any order. */
#define CUDA_SCREEN_TINY 0x1p-109f

/* A token that may win. */
typedef struct cuda_screen_entry {
    float upper; /* upper bound of its score */
    uint32_t token;
    uint32_t row;    /* of the batch */
    uint32_t unused; /* by coarse bounds: the bits of the middle of the logit's bounds */
} cuda_screen_entry;

/* A token of a truncated row that may be kept; a token whose logit is known. */
typedef struct cuda_screen_interval {
    float upper, lower; /* bounds of its logit */
    uint32_t token;
    uint32_t unused;
} cuda_screen_interval;
typedef struct cuda_screen_exact {
    float logit;
    uint32_t token;
} cuda_screen_exact;

/* State shared by the kernels of a call; the first kernel zeroes it. */
typedef struct cuda_screen_state {
    unsigned long long ended; /* CTAs that have scored */
    uint32_t again;           /* 1: the full pass must draw this call; set before scoring begins */
    uint32_t listed[CUDA_SCREEN_GROUPS];
    uint32_t coarse_listed[CUDA_SCREEN_GROUPS]; /* CUDA_SCREEN_NESTED: by coarse bounds */
} cuda_screen_state;

#endif
