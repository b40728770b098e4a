/* SPDX-License-Identifier: Apache-2.0
 *
 * Summaries received from another machine may be damaged. For any bytes, merge and finish have a
 * defined result that does not depend on the order of merging. Sanitizer builds run this test, too.
 */
#include "outcome.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 200000

/* Extreme values of a field, or values that no draw writes. */
static const float floats[] = {0,       -0.0f,    1,        -1,        3e38f, -3e38f,
                               0x1p31f, -0x1p31f, INFINITY, -INFINITY, NAN,   1e-45f};
static const int32_t exponents[] = {INT32_MIN, INT32_MIN + 1, INT32_MIN + 2, INT32_MIN + 3, -1, 0,
                                    1,         INT32_MAX - 2, INT32_MAX - 1, INT32_MAX};
static const uint64_t words[] = {0, 1, UINT32_MAX, UINT64_C(1) << 57, UINT64_MAX};

#define ANY(of) of[random_below(random, sizeof of / sizeof *of)]

static float any_float(uint64_t *random)
{
    uint32_t bits = (uint32_t)random_bits(random);
    float value = ANY(floats);
    if (random_below(random, 2))
        memcpy(&value, &bits, sizeof value);
    return value;
}

/* Random bytes, then extreme values in most fields. Ids are disjoint, as those of shards are. */
static gumbel_summary any_summary(uint64_t *random, int32_t shard)
{
    gumbel_summary s;
    for (size_t i = 0; i < sizeof s; i += sizeof(uint64_t)) {
        uint64_t bits = random_bits(random);
        memcpy((char *)&s + i, &bits, sizeof bits);
    }
    if (random_below(random, 8)) {
        s.best_score = any_float(random);
        s.max_z = any_float(random);
        s.mass_exponent = ANY(exponents);
        for (int i = 0; i < 3; i++)
            s.mass[i] = ANY(words);
        s.flags &= random_below(random, 2) ? 7 : UINT32_MAX;
    }
    s.best_id = random_below(random, 4) ? s.best_id & INT32_MAX : s.best_id;
    s.best_id -= s.best_id % 3 - shard;
    return s;
}

/* Sets b's token to that of a, with an equal score and other bits of z or of a zero's sign. */
static void claim_same_token(gumbel_summary *b, const gumbel_summary *a, uint64_t *random)
{
    if (random_below(random, 3))
        return;
    b->best_id = a->best_id;
    b->best_score = a->best_score == 0 && random_below(random, 2) ? -a->best_score : a->best_score;
    b->best_z = random_below(random, 4) ? any_float(random) : a->best_z;
}

static gumbel_summary merge_pair(gumbel_summary a, gumbel_summary b)
{
    assert_int_equal(gumbel_merge(NULL, NULL, &a, &b, 1, NULL), GUMBEL_OK);
    return a;
}

/* Compares bit for bit. */
static int same_bits(gumbel_summary a, gumbel_summary b) { return memcmp(&a, &b, sizeof a) == 0; }

static void merge_order_does_not_matter(void **state)
{
    uint64_t seed = 31, *random = &seed;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        gumbel_summary a = any_summary(random, 0), b = any_summary(random, 1),
                       c = any_summary(random, 2);
        claim_same_token(&b, &a, random);
        claim_same_token(&c, &a, random);
        assert_true(same_bits(merge_pair(a, b), merge_pair(b, a)));
        assert_true(same_bits(merge_pair(merge_pair(a, b), c), merge_pair(a, merge_pair(b, c))));
    }
}

/* The finished token is -1, or the token of a summary whose score is not NaN. */
static void finished_token_is_valid(void **state)
{
    enum { S = 3 };
    uint64_t seed = 32, *random = &seed;
    outcome *drawn = outcome_make(1, S);
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        gumbel_summary row[S];
        for (int s = 0; s < S; s++)
            row[s] = any_summary(random, s);
        outcome_poison(drawn);
        assert_int_equal(gumbel_finish(NULL, NULL, row, 1, 1, S, &drawn->output, NULL), GUMBEL_OK);
        for (int s = 0; s < S; s++) {
            int none = drawn->tokens[s] == -1;
            assert_true(none || drawn->tokens[s] == row[s].best_id);
            assert_true(none == !!isnan(drawn->scores[s]));
            assert_true(none || drawn->status[0] == GUMBEL_ROW_OK);
        }
        assert_in_range(drawn->status[0], GUMBEL_ROW_OK, GUMBEL_ROW_LISTS);
    }
    outcome_free(drawn);
}

/* Zeros of both signs are ordinary logits. */
static void zeros_of_both_signs_are_logits(void **state)
{
    const float zeros[] = {0, -0.0f};
    gumbel_summary *parts[2];
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    (void)state;
    for (int i = 0; i < 2; i++) {
        gumbel_logits one = {.struct_size = sizeof one,
                             .logits = tensor_of(&zeros[i], GUMBEL_FLOAT32, 1, 1, 0),
                             .first_token = 64 * i};
        parts[i] = summarise(device, NULL, &one, NULL);
    }
    assert_true(same_bits(merge_pair(*parts[0], *parts[1]), merge_pair(*parts[1], *parts[0])));
    free(parts[0]);
    free(parts[1]);
    gumbel_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge_order_does_not_matter),
        cmocka_unit_test(finished_token_is_valid),
        cmocka_unit_test(zeros_of_both_signs_are_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
