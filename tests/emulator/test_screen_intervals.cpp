// SPDX-License-Identifier: Apache-2.0
//
// The numbers of screens on Hopper: the kernels' source on a CPU makes screens and splits hidden
// states. Steps, dither and bytes are the CPU backend's, bit for bit, and each term of the error
// bound is that of the CPU's function, up to its rounding. The logits of the full pass are within
// their bounds, and probable bounds are used as the law of uniform sums predicts.
extern "C" {
#include "maths/screen_bound.h"
}

#include "launch_screen.h"
#include "launch_sm90.h"

extern "C" {
#include "outcome.h"
}

#include "generated_heads.h"

#include <math.h>
#include <stdio.h>

namespace
{

enum hidden_kind {
    HIDDEN_GAUSSIAN,
    HIDDEN_ONES,
    HIDDEN_ALONG_DITHER, /* the largest shift; probable bounds do not hold */
    HIDDEN_TINY,
    HIDDEN_FLAT_KINDS, /* kinds before this one have no outliers */
    HIDDEN_ZERO = HIDDEN_FLAT_KINDS,
    HIDDEN_OUTLIER,
    HIDDEN_TWO_OUTLIERS,
    HIDDEN_SINGLE,
    HIDDEN_HEAVY,
    HIDDEN_KINDS,
};

/* Fractions of their half widths that the errors of logits take: the largest, and for Gaussian
 * hidden states with probable bounds the sum of squares. */
struct used_widths {
    double largest, square;
    int64_t count;
};

float generate_hidden(int kind, int64_t i, int32_t dither, uint64_t *state)
{
    const float x = random_normal(state);
    switch (kind) {
    case HIDDEN_ONES:
        return 1.0f;
    case HIDDEN_ALONG_DITHER:
        return dither < 0 ? -1.0f : 1.0f;
    case HIDDEN_TINY:
        return x * 0x1p-12f;
    case HIDDEN_ZERO:
        return 0.0f;
    case HIDDEN_OUTLIER:
        return i == 5 ? 3000.0f : x;
    case HIDDEN_TWO_OUTLIERS:
        return i == 3 ? 3000.0f : i == 6 ? 200.0f : x;
    case HIDDEN_SINGLE:
        return i == 5 ? 1.0f : 0.0f;
    case HIDDEN_HEAVY:
        return expf(2 * x);
    default:
        return x;
    }
}

/* A head, its screen by the emulated kernels, and the hidden states' kinds as rows. */
struct screened_head {
    generated_head head;
    gumbel_screen_certificate certificate;
    uint64_t seed;
    char *screen;
    gumbel_screen_offsets offsets;

    const gumbel_screen_header &header() const { return *(gumbel_screen_header *)screen; }
    const float *steps() const { return (float *)(screen + offsets.steps); }
    const int32_t *dither() const { return (int32_t *)(screen + offsets.dither); }
    const gumbel_screen_block &block(int64_t row) const
    {
        return ((gumbel_screen_block *)(screen + offsets.bounds))[row / 64];
    }
    /* A byte of the copy, in the layout of screen_params.h. */
    int byte(int64_t row, int64_t column) const
    {
        const int64_t in = row % 128, at = in / 16 * 16 + in % 2 * 8 + in % 16 / 2;
        const int64_t unit = column % 128 / 16 ^ at % 8;
        const int8_t *copy = (int8_t *)screen + offsets.copy;
        return copy[((row / 128 * (offsets.columns / 128) + column / 128) * 128 + at) * 128 +
                    unit * 16 + column % 16];
    }
};

screened_head make_screened(int index, uint64_t *random, const char *what)
{
    static const int64_t columns[] = {8, 64, 136, 200, 1024, 2048};
    const head_kind kind = (head_kind)(index % HEAD_KINDS);
    const bool is_wide = index % 12 == 5;
    const gumbel_dtype dtype =
        kind != HEAD_HOSTILE && one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    screened_head s = {};
    s.head = generate_head(kind, dtype, is_wide ? 16 : 16 * (4 + random_below(random, 12)),
                           is_wide ? 65528 : columns[index % 6], HIDDEN_KINDS, 11);
    s.head.weight.stride = s.head.weight.cols;
    /* Norms of sqrt(10) 2^-133, which float32 rounds down by more than 2^-20 of them. */
    const bool is_tiny = index % 12 == 6 && dtype == GUMBEL_BFLOAT16;
    for (int64_t i = 0; i < s.head.weight.rows * s.head.weight.cols && is_tiny; i++)
        dtype_store((void *)s.head.weight.data, dtype, i,
                    i % s.head.weight.cols > 1    ? 0.0f
                    : i % s.head.weight.cols == 1 ? 0x1p-133f
                                                  : 0x3p-133f);
    s.certificate = index / 6 % 2 ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
    s.seed = random_bits(random);
    s.screen = (char *)emulate_prepare_screen(s.head.weight, s.certificate, s.seed,
                                              GUMBEL_SCREEN_LIST_MAX, random, what);
    gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, s.head.weight.rows,
                                  s.head.weight.cols, &s.offsets);
    for (int64_t b = 0; b < HIDDEN_KINDS; b++)
        for (int64_t i = 0; i < s.head.hidden.cols; i++)
            dtype_store((void *)s.head.hidden.data, dtype, b * s.head.hidden.cols + i,
                        generate_hidden((int)b, i, s.dither()[i], random));
    return s;
}

