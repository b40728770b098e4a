/* SPDX-License-Identifier: Apache-2.0
 *
 * The map from words to noise: extreme words one by one, accuracy everywhere, equal bits from every
 * ISA, and the distribution of the noise.
 */
#include "maths/noise.h"
#include "oracle.h"
#include "outcome.h"
#include "noise_place.h"
#include "statistics.h"
#include "test_scale.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* In ulp of max(1, |g|): the bound of docs/maths.md. Below |g| = 1 the noise is a logarithm near 1,
 * where a relative error of E is an absolute error of g; g is added to a logit, so the absolute
 * error matters. */
#define HIGHEST_ERROR 2.46

static double error_in_ulps(float g, double exact)
{
    int exponent;
    frexp(fmax(1, fabs(exact)), &exponent);
    return fabs(g - exact) / ldexp(1, exponent - 24);
}

typedef struct worst {
    double ulps;
    noise_place at;
    int64_t tokens;
} worst;

/* Checks the library's g: equal to the oracle's bits, and within the bound of the exact value. */
static float check_place(const noise_place *at, worst *seen)
{
    oracle_words words = place_words(at);
    float g = place_noise(at), expected = oracle_exact_noise(place_stream(at), at->token);
    double exact = oracle_noise(place_stream(at), at->token), ulps = error_in_ulps(g, exact);
    if (!(g == expected && g > -3.1456f && g < 45.055f && ulps <= HIGHEST_ERROR))
        fail_msg("words %#" PRIx32 " %#" PRIx32 " %#" PRIx32
                 ": g is %a, not %a, exactly %a, %g ulp "
                 "(seed %" PRIu64 " position %" PRIu64 " sample %" PRIu32 " domain %" PRIu32
                 " token %" PRId64 ")",
                 words.r, words.r2, words.own, (double)g, (double)expected, exact, ulps, at->seed,
                 at->position, at->sample, at->domain, at->token);
    if (ulps >= seen->ulps)
        *seen = (worst){ulps, *at, seen->tokens};
    seen->tokens++;
    return g;
}

static void print_worst(const char *name, const worst *seen)
{
    oracle_words words = place_words(&seen->at);
    print_message("%s: %" PRId64 " tokens, largest error %.3f ulp of max(1, |g|) at r %#" PRIx32
                  ", own word %#" PRIx32 "\n",
                  name, seen->tokens, seen->ulps, words.r, words.own);
}

/* Checks the least exponentials of blocks for every first word in [first, last]. With `strict`,
 * each step of r changes g by more than its error, so that g must decrease; otherwise g may not
 * increase by more than the two errors. */
static void sweep_first_words(uint32_t first, uint32_t last, int strict, worst *seen)
{
    uint64_t random = first;
    float before = INFINITY;
    for (uint64_t r = first; r <= last; r++) {
        noise_place at =
            find_token_by_block_words((uint32_t)r, (uint32_t)random_bits(&random), &random);
        float g = check_place(&at, seen);
        float slack = strict ? 0 : 4 * 0x1p-23f * fmaxf(1, fabsf(g));
        if (!(strict ? g < before : g <= before + slack))
            fail_msg("r %#" PRIx64 ": g is %a, after %a", r, (double)g, (double)before);
        before = g;
    }
}

static void extreme_and_boundary_first_words(void **state)
{
    (void)state;
    worst seen = {0};
    uint32_t reach = (TEST_SANITIZED ? 5000u : 10000u) * (uint32_t)nightly_factor();
    sweep_first_words(256, 256 + 4096, 1, &seen);
    sweep_first_words(256 + 4096, 256 + reach, 0, &seen);
    sweep_first_words(UINT32_MAX - reach, UINT32_MAX, 0, &seen);
    sweep_first_words(0x80000000u - reach / 2, 0x80000000u + reach / 2, 0, &seen);
    /* v = 1 - sqrt(1/2), where 1 - v is halved. */
    sweep_first_words(0x4afb0ccfu - reach / 2, 0x4afb0ccfu + reach / 2, 0, &seen);
    for (int bit = 8; bit < 32; bit++)
        sweep_first_words((1u << bit), (1u << bit) + 64, 0, &seen);
    print_worst("ends and seams", &seen);
}

