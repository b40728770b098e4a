/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox4x32: the published answers; no two draws have one counter.
 */
#include "oracle.h"
#include "noise_place.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inputs.h"

/* Checks one line of philox_kat.txt: the library, the oracle and, for 10 rounds, the inverse. */
static void check_answer(int rounds, const uint32_t counter[4], const uint32_t key[2],
                         const uint32_t answer[4])
{
    uint32_t out[4];
    memset(out, 0xA7, sizeof out);
    assert_int_equal(gumbel_philox4x32(counter, key, rounds, out), GUMBEL_OK);
    assert_memory_equal(out, answer, sizeof out);
    oracle_philox(counter, key, rounds, out);
    assert_memory_equal(out, answer, sizeof out);
    if (rounds == 10) {
        invert_philox(answer, key, out);
        assert_memory_equal(out, counter, sizeof out);
    }
}

static void published_answers_match(void **state)
{
    (void)state;
    FILE *file = fopen(TEST_ORACLE "/philox_kat.txt", "r");
    assert_non_null(file);
    char line[256];
    int answers = 0;
    while (fgets(line, sizeof line, file)) {
        uint32_t c[4], k[2], a[4];
        int rounds;
        int fields =
            sscanf(line,
                   "%d %" SCNx32 " %" SCNx32 " %" SCNx32 " %" SCNx32 " %" SCNx32 " %" SCNx32
                   " %" SCNx32 " %" SCNx32 " %" SCNx32 " %" SCNx32,
                   &rounds, &c[0], &c[1], &c[2], &c[3], &k[0], &k[1], &a[0], &a[1], &a[2], &a[3]);
        if (line[0] == '#')
            continue;
        assert_int_equal(fields, 11);
        check_answer(rounds, c, k, a);
        answers++;
    }
    fclose(file);
    assert_int_equal(answers, 6);
}

static void every_round_count_matches_the_oracle(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int rounds = 0; rounds <= 16; rounds++)
        for (int i = 0; i < 1000; i++) {
            uint32_t counter[4], key[2], expected[4], found[4];
            for (int k = 0; k < 4; k++)
                counter[k] = (uint32_t)random_bits(&random);
            key[0] = (uint32_t)random_bits(&random);
            key[1] = (uint32_t)random_bits(&random);
            oracle_philox(counter, key, rounds, expected);
            assert_int_equal(gumbel_philox4x32(counter, key, rounds, found), GUMBEL_OK);
            assert_memory_equal(found, expected, sizeof found);
            /* Input and output may be the same array. */
            assert_int_equal(gumbel_philox4x32(counter, key, rounds, counter), GUMBEL_OK);
            assert_memory_equal(counter, expected, sizeof counter);
        }
}

