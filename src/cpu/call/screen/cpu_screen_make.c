/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes a screen. Threads claim blocks of 64 rows.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"
#include "core/screen_dither.h"
#include "cpu/cpu_policy.h"
#include "cpu/lanes/cpu_widen.h"

typedef struct screen_maker {
    cpu_device *device;
    const gumbel_problem *problem;
    gumbel_screen_layout layout;
    gumbel_screen_offsets offsets;
    unsigned char *screen;
    _Atomic int64_t next;
    _Atomic uint32_t error, weight; /* maxima so far, as bits of non-negative floats */
} screen_maker;

static void raise_maximum(_Atomic uint32_t *maximum, float value)
{
    uint32_t bits = gumbel_bits_of(value), seen = atomic_load(maximum);
    while (seen < bits && !atomic_compare_exchange_weak(maximum, &seen, bits))
        ;
}

/* Points the rows to the copy of 16 rows from row `first` on. */
static void find_copy(const screen_maker *m, int64_t first, cpu_quantized_rows *rows)
{
    const int64_t columns = m->offsets.columns;
    rows->copy = m->screen + m->offsets.copy + first * columns;
    if (m->layout != GUMBEL_SCREEN_LAYOUT_NIBBLES)
        return;
    rows->stream_bytes = 8 * columns;
    rows->copy = m->screen + m->offsets.copy + first / GUMBEL_BLOCK * 32 * columns +
                 cpu_find_nibble_group((int)(first % GUMBEL_BLOCK), rows->stream_bytes);
    rows->low_nibbles = rows->copy + m->offsets.blocks * 32 * columns;
}

static void make_block(screen_maker *m, int64_t block)
{
    const gumbel_tensor *weight = &m->problem->weight;
    int64_t stride = weight->stride * cpu_get_element_size(weight->dtype);
    cpu_quantized_rows rows = {.dtype = weight->dtype,
                               .stride_bytes = stride,
                               .hidden_size = weight->cols,
                               .dither =
                                   (const int32_t *)(const void *)(m->screen + m->offsets.dither)};
    for (int64_t first = block * GUMBEL_BLOCK; first < (block + 1) * GUMBEL_BLOCK; first += 16) {
        int64_t remaining = weight->rows - first;
        rows.count = remaining < 0 ? 0 : remaining < 16 ? (int)remaining : 16;
        rows.weight = (const char *)weight->data + (rows.count ? first * stride : 0);
        rows.steps = (float *)(void *)(m->screen + m->offsets.steps) + first;
        find_copy(m, first, &rows);
        m->device->kernels->quantize_rows(&rows);
    }
    ((gumbel_screen_block *)(void *)(m->screen + m->offsets.bounds))[block] = rows.bound;
    raise_maximum(&m->error, rows.bound.error);
    raise_maximum(&m->weight, rows.max_weight_norm);
}

static void make_claimed_blocks(void *argument, int32_t thread)
{
    screen_maker *m = argument;
    (void)thread;
    for (int64_t block; cpu_claim_item(&m->next, m->offsets.blocks, &block);)
        make_block(m, block);
}

/* Sets the scales of the columns, by a sample of the rows that is the same on all devices. The
 * squares of the columns' norms are in the memory of the copy, which is written later. */
static void choose_scales(const screen_maker *m, gumbel_screen_column *columns)
{
    const gumbel_tensor *weight = &m->problem->weight;
    const int64_t step = GUMBEL_SCREEN_SAMPLE_STEP(weight->rows);
    double *squares = (double *)(void *)(m->screen + m->offsets.copy), largest = 0.0;
    for (int64_t i = 0; i < weight->cols; i++) {
        double square = 0.0;
        for (int64_t row = 0; row < weight->rows; row += step) {
            double w =
                (double)cpu_widen_element(weight->data, weight->dtype, row * weight->stride + i);
            square += isfinite(w) ? w * w : 0.0;
        }
        squares[i] = square;
        largest = square > largest ? square : largest;
    }
    for (int64_t i = 0; i < weight->cols; i++)
        columns[i] |= gumbel_screen_choose_scale(squares[i], largest);
}

/* Writes the dither of the columns. The padding of the last columns has none. */
static gumbel_status write_dither(const screen_maker *m, const uint64_t *seed, gumbel_error *error)
{
    const int nested = m->layout == GUMBEL_SCREEN_LAYOUT_NIBBLES;
    int32_t *dither = (int32_t *)(void *)(m->screen + m->offsets.dither);
    for (int64_t i = 0; i < m->offsets.columns; i++)
        dither[i] = nested ? (int32_t)GUMBEL_SCREEN_COLUMN_NONE : 0;
    GUMBEL_FORWARD(gumbel_make_dither(m->layout, seed, 0, m->problem->hidden_size, dither, error));
    if (nested)
        choose_scales(m, (gumbel_screen_column *)dither);
    return GUMBEL_OK;
}

/* The most draws of a call that is faster if it reads high nibbles first. */
static uint32_t choose_coarse_draws(const screen_maker *m)
{
    int64_t columns = m->problem->hidden_size;
    if (m->layout != GUMBEL_SCREEN_LAYOUT_NIBBLES)
        return 0;
    return columns < CPU_SCREEN_COARSE_COLUMNS ? CPU_SCREEN_COARSE_DRAWS
                                               : (uint32_t)(columns / CPU_SCREEN_COARSE_FRACTION);
}

gumbel_status cpu_make_screen(gumbel_device *device, const gumbel_problem *p,
                              const gumbel_screen_options *options, void *screen,
                              gumbel_error *error)
{
    screen_maker m = {.device = (cpu_device *)device,
                      .problem = p,
                      .layout = options->format == GUMBEL_SCREEN_NIBBLES
                                    ? GUMBEL_SCREEN_LAYOUT_NIBBLES
                                    : GUMBEL_SCREEN_LAYOUT_CPU,
                      .screen = screen};
    gumbel_screen_header header = {.magic = GUMBEL_SCREEN_MAGIC,
                                   .version = GUMBEL_SCREEN_VERSION,
                                   .layout = (uint32_t)m.layout,
                                   .rows = p->vocab,
                                   .columns = p->hidden_size,
                                   .dtype = (uint32_t)p->weight.dtype,
                                   .list_max = GUMBEL_SCREEN_LIST_MAX,
                                   .certificate = (uint32_t)options->certificate,
                                   .coarse_draws = choose_coarse_draws(&m)};
    int known = gumbel_screen_find_offsets(p->vocab, p->hidden_size, &m.offsets);
    (void)known;
    GUMBEL_ASSERT(known);
    GUMBEL_FORWARD(write_dither(&m, options->seed, error));
    memset(screen, 0, m.offsets.steps);
    int worth_threads = p->vocab >= CPU_PARALLEL_PRODUCTS / p->hidden_size;
    cpu_run_task(m.device, worth_threads, make_claimed_blocks, &m);
    header.error = gumbel_float_of(m.error);
    header.weight = gumbel_float_of(m.weight);
    header.check = gumbel_screen_checksum(&header);
    memcpy(screen, &header, sizeof header);
    return GUMBEL_OK;
}
