/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Quantizes weight rows to the bytes of a screen (docs/maths.md, section 14), and bounds
 *        logits, on the sixteen lanes of cpu/isa/lanes_*.h.
 * HOW    Sixteen rows at a time: their largest weights, which leaves the rows in the caches, then
 *        64 columns of each row in turn. Four vectors of 16 columns become words of four bytes by a
 *        transpose within quarters, so that word 4 q + j holds quad 4 j + q.
 * COST   quantize_rows() about 1.2 vector operations a weight; bound_logits() six a vector.
 */
#ifndef GUMBEL_CPU_SCREEN_LANES_H
#define GUMBEL_CPU_SCREEN_LANES_H

#include "cpu/lanes/stage_lanes.h"

/* Sixty-four columns from `column` on, divided by their scales, then zeros. dtype is a constant. */
LANES void load_columns(const cpu_quantized_rows *r, int row, int64_t column, gumbel_dtype dtype,
                        v16f w[4])
{
    int64_t remaining = r->hidden_size - column, element = dtype == GUMBEL_FLOAT32 ? 4 : 2;
    const char *from = (const char *)r->weight + row * r->stride_bytes + column * element;
    char padded[4 * 64] = {0};
    if (__builtin_expect(remaining < 64, 0))
        from = memcpy(padded, from, (size_t)(remaining * element));
    UNROLLED
    for (int q = 0; q < 4; q++)
        w[q] = load_widened(from, dtype, 16 * q);
    if (!r->low_nibbles)
        return;
    UNROLLED
    for (int q = 0; q < 4; q++) {
        v16u words = vu_load(r->dither + column + 16 * q);
        v16u scale = vu_and(words, vu_set(GUMBEL_SCREEN_SCALES - 1));
        w[q] = vf_mul(w[q], vf_gather(gumbel_screen_inverse_scales, scale));
    }
}

/* The largest |w| of a row; infinity if one is not finite. */
LANES float find_largest_weight(const cpu_quantized_rows *r, int row, gumbel_dtype dtype)
{
    v16f largest[4] = {vf_set(0.0f), vf_set(0.0f), vf_set(0.0f), vf_set(0.0f)};
    v16u size = vu_set(0x7fffffffu);
    v16m finite = vf_less(largest[0], vf_set(1.0f));
    for (int64_t column = 0; column < r->hidden_size; column += 64) {
        v16f w[4];
        load_columns(r, row, column, dtype, w);
        UNROLLED
        for (int q = 0; q < 4; q++) {
            v16f absolute = vf_of_bits(vu_and(vu_of_bits(w[q]), size));
            finite = vm_and(finite, vf_less(absolute, vf_set(INFINITY)));
            largest[q] = vf_max(largest[q], absolute);
        }
    }
    if (!vm_all(finite))
        return INFINITY;
    return vf_largest(vf_max(vf_max(largest[0], largest[1]), vf_max(largest[2], largest[3])));
}

/* Sums of a row over the columns of a lane: squares of the errors, of q, of 16 (n - 8) and of x. */
typedef struct row_sums {
    v16f error, size, coarse, weight;
} row_sums;

/* The dither of sixteen columns and 128.5 steps. `nested`: they are gumbel_screen_column words. */
LANES v16u load_dither(const int32_t *dither, int nested)
{
    v16u words = vu_load(dither);
    if (!nested)
        return vu_add(words, vu_set(0x80800000u));
    return vu_add(vu_and(vu_shift_right(words, 4), vu_set(0x0fffff00u)), vu_set(0x78000000u));
}

/* Words of four bytes q + 128 of 64 columns of a row, by gumbel_screen_round(); adds to the sums.
 * The sum of x in units of the dither, the dither and 128.5 steps is not negative. */
