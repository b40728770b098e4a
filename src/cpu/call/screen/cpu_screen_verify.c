/* SPDX-License-Identifier: Apache-2.0
 *
 * Verifies a screen's certificate: recomputes it in float64 from the weights and the bytes alone.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/lanes/cpu_widen.h"

#include <inttypes.h>

typedef struct screen_verifier {
    const gumbel_problem *problem;
    gumbel_screen_offsets offsets;
    gumbel_screen_header header;
    const int32_t *dither;
    int is_dither_valid;
    _Atomic int64_t next;
    _Atomic int64_t fault; /* the first row whose bound does not hold */
} screen_verifier;

static int is_nested(const screen_verifier *v)
{
    return v->header.layout == GUMBEL_SCREEN_LAYOUT_NIBBLES;
}

typedef struct screen_column {
    double dither, scale;
} screen_column;

static screen_column read_column(const screen_verifier *v, int64_t i)
{
    const double unit = (double)GUMBEL_SCREEN_DITHER_UNIT;
    uint32_t word = (uint32_t)v->dither[i];
    if (!is_nested(v))
        return (screen_column){v->dither[i] * unit, 1.0};
    return (screen_column){(double)(word >> 12) * 0x1p-16 - 8.5, exp2(word % 16 / 4.0)};
}

/* The integer q of a weight. */
static int find_quantized_weight(const screen_verifier *v, int64_t row, int64_t i)
{
    const int64_t columns = v->offsets.columns;
    const uint8_t *copy = (const uint8_t *)v->problem->screen + v->offsets.copy;
    if (!is_nested(v))
        return copy[row / 16 * 16 * columns + row % 16 * 4 + i / 64 * CPU_SCREEN_TILE +
                    i % 64 / 4 * 64 + i % 4] -
               128;
    copy += row / 64 * 32 * columns;
    int at = (int)(row % 64), shift = i % 32 < 16 ? 0 : 4;
    int high = copy[cpu_find_high_nibbles(at, 8 * columns) + i / 32 * CPU_NIBBLE_LINE + i % 16];
    copy += v->offsets.blocks * 32 * columns;
    int low = copy[cpu_find_low_nibbles(at, 8 * columns) + i / 32 * CPU_NIBBLE_ROW + i % 16];
    return (high >> shift & 15) * 16 + (low >> shift & 15) - 128;
}

/* Whether the bytes of a row and the bound of its block hold for its weights. */
static int is_row_bounded(const screen_verifier *v, int64_t row)
{
    const gumbel_tensor *weight = &v->problem->weight;
    const unsigned char *base = v->problem->screen;
    int64_t block = row / GUMBEL_BLOCK;
    gumbel_screen_block bound =
        ((const gumbel_screen_block *)(const void *)(base + v->offsets.bounds))[block];
    double step = (double)((const float *)(const void *)(base + v->offsets.steps))[row];
    const char *from =
        (const char *)weight->data + row * weight->stride * cpu_get_element_size(weight->dtype);
    double error = 0.0, size = 0.0, coarse = 0.0, square = 0.0, entry = 0.0;
    int finite = 1;
    for (int64_t i = 0; i < weight->cols; i++) {
        screen_column column = read_column(v, i);
        double w = (double)cpu_widen_element(from, weight->dtype, i) / column.scale;
        int q = find_quantized_weight(v, row, i), high = ((q + 128) & 0xf0) - 128;
        double e = w / step - (q - column.dither);
        finite &= isfinite(w);
        error += e * e;
        size += (double)(q * q);
        coarse += (double)(high * high);
        square += w * w;
        entry = fabs(e) > entry ? fabs(e) : entry;
    }
    if (!finite)
        return isnan(step);
    return v->is_dither_valid && sqrt(error) <= (double)bound.error &&
           sqrt(size) <= (double)bound.size &&
           (!is_nested(v) || sqrt(coarse) <= (double)bound.size) &&
           sqrt(square) <= step * ((double)bound.size + (double)bound.error) &&
           entry <= (double)GUMBEL_SCREEN_ENTRY && bound.error <= v->header.error &&
           sqrt(square) <= (double)v->header.weight * (1 + 0x1p-20);
}

/* Whether all dither is in [-1/2, 1/2). All words of nibbles are valid. */
static int is_dither_in_range(const screen_verifier *v, int64_t columns)
{
    int valid = 1;
    if (is_nested(v))
        return 1;
    for (int64_t i = 0; i < columns; i++)
        valid &= v->dither[i] >= -(1 << 23) && v->dither[i] < 1 << 23;
    return valid;
}

static void verify_claimed_blocks(void *argument, int32_t thread)
{
    screen_verifier *v = argument;
    (void)thread;
    for (int64_t block; cpu_claim_item(&v->next, v->offsets.blocks, &block);)
        for (int64_t row = block * GUMBEL_BLOCK;
             row < (block + 1) * GUMBEL_BLOCK && row < v->problem->vocab; row++) {
            int64_t seen = atomic_load(&v->fault);
            if (row < seen && !is_row_bounded(v, row))
                while (row < seen && !atomic_compare_exchange_weak(&v->fault, &seen, row))
                    ;
        }
}

gumbel_status cpu_verify_screen(gumbel_device *device, const gumbel_problem *p, gumbel_error *error)
{
    screen_verifier v = {.problem = p, .fault = INT64_MAX};
    int known = gumbel_screen_find_offsets(p->vocab, p->hidden_size, &v.offsets);
    GUMBEL_ASSERT(known && p->screen);
    (void)known;
    memcpy(&v.header, p->screen, sizeof v.header);
    v.dither = (const void *)((const unsigned char *)p->screen + v.offsets.dither);
    v.is_dither_valid = is_dither_in_range(&v, p->hidden_size);
    cpu_run_task((cpu_device *)device, p->vocab >= CPU_PARALLEL_PRODUCTS / p->hidden_size,
                 verify_claimed_blocks, &v);
    GUMBEL_REFUSE_IF(v.fault != INT64_MAX, error, "screen",
                     "row %" PRId64 " of the weights has changed since the screen was prepared",
                     (int64_t)v.fault);
    return GUMBEL_OK;
}