/* The first words with the largest errors among all 2^32; docs/maths.md states 1.029 ulp. */
static void largest_errors_are_within_the_bound(void **state)
{
    static const uint32_t words[] = {0x2030b3a0, 0x4b49ed40, 0x67cb24bf,
                                     0xba7d74bf, 0xddc6165f, 0xfffe519f};
    (void)state;
    worst seen = {0};
    uint64_t random = 12;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        noise_place at = find_token_by_block_words(words[i], 0, &random);
        check_place(&at, &seen);
    }
    print_worst("the largest errors of least exponentials", &seen);
    assert_true(seen.ulps > 1.028 && seen.ulps < 1.03);
}

/* Extreme and boundary own words, in random blocks. */
static void extreme_and_boundary_own_words(void **state)
{
    (void)state;
    enum { SEAM = TEST_SANITIZED ? 300 : 2000 };
    static const uint32_t seams[] = {0, 1u << 8, 0x4afb0ccfu, 0x80000000u, UINT32_MAX};
    worst seen = {0};
    uint64_t random = 10;
    for (size_t i = 0; i < sizeof seams / sizeof *seams; i++)
        for (int64_t r = (int64_t)seams[i] - SEAM; r <= (int64_t)seams[i] + SEAM; r++)
            if (r >= 0 && r <= UINT32_MAX) {
                noise_place at = find_token_by_word((uint32_t)r, &random);
                check_place(&at, &seen);
            }
    print_worst("own words", &seen);
}

/* Small first words, with random further bits. */
static void small_first_words_take_further_bits(void **state)
{
    (void)state;
    worst seen = {0};
    uint64_t random = 11;
    float highest = -INFINITY, lowest = INFINITY;
    for (uint32_t r = 0; r < 256; r++)
        for (int i = 0; i < (TEST_SANITIZED ? 10 : 100); i++) {
            noise_place at = find_token_by_block_words(r, (uint32_t)random_bits(&random), &random);
            float g = check_place(&at, &seen);
            highest = fmaxf(highest, g);
            lowest = fminf(lowest, g);
        }
    print_worst("r below 256", &seen);
    print_message("g from %.3f to %.3f there\n", (double)lowest, (double)highest);
    /* g at the smallest word without further bits is below g at the largest word with them. */
    noise_place border = find_token_by_block_words(256, 0, &random);
    assert_true(place_noise(&border) < lowest + 0x1p-19f);
}

/* The lowest six bits of r2 determine the index in the block, and nothing else. */
static void low_bits_of_r2_choose_the_token(void **state)
{
    (void)state;
    uint64_t random = 14;
    for (int i = 0; i < 64 * nightly_factor(); i++) {
        float g[64];
        uint32_t r = (uint32_t)random_bits(&random) >> (i % 2 ? 24 : 0), r2;
        r2 = ((uint32_t)random_bits(&random) & ~63u) + (uint32_t)i % 64;
        noise_place at = find_token_by_block_words(r, r2, &random);
        assert_int_equal(
            gumbel_noise(at.seed, at.position, at.sample, at.domain, at.token & ~63, 64, g, NULL),
            GUMBEL_OK);
        float most = -oracle_exact_log(oracle_exact_least(r, r2 ^ 21));
        for (int k = 0; k < 64; k++)
            assert_true(k == i % 64 ? g[k] == most : g[k] <= most);
    }
}

