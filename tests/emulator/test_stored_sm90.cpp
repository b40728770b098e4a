// SPDX-License-Identifier: Apache-2.0
//
// Tests the logits that the Hopper kernel stores if it does not draw:
// - logits agree with sums in double, and bit by bit with a second launch, which stores no maxima,
//   has another thread order and may have another kernel width;
// - the maxima of tiles are exact;
// - with bounds for truncated rows, every subtile that can affect an output is stored.
#include "launch_sm90.h"
#include "tables.h"

extern "C" {
#include "outcome.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace
{

struct test_problem {
    problem *generated;
    std::vector<double> weight, hidden, bias; /* values of the tensors */
    int64_t tokens;                           /* number of valid tokens */
    int ctas;
    uint64_t random;
    char what[400];
};

/* ------------------------------------------------------------------------------- a problem ---- */

problem_plan make_plan(int index, uint64_t *random)
{
    static const int64_t batches[] = {1, 16, 27, 64, 100, 256, 5, 300, 33, 130, 9, 65};
    static const gumbel_dtype biases[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    problem_plan plan = {};
    plan.batch = batches[index % 12];
    plan.vocab = 16 * (9 + random_below(random, 50));
    plan.hidden_size = 8 * (1 + random_below(random, one_in(random, 2) ? 8 : 30));
    plan.weight_dtype = one_in(random, 2) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.samples = plan.batch <= 64 && one_in(random, 4) ? 2 + random_below(random, 2) : 1;
    if (one_in(random, 2))
        plan.bias_dtype = biases[random_below(random, 3)];
    plan.scale = one_in(random, 4) ? -0.75f : 0.0f; /* must not affect stored logits */
    plan.first_token = one_in(random, 3) ? 4 * random_below(random, 1000) : 0;
    if (one_in(random, 2)) /* up to a tile of invalid tokens at the end */
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Sets a token's bias to +inf, -inf, NaN or a negative NaN, for kinds 0..3. */
void set_special_bias(test_problem *test, int64_t token, int kind)
{
    static const uint32_t single[4] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000};
    static const uint16_t half[4] = {0x7c00, 0xfc00, 0x7e00, 0xfe00};
    static const double values[4] = {INFINITY, -INFINITY, NAN, NAN};
    gumbel_dtype dtype = test->generated->plan.bias_dtype;
    uint16_t narrow = dtype == GUMBEL_FLOAT16 ? half[kind] : (uint16_t)(single[kind] >> 16);
    if (dtype == GUMBEL_FLOAT32)
        memcpy((float *)test->generated->bias + token, &single[kind], sizeof single[kind]);
    else
        memcpy((uint16_t *)test->generated->bias + token, &narrow, sizeof narrow);
    test->bias[(size_t)token] = values[kind];
}

/* One time in four, sets a hidden element of one row to NaN. If there is a bias, sets five random
 * elements of it to values that are not finite, and half of the time the first tile to -inf. */
void set_special_values(test_problem *test)
{
    const problem_plan *plan = &test->generated->plan;
    if (one_in(&test->random, 4)) {
        int64_t at = (plan->batch / 2) * plan->hidden_size + plan->hidden_size / 3;
        dtype_store_nan(test->generated->hidden, plan->hidden_dtype, at);
        test->hidden[(size_t)at] = NAN;
    }
    if (!plan->bias_dtype)
        return;
    int64_t empty = one_in(&test->random, 2) ? CUDA_SM90_TILE : 0;
    for (int64_t i = 0; i < empty; i++)
        set_special_bias(test, i, 1);
    for (int few = 0; few < 5; few++)
        set_special_bias(test, random_below(&test->random, (uint32_t)plan->vocab),
                         (int)random_below(&test->random, 4));
}

std::vector<double> widen_to_double(const void *data, gumbel_dtype dtype, int64_t count)
{
    std::vector<double> values((size_t)count);
    for (int64_t i = 0; data && i < count; i++)
        values[(size_t)i] = (double)dtype_load(data, dtype, i);
    return values;
}

test_problem make_test(int index)
{
    test_problem test = {};
    test.random = (uint64_t)index;
    problem_plan plan = make_plan(index, &test.random);
    test.generated = problem_make(&plan);
    test.weight =
        widen_to_double(test.generated->weight, plan.weight_dtype, plan.vocab * plan.hidden_size);
    test.hidden =
        widen_to_double(test.generated->hidden, plan.hidden_dtype, plan.batch * plan.hidden_size);
    test.bias = widen_to_double(test.generated->bias, plan.bias_dtype, plan.vocab);
    test.tokens = plan.vocab;
    if (plan.vocab_size && plan.vocab_size - plan.first_token < plan.vocab)
        test.tokens = plan.vocab_size - plan.first_token;
    test.ctas = 1 + (int)random_below(&test.random, 4);
    snprintf(test.what, sizeof test.what, "problem %d, %d CTAs: %s", index, test.ctas,
             problem_describe(&plan));
    set_special_values(&test);
    return test;
}

/* Emulates launches, one per group of rows, that store the logits and, unless NULL, the maxima. */
void store_emulated(test_problem *test, table *logits, table *maxima)
{
    const problem_plan *plan = &test->generated->plan;
    int64_t launch_rows_max = cuda_sm90_max_rows(plan->samples);
    for (int64_t first = 0; first < plan->batch; first += launch_rows_max) {
        int64_t rows =
            plan->batch - first < launch_rows_max ? plan->batch - first : launch_rows_max;
        gumbel_head head;
        gumbel_sampling sampling;
        problem_rows(test->generated, first, rows, &head, &sampling);
        int width = emulated_width(rows, plan->samples, &test->random);
        emulated_launch launch = emulated_launch_of(head, sampling, one_in(&test->random, 2), width,
                                                    test->ctas, &test->random, test->what);
        cuda_params *p = &launch.params;
        p->logits_out = logits->row(first);
        p->logits_out_stride = logits->stride;
        p->block_maxima = maxima ? maxima->row(first) : NULL;
        p->block_maxima_stride = maxima ? maxima->stride : 0;
        emulate_fused(launch);
    }
}

/* ---------------------------------------------------------------------------- comparison ---- */

/* Whether a logit equals its sum in double, up to one float32 rounding per term. */
bool logit_agrees(const test_problem &test, int64_t row, int64_t token, double logit)
{
    size_t size = (size_t)test.generated->plan.hidden_size;
    const double *w = test.weight.data() + (size_t)token * size;
    const double *h = test.hidden.data() + (size_t)row * size;
    double sum = test.bias[(size_t)token], terms = fabs(sum);
    for (size_t k = 0; k < size; k++) {
        sum += w[k] * h[k];
        terms += fabs(w[k] * h[k]);
    }
    return same(logit, sum) || fabs(logit - sum) <= 0x1p-24 * (double)(size + 1) * terms;
}

bool logits_agree(const test_problem &test, table *logits)
{
    for (int64_t b = 0; b <= logits->rows; b++)
        for (int64_t i = 0; i < logits->stride; i++) {
            bool valid = b < logits->rows && i < test.tokens;
            double logit = (double)logits->row(b)[i];
            if (valid ? logit_agrees(test, b, i, logit) : logits->poisoned(b, i))
                continue;
            printf("%s: row %d, token %d%s: logit %a\n", test.what, (int)b, (int)i,
                   valid ? "" : ", which does not count", logit);
            return false;
        }
    return true;
}

/* The largest stored logit of a row's block `at` of `size` tokens; NaN if one is NaN. */
float find_maximum(const test_problem &test, table *logits, int64_t row, int64_t at,
                   int64_t size = CUDA_SM90_TILE)
{
    float maximum = -INFINITY;
    for (int64_t i = at * size; i < (at + 1) * size && i < test.tokens; i++) {
        float logit = logits->row(row)[i];
        if (!(logit <= maximum) && !std::isnan(maximum))
            maximum = logit;
    }
    return maximum;
}

bool block_maxima_agree(const test_problem &test, table *logits, table *maxima)
{
    int64_t tiles = (test.tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE;
    for (int64_t b = 0; b <= maxima->rows; b++)
        for (int64_t t = 0; t < maxima->stride; t++) {
            bool valid = b < maxima->rows && t < tiles;
            float maximum = maxima->row(b)[t],
                  expected = valid ? find_maximum(test, logits, b, t) : 0.0f;
            if (valid ? same((double)maximum, (double)expected) : maxima->poisoned(b, t))
                continue;
            printf("%s: row %d, tile %d of %d: maximum %a, not %a\n", test.what, (int)b, (int)t,
                   (int)tiles, (double)maximum, (double)expected);
            return false;
        }
    return true;
}

/* ------------------------------------------------------------------- storing with bounds ---- */

/* A temperature past kScaleMax (required_tokens.cuh): the kernel bounds no row that has it. */
constexpr float kUnboundedTemperature = 1e25f;

/* Initial value of stored_subtiles; bytes of rows past the batch must keep it. */
constexpr uint8_t kUntouched = 0xa5;

/* Bytes of a tile in stored_subtiles: one per row, rounded up to 32 rows. */
size_t padded_rows(int64_t batch) { return (size_t)(batch + 31) / 32 * 32; }

/* Truncation, mask and history of the rows, and the arrays that the CTAs of a launch share. */
struct bounded_rows {
    std::vector<int32_t> top_k, mask; /* [B]; [B][words], or empty */
    std::vector<float> min_p, temperature;
    int num_top;
    int64_t words;                        /* of a row's mask, and of its history */
    std::vector<uint32_t> prompt, output; /* [B][words], or empty */
    std::vector<uint8_t> stored_subtiles;
    std::vector<uint64_t> thresholds;
};

bounded_rows make_bounded_rows(test_problem *test, int64_t tiles)
{
    static const int32_t top_ks[] = {0, 1, 1, 2, 3, 300};
    static const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.9f, 1.0f},
                       temperatures[] = {1.0f, 0.0f, 0.7f, kUnboundedTemperature};
    const problem_plan *plan = &test->generated->plan;
    uint64_t *random = &test->random;
    bounded_rows rows = {};
    size_t batch = (size_t)plan->batch;
    rows.num_top = one_in(random, 3) ? 1 + (int)random_below(random, 3) : 0;
    rows.words = (plan->first_token + plan->vocab + 31) / 32;
    if (one_in(random, 2))
        rows.mask.resize(batch * (size_t)rows.words);
    if (one_in(random, 2)) {
        rows.prompt.resize(batch * (size_t)rows.words);
        rows.output.resize(batch * (size_t)rows.words);
    }
    for (uint32_t &word : rows.prompt)
        word = (uint32_t)(random_bits(random) & random_bits(random));
    for (uint32_t &word : rows.output)
        word = one_in(random, 9) ? ~0u : (uint32_t)(random_bits(random) & random_bits(random));
    for (int32_t &word : rows.mask)
        word = one_in(random, 9) ? 0 : (int32_t)(random_bits(random) | random_bits(random));
    for (size_t b = 0; b < batch; b++) {
        rows.top_k.push_back(top_ks[random_below(random, 6)]);
        rows.min_p.push_back(min_ps[random_below(random, 5)]);
        rows.temperature.push_back(temperatures[random_below(random, 4)]);
    }
    rows.stored_subtiles.assign((size_t)tiles * padded_rows((int64_t)batch), kUntouched);
    rows.thresholds.resize(batch * CUDA_THRESHOLD_WORDS);
    memset(rows.thresholds.data(), 0xff, rows.thresholds.size() * sizeof rows.thresholds[0]);
    return rows;
}

constexpr uint64_t kLaunchTag = 0xa5a5a5a5a4;

/* Number of rows whose bounds one CTA raises. */
constexpr int64_t kRowsPerBoundCta = 2;

/* Stores bounds that no logit reaches, as an earlier replay could, with the tag of this launch:
 * the launch must clear them before it reads any. */
void store_stale_bounds(bounded_rows *rows, int64_t ctas)
{
    constexpr uint64_t largest = 0xff7fff; /* FLT_MAX as a threshold */
    for (int64_t b = 0; b < std::min((int64_t)rows->top_k.size(), ctas * kRowsPerBoundCta); b++)
        rows->thresholds[(size_t)b * CUDA_THRESHOLD_WORDS] = kLaunchTag << 24 | largest;
}

/* Emulates a launch that stores only the subtiles whose maximum reaches the bound of its row. */
void store_with_bounds(test_problem *test, bounded_rows *rows, table *logits, table *maxima,
                       table *unseen)
{
    static const float presence = 0.5f;
    gumbel_head head;
    gumbel_sampling sampling;
    problem_rows(test->generated, 0, test->generated->plan.batch, &head, &sampling);
    int width = emulated_width(test->generated->plan.batch, 1, &test->random);
    if (width == kPairedWidth) /* stores all logits */
        width--;
    emulated_launch launch =
        emulated_launch_of(head, sampling, false, width, test->ctas, &test->random, test->what);
    cuda_params *p = &launch.params;
    gumbel_problem *q = &p->problem;
    q->features = GUMBEL_FEATURE_TRUNCATION | (rows->num_top ? GUMBEL_FEATURE_TOP : 0) |
                  (rows->mask.empty() ? 0 : GUMBEL_FEATURE_MASK) |
                  (rows->prompt.empty() ? 0 : GUMBEL_FEATURE_PENALTIES);
    q->truncation.top_k = {rows->top_k.data(), 1};
    q->truncation.min_p = {rows->min_p.data(), 1};
    q->transforms.mask = {rows->mask.data(), rows->words};
    q->transforms.presence = {&presence, 0}; /* one value for all rows */
    q->history.vocab_size = 32 * rows->words;
    q->history.prompt = rows->prompt.data();
    q->history.output = rows->output.data();
    q->sampling.temperature = {rows->temperature.data(), 1};
    p->output.num_top = rows->num_top;
    p->logits_out = logits->row(0);
    p->logits_out_stride = logits->stride;
    p->block_maxima = maxima->row(0);
    p->block_maxima_stride = maxima->stride;
    p->tag = kLaunchTag;
    p->row_thresholds = rows->thresholds.data();
    p->stored_subtiles = rows->stored_subtiles.data();
    p->unseen_block_maxima = rows->prompt.empty() ? NULL : unseen->row(0);
    emulate_fused(launch);
}

/* Sets logits to -inf where drops(row, word, bit) holds, and recomputes the maxima. */
template <class F> void drop_logits(const test_problem &test, table *logits, table *maxima, F drops)
{
    const int64_t first = test.generated->plan.first_token;
    for (int64_t b = 0; b < logits->rows; b++) {
        for (int64_t i = 0; i < test.tokens; i++)
            if (drops(b, (first + i) / 32, (first + i) % 32))
                logits->row(b)[i] = -INFINITY;
        for (int64_t t = 0; t * CUDA_SM90_TILE < test.tokens; t++)
            maxima->row(b)[t] = find_maximum(test, logits, b, t);
    }
}

/* Returns a value such that no smaller logit of row b can affect an output; -inf if each can. If
 * the outputs require `count` tokens, that is the count-th largest block maximum; with min_p and no
 * top_k, at most the smallest logit that min_p keeps. */
double find_smallest_required_logit(const test_problem &test, const bounded_rows &rows,
                                    std::vector<float> maxima, size_t b)
{
    const problem_plan *plan = &test.generated->plan;
    bool greedy = rows.temperature[b] == 0.0f;
    int32_t k = greedy ? 1 : rows.top_k[b];
    int32_t count = rows.num_top ? std::max(k, rows.num_top) : k;
    double smallest = INFINITY, scale = plan->scale != 0.0f ? (double)plan->scale : 1.0;
    bool uses_min_p = !greedy && rows.min_p[b] > 0.0f;
    if (scale < 0.0 || k > CUDA_TRUNCATED_TOP_MAX || (k == 0 && !uses_min_p) ||
        (size_t)count > maxima.size() || rows.temperature[b] == kUnboundedTemperature)
        return -INFINITY;
    std::sort(maxima.begin(), maxima.end(), [](float x, float y) {
        return std::isnan(x) ? !std::isnan(y) : x > y; /* NaN is the largest */
    });
    if (count > 0)
        smallest = (double)maxima[(size_t)count - 1];
    if (uses_min_p && k == 0)
        smallest = std::min(smallest, (double)maxima[0] + log((double)rows.min_p[b]) *
                                                              (double)rows.temperature[b] / scale);
    return smallest;
}

/* Fraction of the unneeded subtiles that must not be stored; small, as a row has no bound during
 * its first tiles. */
constexpr double kDroppedShareMin = 0.02;

/* Subtiles that cannot affect an output, of rows with bounds; subtiles that were not stored. */
struct bound_counts {
    int64_t unneeded, dropped;
};

/* Whether a subtile of row b has the expected logits if `stored`, and is unwritten otherwise. */
bool subtile_agrees(const test_problem &test, table *expected, table *found, int64_t b,
                    int64_t subtile, bool stored)
{
    const int64_t first = subtile * CUDA_SUBTILE;
    for (int64_t i = first; i < std::min(first + CUDA_SUBTILE, test.tokens); i++)
        if (stored ? !same((double)found->row(b)[i], (double)expected->row(b)[i])
                   : !found->poisoned(b, i))
            return false;
    return true;
}

/* Whether every subtile that may affect an output is stored, and the launch wrote no byte of
 * stored_subtiles past the batch. */
bool bounds_agree(const test_problem &test, const bounded_rows &rows, table *expected, table *found,
                  table *unseen, bound_counts *counts)
{
    const size_t row_stride = padded_rows(expected->rows),
                 tiles = rows.stored_subtiles.size() / row_stride;
    for (int64_t b = 0; b < expected->rows; b++) {
        const float *unseen_maxima = unseen->row(b);
        double smallest = find_smallest_required_logit(
            test, rows, {unseen_maxima, unseen_maxima + tiles}, (size_t)b);
        double low = smallest - std::max(std::fabs(smallest) * 0x1p-19, 0x1p-39);
        for (int64_t subtile = 0; subtile < (int64_t)tiles * CUDA_SUBTILES; subtile++) {
            size_t tile = (size_t)subtile / CUDA_SUBTILES;
            uint32_t stored_bits = rows.stored_subtiles[tile * row_stride + (size_t)b];
            double maximum = (double)find_maximum(test, expected, b, subtile, CUDA_SUBTILE);
            bool stored = stored_bits >> subtile % CUDA_SUBTILES & 1;
            bool unneeded = !(maximum >= low || std::isnan(maximum));
            counts->unneeded += unneeded && b < test.ctas * kRowsPerBoundCta;
            counts->dropped += !stored;
            if ((stored || unneeded) && subtile_agrees(test, expected, found, b, subtile, stored))
                continue;
            printf("%s: row %d, subtile %d with maximum %a is %s; the bound is %a\n", test.what,
                   (int)b, (int)subtile, maximum, stored ? "stored wrongly" : "not stored", low);
            return false;
        }
    }
    for (size_t i = 0; i < rows.stored_subtiles.size(); i++) /* rows past the batch */
        if (i % row_stride >= (size_t)expected->rows && rows.stored_subtiles[i] != kUntouched)
            return false;
    return true;
}

bool block_maxima_are(const table &found, const table &expected, int64_t tiles)
{
    for (int64_t b = 0; b < found.rows; b++)
        for (int64_t t = 0; t < tiles; t++)
            if (!same((double)found.all[(size_t)(b * found.stride + t)],
                      (double)expected.all[(size_t)(b * expected.stride + t)]))
                return false;
    return true;
}

/* Compares two launches that store with bounds in the same arrays, as replays of a graph do. */
bool bounds_pass(test_problem *test, table *logits, table *maxima, bound_counts *counts)
{
    const int64_t tiles = (test->tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE;
    if (one_in(&test->random, 2)) /* a single CTA waits for no other */
        test->ctas = 1;
    bounded_rows rows = make_bounded_rows(test, tiles);
    table whole = *logits, all_block_maxima = *maxima;
    if (!rows.mask.empty())
        drop_logits(*test, &whole, &all_block_maxima, [&](int64_t b, int64_t word, int64_t bit) {
            return !(rows.mask[(size_t)(b * rows.words + word)] >> bit & 1);
        });
    table clear = whole, unseen = all_block_maxima;
    if (!rows.prompt.empty())
        drop_logits(*test, &clear, &unseen, [&](int64_t b, int64_t word, int64_t bit) {
            size_t at = (size_t)(b * rows.words + word);
            return (rows.prompt[at] | rows.output[at]) >> bit & 1;
        });
    for (int launch = 0; launch < 2; launch++) {
        table found(logits->rows, logits->stride), found_maxima(maxima->rows, maxima->stride),
            unseen_maxima = found_maxima;
        store_stale_bounds(&rows, std::min((int64_t)test->ctas, tiles));
        store_with_bounds(test, &rows, &found, &found_maxima, &unseen_maxima);
        if (!bounds_agree(*test, rows, &whole, &found, &unseen, counts) ||
            !block_maxima_are(found_maxima, all_block_maxima, tiles) ||
            !(rows.prompt.empty() || block_maxima_are(unseen_maxima, unseen, tiles))) {
            printf("%s: launch %d with bounds\n", test->what, launch);
            return false;
        }
        rows.thresholds[1] = 0; /* the counter of started CTAs */
    }
    return true;
}

bool run_problem(int index, bound_counts *counts)
{
    test_problem test = make_test(index);
    const problem_plan *plan = &test.generated->plan;
    int64_t gap = 2 * random_below(&test.random, 3);
    table logits(plan->batch, plan->vocab + gap), again = logits;
    table maxima(plan->batch, plan->vocab / CUDA_SM90_TILE + 1 + gap);
    store_emulated(&test, &logits, &maxima);
    store_emulated(&test, &again, NULL);
    bool good = logits_agree(test, &logits) && block_maxima_agree(test, &logits, &maxima);
    if (!same_bits(logits, again)) {
        printf("%s: logits differ without maxima and in another thread order\n", test.what);
        good = false;
    }
    if (good && plan->batch <= CUDA_BOUND_ROWS_MAX)
        good = bounds_pass(&test, &logits, &maxima, counts);
    problem_free(test.generated);
    return good;
}

} // namespace

/* usage: test_stored_sm90 [FIRST_PROBLEM [COUNT]] */
int main(int argc, char **argv)
{
    bound_counts counts = {};
    int failed = run_problems(argc, argv, 24, 500, [&](int i) { return run_problem(i, &counts); });
    printf("%d subtiles cannot affect an output, %d subtiles were not stored\n",
           (int)counts.unneeded, (int)counts.dropped);
    bool too_many_stored =
        counts.unneeded >= 50 && counts.dropped < kDroppedShareMin * (double)counts.unneeded;
    if (too_many_stored)
        printf("too many subtiles are stored\n");
    return failed != 0 || too_many_stored;
}
