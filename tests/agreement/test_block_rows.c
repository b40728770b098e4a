/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that stress the skipping of blocks: all tokens can win, or only one; the largest logits come
 * last, or all are equal; the row begins or ends within a block; special values are in blocks that
 * cannot win. On every instruction set, tokens and scores equal the oracle's bit for bit, for the
 * whole row and for merged shards.
 */
#include "oracle.h"
#include "outcome.h"
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

enum { TOKENS_MAX = 4600, SAMPLES = 5 };

/* The logit of token i of `vocab`; `random` is the state of the row's generator. */
typedef float (*row_kind)(int64_t i, int64_t vocab, uint64_t *random);

static float ascending_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)random;
    return 30 * (float)i / (float)vocab;
}

static float steep_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)vocab;
    (void)random;
    return 0.05f * (float)i;
}

static float descending_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    return -ascending_logit(i, vocab, random);
}

static float equal_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)i;
    (void)vocab;
    (void)random;
    return -2.5f;
}

/* Values so large that the scores of a block round to a few distinct numbers. */
static float huge_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)i;
    (void)vocab;
    return 3e8f + (float)random_below(random, 3) * 64;
}

static float tiny_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)i;
    (void)vocab;
    return random_normal(random) * 0x1p-140f;
}

static float single_finite_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)random;
    return i == vocab * 2 / 3 ? -1e30f : -INFINITY;
}

/* Finite logits in the first third of the row alone, or in the last third alone. */
static float first_third_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    return i <= vocab / 3 ? random_normal(random) : -INFINITY;
}

static float last_third_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    return i >= vocab - vocab / 3 - 1 ? random_normal(random) : -INFINITY;
}

static float sparse_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    return random_below(random, 50) && i != vocab / 2 ? -INFINITY : random_normal(random);
}

static float dominated_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    return i == vocab / 2 ? 8 : random_normal(random);
}

static float normal_logit(int64_t i, int64_t vocab, uint64_t *random)
{
    (void)i;
    (void)vocab;
    return 2.5f * random_normal(random);
}

static const struct {
    const char *name;
    row_kind logit;
} kinds[] = {
    {"ascending", ascending_logit}, {"steep", steep_logit},        {"descending", descending_logit},
    {"equal", equal_logit},         {"huge", huge_logit},          {"tiny", tiny_logit},
    {"lone", single_finite_logit},  {"headed", first_third_logit}, {"tailed", last_third_logit},
    {"sparse", sparse_logit},       {"normal", normal_logit},      {"dominated", dominated_logit},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* A row in memory; NaN follows the last logit. */
typedef struct row {
    float logits[TOKENS_MAX + 64];
    gumbel_dtype dtype;
    uint16_t narrow[TOKENS_MAX + 64]; /* the logits rounded to a 16-bit dtype */
    int64_t vocab, first_token;
    gumbel_logits input;
    gumbel_sampling sampling;
    uint64_t seed, position;
    char what[160];
} row;

/* Round the row to its dtype. */
static void narrow_row(row *r, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (isnan(r->logits[i]))
            dtype_store_nan(r->narrow, r->dtype, i);
        else if (isinf(r->logits[i]))
            dtype_store_infinite(r->narrow, r->dtype, i, r->logits[i] < 0 ? -1 : 1);
        else {
            dtype_store(r->narrow, r->dtype, i, r->logits[i]);
            r->logits[i] = dtype_load(r->narrow, r->dtype, i);
        }
    }
}

static const void *logits_of(const row *r, int64_t at)
{
    return r->dtype == GUMBEL_FLOAT32 ? (const void *)(r->logits + at) : r->narrow + at;
}

static void make_row(row *r, int kind, int64_t vocab, int64_t first_token, uint64_t seed)
{
    uint64_t random = seed;
    int64_t padding = seed % 3 ? 0 : 1 + random_below(&random, 63);
    *r = (row){.vocab = vocab, .first_token = first_token, .seed = seed, .position = seed / 7};
    for (int64_t i = 0; i < vocab + padding; i++)
        r->logits[i] = i < vocab ? kinds[kind].logit(i, vocab, &random) : NAN;
    r->dtype = seed % 5 < 3 ? GUMBEL_FLOAT32 : GUMBEL_BFLOAT16;
    if (r->dtype != GUMBEL_FLOAT32)
        narrow_row(r, vocab + padding);
    r->input =
        (gumbel_logits){.struct_size = sizeof r->input,
                        .logits = tensor_of(logits_of(r, 0), r->dtype, 1, vocab + padding, 0),
                        .first_token = first_token,
                        .vocab_size = padding ? first_token + vocab : 0};
    r->sampling = (gumbel_sampling){.struct_size = sizeof r->sampling,
                                    .seed = {&r->seed, GUMBEL_SAME},
                                    .position = {&r->position, GUMBEL_SAME},
                                    .num_samples = seed % 2 ? SAMPLES : 1};
    snprintf(r->what, sizeof r->what,
             "%s, %s, V %" PRId64 " from %" PRId64 ", %" PRId64 " of padding, seed %" PRIu64,
             kinds[kind].name, dtype_name(r->dtype), vocab, first_token, padding, seed);
}

