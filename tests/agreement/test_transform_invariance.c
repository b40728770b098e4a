/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls with transforms and without truncation. They may process a row in tiles or shards: tiles
 * that the mask empties are skipped, and each shard reads its own range of every list. The results
 * equal those of the call that processes whole rows, which other tests compare with the oracle: on
 * every instruction set, with any number of threads and any tile size, alone or in a batch, with or
 * without shards.
 */
#include "fixtures.h"
#include "requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DRAWN (OUTCOME_TOKENS | OUTCOME_SCORES | OUTCOME_MASS)

static gumbel_status draw_by(gumbel_device *device, const request *req, int fused, outcome *into)
{
    return fused ? request_draw_fused(device, req, into) : request_draw(device, req, into);
}

/* Merges the summaries of tokens [first, first + count), counted from the first token of the
 * logits. */
static void add_shard(gumbel_device *device, const request *req, int64_t first, int64_t count,
                      gumbel_summary *into)
{
    gumbel_logits shard = req->logits;
    gumbel_sampling sampling = req->sampling;
    int64_t draws = shard.logits.rows * sampling.num_samples;
    size_t bytes;
    shard.logits.data =
        (const char *)shard.logits.data + (size_t)first * dtype_size(shard.logits.dtype);
    shard.logits.stride = shard.logits.stride ? shard.logits.stride : shard.logits.cols;
    shard.logits.cols = count;
    shard.first_token += first;
    if (sampling.noise) {
        sampling.noise_stride =
            sampling.noise_stride ? sampling.noise_stride : req->logits.logits.cols;
        sampling.noise += first;
    }
    void *workspace = call_workspace(device, NULL, &shard, &sampling, NULL, &bytes);
    gumbel_summary *part = make_zeroed((size_t)draws, sizeof *part);
    assert_int_equal(
        gumbel_partial_logits(device, NULL, &shard, &sampling, part, workspace, bytes, NULL),
        GUMBEL_OK);
    assert_int_equal(gumbel_merge(NULL, NULL, into, part, draws, NULL), GUMBEL_OK);
    free(part);
    free(workspace);
}

/* Shards that meet at multiples of 64 tokens have the same outcome, including the
 * log-normaliser. */
static void check_shards(gumbel_device *device, const request *req, const outcome *expected,
                         uint64_t *random)
{
    int64_t rows = req->logits.logits.rows, vocab = req->logits.logits.cols;
    int32_t samples = req->sampling.num_samples;
    int64_t draws = rows * samples, end, first_token = req->logits.first_token;
    gumbel_summary *merged = make_zeroed((size_t)draws, sizeof *merged);
    gumbel_summary_clear(merged, draws);
    for (int64_t first = 0; first < vocab; first = end) {
        end = (first_token + first) / 64 * 64 + 64 * (1 + random_below(random, 4)) - first_token;
        end = end < vocab ? end : vocab;
        add_shard(device, req, first, end - first, merged);
    }
    outcome *drawn = outcome_make(rows, samples);
    assert_int_equal(gumbel_finish(NULL, NULL, merged, 1, rows, samples, &drawn->output, NULL),
                     GUMBEL_OK);
    assert_true(outcome_same(expected, 0, drawn, DRAWN, request_describe(&req->plan)));
    outcome_free(drawn);
    free(merged);
}

static void check_devices(const request *req, int fused, const outcome *expected, uint64_t *random)
{
    static const int32_t tiles[] = {0, 64, 192, 1024};
    gumbel_isa isas[4];
    int count = list_isas(isas);
    outcome *drawn = outcome_make(expected->batch, expected->samples);
    for (int i = 0; i < count; i++) {
        gumbel_device *device = open_device(isas[i], 1 + (int32_t)random_below(random, 4),
                                            tiles[random_below(random, 4)]);
        assert_int_equal(draw_by(device, req, fused, drawn), GUMBEL_OK);
        assert_true(outcome_same(expected, 0, drawn, DRAWN, request_describe(&req->plan)));
        if (!fused)
            check_shards(device, req, expected, random);
        gumbel_close(device);
    }
    outcome_free(drawn);
}

