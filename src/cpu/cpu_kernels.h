/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of kernels that one instruction set fills. The driver (cpu_run.c) owns every size
 * and every buffer; a kernel computes on what it is handed.
 */
#ifndef GUMBEL_CPU_KERNELS_H
#define GUMBEL_CPU_KERNELS_H

#include "core/row.h"
#include "maths/screen_bound.h"
#include "maths/summary.h"
#include "cpu/cpu_candidates.h"
#include "cpu/cpu_values.h"

/* Lanes of the canonical dot product: lane j sums its products in order, then the lanes are summed
 * in the order of cpu_sum_lanes() (docs/maths.md, section 4). */
#define CPU_LANES 16
/* Hidden states are packed in chunks of this many elements, and padded with zeros to whole ones. */
#define CPU_CHUNK 32
/* The most batch rows a panel of packed hidden states holds. */
#define CPU_PANEL_MOST 8

/* The product of `count` weight rows with the hidden states of the batch. */
typedef struct cpu_product {
    const void *weight; /* [count, D] rows at `stride_bytes` */
    gumbel_dtype dtype;
    int64_t stride_bytes;
    int64_t hidden_size; /* D */
    int count;           /* rows of the tile */
    const float *panels; /* packed hidden states: panels of [ceil(D / 32)][rows][32] */
    int64_t batch;       /* B */
    float *lanes;        /* scratch: [PRODUCT_GROUP * panel][PRODUCT_ROOM][16] */
    float *out;          /* [B] rows of dot products, each followed by up to 15 spilt floats */
    int64_t out_stride;  /* >= count + 15 */
} cpu_product;

/* Where and how the draw of one row stands. */
typedef struct cpu_draw {
    const gumbel_row *row;
    int num_samples; /* 1 for a greedy row */
    int with_mass;
    uint32_t token;             /* global id of y[0], a multiple of 64 */
    int blocks;                 /* y holds 64 * blocks tokens; what does not count is -inf */
    float factor;               /* z = y * factor, above 0; 1 for a greedy row or given noise */
    gumbel_summary *summaries;  /* [num_samples]; mass, max_z and flags go to the first */
    cpu_candidates *candidates; /* [num_samples] or NULL: y are upper ends, and what may win is
                                 * listed there, `best` being the sample's summary */
    const float *noise;         /* of y[low], made ahead of time; NULL: to be made here */
    int64_t noise_stride;       /* to the next sample's */
    int low, high;              /* tokens of y that have noise */
} cpu_draw;

typedef struct cpu_transform {
    float scale;
    float soft_cap;
    float inverse_cap; /* 1 / soft_cap; unused where that is 0 */
    float inverse_temperature;
    const float *bias; /* one a token, or NULL */
} cpu_transform;

/* Changes no bit: for widening alone. */
static const cpu_transform cpu_identity = {.scale = 1.0f, .inverse_temperature = 1.0f};

/* Sixteen rows of weights that become bytes of a screen, and what bounds them. */
typedef struct cpu_screen_rows {
    const void *weight; /* [count, D] rows at `stride_bytes` */
    gumbel_dtype dtype;
    int64_t stride_bytes;
    int64_t hidden_size;
    int count;                 /* 1..16; of the others q is 0 */
    uint8_t *copy;             /* a tile for every 64 columns */
    float *steps;              /* [16]; NaN for a row that is not finite */
    gumbel_screen_block bound; /* the most of all rows' */
    float weight_most;         /* the largest |w| as a norm */
} cpu_screen_rows;

/* Bytes of 16 rows and 64 columns of a copy; tiles of the same rows follow each other. */
#define CPU_SCREEN_TILE 1024

/* The step of a row whose largest weight is `most`, rounded up: no q is beyond 127. NaN where that
 * is not finite. */
static inline float cpu_screen_step(float most)
{
    float step = most * (1.0f / 127.0f) * (1.0f + 0x1p-21f);
    if (!(most < INFINITY))
        return NAN;
    return step < GUMBEL_SCREEN_STEP_LEAST ? GUMBEL_SCREEN_STEP_LEAST : step;
}

/* Raise the bounds to those of a row, by its sums of (x - q)^2 and q^2, x = w / step but for two
 * roundings: these move x by less than 2^-22 of itself, and |x| <= |q| + |x - q|. */
static inline void cpu_screen_bound_row(cpu_screen_rows *r, int row, float errors, float sizes)
{
    /* A lane's sum rounds as often as it has terms, and sixteen are summed. */
    double up = 1.0 + (double)(r->hidden_size / CPU_LANES + 16) * 0x1p-23;
    double error = sqrt((double)errors * up), size = sqrt((double)sizes * up);
    error += (size + error) * 0x1p-22 + 0x1p-50;
    float weight = (float)((size + error) * (double)r->steps[row] * (1.0 + 0x1p-20));
    float up_error = (float)(error * (1.0 + 0x1p-20)), up_size = (float)(size * (1.0 + 0x1p-20));
    if (!(r->steps[row] > 0.0f))
        return; /* it is not finite, and all that is drawn from it is */
    r->bound.error = up_error > r->bound.error ? up_error : r->bound.error;
    r->bound.size = up_size > r->bound.size ? up_size : r->bound.size;
    r->weight_most = weight > r->weight_most ? weight : r->weight_most;
}

