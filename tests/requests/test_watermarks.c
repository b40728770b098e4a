/* SPDX-License-Identifier: Apache-2.0
 *
 * Watermarked draws: SipHash by its published test vectors; the seeds and positions of random
 * rows against plain loops; texts verified from drafts; the distribution over keys; every error.
 */
#include "outcome.h"
#include "statistics.h"
#include "test_scale.h"
#include "watermark_calls.h"
#include "watermark_texts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* The first vectors of the authors' vectors.h, and the paper's example: the message 0, 1, 2, ... of
 * each length, by the key 0, 1, ..., 15. */
static void the_oracle_hashes_as_published(void **state)
{
    static const struct {
        size_t size;
        uint64_t hash;
    } published[] = {{0, UINT64_C(0x726fdb47dd0e0e31)}, {1, UINT64_C(0x74f839c593dc67fd)},
                     {2, UINT64_C(0x0d6c8009d9a94f5a)}, {7, UINT64_C(0xab0200f58b01d137)},
                     {8, UINT64_C(0x93f5f5799a932462)}, {15, UINT64_C(0xa129ca6149be45e5)}};
    uint8_t key[16], message[16];
    (void)state;
    for (uint8_t i = 0; i < 16; i++)
        key[i] = message[i] = i;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        assert_true(oracle_siphash(key, message, published[i].size) == published[i].hash);
}

static void rows_agree_with_plain_loops(void **state)
{
    watermark_call *c = malloc(sizeof *c);
    int64_t watermarked = 0, repeats = 0;
    for (uint64_t index = 0; index < 3000; index++) {
        gumbel_error error = {"", ""};
        watermark_call_make(c, index);
        assert_int_equal(gumbel_watermark_rows(*state, NULL, &c->watermark, &c->recent, c->batch,
                                               &c->draws, &error),
                         GUMBEL_OK);
        if (!watermark_call_agrees(c, &watermarked, &repeats))
            fail_msg("call %d", (int)index);
    }
    free(c);
    assert_true(watermarked > 1000 && repeats > 1000);
}

static void verified_texts_match_step_by_step_decoding(void **state)
{
    watermark_texts *t = malloc(sizeof *t);
    watermark_texts_counts counts = {0, 0};
    int64_t watermarked = 0;
    for (uint64_t index = 0; index < 40; index++) {
        watermark_texts_make(t, index, *state);
        for (int r = 0; r < TEXTS_REQUESTS; r++)
            for (int i = 0; i < TEXTS_LENGTH; i++)
                watermarked += t->watermarked[r][i];
        if (!watermark_texts_verify(t, *state, *state, &counts))
            fail_msg("texts %d", (int)index);
    }
    free(t);
    /* Some drafts are accepted; some tokens are watermarked, and some are not. */
    assert_true(counts.emitted > counts.cycles * 3 / 2);
    assert_true(watermarked > 40 * TEXTS_REQUESTS * TEXTS_LENGTH / 4);
    assert_true(watermarked < 40 * TEXTS_REQUESTS * TEXTS_LENGTH * 9 / 10);
}

/* ---------------------------------------------------------------------------- distribution ---- */

enum { KINDS = 20, DRAWS = 200000, KEYS = 500 };

/* Draws one token by each of DRAWS keys, and counts the tokens. The rings have `count` tokens 0, 1,
 * 0, 1, ...: contexts of 2 tokens repeat from 4 on. */
