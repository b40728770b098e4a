/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls before and after a draw in a decode step. Prepared noise has the bits of noise computed by
 * the draw; gumbel_advance() counts positions and writes tokens to the ring buffer.
 */
#include "outcome.h"
#include "noise_place.h"
#include "problem_plans.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* ------------------------------------------------------------------------ noise ahead ---- */

/* Prepares noise [B, S, count] with rows `stride` apart, on the heap. Gaps between rows must not be
 * written. */
static float *prepare_noise(gumbel_device *device, const gumbel_sampling *sampling, int64_t batch,
                            int64_t first_token, int64_t count, int64_t stride)
{
    int64_t rows = batch * (sampling->num_samples ? sampling->num_samples : 1);
    int64_t apart = stride ? stride : count, length = (rows - 1) * apart + count;
    float *noise = malloc((size_t)length * sizeof *noise);
    gumbel_error error = {"", ""};
    if (!noise)
        die("out of memory");
    for (int64_t i = 0; i < length; i++)
        noise[i] = 77;
    if (gumbel_prepare_noise(device, NULL, sampling, batch, first_token, count, noise, stride,
                             &error) != GUMBEL_OK)
        fail_msg("%s: %s", error.field, error.message);
    for (int64_t i = 0; i < length; i++)
        if ((noise[i] == 77) != (i % apart >= count))
            fail_msg("element %lld of %lld is %g", (long long)i, (long long)length,
                     (double)noise[i]);
    return noise;
}

/* Prepared noise equals gumbel_noise() for shapes below and above the chunk of one thread. */
static void prepared_noise_matches_gumbel_noise(void **state)
{
    enum { B = 3, S = 2, COUNT = 40001, FIRST = 1000003 };
    const uint64_t seeds[B] = {5, UINT64_MAX, 0};
    const uint64_t positions[2 * B] = {7, 0, UINT32_MAX, 0, UINT64_C(3) << 33 | 1, 0};
    const uint32_t counters[B] = {UINT32_MAX, 0, 77};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .seed = {seeds, 0},
                                .position = {positions, 2},
                                .first_sample = {counters, 0},
                                .num_samples = S,
                                .domain = GUMBEL_DOMAIN_DRAFT};
    for (int64_t stride = 0; stride <= 1; stride++) {
        sampling.seed.stride = stride ? 0 : GUMBEL_SAME;
        float *noise = prepare_noise(*state, &sampling, B, FIRST, COUNT, stride * (COUNT + 3));
        float *row = make_zeroed(COUNT, sizeof *row);
        for (uint32_t draw = 0; draw < B * S; draw++) {
            uint32_t b = draw / S;
            uint64_t seed = stride ? seeds[b] : gumbel_row_seed(seeds[0], b);
            assert_int_equal(gumbel_noise(seed, positions[2 * b], counters[b] + draw % S,
                                          GUMBEL_DOMAIN_DRAFT, FIRST, COUNT, row, NULL),
                             GUMBEL_OK);
            assert_memory_equal(noise + draw * (COUNT + 3 * stride), row, sizeof(float) * COUNT);
        }
        free(row);
        free(noise);
    }
}

/* Extreme words, and words at boundaries between cases of the map to noise, in whole blocks. */
static void prepared_noise_at_boundary_words(void **state)
{
    static const uint32_t seams[] = {
        0,           1,           255,         256,         257,         0x4afb0ccfu, 0x4afb0cd0u,
        0x4afb0cd1u, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffff00u, 0xfffffffeu, 0xffffffffu};
    uint64_t random = 5;
    for (uint32_t i = 0; i < 800; i++) {
        uint32_t k = i / 2, word = k < 14 ? seams[k] : k < 200 ? k : (uint32_t)random_bits(&random);
        noise_place at =
            i % 2 ? find_token_by_word(word, &random)
                  : find_token_by_block_words(word, (uint32_t)random_bits(&random), &random);
        gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                    .seed = {&at.seed, GUMBEL_SAME},
                                    .position = {&at.position, GUMBEL_SAME},
                                    .first_sample = {&at.sample, GUMBEL_SAME},
                                    .domain = at.domain};
        int64_t first = at.token / 64 * 64;
        float *noise = prepare_noise(*state, &sampling, 1, first, 64, 0), wanted = place_noise(&at);
        assert_memory_equal(&noise[at.token - first], &wanted, sizeof wanted);
        free(noise);
    }
}

