/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU's screens against their weights: error bounds are recomputed by this test, steps, dither
 * and bytes are those of a CPU, and changed weights must be detected. Also measures the rounding
 * error of tensor-core sums, on rows that make it large.
 */
#include "cuda_screens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gumbel_error error;

/* -------------------------------------------------------------------------- certificates ---- */

static int has_nibbles(const char *screen)
{
    return ((const gumbel_screen_header *)(const void *)screen)->layout ==
           GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES;
}

/* Reads one integer of the quantized copy, in the layouts that screen_params.h documents. */
static int read_quantized(const char *screen, const gumbel_screen_offsets *offsets, int64_t row,
                          int64_t column)
{
    const int8_t *copy = (const int8_t *)screen + offsets->copy;
    int64_t in = row % 128, half = in / 64, warp = in % 64 / 16, g = in % 16 / 2, f = in % 2;
    int64_t at = 64 * half + 16 * warp + 8 * f + g;
    int64_t tile = row / 128 * (offsets->columns / 128) + column / 128;
    int64_t unit = (column % 128 / 16) ^ (at % 8);
    if (!has_nibbles(screen))
        return copy[(tile * 128 + at) * 128 + unit * 16 + column % 16];
    const int8_t *low_copy = copy + offsets->blocks * 32 * offsets->columns;
    int64_t part = column % 16 / 4, word = column % 128 / 64 * 2 + column % 32 / 16;
    int64_t byte = (tile * 128 + at) * 64 + part * 16 + word * 4 + column % 4;
    int shift = column % 64 < 32 ? 0 : 4;
    int high = (copy[byte] >> shift & 15) ^ 8, low = low_copy[byte] >> shift & 15;
    return 16 * (high - 8) + low;
}

/* The dither of a column, and one divided by its scale. */
static double read_dither(const char *screen, int32_t word)
{
    int32_t units = has_nibbles(screen) ? gumbel_screen_column_dither((uint32_t)word) : word;
    return (double)units * (double)GUMBEL_SCREEN_DITHER_UNIT;
}
static float read_inverse_scale(const char *screen, int32_t word)
{
    return has_nibbles(screen)
               ? gumbel_screen_inverse_scales[gumbel_screen_column_scale((uint32_t)word)]
               : 1.0f;
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
    const int32_t *dither = (const int32_t *)(const void *)(screen + offsets->dither);
    double step = (double)((const float *)(const void *)(screen + offsets->steps))[row];
    double error_sum = 0, size = 0, coarse = 0, weight = 0, largest = 0;
    if (!is_finite_row(generated, row)) {
        int bytes = 0;
        for (int64_t i = 0; i < columns; i++)
            bytes |= read_quantized(screen, offsets, row, i);
        CHECK(isnan(step) && bytes == 0, "row %lld is not finite: step %g, bytes %d",
              (long long)row, step, bytes);
        return;
    }
    for (int64_t i = 0; i < columns; i++) {
        float scaled =
            dtype_load(generated->weight.data, generated->weight.dtype, row * columns + i) *
            read_inverse_scale(screen, dither[i]);
        int q = read_quantized(screen, offsets, row, i), high = q & ~15;
        double w = (double)scaled, off = w / step - (q - read_dither(screen, dither[i]));
        error_sum += off * off;
        size += q * q;
        coarse += has_nibbles(screen) ? high * high : 0;
        weight += w * w;
        largest = fmax(largest, fabs(off));
    }
    CHECK(largest <= (double)GUMBEL_SCREEN_ENTRY && sqrt(error_sum) <= (double)block->error &&
              sqrt(fmax(size, coarse)) <= (double)block->size && block->error <= header->error &&
              sqrt(weight) <= step * ((double)block->size + (double)block->error) &&
              sqrt(weight) <= (double)header->weight,
          "%s, row %lld: an entry is %g off, all %g of %g, size %g of %g, weight %g of %g",
          dtype_name(generated->weight.dtype), (long long)row, largest, sqrt(error_sum),
          (double)block->error, sqrt(size), (double)block->size, sqrt(weight),
          (double)header->weight);
}

/* Reads one integer of a CPU's screen of the same format. */
static int read_quantized_of_cpu(const unsigned char *copy, const gumbel_screen_offsets *at,
                                 int nested, int64_t row, int64_t i)
{
    const int64_t columns = at->columns;
    if (!nested)
        return copy[row / 16 * 16 * columns + row % 16 * 4 + i / 64 * 1024 + i % 64 / 4 * 64 +
                    i % 4] -
               128;
    int64_t group = row / 64 * 32 * columns + row % 4 * 8 * columns + row % 64 / 16 * 2 * columns;
    int64_t line = row % 16 / 4, of_low = at->blocks * 32 * columns + group;
    int shift = i % 32 < 16 ? 0 : 4;
    int high = copy[group + i / 32 * 64 + line * 16 + i % 16] >> shift & 15;
    int low = copy[of_low + line * (columns / 2) + i / 32 * 16 + i % 16] >> shift & 15;
    return 16 * high + low - 128;
}

