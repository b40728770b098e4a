/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU's screens against their weights: error bounds are recomputed by this test, and changed
 * weights must be detected. Also measures the rounding error of tensor-core sums, on rows that make
 * it large.
 */
#include "cuda_screens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gumbel_error error;

/* -------------------------------------------------------------------------- certificates ---- */

/* Reads one element of the quantized copy, in the layout that screen_params.h documents. */
static int8_t read_copy_byte(const int8_t *copy, int64_t depths, int64_t row, int64_t column)
{
    int64_t in = row % 128, half = in / 64, warp = in % 64 / 16, g = in % 16 / 2, f = in % 2;
    int64_t at = 64 * half + 16 * warp + 8 * f + g;
    int64_t unit = (column % 128 / 16) ^ (at % 8);
    return copy[((row / 128 * depths + column / 128) * 128 + at) * 128 + unit * 16 + column % 16];
}

static int is_finite_row(const generated_head *generated, int64_t row)
{
    for (int64_t i = 0; i < generated->weight.cols; i++)
        if (!isfinite(dtype_load(generated->weight.data, generated->weight.dtype,
                                 row * generated->weight.cols + i)))
            return 0;
    return 1;
}

static void check_row(const generated_head *generated, const char *screen,
                      const gumbel_screen_offsets *offsets, int64_t row)
{
    const gumbel_screen_header *header = (const void *)screen;
    const gumbel_screen_block *block =
        (const gumbel_screen_block *)(const void *)(screen + offsets->bounds) + row / 64;
    const int64_t columns = generated->weight.cols;
    double step = (double)((const float *)(const void *)(screen + offsets->steps))[row];
    double error_sum = 0, size = 0, weight = 0, largest = 0;
    if (!is_finite_row(generated, row)) {
        int bytes = 0;
        for (int64_t i = 0; i < columns; i++)
            bytes |= read_copy_byte((const int8_t *)screen + offsets->copy, offsets->columns / 128,
                                    row, i);
        CHECK(isnan(step) && bytes == 0, "row %lld is not finite: step %g, bytes %d",
              (long long)row, step, bytes);
        return;
    }
    for (int64_t i = 0; i < columns; i++) {
        double w =
            (double)dtype_load(generated->weight.data, generated->weight.dtype, row * columns + i);
        double q =
            read_copy_byte((const int8_t *)screen + offsets->copy, offsets->columns / 128, row, i);
        error_sum += (w / step - q) * (w / step - q);
        size += q * q;
        weight += w * w;
        largest = fmax(largest, fabs(w / step - q));
    }
    CHECK(largest <= (double)GUMBEL_SCREEN_ENTRY && sqrt(error_sum) <= (double)block->error &&
              sqrt(size) <= (double)block->size && block->error <= header->error &&
              sqrt(weight) <= (double)header->weight,
          "%s, row %lld: an entry is %g off, all %g of %g, size %g of %g, weight %g of %g",
          dtype_name(generated->weight.dtype), (long long)row, largest, sqrt(error_sum),
          (double)block->error, sqrt(size), (double)block->size, sqrt(weight),
          (double)header->weight);
}

void screen_certificates(void)
{
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated =
            generate_head((head_kind)kind, kind % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 1000 + kind,
                          200 + 7 * kind, 1, 5);
        gpu_head h = copy_head_to_gpu(&generated);
        char *screen = make_zeroed(h.screen.bytes, 1);
        gumbel_screen_offsets offsets;
        gpu_fetch(screen, h.screen.data, h.screen.bytes);
        const gumbel_screen_header *header = (const void *)screen;
        CHECK(gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, generated.weight.rows,
                                            generated.weight.cols, &offsets) &&
                  offsets.bytes == h.screen.bytes,
              "%s", head_kind_names[kind]);
        CHECK(header->check == gumbel_screen_checksum(header), "%s", head_kind_names[kind]);
        for (int64_t row = 0; row < generated.weight.rows && !checks_failed(); row++)
            check_row(&generated, screen, &offsets, row);
        free(screen);
        free_gpu_head(&h);
        free_generated_head(&generated);
    }
}

/* The result of gumbel_screen_verify() for a head's screen: the stale row, -1 for none, -2 for a
 * screen of another head. */
static int64_t find_stale_row(const gpu_head *h)
{
    const char *row;
    switch (gumbel_screen_verify(gpu, NULL, &h->head.weight, &h->screen, &error)) {
    case GUMBEL_OK:
        return -1;
    case GUMBEL_ERROR_ARGUMENT:
        row = strstr(error.message, "row ");
        return row ? strtoll(row + strlen("row "), NULL, 10) : -2;
    default:
        die("gumbel_screen_verify: %s: %s", error.field, error.message);
    }
}