static void check_alone(gumbel_device *device, const request *req, int fused,
                        const outcome *expected)
{
    outcome *drawn = outcome_make(1, expected->samples);
    for (int64_t b = 0; b < expected->batch; b++) {
        request part;
        request_rows(req, b, 1, &part);
        assert_int_equal(draw_by(device, &part, fused, drawn), GUMBEL_OK);
        assert_true(outcome_same(expected, b, drawn, DRAWN, request_describe(&req->plan)));
    }
    outcome_free(drawn);
}

static void check_plan(gumbel_device *device, request_plan plan, uint64_t *random)
{
    int fused = plan.hidden_size > 0;
    plan.transforms = 1;
    plan.truncation = 0;
    plan.logprobs_of = GUMBEL_PROCESSED;
    request *req = request_make(&plan, device);
    outcome *whole = request_outcome(req);
    outcome *drawn = outcome_make(whole->batch, whole->samples);
    assert_int_equal(draw_by(device, req, fused, whole), GUMBEL_OK);
    assert_int_equal(draw_by(device, req, fused, drawn), GUMBEL_OK);
    assert_true(outcome_same(whole, 0, drawn, DRAWN, request_describe(&plan)));
    check_devices(req, fused, drawn, random);
    check_alone(device, req, fused, drawn);
    outcome_free(drawn);
    outcome_free(whole);
    request_free(req);
}

static void transforms_from_logits(void **state)
{
    uint64_t random = 51;
    for (int i = 0; i < 150; i++)
        check_plan(*state, request_plan_at_random(1000 + i, 0), &random);
}

static void transforms_from_hidden_states(void **state)
{
    uint64_t random = 52;
    for (int i = 0; i < 80; i++)
        check_plan(*state, request_plan_at_random(1000 + i, 1), &random);
}

/* A list of biases that is too long to be sorted is searched linearly. The list is too long for V =
 * 64, and the same list is sorted for V = 6400. */
static void unsorted_biases_match_sorted_ones(void **state)
{
    enum { COUNT = 300, WIDE = 6400 };
    static float logits[WIDE], values[COUNT];
    static int32_t ids[COUNT], mask[WIDE / 32] = {-1, -1};
    const int64_t offsets[] = {0, COUNT};
    uint64_t random = 53;
    for (int i = 0; i < WIDE; i++)
        logits[i] = random_normal(&random);
    for (int i = 0; i < COUNT; i++) {
        ids[i] = (int32_t)random_below(&random, 64);
        values[i] = random_normal(&random);
    }
    gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                    .mask = {mask, GUMBEL_SAME},
                                    .bias = {.offsets = offsets, .ids = ids, .values = values}};
    gumbel_sampling sampling = {
        .struct_size = sizeof sampling, .num_samples = 20, .transforms = &transforms};
    request narrow = {.sampling = sampling,
                      .logits = {.struct_size = sizeof narrow.logits,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, 64, 0)}};
    request wide = narrow;
    wide.logits.logits.cols = WIDE;
    outcome *a = outcome_make(1, 20), *b = outcome_make(1, 20);
    assert_int_equal(request_draw(*state, &narrow, a), GUMBEL_OK);
    assert_int_equal(request_draw(*state, &wide, b), GUMBEL_OK);
    assert_true(outcome_same(a, 0, b, DRAWN, "long biases"));
    outcome_free(a);
    outcome_free(b);
}