/* Computes eq. 3 and 4 of docs/maths.md with the oracle's noise, in float32. */
static void assert_exact(const row *r, const outcome *drawn)
{
    for (int32_t s = 0; s < drawn->samples; s++) {
        oracle_stream stream = {r->seed, r->position, (uint32_t)s, 0, 0};
        int64_t best = -1;
        float score = -INFINITY;
        for (int64_t i = 0; i < r->vocab; i++) {
            if (r->logits[i] == -INFINITY)
                continue;
            float own = r->logits[i] + oracle_exact_noise(stream, r->first_token + i);
            if (best < 0 || own > score) {
                best = r->first_token + i;
                score = own;
            }
        }
        if (drawn->tokens[s] != best || drawn->scores[s] != score)
            fail_msg("%s, sample %d: token %d, score %a; the oracle draws %" PRId64 ", %a", r->what,
                     (int)s, (int)drawn->tokens[s], (double)drawn->scores[s], best, (double)score);
    }
}

/* Draws with a log-normaliser, which reads all blocks, or without. */
static void draw_row(gumbel_device *device, const row *r, int with_mass, outcome *into)
{
    gumbel_output all = into->output;
    if (!with_mass)
        into->output.lse = into->output.logprobs = NULL;
    assert_int_equal(draw_logits(device, &r->input, &r->sampling, into), GUMBEL_OK);
    into->output = all;
}

/* Draws the row in shards with random boundaries, and merges them. */
static void assert_same_in_shards(gumbel_device *device, const row *r, outcome *drawn,
                                  uint64_t *random)
{
    gumbel_summary *merged = NULL;
    int64_t whole = r->input.logits.cols;
    for (int64_t at = 0, length; at < whole; at += length) {
        length = 1 + random_below(random, (uint32_t)(whole / 2 + 1));
        length = length < whole - at ? length : whole - at;
        gumbel_logits shard = r->input;
        shard.logits = tensor_of(logits_of(r, at), r->dtype, 1, length, 0);
        shard.first_token += at;
        gumbel_summary *part = summarise(device, NULL, &shard, &r->sampling);
        if (!merged) {
            merged = part;
            continue;
        }
        assert_int_equal(gumbel_merge(NULL, NULL, merged, part, drawn->samples, NULL), GUMBEL_OK);
        free(part);
    }
    outcome_poison(drawn);
    assert_int_equal(gumbel_finish(NULL, NULL, merged, 1, 1, drawn->samples, &drawn->output, NULL),
                     GUMBEL_OK);
    free(merged);
    assert_exact(r, drawn);
}

static void every_row_kind_matches_the_oracle(void **state)
{
    static const int64_t sizes[] = {1, 3, 63, 64, 65, 127, 129, 300, 2037, 4500};
    static const int64_t firsts[] = {0, 64, 128, 4,       60,
                                     1, 37, 63,  1000003, (1ll << 31) - TOKENS_MAX - 64};
    uint64_t random = 21;
    row *r = make_zeroed(1, sizeof *r);
    for (int round = 0; round < 3 * nightly_factor(); round++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int k = 0; k < 10; k++) {
                int64_t first = firsts[(k + kind + 3 * round) % 10];
                make_row(r, kind, sizes[k], first, random_bits(&random) >> 1);
                outcome *drawn = outcome_make(1, r->sampling.num_samples);
                draw_row(*state, r, round % 2, drawn);
                assert_exact(r, drawn);
                assert_same_in_shards(*state, r, drawn, &random);
                outcome_free(drawn);
            }
    free(r);
}

/* A NaN or +inf sets the row's status even if its block could be skipped because of a dominant
 * token. */
static void nan_and_infinity_set_the_row_status(void **state)
{
    uint64_t random = 22;
    row *r = make_zeroed(1, sizeof *r);
    outcome *drawn = outcome_make(1, SAMPLES);
    for (int i = 0; i < 400 * nightly_factor(); i++) {
        make_row(r, KINDS - 1, 1 + random_below(&random, 700), random_below(&random, 200),
                 1); /* float32 */
        for (int64_t k = 0; k < r->vocab; k++)
            r->logits[k] = k == 0 ? 1000 : i % 4 < 2 ? -1000 : -INFINITY;
        r->logits[random_below(&random, (uint32_t)r->vocab)] = i % 2 ? NAN : INFINITY;
        draw_row(*state, r, i / 4 % 2, drawn);
        assert_int_equal(drawn->status[0], i % 2 ? GUMBEL_ROW_NAN : GUMBEL_ROW_INFINITE);
        assert_int_equal(drawn->tokens[SAMPLES - 1], -1);
    }
    outcome_free(drawn);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_kind_matches_the_oracle),
        cmocka_unit_test(nan_and_infinity_set_the_row_status),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