static void count_tokens(gumbel_device *device, uint64_t count, const float *logits,
                         int64_t *counts)
{
    static uint64_t keys[2 * KEYS], rings[KEYS], seeds[KEYS], positions[KEYS];
    static int32_t tokens[KEYS], ring[KEYS * 8];
    static float rows[KEYS * KINDS];
    const int32_t h = 2;
    const uint64_t seed = 3;
    gumbel_error error = {"", ""};
    uint64_t random = 31 + count, position = 0;
    size_t bytes = 0;
    gumbel_recent recent = {
        .struct_size = sizeof recent, .capacity = 8, .tokens = ring, .count = rings};
    gumbel_watermark w = {.struct_size = sizeof w,
                          .key = keys,
                          .context = {&h, GUMBEL_SAME},
                          .seed = {&seed, GUMBEL_SAME},
                          .position = {&position, GUMBEL_SAME}};
    gumbel_watermark_draws to = {.struct_size = sizeof to, .seed = seeds, .position = positions};
    gumbel_sampling how = {
        .struct_size = sizeof how, .seed = {seeds, 1}, .position = {positions, 1}};
    gumbel_logits in = {.struct_size = sizeof in,
                        .logits = tensor_of(rows, GUMBEL_FLOAT32, KEYS, KINDS, 0)};
    gumbel_output out = {.struct_size = sizeof out, .tokens = tokens};
    for (int b = 0; b < KEYS; b++) {
        memcpy(rows + b * KINDS, logits, KINDS * sizeof *logits);
        rings[b] = count;
        for (int i = 0; i < 8; i++)
            ring[8 * b + i] = i % 2;
    }
    assert_int_equal(gumbel_workspace_size(device, NULL, &in, &how, &out, &bytes, &error),
                     GUMBEL_OK);
    void *workspace = poisoned_workspace(bytes);
    for (int64_t draw = 0; draw < draws_of(DRAWS); draw += KEYS) {
        for (int b = 0; b < 2 * KEYS; b++)
            keys[b] = random_bits(&random);
        assert_int_equal(gumbel_watermark_rows(device, NULL, &w, &recent, KEYS, &to, &error),
                         GUMBEL_OK);
        assert_int_equal(
            gumbel_sample_logits(device, NULL, &in, &how, &out, workspace, bytes, &error),
            GUMBEL_OK);
        for (int b = 0; b < KEYS; b++)
            counts[tokens[b]]++;
    }
    free(workspace);
}

/* Over keys, a token has the distribution of a draw without a watermark: at a new context, at a
 * repeated one, and without a context. A temperature wrong by 2% fails. */
static void tokens_have_the_distribution_over_keys(void **state)
{
    static const uint64_t lengths[] = {2, 4, 1};
    float logits[KINDS];
    double wide[KINDS], probability[KINDS], wrong[KINDS];
    uint64_t random = 12;
    const int64_t total = draws_of(DRAWS);
    for (int i = 0; i < KINDS; i++)
        wide[i] = (double)(logits[i] = 1.5f * random_normal(&random));
    softmax(wide, KINDS, 1.0, probability);
    softmax(wide, KINDS, 1.02, wrong);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        int64_t counts[KINDS] = {0};
        chi_squared right = {0, 0, 0}, power = {0, 0, 0};
        count_tokens(*state, lengths[k], logits, counts);
        chi_squared_add(&right, counts, probability, KINDS, total);
        chi_squared_add(&power, counts, wrong, KINDS, total);
        assert_true(chi_squared_p(right.statistic, right.degrees) > 1e-5);
        if (draws_of(DRAWS) == DRAWS)
            assert_true(chi_squared_p(power.statistic, power.degrees) < 1e-4);
    }
}

/* ---------------------------------------------------------------------------------- errors ---- */

/* A valid call of two rows. */
typedef struct right_call {
    uint64_t key[4], own_seed[2], own_position[2], start[2], count[2], seed[2], position[4];
    int32_t context[2], ring[16], of_row[2], live, drafts[4], watermarked[4], tokens[4];
    gumbel_watermark watermark;
    gumbel_recent recent;
    gumbel_draft draft;
    gumbel_watermark_draws draws;
    int64_t batch, rows;
    void *stream;
} right_call;

static void make_right(right_call *c)
{
    memset(c, 0, sizeof *c);
    c->batch = 2;
    c->rows = 4;
    c->recent = (gumbel_recent){
        .struct_size = sizeof c->recent, .capacity = 8, .tokens = c->ring, .count = c->count};
    c->watermark = (gumbel_watermark){.struct_size = sizeof c->watermark,
                                      .key = c->key,
                                      .context = {c->context, 0},
                                      .text_start = {c->start, 0},
                                      .seed = {c->own_seed, 0},
                                      .position = {c->own_position, 0}};
    c->draft = (gumbel_draft){
        .struct_size = sizeof c->draft, .requests = 2, .max_nodes = 2, .tokens = c->tokens};
    c->draws = (gumbel_watermark_draws){.struct_size = sizeof c->draws,
                                        .seed = c->seed,
                                        .position = c->position,
                                        .watermarked = c->watermarked};
    memset(c->seed, 0x5A, sizeof c->seed);
    memset(c->position, 0x5A, sizeof c->position);
    memset(c->watermarked, 0x5A, sizeof c->watermarked);
}

/* A change of a valid call, and the field that the error must name. */
typedef struct call_change {
    const char *field;
    void (*make)(right_call *c);
} call_change;

