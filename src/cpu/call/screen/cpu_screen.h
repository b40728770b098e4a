/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws with a screen (docs/maths.md, section 14). Tiles hold upper bounds of logits instead of
 * logits. The draw kernels append tokens whose bounds may win to candidate lists, and the
 * candidates are then scored exactly. With a screen of nibbles, tiles may hold coarse bounds, by
 * the high nibbles alone.
 */
#ifndef GUMBEL_CPU_SCREEN_H
#define GUMBEL_CPU_SCREEN_H

#include "cpu/call/cpu_stage.h"
#include "maths/screen_bound.h"
#include "cpu/cpu_screen_kernel.h"

/* State of one row of the batch. */
typedef struct cpu_screen_row {
    gumbel_screen_hidden_error hidden_error;
    gumbel_screen_hidden_error coarse_error, refined_error; /* by coarse_planes */
    _Atomic int is_fallback;                                /* the full pass draws the row */
    int is_truncated; /* truncation is on: both bounds of all values are stored */
    /* Truncation removes all tokens with a value below `threshold`, and tokens with the value
     * `threshold` and an id of at least threshold_end. */
    float threshold;
    int64_t threshold_end;
} cpu_screen_row;

struct cpu_screen;

/* Truncates row b, whose bounds are staged. Returns 0 if the bounds do not determine the result. */
typedef int cpu_truncate_row_fn(struct cpu_screen *screen, int64_t b, int32_t thread);

typedef struct cpu_screen {
    cpu_job exact_job; /* the call itself */
    cpu_job bound_job; /* the call on bounds, which include the soft-cap if there is one */
    cpu_job upper_job, lower_job; /* the call on one bound, whose values are staged */
    cpu_stage upper_stage, lower_stage;
    cpu_truncate_row_fn *truncate_row;
    /* 1: truncate_row replaces bounds by the exact values of all possible survivors, and the caller
     * draws; rows without truncation are fallback rows. 0: truncate_row verifies or repeats draws
     * that were made without truncation. */
    int stages_survivors;
    int32_t num_top;         /* of the outputs, if survivors are staged */
    gumbel_problem uncapped; /* the problem of bound_job if the call has a soft-cap */
    const cpu_screen_kernel *kernel;
    gumbel_screen_header header;
    gumbel_screen_offsets offsets;
    const gumbel_screen_block *block_bounds; /* [blocks] of the certificate */
    const float *steps;                      /* [64 * blocks] */
    const int32_t *dither;                   /* [columns] */
    const uint8_t *copy;
    const uint8_t *low_copy;     /* the low nibbles; NULL: bytes */
    int is_coarse;               /* tiles hold coarse bounds, unless too many of them are refined */
    float low_nibbles;           /* gumbel_screen_bound_low_nibbles() */
    cpu_screen_row *rows;        /* [B] */
    float *hidden;               /* [B] hidden states, each packed as a batch of one */
    float *wide;                 /* [B, 64 ceil(D / 64)] hidden states as float32 */
    int8_t *planes;              /* [panels] of 2 n [columns] bytes, n hidden states in a panel */
    int8_t *coarse_planes;       /* [panels] of n [columns] bytes, n hidden states in a panel */
    int32_t *start;              /* [panels] of [2 n] start values of the sums */
    int32_t *coarse_start;       /* [B] start values of sums of coarse_planes and high nibbles */
    int32_t *coarse_sums;        /* [threads, B, tile_size] these sums for a tile */
    _Atomic float *best;         /* [B, S] best score of all threads */
    int64_t *coarse_tokens;      /* [threads] tokens with coarse bounds so far */
    cpu_candidates *candidates;  /* [threads, B, S] */
    cpu_candidate *list_storage; /* [threads, B, S, list_max] */
    int32_t list_max;            /* capacity of a list */
    int32_t *sums;               /* [threads, CPU_SCREEN_SUMS] */
    float soft_cap_error;        /* bounds the soft-cap's error from a monotone function */
    int32_t used_threads;        /* of bound_job */
    _Atomic int64_t next;        /* row that the next free thread claims */
} cpu_screen;

/* Whether a screen is faster than the full pass for this number of rows and draws. If not and
 * `reason` is not NULL, a sentence with the limit is written to it. */
#define CPU_SCREEN_REASON_BYTES 96
int cpu_is_screen_faster(const cpu_device *cpu, const gumbel_problem *problem,
                         char reason[CPU_SCREEN_REASON_BYTES]);

/* The integer product of the problem's screen. */
const cpu_screen_kernel *cpu_get_screen_kernel(const cpu_device *cpu,
                                               const gumbel_problem *problem);

/* Whether a draw bounds all tokens by the high nibbles of the problem's screen first, as that is
 * faster than reading both halves. */
int cpu_reads_high_nibbles_first(const gumbel_problem *problem);