/* Whether two numbers differ by at most `relative` of the second. */
bool is_near(double a, double b, double relative) { return fabs(a - b) <= relative * fabs(b); }

/* The screen of the CPU backend has the same steps, dither and bytes; its bounds of the error are
 * a little wider. */
bool has_bytes_of_cpu(const screened_head &s, gumbel_device *cpu, const char *what)
{
    const gumbel_tensor &weight = s.head.weight;
    const gumbel_screen_options options = {sizeof options, s.certificate, 0, &s.seed};
    gumbel_screen_offsets offsets;
    gumbel_screen screen = make_screen(cpu, &weight);
    if (gumbel_screen_prepare(cpu, NULL, &weight, &options, &screen, NULL) != GUMBEL_OK)
        die("%s: the CPU makes no screen", what);
    gumbel_screen_find_offsets(weight.rows, weight.cols, &offsets);
    const char *base = (const char *)screen.data;
    const float *steps = (const float *)(base + offsets.steps);
    const gumbel_screen_block *blocks = (const gumbel_screen_block *)(base + offsets.bounds);
    bool same = memcmp(base + offsets.dither, s.dither(), (size_t)weight.cols * 4) == 0;
    for (int64_t i = weight.cols; i < s.offsets.columns; i++)
        same &= s.dither()[i] == 0;
    for (int64_t row = 0; row < weight.rows && same; row++) {
        const uint8_t *copy =
            (const uint8_t *)base + offsets.copy + row / 16 * 16 * offsets.columns + row % 16 * 4;
        same = memcmp(&steps[row], &s.steps()[row], sizeof(float)) == 0 &&
               is_near(s.block(row).error, blocks[row / 64].error, 1e-3) &&
               is_near(s.block(row).size, blocks[row / 64].size, 1e-3) &&
               s.block(row).error <= blocks[row / 64].error;
        for (int64_t i = 0; i < weight.cols; i++)
            same &= s.byte(row, i) == copy[i / 64 * 1024 + i % 64 / 4 * 64 + i % 4] - 128;
        if (!same)
            printf("%s: row %d differs from the CPU's screen\n", what, (int)row);
    }
    free(screen.data);
    return same;
}

/* The planes and the terms of row b are the CPU's. The CPU finds the best set of at most 64
 * outliers. */
bool has_terms_of_cpu(const screened_head &s, const emulated_split &split, int64_t b,
                      const char *what)
{
    const int64_t columns = s.head.hidden.cols, padded = s.offsets.columns;
    std::vector<float> h((size_t)columns);
    std::vector<int8_t> high((size_t)padded), low((size_t)padded);
    double magnitude = 0.0;
    for (int64_t i = 0; i < columns; i++) {
        h[(size_t)i] = dtype_load(s.head.hidden.data, s.head.hidden.dtype, b * columns + i);
        magnitude += fabs((double)h[(size_t)i]);
    }
    const gumbel_screen_planes planes = {256, high.data(), low.data(), 64};
    const gumbel_screen_hidden_error &own = split.hidden_error[(size_t)b];
    const double error = (double)s.header().error;
    gumbel_screen_hidden_error best;
    if (!gumbel_screen_split_hidden(h.data(), columns, &s.header(), s.dither(),
                                    CUDA_SCREEN_GAMMA(columns), &planes, &best))
        die("%s: the CPU does not split row %d", what, (int)b);
    gumbel_screen_block block = {s.header().error, 0.0f};
    const bool certain =
        s.certificate == GUMBEL_SCREEN_CERTAIN || !(error > GUMBEL_SCREEN_DEVIATION);
    const bool flat = b < HIDDEN_FLAT_KINDS && columns > 100;
    const double slack = flat ? 0x1p-21 : columns < 64 ? 0.9 : b == HIDDEN_HEAVY ? 0.2 : 0.02;
    gumbel_screen_hidden_error own_width = own, best_width = best;
    own_width.rounding = best_width.rounding = 0.0f;
    const double width = gumbel_screen_error_width(&own_width, &block),
                 best_found = gumbel_screen_error_width(&best_width, &block);
    const bool same =
        own.unit == best.unit && is_near(own.residual, best.residual, 0x1p-20) &&
        is_near(own.rounding, best.rounding, 0x1p-22) &&
        fabs((double)own.shift - (double)best.shift) <=
            0x1p-23 * fabs((double)best.shift) + 0x1p-36 * magnitude &&
        (!certain || is_near(own.dithered, best.dithered, 0x1p-18)) &&
        width >= best_found * (1 - slack) && width <= best_found * (1 + slack) &&
        memcmp(high.data(), &split.planes[0][(size_t)(b * padded)], (size_t)columns) == 0 &&
        memcmp(low.data(), &split.planes[1][(size_t)(b * padded)], (size_t)columns) == 0;
    if (!same)
        printf("%s: row %d: unit %a, %a; residual %a, %a; rounding %a, %a; shift %a, %a; dithered "
               "%a, %a; width %a, %a (%.7f)\n",
               what, (int)b, (double)own.unit, (double)best.unit, (double)own.residual,
               (double)best.residual, (double)own.rounding, (double)best.rounding,
               (double)own.shift, (double)best.shift, (double)own.dithered, (double)best.dithered,
               width, best_found, width / best_found);
    return same;
}