#define CHANGE(name, ...)                                                                          \
    static void name(right_call *c) { __VA_ARGS__; }
#define ODD(pointer, type) pointer = (type *)((char *)pointer + 1)

CHANGE(negative_batch, c->batch = -1; c->rows = -1)
CHANGE(no_recent, c->recent.struct_size = 0)
CHANGE(no_ring, c->recent.tokens = NULL)
CHANGE(no_count, c->recent.count = NULL)
CHANGE(no_capacity, c->recent.capacity = 0)
CHANGE(no_key, c->watermark.key = NULL)
CHANGE(odd_key, c->watermark.key = (const uint64_t *)((const char *)c->key + 1))
CHANGE(short_key, c->watermark.key_stride = 1)
CHANGE(long_context, c->context[1] = GUMBEL_CONTEXT_MAX + 1)
CHANGE(negative_context, c->context[0] = -1)
CHANGE(negative_stride, c->watermark.seed.stride = -2)
CHANGE(start_alone, c->watermark.text_start = (gumbel_row_u64){NULL, 1})
CHANGE(reserved, c->watermark.reserved = 1)
CHANGE(bad_slot, c->of_row[1] = 2; c->watermark.slots = (gumbel_slots){c->of_row, 2})
CHANGE(no_slots, c->watermark.slots = (gumbel_slots){c->of_row, 0})
CHANGE(negative_live, c->live = -1; c->watermark.live_rows = &c->live)
CHANGE(many_live, c->live = 3; c->watermark.live_rows = &c->live)
CHANGE(no_seed, c->draws.seed = NULL)
CHANGE(no_position, c->draws.position = NULL)
CHANGE(odd_seed, ODD(c->draws.seed, uint64_t))
CHANGE(odd_watermarked, ODD(c->draws.watermarked, int32_t))
CHANGE(same_arrays, c->draws.position = c->draws.seed)
CHANGE(own_arrays, c->draws.position = c->own_position)
CHANGE(into_key, c->draws.seed = c->key + 1)
CHANGE(into_ring, c->draws.watermarked = c->ring + 15)
CHANGE(has_stream, c->stream = c)
CHANGE(small_struct, c->watermark.struct_size = 3)
CHANGE(small_draws, c->draws.struct_size = 3)
/* of rows alone */
CHANGE(no_drafts, c->watermark.num_drafts = 2)
CHANGE(negative_drafts, c->watermark.num_drafts = -1)
CHANGE(many_drafts, c->watermark.drafts = c->drafts; c->watermark.num_drafts = GUMBEL_NODES_MAX)
CHANGE(narrow_drafts, c->watermark.drafts = c->drafts; c->watermark.num_drafts = 2;
       c->watermark.draft_stride = 1)
CHANGE(same_drafts, c->watermark.drafts = c->drafts; c->watermark.num_drafts = 1;
       c->watermark.draft_stride = GUMBEL_SAME)
/* of nodes alone */
CHANGE(has_drafts, c->watermark.drafts = c->drafts; c->watermark.num_drafts = 1)
CHANGE(rejection, c->draft.rule = GUMBEL_RULE_REJECTION)
CHANGE(few_rows, c->rows = 3)
CHANGE(no_tokens, c->draft.tokens = NULL)

static void check_error(right_call *c, void *device, int with_nodes, const call_change *change)
{
    const right_call before = *c;
    gumbel_error error = {"", ""};
    const gumbel_status status =
        with_nodes ? gumbel_watermark_nodes(device, c->stream, &c->watermark, &c->recent, &c->draft,
                                            c->rows, &c->draws, &error)
                   : gumbel_watermark_rows(device, c->stream, &c->watermark, &c->recent, c->batch,
                                           &c->draws, &error);
    if (status != GUMBEL_ERROR_ARGUMENT || strcmp(error.field, change->field) != 0)
        fail_msg("%s: status %d, field '%s', %s", change->field, (int)status, error.field,
                 error.message);
    assert_memory_equal(&before, c, sizeof before);
}