/* Recorded noise at extreme words, found by inverting Philox, and at ordinary words. */
static void known_answers_match(void **state)
{
    (void)state;
    FILE *file = fopen(TEST_ORACLE "/noise_kat.txt", "r");
    assert_non_null(file);
    char line[256];
    worst seen = {0};
    float highest = 0;
    while (fgets(line, sizeof line, file)) {
        noise_place at;
        oracle_words known, found;
        float g;
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line,
                                "%" SCNx64 " %" SCNx64 " %" SCNx32 " %" SCNx32 " %" SCNd64
                                " %" SCNx32 " %" SCNx32 " %" SCNx32 " %a",
                                &at.seed, &at.position, &at.sample, &at.domain, &at.token, &known.r,
                                &known.r2, &known.own, &g),
                         9);
        found = place_words(&at);
        assert_int_equal(found.r, known.r);
        assert_int_equal(found.r2, known.r2);
        assert_int_equal(found.own, known.own);
        assert_true(check_place(&at, &seen) == g);
        highest = fmaxf(highest, g);
    }
    fclose(file);
    print_worst("known answers", &seen);
    print_message("largest noise of all: %.5f\n", (double)highest);
    assert_int_equal(seen.tokens, 24);
    assert_true(highest > 45.05f);
}

static void random_words_are_within_the_bound(void **state)
{
    (void)state;
    worst of_blocks = {0}, of_words = {0};
    uint64_t random = 12;
    for (int i = 0; i < (TEST_SANITIZED ? 6000 : 60000) * nightly_factor(); i++) {
        /* Uniform, and uniform in the logarithm from either end. */
        uint32_t r = (uint32_t)random_bits(&random);
        if (i % 3)
            r >>= random_below(&random, 24);
        if (i % 3 == 2)
            r = ~r;
        noise_place block = find_token_by_block_words(r, (uint32_t)random_bits(&random), &random),
                    token = find_token_by_word(r, &random);
        check_place(&block, &of_blocks);
        check_place(&token, &of_words);
    }
    print_worst("first words everywhere", &of_blocks);
    print_worst("own words everywhere", &of_words);
}

/* Whole rows of many streams. */
static void same_bits_as_the_oracle(void **state)
{
    (void)state;
    enum { TOKENS_MAX = 800 };
    uint64_t random = 15;
    int64_t tokens = 0;
    for (int i = 0; i < (TEST_SANITIZED ? 150 : 1500) * nightly_factor(); i++) {
        float g[TOKENS_MAX];
        uint64_t bits = random_bits(&random);
        oracle_stream stream = {random_bits(&random), random_bits(&random) >> (i % 3 ? 32 : i % 64),
                                (uint32_t)bits >> (bits >> 59), (uint32_t)(bits >> 32) >> 1, 0};
        int64_t count = 1 + random_below(&random, TOKENS_MAX),
                first = i % 5 ? random_below(&random, 1u << (7 + i % 24)) : (1ll << 31) - count;
        assert_int_equal(gumbel_noise(stream.seed, stream.position, stream.sample, stream.domain,
                                      first, count, g, NULL),
                         GUMBEL_OK);
        for (int64_t k = 0; k < count; k++, tokens++) {
            float expected = oracle_exact_noise(stream, first + k);
            if (memcmp(&g[k], &expected, sizeof expected) != 0)
                fail_msg("stream %d, token %" PRId64 ": g is %a, the oracle has %a", i, first + k,
                         (double)g[k], (double)expected);
        }
    }
    print_message("%" PRId64 " tokens, same bits\n", tokens);
}

/* The largest noise of a block with this first word. */
static float highest_of(uint32_t r)
{
    float least = gumbel_block_noise_of(r, 0).least;
    return fmaxf(gumbel_noise_of_exponential(least),
                 gumbel_noise_of_exponential(least + gumbel_exponential_of_word(0)));
}