/* The ends of the intervals of 64 tokens, of one row. */
typedef struct cpu_screen_ends {
    const int32_t *high, *low; /* sums of 16 tokens; those of the next are `apart` words on */
    int64_t apart;
    const float *steps; /* [64] */
    float unit, plane, width, tiny;
} cpu_screen_ends;

typedef struct cpu_kernels {
    gumbel_isa isa;
    int panel; /* batch rows a panel, where there are as many */
    void (*product)(const cpu_product *product);
    /* z[i] = transform(from[i] + bias[i]) for i < count; z may be `from`. */
    void (*transform)(const void *from, gumbel_dtype dtype, int count,
                      const cpu_transform *transform, float *z);
    /* z[32 * w + i] = -inf where bit i of drop[w] is set, w < words. */
    void (*mask)(float *z, const uint32_t *drop, int words);
    void (*draw)(const float *y, const cpu_draw *draw);
    /* g of the 64 * blocks tokens from `token` on, a multiple of 64. */
    void (*noise)(gumbel_stream stream, uint32_t token, int blocks, float *out);
    /* The largest value of each block; gumbel_summary flags of the values. */
    uint32_t (*survey)(const float *v, int64_t blocks, float *largest);
    /* Add the masses, relative to `largest`, of the values that are not below `bound`; how many
     * they are, but that some without a mass may be left out. */
    int64_t (*weigh)(const cpu_stretch *stretch, float bound, float largest, cpu_weight *sum);
    /* Add to the bins of one step of a descent. */
    void (*tally)(const cpu_stretch *stretch, const cpu_tally *tally);
    /* out[64] = v * scale, -inf for what is below `bound`; how many are above -inf. */
    int (*keep)(const float *v, float scale, float bound, float *out);
    /* How many v * scale are above `bound`. */
    int64_t (*count_above)(const cpu_stretch *stretch, float scale, float bound);
    /* z[i] = gumbel_relative_probability(z[i], max_z) for i < count; their sum, blocks as by eq. 8
     * and these one after the other. */
    double (*exponentiate)(float *z, int count, float max_z);
    /* z[i] *= by for i < count. */
    void (*multiply)(float *z, int count, float by);
    /* Make sixteen rows of a screen. */
    void (*screen_rows)(cpu_screen_rows *rows);
    /* out[64] = gumbel_screen_bound_logit(). */
    void (*screen_ends)(const cpu_screen_ends *ends, float *out);
} cpu_kernels;

extern const cpu_kernels cpu_reference_kernels;
extern const cpu_kernels cpu_avx2_kernels;
extern const cpu_kernels cpu_avx512_kernels;
extern const cpu_kernels cpu_neon_kernels;

/* Sum of sixteen lanes: j with j + 8, then j + 4, j + 2, j + 1. */
static inline float cpu_sum_lanes(const float lanes[CPU_LANES])
{
    float sum[CPU_LANES];
    memcpy(sum, lanes, sizeof sum);
    for (int half = CPU_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return sum[0];
}

/* Offer a token of z and g to the summary, or to the candidates where z is an end. */
static inline void cpu_offer(gumbel_summary *s, cpu_candidates *candidates, float z, float g,
                             uint32_t token)
{
    if (__builtin_expect(candidates != NULL, 0))
        cpu_candidates_offer(candidates, z + g, g, (int32_t)token);
    else
        gumbel_summary_offer(s, z + g, z, (int32_t)token);
}

/* A greedy row's, whose score is z. */
static inline void cpu_offer_greedy(gumbel_summary *s, cpu_candidates *candidates, float z,
                                    uint32_t token)
{
    if (__builtin_expect(candidates != NULL, 0))
        cpu_candidates_offer(candidates, z, 0.0f, (int32_t)token);
    else
        gumbel_summary_offer(s, z, z, (int32_t)token);
}

/* The candidates of a sample. */
static inline cpu_candidates *cpu_candidates_of(const cpu_draw *d, int sample)
{
    return d->candidates ? &d->candidates[sample] : NULL;
}

/* One sample's draw from the block at z, places at .. at + 63 of the tile, with the noise that was
 * made ahead. */
static inline void cpu_draw_given(const cpu_draw *d, int sample, const float *z, int at)
{
    const float *g = d->noise + sample * d->noise_stride;
    int end = d->high < at + GUMBEL_BLOCK ? d->high : at + GUMBEL_BLOCK;
    for (int i = d->low > at ? d->low : at; i < end; i++)
        cpu_offer(&d->summaries[sample], cpu_candidates_of(d, sample), z[i - at], g[i - d->low],
                  d->token + (uint32_t)i);
}

/* Record what a block with a logit that is NaN or +inf shows; 0 where it has none. */
static inline uint32_t cpu_flag_block(gumbel_summary *s, const float *z)
{
    uint32_t flags = 0;
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        flags |= isnan(z[i]) ? GUMBEL_FLAG_NAN : z[i] == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
    s->flags |= flags;
    return flags;
}

#endif