/* A CPU's screen of the same seed has the same steps, dither, scales and integers. */
static void check_bytes_of_cpu(const generated_head *generated, const char *screen,
                               const gumbel_screen_offsets *offsets)
{
    const int nested = has_nibbles(screen);
    gumbel_screen other = make_screen_as(cpu, &generated->weight, GUMBEL_SCREEN_PROBABLE,
                                         nested ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES);
    const unsigned char *base = other.data;
    gumbel_screen_offsets at;
    int64_t differing = 0, columns = generated->weight.cols;
    CHECK(gumbel_screen_find_offsets(generated->weight.rows, columns, &at), "offsets");
    CHECK(memcmp(base + at.dither, screen + offsets->dither, (size_t)columns * 4) == 0, "dither");
    CHECK(memcmp(base + at.steps, screen + offsets->steps, (size_t)generated->weight.rows * 4) == 0,
          "steps");
    for (int64_t row = 0; row < generated->weight.rows; row++)
        for (int64_t i = 0; i < columns; i++)
            differing += read_quantized(screen, offsets, row, i) !=
                         read_quantized_of_cpu(base + at.copy, &at, nested, row, i);
    CHECK(differing == 0, "%lld bytes are not those of a CPU", (long long)differing);
    free(other.data);
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

void screen_certificates(void)
{
    for (int i = 0; i < SCREEN_KINDS * HEAD_KINDS; i++) {
        const int kind = i / SCREEN_KINDS, how = i % SCREEN_KINDS;
        generated_head generated =
            generate_head((head_kind)kind, kind % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 1000 + kind,
                          200 + 7 * kind, 1, 5);
        gpu_head h = copy_head_to_gpu(&generated, (screen_kind)how);
        char *screen = make_zeroed(h.screen.bytes, 1);
        gumbel_screen_offsets offsets;
        gpu_fetch(screen, h.screen.data, h.screen.bytes);
        const gumbel_screen_header *header = (const void *)screen;
        CHECK(gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, generated.weight.rows,
                                            generated.weight.cols, &offsets) &&
                  offsets.bytes == h.screen.bytes,
              "%s", head_kind_names[kind]);
        CHECK(header->check == gumbel_screen_checksum(header) &&
                  header->certificate == (uint32_t)(how == SCREEN_CERTAIN),
              "%s", head_kind_names[kind]);
        check_bytes_of_cpu(&generated, screen, &offsets);
        for (int64_t row = 0; row < generated.weight.rows && !checks_failed(); row++)
            check_row(&generated, screen, &offsets, row);
        CHECK(find_stale_row(&h) == -1, "%s: %s", head_kind_names[kind], error.message);
        free(screen);
        free_gpu_head(&h);
        free_generated_head(&generated);
    }
}

/* Makes the screen of a head again, at once or from a graph, and copies its bytes to the heap. */
static char *remake_screen(const gpu_head *h, const uint64_t *seed, int is_captured)
{
    const gumbel_screen_options options = {sizeof options, GUMBEL_SCREEN_PROBABLE, h->screen.format,
                                           seed};
    char *bytes = make_zeroed(h->screen.bytes, 1);
    gpu_graph graph = {0};
    gpu_poison(h->screen.data, h->screen.bytes);
    if (is_captured)
        graph = gpu_graph_begin();
    if (gumbel_screen_prepare(gpu, graph.stream, &h->head.weight, &options, &h->screen, &error))
        die("gumbel_screen_prepare: %s: %s", error.field, error.message);
    if (is_captured) {
        gpu_graph_end(&graph);
        gpu_graph_replay(&graph);
        gpu_graph_free(&graph);
    }
    GPU(cuCtxSynchronize);
    gpu_fetch(bytes, h->screen.data, h->screen.bytes);
    return bytes;
}

/* A seed gives the same bytes again, also from a graph, whose launches outlive the call's memory;
 * screens without a seed differ. D has more columns than one launch carries dither of. */