LANES v16u quantize_columns(const v16f w[4], v16f inverse, const int32_t *dither, int nested,
                            row_sums *sums)
{
    v16u bytes[4];
    UNROLLED
    for (int i = 0; i < 4; i++) {
        v16f x = vf_mul(w[i], inverse);
        v16u sum =
            vu_add(vu_of_float(vf_mul(x, vf_set(0x1p24f))), load_dither(dither + 16 * i, nested));
        v16u below = vu_and(sum, vu_set(0xffffffu));
        bytes[i] = vu_shift_right(sum, 24);
        v16f q = vf_sub(vf_of_int(bytes[i]), vf_set(128.0f));
        v16f e =
            vf_mul(vf_sub(vf_set(0x1p23f), vf_of_int(below)), vf_set(GUMBEL_SCREEN_DITHER_UNIT));
        sums->error = vf_fma(e, e, sums->error);
        sums->size = vf_fma(q, q, sums->size);
        sums->weight = vf_fma(x, x, sums->weight);
        if (nested) {
            v16f high = vf_sub(vf_of_int(vu_and(bytes[i], vu_set(0xf0u))), vf_set(128.0f));
            sums->coarse = vf_fma(high, high, sums->coarse);
        }
    }
    vu_transpose(bytes);
    return vu_add(vu_add(bytes[0], vu_shift_left(bytes[1], 8)),
                  vu_add(vu_shift_left(bytes[2], 16), vu_shift_left(bytes[3], 24)));
}

/* Stores sixteen rows' words [row][word] as nibbles. */
static void store_nibbles(const cpu_quantized_rows *r, const uint32_t words[16][16], int64_t column)
{
    uint32_t quads[16];
    for (int row = 0; row < 16; row++) {
        UNROLLED
        for (int quad = 0; quad < 16; quad++)
            quads[quad] = words[row][quad % 4 * 4 + quad / 4];
        cpu_store_nibbles(r, row, column, (const uint8_t *)quads);
    }
}

/* Stores sixteen rows' words [row][word] as [quad][row]. */
static void store_tile(const uint32_t words[16][16], uint8_t *to)
{
    uint32_t tile[16][16];
    UNROLLED
    for (int quad = 0; quad < 16; quad++)
        for (int row = 0; row < 16; row++)
            tile[quad][row] = words[row][quad % 4 * 4 + quad / 4];
    memcpy(to, tile, sizeof tile);
}

LANES void quantize_rows_as(cpu_quantized_rows *r, gumbel_dtype dtype)
{
    float inverse[16] = {0};
    row_sums sums[16];
    for (int row = 0; row < 16; row++) {
        float largest = row < r->count ? find_largest_weight(r, row, dtype) : 0.0f;
        r->steps[row] = row < r->count ? cpu_choose_screen_step(r, largest) : 0.0f;
        inverse[row] = r->steps[row] > 0.0f ? 1.0f / r->steps[row] : 0.0f;
        sums[row].error = sums[row].size = sums[row].coarse = sums[row].weight = vf_set(0.0f);
    }
    for (int64_t column = 0; column < r->hidden_size; column += 64) {
        uint32_t words[16][16];
        for (int row = 0; row < 16; row++) {
            v16f w[4];
            vu_store(words[row], vu_set(0x80808080u));
            if (inverse[row] == 0.0f)
                continue;
            load_columns(r, row, column, dtype, w);
            vu_store(words[row], quantize_columns(w, vf_set(inverse[row]), r->dither + column,
                                                  r->low_nibbles != NULL, &sums[row]));
        }
        if (r->low_nibbles)
            store_nibbles(r, (const uint32_t(*)[16])words, column);
        else
            store_tile((const uint32_t(*)[16])words, r->copy + column / 64 * CPU_SCREEN_TILE);
    }
    for (int row = 0; row < r->count; row++)
        cpu_raise_row_bound(r, row, vf_sum(sums[row].error),
                            fmaxf(vf_sum(sums[row].size), vf_sum(sums[row].coarse)),
                            vf_sum(sums[row].weight));
}

static void quantize_rows(cpu_quantized_rows *r)
{
    if (r->dtype == GUMBEL_FLOAT32)
        quantize_rows_as(r, GUMBEL_FLOAT32);
    else if (r->dtype == GUMBEL_FLOAT16)
        quantize_rows_as(r, GUMBEL_FLOAT16);
    else
        quantize_rows_as(r, GUMBEL_BFLOAT16);
}

static void bound_logits(const cpu_logit_bounds *e, float *out)
{
    v16f unit = vf_set(e->unit), plane = vf_set(e->plane), width = vf_set(e->width);
    UNROLLED
    for (int q = 0; q < 4; q++) {
        v16f high = vf_of_int(vu_load(e->high + q * e->stride));
        v16f low = vf_of_int(vu_load(e->low + q * e->stride));
        v16f sum = vf_add(vf_mul(unit, vf_fma(plane, high, low)), width);
        vf_store(out + 16 * q, vf_fma(vf_load(e->steps + 16 * q), sum, vf_set(e->tiny)));
    }
}

#endif