/* Draws without prepared noise, and then with it after seed and position have been overwritten. */
static void check_plan(gumbel_device *device, const problem_plan *plan, int64_t gap)
{
    problem *generated = problem_make(plan);
    outcome *wanted = outcome_make(plan->batch, plan->samples),
            *found = outcome_make(plan->batch, plan->samples);
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(generated->weight, plan->weight_dtype, plan->batch,
                                                plan->vocab, plan->hidden_size + plan->weight_gap),
                            .first_token = plan->first_token,
                            .vocab_size = plan->vocab_size};
    int from_logits = plan->hidden_size >= plan->vocab && plan->batch <= plan->vocab;
    float *noise = prepare_noise(device, &generated->sampling, plan->batch, plan->first_token,
                                 plan->vocab, gap ? plan->vocab + gap : 0);
    gumbel_sampling ahead = generated->sampling;
    ahead.noise = noise;
    ahead.noise_stride = gap ? plan->vocab + gap : 0;
    ahead.seed = ahead.position = (gumbel_row_u64){NULL, 0};
    ahead.first_sample = (gumbel_row_u32){NULL, 0};
    ahead.domain = 0;
    assert_int_equal(draw(device, &generated->head, &generated->sampling, wanted), GUMBEL_OK);
    assert_int_equal(draw(device, &generated->head, &ahead, found), GUMBEL_OK);
    assert_true(outcome_same(wanted, 0, found, OUTCOME_ALL, problem_describe(plan)));
    if (from_logits) {
        assert_int_equal(draw_logits(device, &logits, &generated->sampling, wanted), GUMBEL_OK);
        assert_int_equal(draw_logits(device, &logits, &ahead, found), GUMBEL_OK);
        assert_true(outcome_same(wanted, 0, found, OUTCOME_ALL, problem_describe(plan)));
    }
    free(noise);
    outcome_free(wanted);
    outcome_free(found);
    problem_free(generated);
}

static void draws_with_prepared_noise_match(void **state)
{
    for (int i = 0; i < PLANS_BY_VOCAB; i++) {
        problem_plan plan = plan_by_vocab(i);
        check_plan(*state, &plan, i % 3);
    }
    for (int i = 0; i < (TEST_SANITIZED ? 30 : 100); i++) {
        problem_plan plan = plan_at_random(i);
        check_plan(*state, &plan, i % 3);
    }
    /* The weights are the logits: one row a token, followed by NaN. */
    for (int64_t vocab = 1; vocab <= 200; vocab += TEST_SANITIZED ? 21 : 7) {
        problem_plan plan = {.batch = 1 + vocab % 4,
                             .vocab = vocab,
                             .hidden_size = vocab,
                             .samples = 2,
                             .weight_dtype = vocab % 2 ? GUMBEL_FLOAT32 : GUMBEL_BFLOAT16,
                             .weight_gap = 5,
                             .first_token = vocab % 5 * 33,
                             .temperature = -0.7f,
                             .seed = 9000 + (uint64_t)vocab};
        plan.batch = plan.batch > vocab ? vocab : plan.batch;
        check_plan(*state, &plan, vocab % 3);
    }
}

/* The noise of a shard is a slice of the noise of the whole vocabulary. */
static void shard_noise_is_a_slice_of_the_whole(void **state)
{
    problem_plan plan = plan_by_vocab(129);
    problem *generated = problem_make(&plan);
    const gumbel_sampling *whole_sampling = &generated->sampling;
    float *whole = prepare_noise(*state, whole_sampling, 3, plan.first_token, plan.vocab, 0);
    gumbel_summary *wanted = summarise(*state, &generated->head, NULL, whole_sampling);
    gumbel_summary merged[9];
    gumbel_summary_clear(merged, 9);
    for (int64_t first = 0, count; first < plan.vocab; first += count) {
        count = plan.vocab - first < 64 ? plan.vocab - first : 64;
        gumbel_head shard = problem_shard(&generated->head, first, count);
        gumbel_sampling sampling = *whole_sampling;
        sampling.noise = whole + first;
        sampling.noise_stride = plan.vocab;
        gumbel_summary *part = summarise(*state, &shard, NULL, &sampling);
        assert_int_equal(gumbel_merge(NULL, NULL, merged, part, 9, NULL), GUMBEL_OK);
        free(part);
    }
    for (int i = 0; i < 9; i++) {
        assert_int_equal(merged[i].best_id, wanted[i].best_id);
        assert_true(merged[i].best_score == wanted[i].best_score);
    }
    free(wanted);
    free(whole);
    problem_free(generated);
}

/* With prepared noise, a NaN or +inf among the logits still sets the row's status, and noise that
 * is not finite never gives an empty row a token. */