/* Whether the logits of row b are within their bounds. */
bool are_within(const screened_head &s, const emulated_split &split, int64_t b, const float *logits,
                used_widths *used, const char *what)
{
    const int64_t columns = s.head.weight.cols, padded = s.offsets.columns;
    const gumbel_screen_hidden_error &own = split.hidden_error[(size_t)b];
    for (int64_t row = 0; row < s.head.weight.rows; row++) {
        int32_t high = 0, low = 0;
        for (int64_t i = 0; i < columns; i++) {
            high += s.byte(row, i) * split.planes[0][(size_t)(b * padded + i)];
            low += s.byte(row, i) * split.planes[1][(size_t)(b * padded + i)];
        }
        const float width = gumbel_screen_error_width(&own, &s.block(row)), step = s.steps()[row];
        const float upper = gumbel_screen_bound_logit(step, own.unit, 256, width - own.shift,
                                                      CUDA_SCREEN_TINY, high, low);
        const float lower = gumbel_screen_bound_logit(step, own.unit, 256, -width - own.shift,
                                                      -CUDA_SCREEN_TINY, high, low);
        const double middle = ((double)upper + (double)lower) / 2, half = (double)upper - middle;
        const double own_used = fabs((double)logits[row] - middle) / half;
        if (!(logits[row] >= lower && logits[row] <= upper)) {
            printf("%s: hidden state %d, row %d: logit %a is outside of %a .. %a\n", what, (int)b,
                   (int)row, (double)logits[row], (double)lower, (double)upper);
            return false;
        }
        used->largest = fmax(used->largest, own_used);
        if (b == HIDDEN_GAUSSIAN && s.certificate == GUMBEL_SCREEN_PROBABLE && columns > 1000 &&
            columns < 4096) {
            used->square += own_used * own_used;
            used->count++;
        }
    }
    return true;
}

bool passes(int index, gumbel_device *cpu, used_widths *used)
{
    uint64_t random = (uint64_t)index;
    char what[100];
    snprintf(what, sizeof what, "problem %d", index);
    screened_head s = make_screened(index, &random, what);
    const int64_t vocab = s.head.weight.rows;
    snprintf(what, sizeof what, "problem %d, %s, %s, [%d, %d], %s", index,
             head_kind_names[index % HEAD_KINDS], dtype_name(s.head.weight.dtype), (int)vocab,
             (int)s.head.weight.cols, s.certificate ? "certain" : "probable");
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.weight = s.head.weight;
    head.hidden = s.head.hidden;
    gumbel_sampling sampling = {};
    sampling.struct_size = sizeof sampling;
    emulated_launch launch = emulated_launch_of(
        head, sampling, false, cuda_sm90_width_for(HIDDEN_KINDS), 2, &random, what);
    std::vector<float> logits((size_t)(HIDDEN_KINDS * vocab));
    launch.params.logits_out = logits.data();
    launch.params.logits_out_stride = vocab;
    emulate_fused(launch);
    uint64_t thresholds[HIDDEN_KINDS * CUDA_THRESHOLD_WORDS];
    cuda_params call = launch.params;
    call.row_thresholds = thresholds;
    call.problem.screen = s.screen;
    const emulated_split split = emulate_split(call, &random, what);
    bool good = has_bytes_of_cpu(s, cpu, what);
    for (int64_t b = 0; b < HIDDEN_KINDS; b++) {
        good &= has_terms_of_cpu(s, split, b, what);
        if (b != HIDDEN_ALONG_DITHER || s.certificate == GUMBEL_SCREEN_CERTAIN)
            good &= are_within(s, split, b, &logits[(size_t)(b * vocab)], used, what);
    }
    free(s.screen);
    free_generated_head(&s.head);
    return good;
}

} // namespace

/* usage: test_screen_intervals [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    used_widths used = {};
    int failed = run_problems(argc, argv, 24, 240, [&](int i) { return passes(i, cpu, &used); });
    const double mean = sqrt(used.square / (double)(used.count + !used.count)),
                 predicted = 1 / (GUMBEL_SCREEN_DEVIATION * sqrt(12.0));
    printf("errors use at most %.3f of the half width; those of %d logits %.4f in the mean square, "
           "where sums of uniform errors use %.4f\n",
           used.largest, (int)used.count, mean, predicted);
    gumbel_close(cpu);
    if (argc > 1)
        return failed != 0;
    return failed != 0 || used.largest < 0.9 || mean > 1.02 * predicted || mean < 0.9 * predicted;
}
