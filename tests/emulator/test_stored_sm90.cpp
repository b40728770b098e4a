// SPDX-License-Identifier: Apache-2.0
//
// Logits that the Hopper kernel stores undrawn, against plain loops in double, and once more in
// another order by another kernel, bit by bit; and the peaks of their tiles, which are exact.
#include "launch_sm90.h"

extern "C" {
#include "outcome.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmath>
#include <vector>

namespace
{

constexpr uint32_t kPoison = 0xa5a5a5a5; /* no logit: -3e-16 */

/* What one launch or more write: rows at a stride, and a row that none may touch. */
struct table {
    int64_t rows, stride;
    std::vector<float> all;

    table(int64_t r, int64_t s) : rows(r), stride(s), all((size_t)((r + 1) * s))
    {
        for (float &x : all)
            memcpy(&x, &kPoison, sizeof x);
    }
    float *row(int64_t r) { return all.data() + r * stride; }
    bool poisoned(int64_t r, int64_t c) { return memcmp(row(r) + c, &kPoison, 4) == 0; }
};

struct test_problem {
    problem *made;
    std::vector<double> weight, hidden, bias; /* what the tensors hold */
    int64_t tokens;                           /* that count */
    int ctas;
    uint64_t random; /* state */
    char what[400];  /* for messages */
};

/* ------------------------------------------------------------------------------- a problem ---- */

problem_plan plan_of(int index, uint64_t *random)
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
    plan.scale = one_in(random, 4) ? -0.75f : 0.0f; /* not of logits: nothing of it may show */
    plan.first_token = one_in(random, 3) ? 4 * random_below(random, 1000) : 0;
    if (one_in(random, 2)) /* the last tokens do not count, up to a tile of them */
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Give a token's bias a value that is not finite: +inf, -inf or a NaN of either sign. */
void spoil_bias(test_problem *test, int64_t token, int kind)
{
    static const uint32_t single[4] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000};
    static const uint16_t half[4] = {0x7c00, 0xfc00, 0x7e00, 0xfe00};
    static const double values[4] = {INFINITY, -INFINITY, NAN, NAN};
    gumbel_dtype dtype = test->made->plan.bias_dtype;
    uint16_t narrow = dtype == GUMBEL_FLOAT16 ? half[kind] : (uint16_t)(single[kind] >> 16);
    if (dtype == GUMBEL_FLOAT32)
        memcpy((float *)test->made->bias + token, &single[kind], sizeof single[kind]);
    else
        memcpy((uint16_t *)test->made->bias + token, &narrow, sizeof narrow);
    test->bias[(size_t)token] = values[kind];
}

/* Make NaN of a row, and tokens' biases not finite: all of a tile's are -inf, or a few at random.
 */
void spoil(test_problem *test)
{
    const problem_plan *plan = &test->made->plan;
    if (one_in(&test->random, 4)) {
        int64_t at = (plan->batch / 2) * plan->hidden_size + plan->hidden_size / 3;
        dtype_store_nan(test->made->hidden, plan->hidden_dtype, at);
        test->hidden[(size_t)at] = NAN;
    }
    if (!plan->bias_dtype)
        return;
    int64_t empty = one_in(&test->random, 2) ? CUDA_SM90_TILE : 0;
    for (int64_t i = 0; i < empty; i++)
        spoil_bias(test, i, 1);
    for (int few = 0; few < 5; few++)
        spoil_bias(test, random_below(&test->random, (uint32_t)plan->vocab),
                   (int)random_below(&test->random, 4));
}

std::vector<double> widened(const void *data, gumbel_dtype dtype, int64_t count)
{
    std::vector<double> wide((size_t)count);
    for (int64_t i = 0; data && i < count; i++)
        wide[(size_t)i] = (double)dtype_load(data, dtype, i);
    return wide;
}

test_problem make(int index)
{
    test_problem test = {};
    test.random = (uint64_t)index;
    problem_plan plan = plan_of(index, &test.random);
    test.made = problem_make(&plan);
    test.weight = widened(test.made->weight, plan.weight_dtype, plan.vocab * plan.hidden_size);
    test.hidden = widened(test.made->hidden, plan.hidden_dtype, plan.batch * plan.hidden_size);
    test.bias = widened(test.made->bias, plan.bias_dtype, plan.vocab);
    test.tokens = plan.vocab;
    if (plan.vocab_size && plan.vocab_size - plan.first_token < plan.vocab)
        test.tokens = plan.vocab_size - plan.first_token;
    test.ctas = 1 + (int)random_below(&test.random, 4);
    snprintf(test.what, sizeof test.what, "problem %d, %d CTAs: %s", index, test.ctas,
             problem_describe(&plan));
    spoil(&test);
    return test;
}

/* Store the logits, and their peaks unless NULL, a launch for each slice that one takes. */
void store_emulated(test_problem *test, table *logits, table *peaks)
{
    const problem_plan *plan = &test->made->plan;
    int64_t most = cuda_sm90_rows_most(plan->samples);
    for (int64_t first = 0; first < plan->batch; first += most) {
        int64_t rows = plan->batch - first < most ? plan->batch - first : most;
        gumbel_head head;
        gumbel_sampling sampling;
        problem_rows(test->made, first, rows, &head, &sampling);
        int width = emulated_width(rows, plan->samples, &test->random);
        emulated_launch own = emulated_launch_of(head, sampling, one_in(&test->random, 2), width,
                                                 test->ctas, &test->random, test->what);
        cuda_params *p = &own.params;
        p->stored = logits->row(first);
        p->stored_stride = logits->stride;
        p->peaks = peaks ? peaks->row(first) : NULL;
        p->peaks_stride = peaks ? peaks->stride : 0;
        emulate_fused(own);
    }
}

/* ------------------------------------------------------------------------- the comparison ---- */

bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

/* Whether a logit is what its terms sum to, each sum of them rounded once. */
bool is_logit(const test_problem &test, int64_t row, int64_t token, double logit)
{
    size_t size = (size_t)test.made->plan.hidden_size;
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
            bool counts = b < logits->rows && i < test.tokens;
            double logit = (double)logits->row(b)[i];
            if (counts ? is_logit(test, b, i, logit) : logits->poisoned(b, i))
                continue;
            printf("%s: row %d, token %d%s: logit %a\n", test.what, (int)b, (int)i,
                   counts ? "" : ", which does not count", logit);
            return false;
        }
    return true;
}

