/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of kernels of an instruction set. The driver (cpu_run.c) chooses all sizes and owns all
 * buffers.
 */
#ifndef GUMBEL_CPU_KERNELS_H
#define GUMBEL_CPU_KERNELS_H

#include "core/row.h"
#include "maths/program_rules.h"
#include "maths/screen_bound.h"
#include "maths/summary.h"
#include "cpu/cpu_candidates.h"
#include "cpu/cpu_values.h"

/* Lanes of the canonical dot product: lane j sums its products in order, then the lanes are summed
 * in the order of cpu_sum_lanes() (docs/maths.md, section 4). */
#define CPU_LANES 16
/* Hidden states are packed in k-tiles of this many elements, the last one padded with zeros. */
#define CPU_K_TILE 32
/* Maximum batch rows of a panel of packed hidden states. */
#define CPU_PANEL_ROWS_MAX 8

/* The product of `count` weight rows and the hidden states of the batch. */
typedef struct cpu_product {
    const void *weight; /* [count, D] rows at `stride_bytes` */
    gumbel_dtype dtype;
    int64_t stride_bytes;
    int64_t hidden_size; /* D */
    int count;           /* rows of the tile */
    const float *panels; /* packed hidden states: panels of [ceil(D / 32)][rows][32] */
    int64_t batch;       /* B */
    float *lanes;        /* scratch: [PRODUCT_GROUP * panel][PRODUCT_ROOM][16] */
    float *out;          /* [B, count] dot products; up to 15 floats after each row are written */
    int64_t out_stride;  /* >= count + 15 */
} cpu_product;

/* The draw of one row from consecutive blocks. */
typedef struct cpu_draw {
    const gumbel_row *row;
    int num_samples; /* 1 for a greedy row */
    int with_mass;
    uint32_t token;             /* global id of y[0], a multiple of 64 */
    int blocks;                 /* y holds 64 * blocks tokens, -inf for one that cannot be drawn */
    float factor;               /* z = y * factor, above 0; 1 for a greedy row or given noise */
    gumbel_summary *summaries;  /* [num_samples]; mass, max_z and flags go to the first */
    cpu_candidates *candidates; /* [num_samples] or NULL. If set, y holds upper bounds, and tokens
                                 * that may win are listed; `best` is the sample's summary */
    const float *noise;         /* precomputed noise from y[low] on; NULL: the kernel computes it */
    int64_t noise_stride;       /* to the next sample's noise */
    int low, high;              /* tokens of y that have noise */
} cpu_draw;

typedef struct cpu_transform {
    float scale;
    float soft_cap;
    float inverse_cap; /* 1 / soft_cap; not used if that is 0 */
    float inverse_temperature;
    const float *bias; /* one for each token, or NULL */
} cpu_transform;

/* Widens values to float32 without changing them. */
static const cpu_transform cpu_identity = {.scale = 1.0f, .inverse_temperature = 1.0f};

/* Sixteen weight rows to quantize for a screen, and their error bounds. */
typedef struct cpu_quantized_rows {
    const void *weight; /* [count, D] rows at `stride_bytes` */
    gumbel_dtype dtype;
    int64_t stride_bytes;
    int64_t hidden_size;
    const int32_t *dither;     /* of each column, or its gumbel_screen_column; padded to 64 */
    int count;                 /* 1..16; the remaining rows get q = 0 */
    uint8_t *copy;             /* one tile for every 64 columns, or a group's high nibbles */
    uint8_t *low_nibbles;      /* of a group; NULL: bytes, without scales of columns */
    int64_t stream_bytes;      /* nibbles: from one stream to the next */
    float *steps;              /* [16]; NaN for a row that is not finite */
    gumbel_screen_block bound; /* maximum over all rows */
    float max_weight_norm;     /* largest norm of a row */
} cpu_quantized_rows;

/* Bytes of 16 rows and 64 columns of a screen; tiles of the same rows are contiguous. */
#define CPU_SCREEN_TILE 1024

/* The step of a row; NaN if `max_weight` is not finite. */
static inline float cpu_choose_screen_step(const cpu_quantized_rows *r, float max_weight)
{
    float step = r->low_nibbles ? gumbel_screen_choose_nested_step(max_weight)
                                : gumbel_screen_choose_step(max_weight);
    return max_weight < INFINITY ? step : NAN;
}

/* Bytes of 32 columns of nibbles: of a row, and of a line of four rows of high nibbles. */
#define CPU_NIBBLE_ROW  16
#define CPU_NIBBLE_LINE 64

/* Offset of a group of four rows, which row 0..63 of a block belongs to, in the high or the low
 * nibbles of the block. */
static inline int64_t cpu_find_nibble_group(int row, int64_t stream_bytes)
{
    return row % 4 * stream_bytes + row / 16 * (stream_bytes / 4);
}

/* Offset of a row of a block: in the high nibbles of the block, where 32 columns take a line, and
 * in the low nibbles, where the row is contiguous. */