/* One weight changed in place, in different rows; then a changed error bound and column count. */
void screen_stale(void)
{
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated = generate_head(
            (head_kind)kind, kind % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 1000, 200, 1, 5);
        void *weight = (void *)(uintptr_t)generated.weight.data;
        const size_t bytes = 1000 * 200 * dtype_size(generated.weight.dtype);
        gpu_head h = copy_head_to_gpu(&generated);
        gumbel_screen_header header;
        CHECK(find_stale_row(&h) == -1, "%s: %s", head_kind_names[kind], error.message);
        for (int64_t row = 12; row < 1000; row += 12 * 27) { /* rows of no special kind */
            float was = dtype_load(weight, generated.weight.dtype, row * 200 + 199);
            dtype_store(weight, generated.weight.dtype, row * 200 + 199, was + 3.0f);
            gpu_put(h.weight, weight, bytes);
            int64_t found = find_stale_row(&h);
            CHECK(found == row, "%s: row %lld has changed, row %lld was found",
                  head_kind_names[kind], (long long)row, (long long)found);
            dtype_store(weight, generated.weight.dtype, row * 200 + 199, was);
        }
        gpu_put(h.weight, weight, bytes);
        gpu_fetch(&header, h.screen.data, sizeof header);
        header.error *= 0.5f;
        header.check = gumbel_screen_checksum(&header);
        gpu_put(h.screen.data, &header, sizeof header);
        CHECK(find_stale_row(&h) >= 0, "%s: half the error", head_kind_names[kind]);
        header.columns = 192;
        header.check = gumbel_screen_checksum(&header);
        gpu_put(h.screen.data, &header, sizeof header);
        CHECK(find_stale_row(&h) == -2, "%s: other columns", head_kind_names[kind]);
        free_gpu_head(&h);
        free_generated_head(&generated);
    }
}

/* ------------------------------------------------------------------------------- roundings ---- */

/* Weight i, and below the hidden state's element i: products that cancel, one large among small
 * ones, equal ones, a sum that grows and falls, mixed sizes, tiny ones, random ones. */
static float rounding_weight(int kind, int64_t i, uint64_t *state)
{
    switch (kind) {
    case 0:
        return i % 2 ? 1.0078125f : 1.0f;
    case 1:
        return i == 0 ? 1.0f : 0x1.fep-13f;
    case 2:
        return 1.9921875f;
    case 3:
        return ldexpf(1.0f + (float)(i % 128) / 128, -(int)(i % 24));
    case 4:
        return i % 16 == 0 ? 1.0f : 0x1.fep-24f;
    case 5:
        return 0x1.fep-70f;
    default:
        return random_normal(state);
    }
}

static float rounding_hidden(int kind, int64_t row, int64_t i, int64_t columns, uint64_t *state)
{
    switch (kind) {
    case 0: /* pairs that cancel except for the last bits */
        return i % 2 ? -1.0f + (float)row / 128 : 1.0f + (float)row / 128;
    case 1:
        return i == 0 ? 1.0f + (float)row / 128 : 1.9921875f;
    case 2: /* all products of a row round the same way */
        return 1.0f + (float)row / 128;
    case 3:
        return i < columns / 2 ? 1.0f : -1.0f - (float)row / 128;
    case 4:
        return 1.0f + (float)row / 128;
    case 5:
        return (1.0f + (float)row / 128) * 0x1p-60f;
    default:
        return random_normal(state) * expf(0.1f * (float)row * random_normal(state));
    }
}

/* Returns the largest |score - exact| / (gamma * sum |w h|) of greedy draws over 16 equal tokens.
 */
static double measure_roundings(int kind, int64_t columns, gumbel_dtype dtype)
{
    const int64_t batch = 64;
    size_t element = dtype_size(dtype);
    uint64_t state = 3 + (uint64_t)kind;
    double worst = 0;
    generated_head generated = {
        .weight = {make_zeroed((size_t)(16 * columns), element), dtype, 16, columns, 0, {0}},
        .hidden = {make_zeroed((size_t)(batch * columns), element), dtype, batch, columns, 0, {0}}};
    void *weight = (void *)(uintptr_t)generated.weight.data,
         *hidden = (void *)(uintptr_t)generated.hidden.data;
    for (int64_t i = 0; i < columns; i++)
        for (int64_t row = 0; row < 16; row++)
            dtype_store(weight, dtype, row * columns + i,
                        row ? dtype_load(weight, dtype, i) : rounding_weight(kind, i, &state));
    for (int64_t i = 0; i < batch * columns; i++)
        dtype_store(hidden, dtype, i,
                    rounding_hidden(kind, i / columns, i % columns, columns, &state));
    gpu_head h = copy_head_to_gpu(&generated);
    float zero = 0, *temperature = gpu_copy(&zero, sizeof zero);
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {temperature, GUMBEL_SAME}};
    outcome *out = outcome_make(batch, 1);
    screened_draw d = {0};
    h.head.screen = (gumbel_screen){NULL, 0};
    draw_rows_once(&h.head, &how, out, &d);
    for (int64_t b = 0; b < batch; b++) {
        double exact = 0, size = 0;
        for (int64_t i = 0; i < columns; i++) {
            double product = (double)dtype_load(weight, dtype, i) *
                             (double)dtype_load(hidden, dtype, b * columns + i);
            exact += product;
            size += fabs(product);
        }
        double off = fabs((double)out->scores[b] - exact) - (double)CUDA_SCREEN_TINY;
        worst = fmax(worst, off / (CUDA_SCREEN_GAMMA(columns) * size));
    }
    gpu_free(d.workspace);
    gpu_free(temperature);
    outcome_free(out);
    free_gpu_head(&h);
    free_generated_head(&generated);
    return worst;
}

void screen_roundings(void)
{
    for (int kind = 0; kind < 8; kind++)
        for (int i = 0; i < 6; i++) {
            static const int64_t columns[] = {16, 64, 512, 4096, 8192, 32768};
            double bf16 = measure_roundings(kind, columns[i], GUMBEL_BFLOAT16);
            CHECK(bf16 <= 1, "kind %d, D = %lld: %g times the bound", kind, (long long)columns[i],
                  bf16);
            if (i >= 3)
                printf("  roundings, kind %d, D = %lld: %.4f of gamma\n", kind,
                       (long long)columns[i], bf16);
        }
}