/* gumbel_noise_bound_of_word() skips no block that could win, and E of a word is the oracle's. */
static void block_bound_holds(void **state)
{
    (void)state;
    uint64_t step = (TEST_SANITIZED ? 40009 : 4001) / (uint64_t)nightly_factor(), words = 0;
    double loosest = 0, sum = 0;
    for (uint64_t r = 0; r <= UINT32_MAX; r += r < 1 << 20 ? 1 : step, words++) {
        uint32_t word = r + step > UINT32_MAX ? UINT32_MAX : (uint32_t)r;
        float reach = gumbel_noise_bound_of_word(word), highest = highest_of(word);
        if (!(highest <= reach + 1e-4f) ||
            gumbel_exponential_of_word(word) != oracle_exact_exponential(word))
            fail_msg("r %#" PRIx32 ": reach %a, highest noise %a", word, (double)reach,
                     (double)highest);
        if (word >= 256 && word < 1 << 20) {
            loosest = fmax(loosest, (double)reach - (double)highest);
            sum += (double)reach - (double)highest;
        }
    }
    print_message("%" PRIu64 " words; reach is %.4f above the highest noise, at most %.4f\n", words,
                  sum / ((1 << 20) - 256), loosest);
    assert_true(loosest < 0.062);
    assert_true(gumbel_noise_bound_of_word(0) > 46 && gumbel_noise_bound_of_word(0) < 115);
    /* The lowest noise is computed from the words, as no token has these own and block words at
     * once. */
    float lowest = gumbel_noise_of_exponential(gumbel_block_noise_of(UINT32_MAX, 0).least +
                                               gumbel_exponential_of_word(UINT32_MAX));
    print_message("lowest noise of all: %.5f\n", (double)lowest);
    assert_true(lowest > -3.1456f && lowest < -3.1454f);
}

/* The score of a token with z = 0 is its noise, computed by the device's kernels, in every lane of
 * a block. */
static float score_at(gumbel_device *device, const noise_place *at, outcome *into)
{
    static float logits[64];
    int64_t first = at->token & ~INT64_C(63);
    for (int i = 0; i < 64; i++)
        logits[i] = first + i == at->token ? 0 : -INFINITY;
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, 64, 0),
                           .first_token = first};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .seed = {&at->seed, GUMBEL_SAME},
                                .position = {&at->position, GUMBEL_SAME},
                                .first_sample = {&at->sample, GUMBEL_SAME},
                                .domain = at->domain};
    assert_int_equal(draw_logits(device, &input, &sampling, into), GUMBEL_OK);
    assert_int_equal(into->tokens[0], at->token);
    return into->scores[0];
}

static void same_bits_from_every_isa(void **state)
{
    (void)state;
    gumbel_isa isas[4];
    int count = list_isas(isas);
    outcome *one = outcome_make(1, 1);
    for (int k = 0; k < count; k++) {
        gumbel_device *device = open_device(isas[k], 1, 0);
        uint64_t random = 13;
        int64_t words = 0;
        for (int i = 0; i < (TEST_SANITIZED ? 2000 : 20000); i++, words++) {
            uint32_t r = (uint32_t)random_bits(&random) >> (i % 4 ? random_below(&random, 32) : 0);
            r = i % 2 ? r : ~r;
            noise_place at =
                i % 3 ? find_token_by_word(r, &random)
                      : find_token_by_block_words(r, (uint32_t)random_bits(&random), &random);
            float expected = place_noise(&at), found = score_at(device, &at, one);
            if (memcmp(&expected, &found, sizeof found) != 0)
                fail_msg("%s: r %#" PRIx32 ": g is %a, gumbel_noise() is %a",
                         gumbel_isa_name(isas[k]), r, (double)found, (double)expected);
        }
        print_message("%s: %" PRId64 " words, same bits\n", gumbel_isa_name(isas[k]), words);
        gumbel_close(device);
    }
    outcome_free(one);
}