static inline int64_t cpu_find_high_nibbles(int row, int64_t stream_bytes)
{
    return cpu_find_nibble_group(row, stream_bytes) + row % 16 / 4 * CPU_NIBBLE_ROW;
}

static inline int64_t cpu_find_low_nibbles(int row, int64_t stream_bytes)
{
    return cpu_find_nibble_group(row, stream_bytes) + row % 16 / 4 * (stream_bytes / 16);
}

/* Stores the bytes of columns column .. column + 63 of row 0..15 as nibbles. */
static inline void cpu_store_nibbles(const cpu_quantized_rows *r, int row, int64_t column,
                                     const uint8_t bytes[64])
{
    uint8_t *high = r->copy + cpu_find_high_nibbles(row, r->stream_bytes);
    uint8_t *low = r->low_nibbles + cpu_find_low_nibbles(row, r->stream_bytes);
    for (int64_t part = column / 32; part < column / 32 + 2; part++, bytes += 32)
        for (int i = 0; i < 16; i++) {
            high[part * CPU_NIBBLE_LINE + i] = (uint8_t)(bytes[i] >> 4 | (bytes[i + 16] & 0xf0));
            low[part * CPU_NIBBLE_ROW + i] = (uint8_t)((bytes[i] & 0x0f) | bytes[i + 16] << 4);
        }
}

/* Raises the bounds to cover a row, given its sums of the squares of the errors of
 * gumbel_screen_round(), of q (of nibbles the larger one of q and 16 (n - 8)) and of x. Here
 * x = w / step, with two roundings of relative error below 2^-22 in all, with a scale of the column
 * four below 2^-21, and a rounding of at most 2^-25 to the unit of the dither. */
static inline void cpu_raise_row_bound(cpu_quantized_rows *r, int row, float errors, float sizes,
                                       float weights)
{
    /* A lane's sum rounds once for each term, and sixteen lanes are summed. */
    double up = 1.0 + (double)(r->hidden_size / CPU_LANES + 16) * 0x1p-23;
    double norm = sqrt((double)weights * up), size = fmax(sqrt((double)sizes * up), norm);
    double rounding = norm * (r->low_nibbles ? 0x1p-21 : 0x1p-22);
    double error = sqrt((double)errors * up) + rounding + sqrt((double)r->hidden_size) * 0x1p-25;
    float weight = (float)(norm * (double)r->steps[row] * (1.0 + 0x1p-20));
    float up_error = (float)(error * (1.0 + 0x1p-20)), up_size = (float)(size * (1.0 + 0x1p-20));
    if (!(r->steps[row] > 0.0f))
        return; /* the row is not finite, and neither is any bound of its logit */
    r->bound.error = up_error > r->bound.error ? up_error : r->bound.error;
    r->bound.size = up_size > r->bound.size ? up_size : r->bound.size;
    weight = weight < GUMBEL_SCREEN_STEP_MIN ? GUMBEL_SCREEN_STEP_MIN : weight;
    r->max_weight_norm = weight > r->max_weight_norm ? weight : r->max_weight_norm;
}

/* Operands of the bounds of 64 logits of one row (gumbel_screen_bound_logit()). */
typedef struct cpu_logit_bounds {
    const int32_t *high, *low; /* sums of 16 tokens; the next 16 follow after `stride` words */
    int64_t stride;
    const float *steps; /* [64] */
    float unit, plane, width, tiny;
} cpu_logit_bounds;