static void philox_errors_name_the_field(void **state)
{
    (void)state;
    uint32_t counter[4] = {0}, key[2] = {0}, out[4] = {7, 7, 7, 7};
    assert_int_equal(gumbel_philox4x32(NULL, key, 10, out), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_philox4x32(counter, NULL, 10, out), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_philox4x32(counter, key, 10, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_philox4x32(counter, key, -1, out), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_philox4x32(counter, key, 17, out), GUMBEL_ERROR_ARGUMENT);
    for (int i = 0; i < 4; i++)
        assert_int_equal(out[i], 7);
}

/* The noise of four tokens with a common counter, and of their block. Two groups with equal
 * counters have equal noise; with different counters, noise is equal with a probability of about
 * 2^-90, because Philox is a bijection. The noise therefore shows whether a counter is used
 * twice. */
typedef struct four {
    float g[4];
} four;

static int compare_fours(const void *a, const void *b) { return memcmp(a, b, sizeof(four)); }

typedef struct blocks {
    four *generated;
    size_t count, room;
} blocks;

static void add_block(blocks *all, const noise_place *at)
{
    assert_true(all->count < all->room);
    float *g = all->generated[all->count++].g;
    gumbel_error error;
    assert_int_equal(
        gumbel_noise(at->seed, at->position, at->sample, at->domain, at->token, 4, g, &error),
        GUMBEL_OK);
    for (int i = 0; i < 4; i++)
        assert_true(g[i] == oracle_exact_noise(place_stream(at), at->token + i));
}

static void assert_all_differ(blocks *all)
{
    qsort(all->generated, all->count, sizeof *all->generated, compare_fours);
    for (size_t i = 1; i < all->count; i++)
        assert_int_not_equal(compare_fours(&all->generated[i - 1], &all->generated[i]), 0);
    print_message("%zu counters, all different\n", all->count);
    free(all->generated);
}

static blocks make_blocks(size_t room)
{
    return (blocks){make_zeroed(room, sizeof(four)), 0, room};
}

/* Every combination of small values: 16 blocks of tokens, 16 positions, 16 samples, 8 domains, and
 * neighbouring seeds. */
static void small_counters_differ(void **state)
{
    (void)state;
    blocks all = make_blocks(16 * 16 * 16 * 8 * 4);
    for (uint32_t i = 0; i < all.room; i++) {
        noise_place at = {i >> 15 & 3, i >> 4 & 15, i >> 8 & 15, i >> 12 & 7,
                          4 * (int64_t)(i & 15)};
        add_block(&all, &at);
    }
    assert_all_differ(&all);
}

/* Every single bit of every field, and every pair of bits, changes the noise. */
static void every_bit_changes_the_noise(void **state)
{
    (void)state;
    enum { BITS = 64 + 32 + 32 + 31 + 29 };
    blocks all = make_blocks(1 + BITS * (BITS + 1) / 2);
    noise_place base = {0x0123456789abcdef, 0x1badcafe, 0x00facade, 0x00c0ffee, 4 * 0x00beef00};
    add_block(&all, &base);
    for (int i = 0; i < BITS; i++)
        for (int j = i; j < BITS; j++) {
            noise_place at = base;
            int flipped[2] = {i, j == i ? -1 : j};
            for (int k = 0; k < 2; k++) {
                int bit = flipped[k];
                if (bit < 0)
                    continue;
                if (bit < 64)
                    at.seed ^= 1ull << bit;
                else if (bit < 96)
                    at.position ^= 1u << (bit - 64);
                else if (bit < 128)
                    at.sample ^= 1u << (bit - 96);
                else if (bit < 159)
                    at.domain ^= 1u << (bit - 128);
                else
                    at.token ^= 4ll << (bit - 159);
            }
            add_block(&all, &at);
        }
    assert_all_differ(&all);
}

/* The counter has the documented layout, so that other programs can compute the same noise. */
static void counter_layout_matches_the_documentation(void **state)
{
    (void)state;
    uint64_t random = 2;
    for (int i = 0; i < 20000; i++) {
        noise_place at = {random_bits(&random), (uint32_t)random_bits(&random),
                          (uint32_t)random_bits(&random), (uint32_t)random_bits(&random) >> 1,
                          (int64_t)(random_bits(&random) >> 33)};
        assert_true(place_noise(&at) == oracle_exact_noise(place_stream(&at), at.token));
    }
}

static void row_seeds_match_the_formula(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (uint64_t row = 0; row < 10000; row++) {
        uint64_t seed = random_bits(&random);
        assert_true(gumbel_row_seed(seed, row) == oracle_row_seed(seed, row));
        assert_true(gumbel_row_seed(seed, 0) == seed);
        assert_true(row == 0 || gumbel_row_seed(seed, row) != seed);
    }
    assert_true(gumbel_row_seed(1, UINT64_MAX) == oracle_row_seed(1, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_answers_match),
        cmocka_unit_test(every_round_count_matches_the_oracle),
        cmocka_unit_test(philox_errors_name_the_field),
        cmocka_unit_test(small_counters_differ),
        cmocka_unit_test(every_bit_changes_the_noise),
        cmocka_unit_test(counter_layout_matches_the_documentation),
        cmocka_unit_test(row_seeds_match_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
