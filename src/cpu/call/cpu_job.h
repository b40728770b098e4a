/* SPDX-License-Identifier: Apache-2.0
 *
 * One call on the CPU: tiles of the vocabulary that threads claim, and each thread's scratch.
 */
#ifndef GUMBEL_CPU_JOB_H
#define GUMBEL_CPU_JOB_H

#include "cpu/call/cpu_edits.h"

struct cpu_stage;
struct cpu_screen;

/* Memory of one thread. */
typedef struct cpu_scratch {
    int64_t thread;
    gumbel_summary *summaries; /* [B, S] results of this thread */
    float *z;                  /* [B] or [1] rows of tile_size + 16: kernels store whole vectors */
    float *bias;               /* [tile_size] */
    float *lanes;              /* [PRODUCT_GROUP * panel][PRODUCT_ROOM][16], fused only */
} cpu_scratch;

typedef struct cpu_job {
    cpu_device *device;
    const gumbel_problem *problem;
    cpu_edits edits;
    const struct cpu_stage *stage;   /* tiles are stored here; NULL: tiles are drawn */
    const struct cpu_screen *screen; /* tiles hold upper bounds of logits; NULL: logits */
    const float *panels;             /* packed hidden states */
    unsigned char *scratch;          /* [threads] of scratch_bytes */
    size_t scratch_bytes;
    int multiply_only;
    int64_t first_tile; /* global id of the first token of tile 0, a multiple of 64 */
    int64_t tiles;      /* of the vocabulary */
    int64_t items;      /* claims: tiles; from logits tiles * B */
    int32_t tile_size;  /* tokens */
    _Atomic int64_t next;
} cpu_job;

/* One row of a tile. Tokens low .. high, from global id token + low on, are in the shard and count.
 * Their logits start at `from`, their biases at `bias`, which may be NULL. */
typedef struct cpu_row_tile {
    int64_t b;
    const void *from;
    gumbel_dtype dtype;
    const float *bias;
    int64_t token; /* a multiple of 64 */
    int low, high;
} cpu_row_tile;

/* Indices low .. high of consecutive tokens; none if high <= low. */
typedef struct cpu_token_range {
    int low, high;
} cpu_token_range;

static inline int64_t cpu_round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

static inline int cpu_get_element_size(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT32 ? 4 : 2;
}

/* Floats of one packed hidden state. */
static inline int64_t cpu_get_packed_size(int64_t hidden_size)
{
    return cpu_round_up(hidden_size, CPU_K_TILE);
}

/* The tokens among the `size` tokens from global id `token` on that are in the shard and count. */
static inline cpu_token_range cpu_find_counted_range(const gumbel_problem *p, int64_t token,
                                                     int64_t size)
{
    int64_t low = p->first_token > token ? p->first_token - token : 0;
    int64_t high = p->end_token - token < size ? p->end_token - token : size;
    return (cpu_token_range){(int)low, high > low ? (int)high : (int)low};
}

/* Workspace bytes of any call without the arrays that its transforms and truncation add; SIZE_MAX
 * on overflow. */
size_t cpu_count_plain_workspace(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                                 int32_t num_samples);

/* Divides the workspace, packs the hidden states and prepares the edits. */
void cpu_prepare_job(cpu_job *job, cpu_device *cpu, const gumbel_problem *problem, void *workspace);

/* Runs all tiles; returns the number of threads used. */
int32_t cpu_run_job(cpu_job *job);

/* Merges the summaries of the `used` threads into summaries [B, S]. */
void cpu_merge_job(const cpu_job *job, int32_t used, gumbel_summary *summaries);

cpu_scratch cpu_get_scratch(const cpu_job *job, int32_t thread);

/* Copies packed hidden state b, as a batch of one: cpu_get_packed_size() floats. */
void cpu_unpack_hidden_row(const cpu_job *job, int64_t b, float *hidden);

/* The dot product of weight row `row` of the shard and an unpacked hidden state, with the bits that
 * the product of a batch has. */
float cpu_multiply_row(const cpu_job *job, const cpu_scratch *scratch, int64_t row,
                       const float *hidden);

/* The biases of tokens low .. high of a tile, in the thread's scratch; NULL if there are none. */
const float *cpu_load_tile_bias(const gumbel_problem *problem, const cpu_scratch *scratch,
                                const cpu_kernels *kernels, int64_t token, int low, int high);

/* The transform of a row by eq. 2, without its edits; bias may be NULL. */
cpu_transform cpu_make_transform(const gumbel_problem *problem, float inverse_temperature,
                                 const float *bias);

/* The factor that turns the tile's logits into transformed logits; 0 if more than a product by one
 * factor is necessary. */
float cpu_find_plain_factor(const cpu_job *job, const cpu_row_tile *tile,
                            float inverse_temperature);

/* Writes the tile's logits, transformed and edited, to z[0] .. z[high - low - 1]; z may be `from`.
 * An inverse_temperature of 1 gives y. */
void cpu_transform_row_tile(const cpu_job *job, const cpu_row_tile *tile, float inverse_temperature,
                            float *z);

/* Pads the tile's partial blocks with -inf; returns the number of blocks. z[0] is token `token`. */
int cpu_pad_row_tile(const cpu_row_tile *tile, float *z);

/* A draw of the tokens low .. high from global id `token` on. `first_draw` is its place in [B,
 * S]. */
cpu_draw cpu_make_draw(const gumbel_problem *problem, const gumbel_row *row, int64_t first_draw,
                       int64_t token, int low, int high);

/* Backend functions (backend.h). */
gumbel_status cpu_draw_partial(gumbel_device *device, const gumbel_problem *problem,
                               const gumbel_plan *plan, gumbel_summary *summaries, void *workspace,
                               gumbel_error *error);
gumbel_status cpu_multiply_head(gumbel_device *device, const gumbel_problem *problem,
                                const gumbel_plan *plan, void *workspace, gumbel_error *error);

#endif