/* Noise computed in two chunks equals noise computed at once, for all boundaries. */
static void noise_in_chunks_matches_the_whole(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    float whole[COUNT], part[COUNT];
    int64_t starts[] = {0, 1, 2, 3, 1000001, INT64_C(2147483648) - COUNT};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        assert_int_equal(gumbel_noise(5, 6, 7, 8, starts[s], COUNT, whole, NULL), GUMBEL_OK);
        for (int64_t first = 0; first < 70; first++)
            for (int64_t count = 0; count < 12; count++) {
                memset(part, 0xA7, sizeof part);
                assert_int_equal(gumbel_noise(5, 6, 7, 8, starts[s] + first, count, part, NULL),
                                 GUMBEL_OK);
                assert_memory_equal(part, whole + first, (size_t)count * sizeof *part);
                assert_int_equal(((unsigned char *)part)[(size_t)count * sizeof *part], 0xA7);
            }
    }
}

#define BINS  1024
#define JOINT 32

static int bin_of(float g, int bins)
{
    int bin = (int)(exp(-exp(-(double)g)) * bins);
    return bin < bins ? bin : bins - 1;
}

/* g against the Gumbel distribution, and independence of neighbours, in cells of equal mass. */
static void noise_has_the_gumbel_distribution(void **state)
{
    (void)state;
    int64_t total = INT64_C(1) << 20;
    float *g[4];
    /* 0: the base; 1: the next position; 2: the next seed; 3: the next sample. */
    for (uint32_t k = 0; k < 4; k++) {
        g[k] = make_zeroed((size_t)total, sizeof *g[k]);
        assert_int_equal(
            gumbel_noise(100 + (k == 2), 200 + (k == 1), 300 + (k == 3), 0, 0, total, g[k], NULL),
            GUMBEL_OK);
    }
    double uniform[BINS], marginal[JOINT];
    for (int i = 0; i < BINS; i++)
        uniform[i] = 1.0 / BINS;
    for (int i = 0; i < JOINT; i++)
        marginal[i] = 1.0 / JOINT;
    int64_t *counts = make_zeroed(BINS, sizeof *counts);
    for (int64_t i = 0; i < total; i++)
        counts[bin_of(g[0][i], BINS)]++;
    chi_squared law = {0};
    chi_squared_add(&law, counts, uniform, BINS, total);
    print_message("law: chi-squared %.1f of %.0f\n", law.statistic, law.degrees);
    assert_true(chi_squared_p(law.statistic, law.degrees) > 1e-4);
    const char *names[] = {"token", "position", "seed", "sample"};
    for (int k = 0; k < 4; k++) {
        chi_squared joint = {0};
        memset(counts, 0, BINS * sizeof *counts);
        for (int64_t i = 0; i + 1 < total; i++)
            counts[bin_of(g[0][i], JOINT) * JOINT + bin_of(k ? g[k][i] : g[0][i + 1], JOINT)]++;
        chi_squared_add_joint(&joint, counts, marginal, JOINT, marginal, JOINT, total - 1);
        print_message("next %s: chi-squared %.1f of %.0f\n", names[k], joint.statistic,
                      joint.degrees);
        assert_true(chi_squared_p(joint.statistic, joint.degrees) > 1e-4);
    }
    free(counts);
    for (int k = 0; k < 4; k++)
        free(g[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extreme_and_boundary_first_words),
        cmocka_unit_test(largest_errors_are_within_the_bound),
        cmocka_unit_test(extreme_and_boundary_own_words),
        cmocka_unit_test(small_first_words_take_further_bits),
        cmocka_unit_test(low_bits_of_r2_choose_the_token),
        cmocka_unit_test(known_answers_match),
        cmocka_unit_test(random_words_are_within_the_bound),
        cmocka_unit_test(same_bits_as_the_oracle),
        cmocka_unit_test(block_bound_holds),
        cmocka_unit_test(same_bits_from_every_isa),
        cmocka_unit_test(noise_in_chunks_matches_the_whole),
        cmocka_unit_test(noise_has_the_gumbel_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