static void faulty_rows_with_prepared_noise(void **state)
{
    enum { B = 4, V = 150 };
    float logits[B][V] = {{0}}, *noise = make_zeroed(B * V, sizeof *noise);
    outcome *drawn = outcome_make(B, 1);
    logits[0][V - 1] = NAN;
    logits[1][70] = INFINITY;
    for (int i = 0; i < V; i++)
        logits[2][i] = -INFINITY;
    noise[2 * V + 100] = INFINITY;
    noise[3 * V + 5] = NAN;
    noise[3 * V + 140] = 1;
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(logits, GUMBEL_FLOAT32, B, V, 0)};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .noise = noise};
    assert_int_equal(draw_logits(*state, &input, &sampling, drawn), GUMBEL_OK);
    const int32_t status[B] = {GUMBEL_ROW_NAN, GUMBEL_ROW_INFINITE, GUMBEL_ROW_EMPTY,
                               GUMBEL_ROW_OK};
    const int32_t tokens[B] = {-1, -1, -1, 140};
    assert_memory_equal(drawn->status, status, sizeof status);
    assert_memory_equal(drawn->tokens, tokens, sizeof tokens);
    outcome_free(drawn);
    free(noise);
}

static void prepare_errors_name_the_field(void **state)
{
    float out[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    const gumbel_sampling sound = {.struct_size = sizeof sound};
    gumbel_sampling with_noise = sound, with_domain = sound;
    with_noise.noise = out;
    with_domain.domain = 0x80000000u;
    const struct {
        const char *field;
        const gumbel_sampling *sampling;
        int64_t batch, first, count;
        float *noise;
        int64_t stride;
    } bad[] = {
        {"batch", &sound, -1, 0, 4, out, 0},
        {"batch", &sound, INT64_MAX, 0, 4, out, 0},
        {"first_token", &sound, 1, -1, 4, out, 0},
        {"first_token", &sound, 1, 0, -4, out, 0},
        {"first_token", &sound, 1, (INT64_C(1) << 31) - 3, 4, out, 0},
        {"first_token", &sound, 1, INT64_MAX, INT64_MAX, out, 0},
        {"noise_stride", &sound, 1, 0, 4, out, 3},
        {"noise_stride", &sound, 1, 0, 4, out, -4},
        {"noise_stride", &sound, 4, 0, 4, out, INT64_MAX / 2},
        {"noise", &sound, 1, 0, 4, NULL, 0},
        {"noise", &sound, 1, 0, 4, (float *)((uintptr_t)out + 1), 0},
        {"sampling.noise", &with_noise, 1, 0, 4, out, 0},
        {"sampling.domain", &with_domain, 1, 0, 4, out, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gumbel_error error = {"", ""};
        assert_int_equal(gumbel_prepare_noise(*state, NULL, bad[i].sampling, bad[i].batch,
                                              bad[i].first, bad[i].count, bad[i].noise,
                                              bad[i].stride, &error),
                         GUMBEL_ERROR_ARGUMENT);
        if (strcmp(error.field, bad[i].field) != 0)
            fail_msg("case %zu: the error names %s, not %s", i, error.field, bad[i].field);
    }
    for (int i = 0; i < 8; i++)
        assert_true(out[i] == 7);
    assert_int_equal(gumbel_prepare_noise(NULL, NULL, &sound, 1, 0, 4, out, 0, NULL),
                     GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_prepare_noise(*state, out, &sound, 1, 0, 4, out, 0, NULL),
                     GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_prepare_noise(*state, NULL, NULL, 0, 0, 4, NULL, 0, NULL), GUMBEL_OK);
    assert_int_equal(gumbel_prepare_noise(*state, NULL, NULL, 4, 0, 0, NULL, 0, NULL), GUMBEL_OK);
    assert_int_equal(gumbel_prepare_noise(*state, NULL, NULL, 1, 0, 8, out, 0, NULL), GUMBEL_OK);
    assert_true(out[7] != 7);
}

/* ------------------------------------------------------------------------ advance ---- */

/* Each row's token is written at its own position. The ring drops tokens older than its length;
 * gaps between positions are not written. */
static void advance_writes_the_token_ring(void **state)
{
    enum { B = 3, S = 2, LENGTH = 5, STEPS = 12 };
    const uint64_t starts[B] = {0, 7, UINT64_MAX - 3};
    uint64_t position[2 * B] = {starts[0], 99, starts[1], 99, starts[2], 99};
    int32_t tokens[B][S], ring[LENGTH][B][S], last[LENGTH][B][S];
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = B,
                        .num_samples = S,
                        .tokens = tokens[0],
                        .position = position,
                        .position_stride = 2,
                        .ring = ring[0][0],
                        .ring_length = LENGTH};
    memset(ring, 0xA7, sizeof ring);
    memset(last, 0xA7, sizeof last);
    for (int i = 0; i < STEPS; i++) {
        for (uint32_t b = 0; b < B; b++)
            for (int s = 0; s < S; s++)
                tokens[b][s] = last[(starts[b] + (uint64_t)i) % LENGTH][b][s] =
                    i == 3 ? -1 : 1000 * i + 10 * (int)b + s;
        assert_int_equal(gumbel_advance(*state, NULL, &step, NULL), GUMBEL_OK);
        assert_memory_equal(ring, last, sizeof ring);
    }
    for (uint32_t b = 0; b < B; b++) {
        assert_int_equal(position[2 * b], starts[b] + STEPS);
        assert_int_equal(position[2 * b + 1], 99);
    }
}

/* A shared position advances once; an older, shorter struct has no ring. */
static void advance_moves_a_shared_position_once(void **state)
{
    uint64_t position = 41;
    int32_t tokens[3] = {4, 5, 6}, ring[2][3] = {{0}};
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = 3,
                        .tokens = tokens,
                        .position = &position,
                        .position_stride = GUMBEL_SAME,
                        .ring = ring[0],
                        .ring_length = 2};
    assert_int_equal(gumbel_advance(*state, NULL, &step, NULL), GUMBEL_OK);
    assert_int_equal(position, 42);
    assert_memory_equal(ring[1], tokens, sizeof tokens);
    assert_int_equal(ring[0][0], 0);
    step.struct_size = offsetof(gumbel_step, ring);
    assert_int_equal(gumbel_advance(*state, NULL, &step, NULL), GUMBEL_OK);
    assert_int_equal(position, 43);
    assert_int_equal(ring[0][0], 0);
    step.batch = 0;
    assert_int_equal(gumbel_advance(*state, NULL, &step, NULL), GUMBEL_OK);
    assert_int_equal(position, 43);
}