/* Transforms that change no logit give the outcome of the plain call. */
static void neutral_transforms_match_the_plain_call(void **state)
{
    enum { WIDE = 5000 };
    static float logits[2 * WIDE];
    static int32_t mask[(WIDE + 31) / 32];
    static const int64_t none[] = {0, 0, 0};
    static uint32_t prompt[2 * ((WIDE + 31) / 32)], output[2 * ((WIDE + 31) / 32)];
    static uint16_t counts[2 * WIDE];
    const float r = 3, f = 1, T = 0.7f;
    uint64_t random = 54;
    for (int i = 0; i < 2 * WIDE; i++)
        logits[i] = 3 * random_normal(&random);
    memset(mask, 0xff, sizeof mask);
    gumbel_history history = {.struct_size = sizeof history,
                              .vocab_size = WIDE,
                              .prompt = prompt,
                              .output = output,
                              .counts = counts};
    gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                    .mask = {mask, GUMBEL_SAME},
                                    .banned = {.offsets = none, .ids = NULL},
                                    .bias = {.offsets = none, .ids = NULL},
                                    .repetition = {&r, GUMBEL_SAME},
                                    .frequency = {&f, GUMBEL_SAME},
                                    .history = &history};
    request req = {
        .sampling = {.struct_size = sizeof req.sampling, .temperature = {&T, GUMBEL_SAME}},
        .logits = {.struct_size = sizeof req.logits,
                   .logits = tensor_of(logits, GUMBEL_FLOAT32, 2, WIDE, 0)}};
    outcome *plain = outcome_make(2, 1), *idle = outcome_make(2, 1);
    assert_int_equal(request_draw(*state, &req, plain), GUMBEL_OK);
    req.sampling.transforms = &transforms;
    assert_int_equal(request_draw(*state, &req, idle), GUMBEL_OK);
    assert_true(outcome_same(plain, 0, idle, DRAWN, "idle transforms"));
    outcome_free(plain);
    outcome_free(idle);
}

/* The weights of masked tokens have no effect, whether the call reads them or not, with and without
 * truncation. */
static void weights_of_masked_tokens_have_no_effect(void **state)
{
    enum { B = 3, WIDE = 1000, D = 20, WORDS = (WIDE + 31) / 32 };
    static int32_t mask[B][WORDS];
    static const int32_t allowed[] = {3, 4, 500, 777, 998};
    request_plan plan = {.batch = B, .vocab = WIDE, .hidden_size = D, .samples = 3, .seed = 55};
    (void)state;
    gumbel_transforms transforms = {.struct_size = sizeof transforms, .mask = {mask[0], WORDS}};
    for (int i = 0; i < 5; i++)
        mask[i % B][allowed[i] / 32] |= (int32_t)(1u << allowed[i] % 32);
    gumbel_isa isas[4];
    int count = list_isas(isas);
    for (int i = 0; i < 2 * count; i++) {
        gumbel_device *device = open_device(isas[i / 2], 2, i % 2 ? 64 : 192);
        request *req = request_make(&plan, device);
        outcome *sound = outcome_make(B, 3), *changed = outcome_make(B, 3);
        if (i % 2) {
            outcome_widen(sound, 7, GUMBEL_PROCESSED);
            outcome_widen(changed, 7, GUMBEL_PROCESSED);
        }
        req->sampling.transforms = &transforms;
        assert_int_equal(request_draw_fused(device, req, sound), GUMBEL_OK);
        for (int64_t token = 0; token < WIDE; token++)
            if (!((mask[0][token / 32] | mask[1][token / 32] | mask[2][token / 32]) >> token % 32 &
                  1))
                dtype_store_nan(req->product->weight, req->head.weight.dtype, token * D);
        assert_int_equal(request_draw_fused(device, req, changed), GUMBEL_OK);
        assert_int_equal(sound->status[0], GUMBEL_ROW_OK);
        assert_true(outcome_same(sound, 0, changed, OUTCOME_ALL, "a grammar"));
        outcome_free(sound);
        outcome_free(changed);
        request_free(req);
        gumbel_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transforms_from_logits),
        cmocka_unit_test(transforms_from_hidden_states),
        cmocka_unit_test(unsorted_biases_match_sorted_ones),
        cmocka_unit_test(neutral_transforms_match_the_plain_call),
        cmocka_unit_test(weights_of_masked_tokens_have_no_effect),
    };
    return cmocka_run_group_tests(tests, open_reference, close_device);
}