static void invalid_calls_return_an_error_by_name(void **state)
{
    static const call_change both[] = {{"recent", no_recent},
                                       {"recent.tokens", no_ring},
                                       {"recent.count", no_count},
                                       {"recent.capacity", no_capacity},
                                       {"watermark.key", no_key},
                                       {"watermark.key", odd_key},
                                       {"watermark.key.stride", short_key},
                                       {"watermark.context[1]", long_context},
                                       {"watermark.context[0]", negative_context},
                                       {"watermark.seed.stride", negative_stride},
                                       {"watermark.text_start.stride", start_alone},
                                       {"watermark.reserved", reserved},
                                       {"watermark.slots", bad_slot},
                                       {"watermark.slots", no_slots},
                                       {"watermark.live_rows", negative_live},
                                       {"watermark.live_rows", many_live},
                                       {"draws.seed", no_seed},
                                       {"draws.position", no_position},
                                       {"draws.seed", odd_seed},
                                       {"draws.watermarked", odd_watermarked},
                                       {"draws.seed", same_arrays},
                                       {"draws.position", own_arrays},
                                       {"draws.seed", into_key},
                                       {"draws.watermarked", into_ring},
                                       {"stream", has_stream},
                                       {"watermark", small_struct},
                                       {"draws", small_draws}};
    static const call_change rows[] = {{"batch", negative_batch},
                                       {"watermark.drafts", no_drafts},
                                       {"watermark.num_drafts", negative_drafts},
                                       {"watermark.num_drafts", many_drafts},
                                       {"watermark.drafts.stride", narrow_drafts},
                                       {"watermark.draft_stride", same_drafts}};
    static const call_change nodes[] = {{"rows", negative_batch},
                                        {"watermark.num_drafts", has_drafts},
                                        {"draft.rule", rejection},
                                        {"draft.offsets", few_rows},
                                        {"draft.tokens", no_tokens}};
    const struct {
        const call_change *changes;
        size_t count;
        int on_rows, on_nodes;
    } groups[] = {{both, sizeof both / sizeof *both, 1, 1},
                  {rows, sizeof rows / sizeof *rows, 1, 0},
                  {nodes, sizeof nodes / sizeof *nodes, 0, 1}};
    for (size_t g = 0; g < 3; g++)
        for (size_t i = 0; i < groups[g].count; i++)
            for (int with_nodes = 0; with_nodes < 2; with_nodes++) {
                right_call c;
                make_right(&c);
                groups[g].changes[i].make(&c);
                if (with_nodes ? groups[g].on_nodes : groups[g].on_rows)
                    check_error(&c, *state, with_nodes, &groups[g].changes[i]);
            }
}

/* NULL arguments, empty calls, and a rule that draws nodes by no positions of their own. */
static void other_errors(void **state)
{
    right_call c;
    gumbel_error error = {"", ""};
    make_right(&c);
    assert_int_equal(
        gumbel_watermark_rows(NULL, NULL, &c.watermark, &c.recent, 2, &c.draws, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "device");
    assert_int_equal(gumbel_watermark_rows(*state, NULL, NULL, &c.recent, 2, &c.draws, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "watermark");
    assert_int_equal(gumbel_watermark_rows(*state, NULL, &c.watermark, NULL, 2, &c.draws, NULL),
                     GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_watermark_rows(*state, NULL, &c.watermark, &c.recent, 2, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "draws");
    assert_int_equal(
        gumbel_watermark_nodes(*state, NULL, &c.watermark, &c.recent, NULL, 4, &c.draws, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "draft");
    c.watermark.key = NULL;
    c.draws = (gumbel_watermark_draws){.struct_size = sizeof c.draws};
    assert_int_equal(
        gumbel_watermark_rows(*state, NULL, &c.watermark, &c.recent, 0, &c.draws, &error),
        GUMBEL_OK);
    make_right(&c);
    c.draft.rule = GUMBEL_RULE_BLOCK;
    c.draft.node_position = c.position;
    float logits[4 * 3] = {0};
    int32_t tokens[4], emitted[2];
    size_t bytes;
    gumbel_logits in = {.struct_size = sizeof in,
                        .logits = tensor_of(logits, GUMBEL_FLOAT32, 4, 3, 0)};
    gumbel_sampling how = {.struct_size = sizeof how};
    gumbel_verified to = {.struct_size = sizeof to, .tokens = tokens, .emitted = emitted};
    assert_int_equal(
        gumbel_verify_workspace_size(*state, NULL, &in, &how, &c.draft, &to, &bytes, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "draft.node_position");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oracle_hashes_as_published),
        cmocka_unit_test(rows_agree_with_plain_loops),
        cmocka_unit_test(verified_texts_match_step_by_step_decoding),
        cmocka_unit_test(tokens_have_the_distribution_over_keys),
        cmocka_unit_test(invalid_calls_return_an_error_by_name),
        cmocka_unit_test(other_errors),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
