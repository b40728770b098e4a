/* SPDX-License-Identifier: Apache-2.0
 *
 * The map from words to noise: at its ends word by word, its accuracy everywhere, the same bits
 * from every ISA, and the distribution of what comes out.
 */
#include "oracle.h"
#include "outcome.h"
#include "place.h"
#include "statistics.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* 2 ulp of max(1, |g|). Below |g| = 1 the noise is a logarithm near 1, where a relative error of E
 * is an absolute error of g, and g is added to a logit: an absolute error is what counts. */
#define HIGHEST_ERROR 2.0

static double error_in_ulps(float g, double exact)
{
    int exponent;
    frexp(fmax(1, fabs(exact)), &exponent);
    return fabs(g - exact) / ldexp(1, exponent - 24);
}

typedef struct worst {
    double ulps;
    uint32_t r, r2;
    int64_t words;
} worst;

static float check_place(const place *at, worst *seen)
{
    uint32_t r, r2;
    place_words(at, &r, &r2);
    float g = place_noise(at);
    double exact = oracle_noise_of_word(r, r2), ulps = error_in_ulps(g, exact);
    if (!(g > -3.14f && g < 45.06f && ulps <= HIGHEST_ERROR))
        fail_msg("r %#" PRIx32 " r2 %#" PRIx32 ": g is %a, exactly %a, %g ulp (seed %" PRIu64
                 " position %" PRIu64 " sample %" PRIu32 " domain %" PRIu32 " token %" PRId64 ")",
                 r, r2, (double)g, exact, ulps, at->seed, at->position, at->sample, at->domain,
                 at->token);
    if (ulps >= seen->ulps)
        *seen = (worst){ulps, r, r2, seen->words};
    seen->words++;
    return g;
}

static void print_worst(const char *name, const worst *seen)
{
    print_message("%s: %" PRId64 " words, largest error %.3f ulp of max(1, |g|) at r %#" PRIx32
                  "\n",
                  name, seen->words, seen->ulps, seen->r);
}

/* Every word of [first, last]. Where the words are few, each step of r moves g by more than its
 * error, so g must fall strictly; elsewhere it may not rise by more than the two errors. */
static void sweep(const char *name, uint32_t first, uint32_t last, int strict)
{
    worst seen = {0};
    uint64_t random = first;
    float before = INFINITY;
    for (uint64_t r = first; r <= last; r++) {
        place at = place_of_word((uint32_t)r, &random);
        float g = check_place(&at, &seen);
        float slack = strict ? 0 : 4 * 0x1p-23f * fmaxf(1, fabsf(g));
        if (!(strict ? g < before : g <= before + slack))
            fail_msg("r %#" PRIx64 ": g is %a, after %a", r, (double)g, (double)before);
        before = g;
    }
    print_worst(name, &seen);
}

static void ends_and_seams(void **state)
{
    (void)state;
    uint32_t reach = 20000u * (uint32_t)nightly_factor();
    sweep("r from 256 on", 256, 256 + 4096, 1);
    sweep("r after that", 256 + 4096, 256 + reach, 0);
    sweep("r to 2^32 - 1", UINT32_MAX - reach, UINT32_MAX - 4096, 0);
    sweep("r to the end", UINT32_MAX - 4096, UINT32_MAX, 0);
    sweep("r round 2^31", 0x80000000u - reach / 2, 0x80000000u + reach / 2, 0);
    /* v = 0.28125, where 1 - v changes its exponent. */
    sweep("r round 0x48000000", 0x48000000u - reach / 2, 0x48000000u + reach / 2, 0);
    for (int bit = 8; bit < 32; bit++)
        sweep("r round a power of two", (1u << bit), (1u << bit) + 64, 0);
}

/* The words of the largest errors in each eighth, of all 2^32: docs/maths.md says 1.703 ulp. */
static void largest_errors(void **state)
{
    static const uint32_t words[] = {0x1018b650, 0x207180df, 0x4b145740, 0x66390b40,
                                     0x8190d4bf, 0xdda6135f, 0xefbb0eaf};
    (void)state;
    worst seen = {0};
    uint64_t random = 12;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        place at = place_of_word(words[i], &random);
        check_place(&at, &seen);
    }
    print_worst("the largest errors", &seen);
    assert_true(seen.ulps > 1.70 && seen.ulps <= 1.703);
}