static void check_dither(screen_kind kind)
{
    const uint64_t seed = 7;
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 1000, 2504, 1, 5);
    gpu_head h = copy_head_to_gpu(&generated, kind);
    char *first = make_zeroed(h.screen.bytes, 1), *screens[4];
    gumbel_screen_offsets offsets;
    gpu_fetch(first, h.screen.data, h.screen.bytes);
    for (int i = 0; i < 4; i++) {
        screens[i] = remake_screen(&h, i < 2 ? &seed : NULL, i % 2);
        CHECK(find_stale_row(&h) == -1, "screen %d: %s", i, error.message);
    }
    CHECK(gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, 1000, 2504, &offsets),
          "offsets");
    check_bytes_of_cpu(&generated, first, &offsets);
    const size_t own = sizeof(gumbel_screen_header), rest = h.screen.bytes - offsets.steps;
    for (int i = 0; i < 2; i++)
        CHECK(memcmp(first, screens[i], own) == 0 &&
                  memcmp(first + offsets.steps, screens[i] + offsets.steps, rest) == 0,
              "screen %d differs", i);
    for (int i = 2; i < 4; i++)
        CHECK(memcmp(screens[i] + offsets.dither, screens[i - 1] + offsets.dither, 2504 * 4) != 0,
              "dither of screens %d and %d", i - 1, i);
    for (int i = 0; i < 4; i++)
        free(screens[i]);
    free(first);
    free_gpu_head(&h);
    free_generated_head(&generated);
}

void screen_dither(void)
{
    check_dither(SCREEN_PROBABLE);
    check_dither(SCREEN_NIBBLES);
}

/* The format of a screen is that of its options. A screen of another layout than that of the format
 * does not serve: the full pass draws. */
void screen_layouts(void)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 5008, 256, 2, 5);
    gpu_head h = copy_head_to_gpu(&generated, SCREEN_PROBABLE);
    const gumbel_screen_options nibbles = {.struct_size = sizeof nibbles,
                                           .format = GUMBEL_SCREEN_NIBBLES};
    CHECK(gumbel_screen_prepare(gpu, NULL, &h.head.weight, &nibbles, &h.screen, &error) ==
                  GUMBEL_ERROR_ARGUMENT &&
              strcmp(error.field, "screen.format") == 0,
          "nibbles: %s: %s", error.field, error.message);
    float temperature = 0.0f, *on_gpu = gpu_copy(&temperature, sizeof temperature);
    const gumbel_sampling how = {.struct_size = sizeof how, .temperature = {on_gpu, GUMBEL_SAME}};
    outcome *out = outcome_make(2, 1);
    for (uint32_t layout = 2; layout <= GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES; layout++) {
        const int is_other = layout != GUMBEL_SCREEN_LAYOUT_TILES;
        screened_draw d = {0};
        gumbel_screen_header header;
        gpu_fetch(&header, h.screen.data, sizeof header);
        header.layout = layout;
        header.check = gumbel_screen_checksum(&header);
        gpu_put(h.screen.data, &header, sizeof header);
        draw_rows_once(&h.head, &how, out, &d);
        CHECK(d.state.again == (uint32_t)is_other && find_stale_row(&h) == (is_other ? -2 : -1),
              "layout %u: again %u", layout, d.state.again);
        gpu_free(d.workspace);
    }
    outcome_free(out);
    gpu_free(on_gpu);
    free_gpu_head(&h);
    free_generated_head(&generated);
}

/* One weight changed in place, in different rows; then a changed error bound and column count. */
void screen_stale(void)
{
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated = generate_head(
            (head_kind)kind, kind % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 1000, 200, 1, 5);
        void *weight = (void *)(uintptr_t)generated.weight.data;
        const size_t bytes = 1000 * 200 * dtype_size(generated.weight.dtype);
        gpu_head h = copy_head_to_gpu(&generated, SCREEN_PROBABLE);
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

/* Returns the largest |score - exact| / (gamma * sum |w h|) of greedy draws over 16 equal tokens,
 * with the gamma of the product that draws. */
static double measure_roundings(int kind, int64_t columns, gumbel_dtype dtype)
{
    const int64_t batch = 64;
    size_t element = dtype_size(dtype);
    uint64_t state = 3 + (uint64_t)kind;
    const double gamma =
        draws_bytes_alone() ? CUDA_SCREEN_SM80_GAMMA(columns) : CUDA_SCREEN_GAMMA(columns);
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
    gpu_head h = copy_head_to_gpu(&generated, SCREEN_PROBABLE);
    float zero = 0, *temperature = gpu_copy(&zero, sizeof zero);
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {temperature, GUMBEL_SAME}};
    outcome *out = outcome_make(batch, 1);
    screened_draw d = {0};
    h.head.screen = (gumbel_screen){NULL, 0, 0};
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
        worst = fmax(worst, off / (gamma * size));
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
