/* SPDX-License-Identifier: Apache-2.0
 *
 * The best scores of a draw: against all scores, sorted, of what the draw sees and its noise; and
 * as draws without replacement.
 */
#include "outcome.h"
#include "requests.h"
#include "statistics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->id > y->id) - (x->id < y->id);
}

/* g of all tokens of row b. */
static void fill_noise(const request *req, int64_t b, float *g)
{
    const gumbel_sampling *s = &req->sampling;
    const gumbel_logits *l = &req->logits;
    int64_t vocab = l->logits.cols;
    uint64_t seed = row_u64(&s->seed, s, b, 0);
    memset(g, 0, (size_t)vocab * sizeof *g);
    if (row_f32(&s->temperature, s, b, 1) == 0)
        return;
    if (s->noise) {
        memcpy(g, s->noise + b * (s->noise_stride ? s->noise_stride : vocab),
               (size_t)vocab * sizeof *g);
        return;
    }
    if (!s->seed.data || s->seed.stride == GUMBEL_SAME)
        seed = gumbel_row_seed(seed, (uint64_t)b);
    assert_int_equal(gumbel_noise(seed, row_u64(&s->position, s, b, 0),
                                  row_u32(&s->first_sample, s, b, 0), s->domain, l->first_token,
                                  vocab, g, NULL),
                     GUMBEL_OK);
}

/* All tokens of a row that can be drawn, sorted; how many. */
static int64_t sort_row(const request *req, int64_t b, const float *z, float *g, scored *all)
{
    int64_t count = 0, vocab = req->logits.logits.cols;
    fill_noise(req, b, g);
    for (int64_t i = 0; i < vocab; i++)
        if (z[i] > -INFINITY)
            all[count++] = (scored){z[i] + g[i], (int32_t)(req->logits.first_token + i)};
    qsort(all, (size_t)count, sizeof *all, by_score);
    return count;
}

/* A draw's outputs with its best scores. */
typedef struct best_outcome {
    outcome *drawn;
    int32_t *ids;
    float *scores;
    int32_t most;
} best_outcome;

static best_outcome best_make(const request *req, int32_t most)
{
    size_t count = (size_t)(req->plan.batch * most);
    best_outcome generated = {.drawn = request_outcome(req),
                              .ids = make_zeroed(count, sizeof *generated.ids),
                              .scores = make_zeroed(count, sizeof *generated.scores),
                              .most = most};
    memset(generated.ids, 0x5A, count * sizeof *generated.ids);
    generated.drawn->output.best_ids = generated.ids;
    generated.drawn->output.best_scores = generated.scores;
    generated.drawn->output.num_best = most;
    return generated;
}

static void best_free(best_outcome *generated)
{
    outcome_free(generated->drawn);
    free(generated->ids);
    free(generated->scores);
}

/* Row b's list against all of its scores. */
static int row_agrees(const best_outcome *found, int64_t b, const scored *all, int64_t count)
{
    int ok = found->drawn->status[b] == GUMBEL_ROW_OK;
    for (int32_t i = 0; i < found->most; i++) {
        int64_t at = b * found->most + i;
        int listed = ok && i < count;
        float score = listed ? all[i].score : ok ? -INFINITY : NAN;
        if (found->ids[at] != (listed ? all[i].id : -1) ||
            !(found->scores[at] == score || (isnan(found->scores[at]) && isnan(score))))
            return 0;
    }
    return !ok || (found->ids[b * found->most] == found->drawn->tokens[b] &&
                   found->scores[b * found->most] == found->drawn->scores[b]);
}

static void check_request(gumbel_device *device, int index)
{
    request_plan plan = request_plan_at_random(index, index % 3 == 0);
    plan.samples = 1;
    plan.history = index % 2;
    request *req = request_make(&plan, device);
    int64_t vocab = req->logits.logits.cols;
    best_outcome found = best_make(req, 1 + index % GUMBEL_BEST_MAX);
    float *z = make_zeroed((size_t)(plan.batch * vocab), sizeof *z);
    float *g = make_zeroed((size_t)vocab, sizeof *g);
    scored *all = make_zeroed((size_t)vocab, sizeof *all);
    gumbel_status status = req->product ? request_draw_fused(device, req, found.drawn)
                                        : request_draw(device, req, found.drawn);
    assert_int_equal(status, GUMBEL_OK);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    for (int64_t b = 0; b < plan.batch; b++) {
        int64_t count = sort_row(req, b, z + b * vocab, g, all);
        if (!row_agrees(&found, b, all, count))
            fail_msg("request %d, %s", index, request_describe_row(req, b));
    }
    best_free(&found);
    free(z);
    free(g);
    free(all);
    request_free(req);
}