/* Words below 256: as many further bits as turn up, and those nearest to the end. */
static void tail_extension(void **state)
{
    (void)state;
    worst seen = {0};
    uint64_t random = 11;
    float highest = -INFINITY, lowest = INFINITY;
    for (uint32_t r = 0; r < 256; r++)
        for (int i = 0; i < 200; i++) {
            place at = place_of_word(r, &random);
            float g = check_place(&at, &seen);
            highest = fmaxf(highest, g);
            lowest = fminf(lowest, g);
        }
    print_worst("r below 256", &seen);
    print_message("g from %.3f to %.3f there\n", (double)lowest, (double)highest);
    /* The last word without further bits lies below the first one with them. */
    place border = place_of_word(256, &random);
    assert_true(place_noise(&border) < lowest + 0x1p-19f);
}

/* Places found by running through many counters, kept in noise_ends.txt with their words. */
static void extreme_words(void **state)
{
    (void)state;
    FILE *file = fopen(TEST_ORACLE "/noise_ends.txt", "r");
    assert_non_null(file);
    char line[256];
    worst seen = {0};
    float highest = 0;
    while (fgets(line, sizeof line, file)) {
        uint32_t r, r2, found_r, found_r2;
        place at;
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line,
                                "%" SCNx32 " %" SCNx32 " %" SCNx64 " %" SCNx64 " %" SCNx32
                                " %" SCNx32 " %" SCNd64,
                                &r, &r2, &at.seed, &at.position, &at.sample, &at.domain, &at.token),
                         7);
        place_words(&at, &found_r, &found_r2);
        assert_int_equal(found_r, r);
        assert_int_equal(found_r2, r2);
        highest = fmaxf(highest, check_place(&at, &seen));
    }
    fclose(file);
    print_worst("extremes", &seen);
    print_message("largest noise of all: %.5f\n", (double)highest);
    assert_true(seen.words >= 3);
    assert_true(highest > 45.05f);
}

static void words_everywhere(void **state)
{
    (void)state;
    worst seen = {0};
    uint64_t random = 12;
    for (int i = 0; i < 300000 * nightly_factor(); i++) {
        /* Uniform, and uniform in the logarithm from either end. */
        uint32_t r = (uint32_t)random_bits(&random);
        if (i % 3)
            r >>= random_below(&random, 24);
        if (i % 3 == 2)
            r = ~r;
        place at = place_of_word(r, &random);
        check_place(&at, &seen);
    }
    print_worst("everywhere", &seen);
}

/* The score of a token with z = 0 is its noise: the kernels' own map, in every lane of a block. */
static float score_at(gumbel_device *device, const place *at, outcome *into)
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
                                .first_sample = at->sample,
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
        for (int i = 0; i < 20000; i++, words++) {
            uint32_t r = (uint32_t)random_bits(&random) >> (i % 4 ? random_below(&random, 32) : 0);
            place at = place_of_word(i % 2 ? r : ~r, &random);
            float expected = place_noise(&at), found = score_at(device, &at, one);
            if (memcmp(&expected, &found, sizeof found) != 0)
                fail_msg("%s: r %#" PRIx32 ": g is %a, gumbel_noise() says %a",
                         gumbel_isa_name(isas[k]), i % 2 ? r : ~r, (double)found, (double)expected);
        }
        print_message("%s: %" PRId64 " words, same bits\n", gumbel_isa_name(isas[k]), words);
        gumbel_close(device);
    }
    outcome_free(one);
}

/* Noise asked for in pieces is the noise asked for at once, whatever the borders. */
static void pieces(void **state)
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

/* g against the Gumbel law, and the independence of neighbours, in cells of equal mass. */
static void distribution(void **state)
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
        cmocka_unit_test(ends_and_seams),   cmocka_unit_test(largest_errors),
        cmocka_unit_test(tail_extension),   cmocka_unit_test(extreme_words),
        cmocka_unit_test(words_everywhere), cmocka_unit_test(same_bits_from_every_isa),
        cmocka_unit_test(pieces),           cmocka_unit_test(distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
