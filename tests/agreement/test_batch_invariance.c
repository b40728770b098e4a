/* SPDX-License-Identifier: Apache-2.0
 *
 * A row's token does not depend on how the call is made: at any index in a batch of any size, whole
 * or in chunks of the vocabulary, from hidden states or from logits, one sample at a time or many.
 */
#include "outcome.h"
#include "problem_plans.h"
#include "test_scale.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* A problem and the reference's outcome. */
typedef struct drawn_problem {
    problem *generated;
    outcome *whole;
} drawn_problem;

static drawn_problem make_drawn_problem(gumbel_device *device, problem_plan plan)
{
    drawn_problem s = {problem_make(&plan), NULL};
    s.whole = outcome_make(plan.batch, s.generated->plan.samples);
    assert_int_equal(draw(device, &s.generated->head, &s.generated->sampling, s.whole), GUMBEL_OK);
    return s;
}

static void free_drawn_problem(drawn_problem *s)
{
    outcome_free(s->whole);
    problem_free(s->generated);
}

static void assert_same_rows(const drawn_problem *s, int64_t first, const outcome *part,
                             outcome_parts parts, const char *name)
{
    char what[400];
    snprintf(what, sizeof what, "%s from row %" PRId64 ": %s", name, first,
             problem_describe(&s->generated->plan));
    if (!outcome_same(s->whole, first, part, parts, what))
        fail_msg("differs from the whole batch");
}

/* Draws every range of rows [first, first + count) as a batch of its own. */
static void sub_batches_draw_the_same_tokens(void **state)
{
    gumbel_device *device = *state;
    const int64_t batches[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        drawn_problem s = make_drawn_problem(device, (problem_plan){.batch = batches[i],
                                                                    .vocab = 200,
                                                                    .hidden_size = 33,
                                                                    .samples = 2,
                                                                    .temperature = -0.9f,
                                                                    .seed = 40 + i});
        for (int64_t count = 1; count <= batches[i]; count += 1 + count / 6)
            for (int64_t first = 0; first + count <= batches[i]; first += count) {
                gumbel_head head;
                gumbel_sampling sampling;
                problem_rows(s.generated, first, count, &head, &sampling);
                outcome *part = outcome_make(count, 2);
                assert_int_equal(draw(device, &head, &sampling, part), GUMBEL_OK);
                assert_same_rows(&s, first, part, OUTCOME_ALL, "a part");
                outcome_free(part);
            }
        free_drawn_problem(&s);
    }
}

/* Sample j of S equals a single draw with the sample counter first_sample + j. */
static void single_samples_match_many(void **state)
{
    gumbel_device *device = *state;
    for (int i = 0; i < (TEST_SANITIZED ? 6 : 20); i++) {
        problem_plan plan = plan_at_random(500 + i);
        plan.samples = 5;
        drawn_problem s = make_drawn_problem(device, plan);
        outcome *one = outcome_make(plan.batch, 1);
        for (int32_t j = 0; j < plan.samples; j++) {
            gumbel_sampling sampling = s.generated->sampling;
            sampling.num_samples = 1;
            for (int64_t b = 0; b < plan.batch; b++)
                s.generated->first_sample[b] += j > 0;
            assert_int_equal(draw(device, &s.generated->head, &sampling, one), GUMBEL_OK);
            for (int64_t b = 0; b < plan.batch; b++) {
                assert_int_equal(one->tokens[b], s.whole->tokens[b * 5 + j]);
                assert_memory_equal(&one->scores[b], &s.whole->scores[b * 5 + j], sizeof(float));
                assert_memory_equal(&one->lse[b], &s.whole->lse[b], sizeof(float));
            }
        }
        outcome_free(one);
        free_drawn_problem(&s);
    }
}