/* Rows first .. end of a batch. */
typedef struct cpu_row_range {
    int64_t first, end;
} cpu_row_range;

/* Workspace bytes of a draw by a screen, beyond those of the plain draw and the edits, sufficient
 * for any leading rows of the problem that a screen may draw; 0 if it may draw none. */
size_t cpu_count_screen_workspace(const cpu_device *cpu, const gumbel_problem *problem);

/* The largest cpu_count_screen_workspace() of a call with at most these rows and samples. */
size_t cpu_count_screen_limit(const cpu_device *cpu, const gumbel_problem *problem);

/* Bounds the logits of all rows, draws from the bounds, and truncates rows. The caller sets
 * truncate_row, stages_survivors and num_top of `screen`; all other fields are 0. `workspace` holds
 * the plain part, edits and screen. Returns the workspace bytes that are used. */
size_t cpu_run_screen(cpu_screen *screen, cpu_device *cpu, const gumbel_problem *problem,
                      void *workspace);

/* A range that holds all fallback rows, and maybe others. */
cpu_row_range cpu_find_fallback_rows(const cpu_screen *screen);

/* The value of a token of row b at this temperature, with the bits of the full pass. Uses the
 * scratch of `thread`. */
float cpu_compute_exact_value(const cpu_screen *screen, int32_t thread, int64_t b, int64_t token,
                              float inverse_temperature);

/* The upper bound of the logit of a token of row b, given the sum of its coarse bound; after bias,
 * scale and soft-cap if there is a soft-cap. */
float cpu_refine_bound(const cpu_screen *screen, int64_t b, int64_t token, int32_t coarse_sum);

/* Empties the candidate lists of all threads. */
void cpu_clear_candidates(cpu_screen *screen);

/* Refines all coarse bounds that may still win, by the best scores of all threads. */
void cpu_refine_lists(cpu_screen *screen);

/* Scores the candidates of a draw that may still win, from the lists of all threads, in descending
 * order of their upper bounds. */
void cpu_score_remaining_candidates(cpu_screen *screen, int64_t draw, int32_t thread);

/* Splits all hidden states into planes. */
void cpu_split_hidden_rows(cpu_screen *screen);

/* Computes the upper bounds of tokens low .. high of a tile for all rows, and stores the lower
 * bounds of truncated rows. */
void cpu_bound_tile(const cpu_job *job, const cpu_scratch *scratch, int64_t token, int low,
                    int high);

/* Stages both bounds of a tile of a truncated row. */
void cpu_stage_bounds(const cpu_job *job, const cpu_scratch *scratch, const cpu_row_tile *tile,
                      float *z);

/* The candidates [S] of row b that `thread` has listed. */
cpu_candidates *cpu_get_candidates(const cpu_job *job, int64_t thread, int64_t b);

/* A plane in coarse_planes: groups of 64 columns at each `stride` bytes. */
typedef struct cpu_coarse_plane {
    int8_t *at;
    int64_t stride;
} cpu_coarse_plane;

static inline cpu_coarse_plane cpu_find_coarse_plane(const cpu_screen *screen, int64_t b)
{
    int64_t batch = screen->exact_job.problem->batch, panel = 2 * screen->kernel->panel;
    int64_t first = b / panel * panel, rows = batch - first < panel ? batch - first : panel;
    int8_t *panel_planes = screen->coarse_planes + first * screen->offsets.columns;
    return (cpu_coarse_plane){panel_planes + (b - first) * 64, rows * 64};
}

/* The low nibbles of a row of the weights. */
static inline const uint8_t *cpu_find_token(const cpu_screen *screen, int64_t row)
{
    int64_t columns = screen->offsets.columns;
    return screen->low_copy + row / GUMBEL_BLOCK * 32 * columns +
           cpu_find_low_nibbles((int)(row % GUMBEL_BLOCK), 8 * columns);
}

/* Whether row b is known to be a fallback row; cpu_is_fallback_row() also reads the lists. */
static inline int cpu_is_marked_fallback_row(const cpu_screen *screen, int64_t b)
{
    return atomic_load_explicit(&screen->rows[b].is_fallback, memory_order_relaxed);
}

static inline void cpu_mark_fallback_row(const cpu_screen *screen, int64_t b)
{
    atomic_store_explicit(&screen->rows[b].is_fallback, 1, memory_order_relaxed);
}

/* Whether row b is a fallback row. The row becomes one if its candidates on this thread exceeded
 * their scored_limit. */
int cpu_is_fallback_row(const cpu_job *job, int64_t thread, int64_t b);

/* Backend functions (backend.h). */
gumbel_status cpu_make_screen(gumbel_device *device, const gumbel_problem *problem,
                              const gumbel_screen_options *options, void *screen,
                              gumbel_error *error);
gumbel_status cpu_verify_screen(gumbel_device *device, const gumbel_problem *problem,
                                gumbel_error *error);

#endif
