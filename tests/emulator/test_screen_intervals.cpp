// SPDX-License-Identifier: Apache-2.0
//
// The numbers of screens on Hopper, of both formats: the kernels' source on a CPU makes screens and
// splits hidden states. Steps, columns and integers are the CPU backend's, bit for bit, and each
// term of the error bound is that of the CPU's function, up to its rounding. The logits of the full
// pass are within their bounds, and probable bounds are used as the law of uniform sums predicts.
#include "screened_heads.h"

#include "launch_sm90.h"

#include <math.h>
#include <stdio.h>

namespace
{

/* Fractions of their half widths that the errors of logits take: the largest, and for Gaussian
 * hidden states with probable bounds the sum of squares. */
struct used_widths {
    double largest, square;
    int64_t count;
};

/* Bounds by bytes; by all bits of nibbles; by their high bits alone. */
enum product { PRODUCT_BYTES, PRODUCT_NIBBLES, PRODUCT_COARSE, PRODUCTS };

/* Whether two numbers differ by at most `relative` of the second. */
bool is_near(double a, double b, double relative) { return fabs(a - b) <= relative * fabs(b); }

/* The screen of the CPU backend has the same steps, dither, scales and integers; its bounds of the
 * error are a little wider. */
bool has_bytes_of_cpu(const screened_head &s, gumbel_device *cpu, const char *what)
{
    const gumbel_tensor &weight = s.head.weight;
    const gumbel_screen_options options = {sizeof options, s.certificate, s.format, &s.seed};
    gumbel_screen_offsets offsets;
    gumbel_screen screen = make_screen(cpu, &weight);
    if (gumbel_screen_prepare(cpu, NULL, &weight, &options, &screen, NULL) != GUMBEL_OK)
        die("%s: the CPU makes no screen", what);
    gumbel_screen_find_offsets(weight.rows, weight.cols, &offsets);
    const char *base = (const char *)screen.data;
    const float *steps = (const float *)(base + offsets.steps);
    const gumbel_screen_block *blocks = (const gumbel_screen_block *)(base + offsets.bounds);
    bool same = memcmp(base + offsets.dither, s.columns(), (size_t)weight.cols * 4) == 0;
    for (int64_t i = weight.cols; i < s.offsets.columns; i++)
        same &= s.dither(i) == 0 && s.columns()[i] % GUMBEL_SCREEN_SCALES == 0;
    if (!same)
        printf("%s: the columns differ from the CPU's screen\n", what);
    for (int64_t row = 0; row < weight.rows && same; row++) {
        const bool both_nan = isnan(steps[row]) && isnan(s.steps()[row]);
        same = (both_nan || memcmp(&steps[row], &s.steps()[row], sizeof(float)) == 0) &&
               is_near(s.block(row).error, blocks[row / 64].error, 1e-3) &&
               is_near(s.block(row).size, blocks[row / 64].size, 1e-3) &&
               s.block(row).error <= blocks[row / 64].error;
        for (int64_t i = 0; i < weight.cols; i++)
            same &= s.byte(row, i) == read_byte_of_cpu(base, offsets, s.format, row, i);
        if (!same)
            printf("%s: row %d differs from the CPU's screen\n", what, (int)row);
    }
    free(screen.data);
    return same;
}

/* A hidden state, multiplied by the scales of nibbles. */
std::vector<float> load_hidden(const screened_head &s, int64_t b)
{
    const int64_t columns = s.head.hidden.cols;
    std::vector<float> h((size_t)columns);
    for (int64_t i = 0; i < columns; i++)
        h[(size_t)i] = dtype_load(s.head.hidden.data, s.head.hidden.dtype, b * columns + i);
    if (s.format == GUMBEL_SCREEN_NIBBLES)
        gumbel_screen_scale_hidden((const gumbel_screen_column *)s.columns(), columns, h.data());
    return h;
}

/* Whether the terms of quantization and shift are those of the CPU, which finds the best set of at
 * most 64 outliers. */
bool has_quantization_of_cpu(const screened_head &s, gumbel_screen_hidden_error own,
                             gumbel_screen_hidden_error best, bool is_coarse, int64_t b,
                             const char *what)
{
    const bool nested = s.format == GUMBEL_SCREEN_NIBBLES;
    const int64_t columns = s.head.hidden.cols;
    const double norm = (double)s.header().error + (is_coarse ? (double)s.low_nibbles() : 0.0);
    const double deviation = nested ? GUMBEL_SCREEN_NESTED_DEVIATION : GUMBEL_SCREEN_DEVIATION;
    const bool certain =
        s.certificate == GUMBEL_SCREEN_CERTAIN || !(norm > (is_coarse ? 16 : 1) * deviation);
    const bool flat = b < HIDDEN_FLAT_KINDS && columns > 100 && !nested;
    /* Three limits do not find the best set of outliers if it has many columns. That of the CPU has
     * 64 at most. */
    const double slack = flat ? 0x1p-21 : b == HIDDEN_HEAVY ? 0.2 : 0.02;
    const double above = columns < 64 ? 1.0 : is_coarse && (certain || columns < 65) ? 0.4 : slack;
    const double below = columns < 65 ? 1e-3 : above;
    const gumbel_screen_block block = {s.header().error, 0.0f};
    double magnitude = 0.0;
    for (float x : load_hidden(s, b))
        magnitude += fabs((double)x);
    own.rounding = best.rounding = own.residual = best.residual = 0.0f;
    const auto find_width = [&](const gumbel_screen_hidden_error &e) -> double {
        return is_coarse ? gumbel_screen_coarse_width(&e, &block, s.low_nibbles())
                         : gumbel_screen_error_width(&e, &block);
    };
    const double width = find_width(own), best_found = find_width(best);
    const double max_dither = is_coarse ? 16 : nested ? 8.5 : 0.5;
    const bool same = fabs((double)own.shift - (double)best.shift) <=
                          0x1p-23 * fabs((double)best.shift) + max_dither * 0x1p-35 * magnitude &&
                      (!certain || is_near(own.dithered, best.dithered, 0x1p-18)) &&
                      width >= best_found * (1 - below) && width <= best_found * (1 + above);
    if (!same)
        printf("%s: row %d%s: shift %a, %a; dithered %a, %a; width %a, %a (%.7f)\n", what, (int)b,
               is_coarse ? ", coarse" : "", (double)own.shift, (double)best.shift,
               (double)own.dithered, (double)best.dithered, width, best_found, width / best_found);
    return same;
}

/* The planes and the terms of row b are the CPU's. Coarse terms have both planes, unlike the CPU's.
 */
bool has_terms_of_cpu(const screened_head &s, const emulated_split &split, int64_t b,
                      const char *what)
{
    const int64_t columns = s.head.hidden.cols, padded = s.offsets.columns;
    const std::vector<float> h = load_hidden(s, b);
    std::vector<int8_t> high((size_t)padded), low((size_t)padded), single((size_t)padded);
    const gumbel_screen_planes planes = {256, high.data(), low.data(), 64};
    const gumbel_screen_hidden_error &own = split.hidden_error[(size_t)b];
    gumbel_screen_hidden_error best, coarse, refined;
    if (!gumbel_screen_split_hidden(h.data(), columns, &s.header(), s.columns(),
                                    CUDA_SCREEN_GAMMA(columns), &planes, &best))
        die("%s: the CPU does not split row %d", what, (int)b);
    bool same = own.unit == best.unit && is_near(own.residual, best.residual, 0x1p-20) &&
                is_near(own.rounding, best.rounding, 0x1p-22) &&
                memcmp(high.data(), &split.planes[0][(size_t)(b * padded)], (size_t)columns) == 0 &&
                memcmp(low.data(), &split.planes[1][(size_t)(b * padded)], (size_t)columns) == 0;
    if (s.format == GUMBEL_SCREEN_NIBBLES) {
        const gumbel_screen_hidden_error &own_coarse = split.coarse_error[(size_t)b];
        gumbel_screen_round_hidden(h.data(), columns, &s.header(), s.columns(), &best,
                                   single.data(), 64, &coarse, &refined);
        same &= own_coarse.unit == own.unit && own_coarse.residual == own.residual &&
                own_coarse.rounding == own.rounding &&
                has_quantization_of_cpu(s, own_coarse, coarse, true, b, what);
    }
    if (!same)
        printf("%s: row %d: unit %a, %a; residual %a, %a; rounding %a, %a\n", what, (int)b,
               (double)own.unit, (double)best.unit, (double)own.residual, (double)best.residual,
               (double)own.rounding, (double)best.rounding);
    return has_quantization_of_cpu(s, own, best, false, b, what) && same;
}

/* Bounds of the logit of a row of weights, and of row b of the hidden states. */
struct logit_bounds {
    float lower, upper;
};

logit_bounds bound_logit(const screened_head &s, const emulated_split &split, int64_t b,
                         int64_t row, product kind)
{
    const int8_t *planes[2] = {&split.planes[0][(size_t)(b * s.offsets.columns)],
                               &split.planes[1][(size_t)(b * s.offsets.columns)]};
    const gumbel_screen_hidden_error &own =
        kind == PRODUCT_COARSE ? split.coarse_error[(size_t)b] : split.hidden_error[(size_t)b];
    int32_t high = 0, low = 0;
    for (int64_t i = 0; i < s.head.weight.cols; i++) {
        const int q = kind == PRODUCT_COARSE ? s.high_nibble(row, i) : s.byte(row, i);
        high += q * planes[0][i];
        low += q * planes[1][i];
    }
    const float width = kind == PRODUCT_COARSE
                            ? gumbel_screen_coarse_width(&own, &s.block(row), s.low_nibbles())
                            : gumbel_screen_error_width(&own, &s.block(row));
    const float step = s.steps()[row];
    return {gumbel_screen_bound_logit(step, own.unit, 256, -width - own.shift, -CUDA_SCREEN_TINY,
                                      high, low),
            gumbel_screen_bound_logit(step, own.unit, 256, width - own.shift, CUDA_SCREEN_TINY,
                                      high, low)};
}

/* Whether the logits of row b are within their bounds. */
bool are_within(const screened_head &s, const emulated_split &split, int64_t b, const float *logits,
                product kind, used_widths *used, const char *what)
{
    const int64_t columns = s.head.weight.cols;
    for (int64_t row = 0; row < s.head.weight.rows; row++) {
        const logit_bounds bounds = bound_logit(s, split, b, row, kind);
        const double middle = ((double)bounds.upper + (double)bounds.lower) / 2;
        const double own_used =
            fabs((double)logits[row] - middle) / ((double)bounds.upper - middle);
        if (!(logits[row] >= bounds.lower && logits[row] <= bounds.upper)) {
            printf("%s: hidden state %d, row %d, product %d: logit %a is outside of %a .. %a\n",
                   what, (int)b, (int)row, kind, (double)logits[row], (double)bounds.lower,
                   (double)bounds.upper);
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

/* Calls with masks have the same planes and terms. A call of the other format, which is not that of
 * the screen, takes the full pass. */
bool splits_other_calls(const emulated_split &split, cuda_params call, uint64_t *random,
                        const char *what)
{
    bool same = true;
    call.problem.features = GUMBEL_FEATURE_MASK;
    const emulated_split masked = emulate_split(call, random, what);
    for (int plane = 0; plane < 2; plane++)
        same &= masked.planes[plane] == split.planes[plane];
    call.problem.screen_format = !call.problem.screen_format;
    const emulated_split other = emulate_split(call, random, what);
    for (size_t b = 0; b < split.hidden_error.size(); b++) {
        const gumbel_screen_hidden_error &a = masked.hidden_error[b],
                                         &wanted = split.hidden_error[b];
        same &= memcmp(&a, &wanted, sizeof a) == 0 && isnan(other.hidden_error[b].unit);
    }
    if (!same)
        printf("%s: another call is split in another way\n", what);
    return same;
}

/* Splits the hidden states of a head, and stores its logits [HIDDEN_KINDS, V]. */
emulated_split split_head(const screened_head &s, float *logits, bool *good, uint64_t *random,
                          const char *what)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.weight = s.head.weight;
    head.hidden = s.head.hidden;
    gumbel_sampling sampling = {};
    sampling.struct_size = sizeof sampling;
    emulated_launch launch = emulated_launch_of(head, sampling, false,
                                                cuda_sm90_width_for(HIDDEN_KINDS), 2, random, what);
    launch.params.logits_out = logits;
    launch.params.logits_out_stride = s.head.weight.rows;
    emulate_fused(launch);
    uint64_t thresholds[HIDDEN_KINDS * CUDA_THRESHOLD_WORDS];
    cuda_params call = launch.params;
    call.row_thresholds = thresholds;
    call.problem.screen = s.screen;
    call.problem.screen_format = s.format;
    const emulated_split split = emulate_split(call, random, what);
    *good = splits_other_calls(split, call, random, what);
    return split;
}

bool passes(int index, gumbel_screen_format format, gumbel_device *cpu, used_widths *used)
{
    uint64_t random = (uint64_t)index;
    char what[100];
    snprintf(what, sizeof what, "problem %d", index);
    screened_head s = make_screened(index, format, &random, what);
    const int64_t vocab = s.head.weight.rows;
    const bool nested = format == GUMBEL_SCREEN_NIBBLES;
    snprintf(what, sizeof what, "problem %d, %s, %s, [%d, %d], %s, %s", index,
             head_kind_names[index % HEAD_KINDS], dtype_name(s.head.weight.dtype), (int)vocab,
             (int)s.head.weight.cols, s.certificate ? "certain" : "probable",
             nested ? "nibbles" : "bytes");
    std::vector<float> logits((size_t)(HIDDEN_KINDS * vocab));
    bool good;
    const emulated_split split = split_head(s, logits.data(), &good, &random, what);
    good &= has_bytes_of_cpu(s, cpu, what);
    for (int64_t b = 0; b < HIDDEN_KINDS; b++) {
        const float *own = &logits[(size_t)(b * vocab)];
        good &= has_terms_of_cpu(s, split, b, what);
        if (b == HIDDEN_ALONG_DITHER && s.certificate != GUMBEL_SCREEN_CERTAIN)
            continue;
        for (int kind = nested ? PRODUCT_NIBBLES : 0; kind <= (nested ? PRODUCT_COARSE : 0); kind++)
            good &= are_within(s, split, b, own, (product)kind, used + kind, what);
    }
    free_screened(&s);
    return good;
}

/* A screen of any shape, dtype and stride, with rows that are not finite, is the CPU's. */
bool makes_odd_screen(int index, gumbel_screen_format format, gumbel_device *cpu)
{
    uint64_t random = (uint64_t)index + 1000;
    char what[100];
    snprintf(what, sizeof what, "odd screen %d of format %d", index, format);
    screened_head s = make_odd_screened(index, format, &random, what);
    const bool good = has_bytes_of_cpu(s, cpu, what);
    free_screened(&s);
    return good;
}

/* Probable bounds are used as the law of uniform sums predicts. */
bool is_used_as_predicted(const used_widths &used, product kind)
{
    const double deviation =
        kind == PRODUCT_BYTES ? GUMBEL_SCREEN_DEVIATION : GUMBEL_SCREEN_NESTED_DEVIATION;
    const double mean = sqrt(used.square / (double)(used.count + !used.count)),
                 predicted = 1 / (deviation * sqrt(12.0));
    printf("product %d: errors use at most %.3f of the half width; those of %d logits %.4f in the "
           "mean square, where sums of uniform errors use %.4f\n",
           kind, used.largest, (int)used.count, mean, predicted);
    return mean <= 1.02 * predicted && mean >= 0.85 * predicted;
}

} // namespace

/* usage: test_screen_intervals [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    used_widths used[PRODUCTS] = {};
    int failed = run_problems(argc, argv, 24, 240, [&](int i) {
        bool good = true;
        for (int format = GUMBEL_SCREEN_BYTES; format <= GUMBEL_SCREEN_NIBBLES; format++) {
            good &= passes(i, (gumbel_screen_format)format, cpu, used);
            good &= makes_odd_screen(i, (gumbel_screen_format)format, cpu);
        }
        return good;
    });
    bool predicted = true;
    for (int kind = 0; kind < PRODUCTS; kind++)
        predicted &= is_used_as_predicted(used[kind], (product)kind);
    gumbel_close(cpu);
    if (argc > 1)
        return failed != 0;
    return failed != 0 || used[PRODUCT_BYTES].largest < 0.9 || !predicted;
}