/* A shared seed gives the tokens of one gumbel_row_seed() a row. */
static void shared_parameters_match_one_per_row(void **state)
{
    gumbel_device *device = *state;
    enum { B = 9 };
    drawn_problem s = make_drawn_problem(
        device, (problem_plan){.batch = B, .vocab = 300, .hidden_size = 20, .seed = 9});
    uint64_t seed = 0xfeedface, seeds[B];
    float temperature = 0.6f, temperatures[B];
    uint64_t position = 17, positions[B];
    for (uint64_t b = 0; b < B; b++) {
        seeds[b] = gumbel_row_seed(seed, b);
        temperatures[b] = temperature;
        positions[b] = position;
    }
    gumbel_sampling each = {.struct_size = sizeof each,
                            .temperature = {temperatures, 0},
                            .seed = {seeds, 0},
                            .position = {positions, 0}};
    gumbel_sampling shared = {.struct_size = sizeof shared,
                              .temperature = {&temperature, GUMBEL_SAME},
                              .seed = {&seed, GUMBEL_SAME},
                              .position = {&position, GUMBEL_SAME}};
    outcome *of_each = outcome_make(B, 1), *of_shared = outcome_make(B, 1);
    assert_int_equal(draw(device, &s.generated->head, &each, of_each), GUMBEL_OK);
    assert_int_equal(draw(device, &s.generated->head, &shared, of_shared), GUMBEL_OK);
    assert_true(outcome_same(of_each, 0, of_shared, OUTCOME_ALL, "shared parameters"));
    /* NULL selects the defaults: T = 1, seed 0, position 0, domain 0, one sample. */
    float ones[B];
    for (uint64_t b = 0; b < B; b++) {
        seeds[b] = gumbel_row_seed(0, b);
        ones[b] = 1;
        positions[b] = 0;
    }
    each.temperature = (gumbel_row_f32){ones, 0};
    assert_int_equal(draw(device, &s.generated->head, &each, of_each), GUMBEL_OK);
    assert_int_equal(draw(device, &s.generated->head, NULL, of_shared), GUMBEL_OK);
    assert_true(outcome_same(of_each, 0, of_shared, OUTCOME_ALL, "default parameters"));
    outcome_free(of_each);
    outcome_free(of_shared);
    free_drawn_problem(&s);
}

/* ------------------------------------------------------------------------------- chunks ---- */

/* Merges `count` arrays of n summaries in a random order, two at a time, and finishes the result
 * into `into`. */
static void merge_tree(gumbel_summary **pieces, int count, int64_t n, uint64_t *random,
                       outcome *into)
{
    while (count > 1) {
        uint32_t a = random_below(random, (uint32_t)count);
        gumbel_summary *taken = pieces[a];
        pieces[a] = pieces[--count];
        assert_int_equal(
            gumbel_merge(NULL, NULL, pieces[random_below(random, (uint32_t)count)], taken, n, NULL),
            GUMBEL_OK);
        free(taken);
    }
    outcome_poison(into);
    assert_int_equal(
        gumbel_finish(NULL, NULL, pieces[0], 1, into->batch, into->samples, &into->output, NULL),
        GUMBEL_OK);
    free(pieces[0]);
}

/* Splits the vocabulary at random global ids that are multiples of `grain`. */
static void check_chunks(gumbel_device *device, const drawn_problem *s, int64_t grain,
                         uint64_t *random, outcome_parts parts)
{
    gumbel_summary *pieces[64];
    int count = 0;
    int64_t vocab = s->generated->plan.vocab, first_token = s->generated->plan.first_token, at = 0;
    while (at < vocab) {
        int64_t length = vocab - at;
        if (count < 63) {
            int64_t step = 1 + random_below(random, (uint32_t)(vocab / 6 / grain + 1));
            int64_t border = ((first_token + at) / grain + step) * grain - first_token;
            length = border < vocab ? border - at : length;
        }
        gumbel_head shard = problem_shard(&s->generated->head, at, length);
        pieces[count++] = summarise(device, &shard, NULL, &s->generated->sampling);
        at += length;
    }
    outcome *merged = outcome_make(s->generated->plan.batch, s->generated->plan.samples);
    merge_tree(pieces, count, merged->batch * merged->samples, random, merged);
    assert_same_rows(s, 0, merged, parts, grain == 64 ? "chunks of whole blocks" : "chunks");
    outcome_free(merged);
}