static void advance_errors_name_the_field(void **state)
{
    uint64_t position[2] = {3, 4};
    int32_t tokens[2] = {1, 2}, ring[4] = {9, 9, 9, 9};
    const gumbel_step sound = {.struct_size = sizeof sound,
                               .batch = 2,
                               .tokens = tokens,
                               .position = position,
                               .ring = ring,
                               .ring_length = 2};
    struct {
        const char *field;
        gumbel_step step;
    } bad[12];
    int count = 0;
#define BAD(name, member, value)                                                                   \
    bad[count].field = name;                                                                       \
    bad[count].step = sound;                                                                       \
    bad[count++].step.member = value
    BAD("step", struct_size, 4);
    BAD("step.batch", batch, -1);
    BAD("step.batch", batch, INT64_MAX);
    BAD("step.num_samples", num_samples, -1);
    BAD("step.num_samples", num_samples, 65537);
    BAD("step.tokens", tokens, NULL);
    BAD("step.position", position, NULL);
    BAD("step.position.stride", position_stride, -2);
    BAD("step.reserved", reserved, 1);
    BAD("step.ring_length", ring_length, 0);
    BAD("step.ring_length", ring_length, INT64_MAX);
    BAD("step.ring_length", ring, NULL);
#undef BAD
    for (int i = 0; i < count; i++) {
        gumbel_error error = {"", ""};
        assert_int_equal(gumbel_advance(*state, NULL, &bad[i].step, &error), GUMBEL_ERROR_ARGUMENT);
        if (strcmp(error.field, bad[i].field) != 0)
            fail_msg("case %d: the error names %s, not %s", i, error.field, bad[i].field);
    }
    assert_int_equal(gumbel_advance(*state, NULL, NULL, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_advance(NULL, NULL, &sound, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_advance(*state, ring, &sound, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_true(position[0] == 3 && position[1] == 4 && ring[0] == 9 && ring[3] == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prepared_noise_matches_gumbel_noise),
        cmocka_unit_test(prepared_noise_at_boundary_words),
        cmocka_unit_test(draws_with_prepared_noise_match),
        cmocka_unit_test(shard_noise_is_a_slice_of_the_whole),
        cmocka_unit_test(faulty_rows_with_prepared_noise),
        cmocka_unit_test(prepare_errors_name_the_field),
        cmocka_unit_test(advance_writes_the_token_ring),
        cmocka_unit_test(advance_moves_a_shared_position_once),
        cmocka_unit_test(advance_errors_name_the_field),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
