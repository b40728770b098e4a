/* SPDX-License-Identifier: Apache-2.0
 *
 * No output holds a positive log-probability, however the log-normaliser is rounded. Each row has a
 * nearly certain token with z near 0, where a float32 z is finer than the resolution of the mass.
 */
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

enum { B = 500, V = 70, TOP = 3 };

/* Rows with a token at [-0.02, 0.02], and others at `floor`. */
static gumbel_logits make_rows(float *values, float floor)
{
    uint64_t random = 31;
    for (int64_t b = 0; b < B; b++) {
        int64_t sure = random_below(&random, V);
        for (int64_t i = 0; i < V; i++)
            values[b * V + i] = floor;
        values[b * V + sure] = 0.02f * ((float)random_below(&random, 1u << 24) * 0x1p-23f - 1);
    }
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(values, GUMBEL_FLOAT32, B, V, 0)};
}

/* Asserts that log-probabilities are near 0, and not above. */
static void assert_near_zero(const float *logprobs, int64_t count, const char *what)
{
    for (int64_t i = 0; i < count; i++)
        if (!(logprobs[i] <= 0 && logprobs[i] > -1e-6f))
            fail_msg("%s: log-probability %d is %a", what, (int)i, (double)logprobs[i]);
}

static void logprobs_of_plain_draws(void **state)
{
    static float values[B * V];
    outcome *drawn = outcome_make(B, 1);
    gumbel_logits input = make_rows(values, -INFINITY);
    assert_int_equal(draw_logits(*state, &input, NULL, drawn), GUMBEL_OK);
    assert_near_zero(drawn->logprobs, B, "plain");
    outcome_free(drawn);
}

/* Log-probabilities of draws, and of the first token in lists of the most likely tokens. */
static void logprobs_of_requests(void **state)
{
    static float values[B * V];
    const float top_p = 0.999f;
    gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                    .top_p = {&top_p, GUMBEL_SAME}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &truncation};
    for (int raw = 0; raw < 2; raw++)
        for (int far = 0; far < 2; far++) {
            gumbel_logits input = make_rows(values, far ? -40 : -INFINITY);
            outcome *drawn = outcome_make(B, 1);
            outcome_widen(drawn, TOP, raw ? GUMBEL_RAW : GUMBEL_PROCESSED);
            size_t bytes;
            void *workspace =
                call_workspace(*state, NULL, &input, &sampling, &drawn->output, &bytes);
            assert_int_equal(gumbel_sample_logits(*state, NULL, &input, &sampling, &drawn->output,
                                                  workspace, bytes, NULL),
                             GUMBEL_OK);
            assert_near_zero(drawn->logprobs, B, raw ? "raw" : "processed");
            for (int64_t b = 0; b < B; b++)
                assert_near_zero(drawn->top_logprobs + b * TOP, 1, raw ? "raw list" : "list");
            free(workspace);
            outcome_free(drawn);
        }
}

/* From summaries of two shards. */
static void logprobs_of_merged_shards(void **state)
{
    static float values[B * V];
    gumbel_logits whole = make_rows(values, -INFINITY), parts[2] = {whole, whole};
    parts[0].logits.cols = 64;
    parts[1].logits.cols = V - 64;
    parts[0].logits.stride = parts[1].logits.stride = V;
    parts[1].logits.data = values + 64;
    parts[1].first_token = 64;
    gumbel_summary *sum = summarise(*state, NULL, &parts[0], NULL);
    gumbel_summary *other = summarise(*state, NULL, &parts[1], NULL);
    outcome *drawn = outcome_make(B, 1);
    assert_int_equal(gumbel_merge(NULL, NULL, sum, other, B, NULL), GUMBEL_OK);
    assert_int_equal(gumbel_finish(NULL, NULL, sum, 1, B, 1, &drawn->output, NULL), GUMBEL_OK);
    assert_near_zero(drawn->logprobs, B, "merged");
    outcome_free(drawn);
    free(other);
    free(sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_of_plain_draws),
        cmocka_unit_test(logprobs_of_requests),
        cmocka_unit_test(logprobs_of_merged_shards),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