typedef struct cpu_kernels {
    gumbel_isa isa;
    int panel_rows; /* batch rows of a full panel */
    void (*multiply_tile)(const cpu_product *product);
    /* z[i] = transform(from[i] + bias[i]) for i < count; z may be `from`. */
    void (*transform_logits)(const void *from, gumbel_dtype dtype, int count,
                             const cpu_transform *transform, float *z);
    /* to[i] = v[i], rounded to nearest even, for i < count. */
    void (*store_values)(const float *v, int64_t count, gumbel_dtype dtype, void *to);
    /* z[32 * w + i] = -inf if bit i of drop[w] is set, w < words. */
    void (*mask_tokens)(float *z, const uint32_t *drop, int words);
    void (*draw_tokens)(const float *y, const cpu_draw *draw);
    /* Writes the Gumbel noise of 64 * blocks tokens from `token` on, a multiple of 64. */
    void (*make_noise)(gumbel_stream stream, uint32_t token, int blocks, float *out);
    /* The largest value of each block; returns gumbel_summary flags of the values. */
    uint32_t (*find_maxima)(const float *v, int64_t blocks, float *largest);
    /* Bits of the first 64 of `count` blocks whose maximum reaches `bound`. */
    uint64_t (*find_blocks_from)(const float *maxima, int64_t count, float bound);
    /* Adds the masses, relative to `largest`, of the values >= `bound`. Returns their number,
     * without some tokens whose mass is 0. */
    int64_t (*sum_masses)(const cpu_span *span, float bound, float largest, cpu_weight *sum);
    /* Appends the values >= `bound` to out[*count] .. out[room - 1], and sets *count. Returns 0 if
     * the room may not suffice; up to 16 floats behind the values are overwritten. */
    int (*collect_values)(const cpu_span *span, float bound, float *out, int room, int *count);
    void (*add_to_bins)(const cpu_span *span, const cpu_histogram *histogram);
    /* Adds the sums that `required`, one GUMBEL_FACT_ bit, names; masses are relative to
     * `largest`. */
    void (*sum_facts)(const cpu_span *span, int required, float largest, gumbel_facts *facts);
    /* out[64] = v, -inf if its gumbel_typical_distance() is above `reach`; out may be v. */
    void (*filter_distances)(const float *v, float largest, float centre, float reach, float *out);
    /* out[64] = gumbel_adapt_value() of v, -inf of -inf; out may be v. */
    void (*adapt_values)(const float *v, float largest, float inverse_mass, float target,
                         float *out);
    /* out[64] = v * scale, -inf if v < `bound`; returns the number of values above -inf. */
    int (*filter_block)(const float *v, float scale, float bound, float *out);
    /* The number of values with v * scale > bound. */
    int64_t (*count_above)(const cpu_span *span, float scale, float bound);
    /* z[i] = gumbel_relative_probability(z[i], max_z) for i < count; returns their sum: each block
     * by eq. 8, then the blocks in order. */
    double (*exponentiate_row)(float *z, int count, float max_z);
    /* z[i] *= by for i < count. */
    void (*scale_row)(float *z, int count, float by);
    void (*quantize_rows)(cpu_quantized_rows *rows);
    /* out[64] = gumbel_screen_bound_logit(). */
    void (*bound_logits)(const cpu_logit_bounds *bounds, float *out);
} cpu_kernels;

/* The table of kernels of an instruction set, whose file defines or includes all of them. */
#define CPU_KERNELS(isa_, panel_rows_)                                                             \
    {                                                                                              \
        .isa = (isa_), .panel_rows = (panel_rows_), .multiply_tile = multiply_tile,                \
        .transform_logits = transform_logits, .store_values = store_values,                        \
        .mask_tokens = mask_tokens, .draw_tokens = draw_tokens, .make_noise = make_noise,          \
        .find_maxima = find_maxima, .find_blocks_from = find_blocks_from,                          \
        .sum_masses = sum_masses, .collect_values = collect_values, .add_to_bins = add_to_bins,    \
        .sum_facts = sum_facts, .filter_distances = filter_distances,                              \
        .adapt_values = adapt_values, .filter_block = filter_block, .count_above = count_above,    \
        .exponentiate_row = exponentiate_row, .scale_row = scale_row,                              \
        .quantize_rows = quantize_rows, .bound_logits = bound_logits                               \
    }

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

/* Offers a token to the summary, or to the candidates if z is an upper bound. */
static inline void cpu_offer_token(gumbel_summary *s, cpu_candidates *candidates, float z, float g,
                                   uint32_t token)
{
    if (__builtin_expect(candidates != NULL, 0))
        cpu_offer_candidate(candidates, z + g, g, (int32_t)token);
    else
        gumbel_summary_offer(s, z + g, z, (int32_t)token);
}

/* cpu_offer_token() of a greedy row, whose score is z. */
static inline void cpu_offer_greedy_token(gumbel_summary *s, cpu_candidates *candidates, float z,
                                          uint32_t token)
{
    if (__builtin_expect(candidates != NULL, 0))
        cpu_offer_candidate(candidates, z, 0.0f, (int32_t)token);
    else
        gumbel_summary_offer(s, z, z, (int32_t)token);
}

static inline cpu_candidates *cpu_get_sample_candidates(const cpu_draw *d, int sample)
{
    return d->candidates ? &d->candidates[sample] : NULL;
}

/* Draws one sample from the block z, tokens at .. at + 63 of y, with precomputed noise. */
static inline void cpu_draw_with_noise(const cpu_draw *d, int sample, const float *z, int at)
{
    const float *g = d->noise + sample * d->noise_stride;
    int end = d->high < at + GUMBEL_BLOCK ? d->high : at + GUMBEL_BLOCK;
    for (int i = d->low > at ? d->low : at; i < end; i++)
        cpu_offer_token(&d->summaries[sample], cpu_get_sample_candidates(d, sample), z[i - at],
                        g[i - d->low], d->token + (uint32_t)i);
}

/* Records NaN and +inf in a block; returns the flags, 0 if there are none. */
static inline uint32_t cpu_flag_invalid_logits(gumbel_summary *s, const float *z)
{
    uint32_t flags = 0;
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        flags |= isnan(z[i]) ? GUMBEL_FLAG_NAN : z[i] == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
    s->flags |= flags;
    return flags;
}

#endif