/* The largest stored logit of a tile of a row. */
float peak_of(const test_problem &test, table *logits, int64_t row, int64_t tile)
{
    float peak = -INFINITY;
    int64_t first = tile * CUDA_SM90_TILE, end = first + CUDA_SM90_TILE;
    for (int64_t i = first; i < end && i < test.tokens; i++) {
        float logit = logits->row(row)[i];
        if (!(logit <= peak) && !std::isnan(peak))
            peak = logit;
    }
    return peak;
}

bool peaks_agree(const test_problem &test, table *logits, table *peaks)
{
    int64_t tiles = (test.tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE;
    for (int64_t b = 0; b <= peaks->rows; b++)
        for (int64_t t = 0; t < peaks->stride; t++) {
            bool counts = b < peaks->rows && t < tiles;
            float peak = peaks->row(b)[t], expected = counts ? peak_of(test, logits, b, t) : 0.0f;
            if (counts ? same((double)peak, (double)expected) : peaks->poisoned(b, t))
                continue;
            printf("%s: row %d, tile %d of %d: peak %a, not %a\n", test.what, (int)b, (int)t,
                   (int)tiles, (double)peak, (double)expected);
            return false;
        }
    return true;
}

bool passes(int index)
{
    test_problem test = make(index);
    const problem_plan *plan = &test.made->plan;
    int64_t gap = 2 * random_below(&test.random, 3);
    table logits(plan->batch, plan->vocab + gap), again = logits;
    table peaks(plan->batch, plan->vocab / CUDA_SM90_TILE + 1 + gap);
    store_emulated(&test, &logits, &peaks);
    store_emulated(&test, &again, NULL);
    bool good = logits_agree(test, &logits) && peaks_agree(test, &logits, &peaks);
    if (memcmp(logits.row(0), again.row(0), logits.all.size() * sizeof(float)) != 0) {
        printf("%s: without peaks, and in another order, other logits\n", test.what);
        good = false;
    }
    problem_free(test.made);
    return good;
}

} // namespace

/* usage: test_stored_sm90 [FIRST [COUNT]], problems by number */
int main(int argc, char **argv) { return run_problems(argc, argv, 24, 500, passes) != 0; }
