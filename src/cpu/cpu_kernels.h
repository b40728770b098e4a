/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of kernels that one instruction set fills. The driver (cpu_run.c) owns every size
 * and every buffer; a kernel computes on what it is handed.
 */
#ifndef GUMBEL_CPU_KERNELS_H
#define GUMBEL_CPU_KERNELS_H

#include "core/row.h"
#include "maths/summary.h"
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
    uint32_t token;            /* global id of y[0], a multiple of 64 */
    int blocks;                /* y holds 64 * blocks tokens; what does not count is -inf */
    float factor;              /* z = y * factor, above 0; 1 for a greedy row or given noise */
    gumbel_summary *summaries; /* [num_samples]; mass, max_z and flags go to the first */
    const float *noise;        /* of y[low], made ahead of time; NULL: to be made here */
    int64_t noise_stride;      /* to the next sample's */
    int low, high;             /* tokens of y that have noise */
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
    /* z[i] = gumbel_relative(z[i], max_z) for i < count; their sum, blocks as by eq. 8 and these
     * one after the other. */
    double (*exponentiate)(float *z, int count, float max_z);
    /* z[i] *= by for i < count. */
    void (*multiply)(float *z, int count, float by);
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

/* Draw one token of one sample: its exact score, offered to the summary. */
static inline void cpu_offer(gumbel_summary *s, gumbel_stream stream, float z, uint32_t token)
{
    gumbel_summary_offer(s, z + gumbel_of_token(stream, token), z, (int32_t)token);
}

/* One sample's draw from the block at z, places at .. at + 63 of the tile, with the noise that was
 * made ahead. */
static inline void cpu_draw_given(const cpu_draw *d, int sample, const float *z, int at)
{
    const float *g = d->noise + sample * d->noise_stride;
    int end = d->high < at + GUMBEL_BLOCK ? d->high : at + GUMBEL_BLOCK;
    for (int i = d->low > at ? d->low : at; i < end; i++)
        gumbel_summary_offer(&d->summaries[sample], z[i - at] + g[i - d->low], z[i - at],
                             (int32_t)(d->token + (uint32_t)i));
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