static void merged_chunks_match_the_whole(void **state)
{
    gumbel_device *device = *state;
    uint64_t random = 6;
    for (int i = 0; i < (TEST_SANITIZED ? 20 : 120) * nightly_factor(); i++) {
        drawn_problem s = make_drawn_problem(device, plan_at_random(1000 + i));
        check_chunks(device, &s, 64, &random, OUTCOME_ALL);
        check_chunks(device, &s, 1, &random, OUTCOME_TOKENS | OUTCOME_SCORES);
        free_drawn_problem(&s);
    }
}

/* ----------------------------------------------------------------------------- from logits ---- */

/* With D = 1 and h = 1 the weights are the logits, so both entry points read equal logits. Strides,
 * dtypes, shards and padding must have the same meaning in both. */
static void logits_match_hidden_states(void **state)
{
    gumbel_device *device = *state;
    for (int i = 0; i < (TEST_SANITIZED ? 30 : 150); i++) {
        problem_plan plan = plan_at_random(2000 + i);
        plan.hidden_size = 1;
        plan.weight_gap = plan.hidden_gap = 0;
        plan.bias_dtype = 0;
        drawn_problem s = make_drawn_problem(device, plan);
        int64_t stride = plan.vocab + (i % 3) * 5;
        float *values = make_zeroed((size_t)(plan.batch * stride), sizeof *values);
        memset(values, 0xff, (size_t)(plan.batch * stride) * sizeof *values); /* NaN */
        gumbel_sampling *sampling = &s.generated->sampling;
        for (int64_t b = 0; b < plan.batch; b++) {
            dtype_store(s.generated->hidden, plan.hidden_dtype, b, 1);
            for (int64_t v = 0; v < plan.vocab; v++)
                values[b * stride + v] = dtype_load(s.generated->weight, plan.weight_dtype, v);
        }
        gumbel_logits logits = {
            .struct_size = sizeof logits,
            .logits = tensor_of(values, GUMBEL_FLOAT32, plan.batch, plan.vocab, i % 3 ? stride : 0),
            .scale = plan.scale,
            .soft_cap = plan.soft_cap,
            .first_token = plan.first_token,
            .vocab_size = plan.vocab_size};
        outcome *fused = outcome_make(plan.batch, plan.samples);
        assert_int_equal(draw(device, &s.generated->head, sampling, fused), GUMBEL_OK);
        assert_int_equal(draw_logits(device, &logits, sampling, s.whole), GUMBEL_OK);
        assert_same_rows(&s, 0, fused, OUTCOME_ALL, "from logits");
        /* The logits are representable in the 16-bit dtype. */
        if (plan.weight_dtype != GUMBEL_FLOAT32) {
            uint16_t *narrow = make_zeroed((size_t)(plan.batch * stride), sizeof *narrow);
            for (int64_t k = 0; k < plan.batch * stride; k++)
                if (!isnan(values[k]))
                    dtype_store(narrow, plan.weight_dtype, k, values[k]);
                else
                    dtype_store_nan(narrow, plan.weight_dtype, k);
            logits.logits.data = narrow;
            logits.logits.dtype = plan.weight_dtype;
            assert_int_equal(draw_logits(device, &logits, sampling, fused), GUMBEL_OK);
            assert_same_rows(&s, 0, fused, OUTCOME_ALL, "from 16-bit logits");
            free(narrow);
        }
        outcome_free(fused);
        free(values);
        free_drawn_problem(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sub_batches_draw_the_same_tokens),
        cmocka_unit_test(single_samples_match_many),
        cmocka_unit_test(shared_parameters_match_one_per_row),
        cmocka_unit_test(merged_chunks_match_the_whole),
        cmocka_unit_test(logits_match_hidden_states),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