static void lists_are_the_best(void **state)
{
    for (int index = 0; index < 150; index++)
        check_request(*state, index);
}

/* The rate of an ordered pair without replacement is p_i p_j / (1 - p_i). */
static void pairs_are_draws_without_replacement(void **state)
{
    enum { V = 5, DRAWS = TEST_SANITIZED ? 4096 : 262144, BATCH = 512 };
    const double p[V] = {0.4, 0.25, 0.2, 0.1, 0.05};
    static float values[BATCH * V];
    static uint64_t positions[BATCH];
    static int32_t tokens[BATCH], pairs[BATCH * 2];
    double rates[V * V];
    int64_t counts[V * V] = {0};
    const uint64_t seed = 11;
    for (int i = 0; i < BATCH * V; i++)
        values[i] = (float)log(p[i % V]);
    for (int i = 0; i < V * V; i++)
        rates[i] = i / V == i % V ? 0 : p[i / V] * p[i % V] / (1 - p[i / V]);
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(values, GUMBEL_FLOAT32, BATCH, V, 0)};
    const gumbel_sampling how = {
        .struct_size = sizeof how, .seed = {&seed, GUMBEL_SAME}, .position = {positions, 0}};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .best_ids = pairs, .num_best = 2};
    size_t bytes;
    void *workspace = call_workspace(*state, NULL, &input, &how, &output, &bytes);
    for (int64_t at = 0; at < DRAWS; at += BATCH) {
        for (int b = 0; b < BATCH; b++)
            positions[b] = (uint64_t)at;
        assert_int_equal(
            gumbel_sample_logits(*state, NULL, &input, &how, &output, workspace, bytes, NULL),
            GUMBEL_OK);
        for (int b = 0; b < BATCH; b++)
            counts[pairs[2 * b] * V + pairs[2 * b + 1]]++;
    }
    free(workspace);
    chi_squared sum = {0};
    chi_squared_add(&sum, counts, rates, V * V, DRAWS);
    assert_true(chi_squared_p(sum.statistic, sum.degrees) > 1e-4);
}

static void refusals(void **state)
{
    const float values[4] = {0};
    const int32_t one[2] = {0, 1};
    int32_t tokens[4], best[64];
    _Alignas(64) static char workspace[1 << 16];
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(values, GUMBEL_FLOAT32, 2, 2, 0)};
    const struct {
        const char *field;
        int32_t *ids;
        int32_t most, samples;
        const int32_t *given;
    } bad[] = {
        {"output.num_best", best, -1, 1, NULL},
        {"output.num_best", best, GUMBEL_BEST_MAX + 1, 1, NULL},
        {"output.best_ids", (int32_t *)((char *)best + 1), 2, 1, NULL},
        {"output.num_best", best, 2, 2, NULL},
        {"output.num_best", best, 2, 1, one},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gumbel_error error = {"", ""};
        const gumbel_sampling how = {
            .struct_size = sizeof how, .num_samples = bad[i].samples, .given = {bad[i].given, 0}};
        const gumbel_output output = {.struct_size = sizeof output,
                                      .tokens = tokens,
                                      .best_ids = bad[i].ids,
                                      .num_best = bad[i].most};
        assert_int_equal(gumbel_sample_logits(*state, NULL, &input, &how, &output, workspace,
                                              sizeof workspace, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, bad[i].field);
    }
    gumbel_summary summaries[2];
    gumbel_error error;
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .best_ids = best, .num_best = 1};
    gumbel_summary_clear(summaries, 2);
    assert_int_equal(gumbel_finish(NULL, NULL, summaries, 1, 2, 1, &output, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output.num_best");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_the_best),
        cmocka_unit_test(pairs_are_draws_without_replacement),
        cmocka_unit_test(refusals),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
