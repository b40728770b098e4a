/* SPDX-License-Identifier: Apache-2.0
 *
 * Rare tokens: the rate at which a token `gap` nats under a dominant one is drawn, relative to the
 * truth 1 / (1 + e^gap). By enumeration of the noise that the library makes, to gap 30; and by
 * drawing.
 *
 * The rare token wins where its exponential E is below that of the dominant one times e^-gap, so
 * its rate is the mean of exp(-E e^gap) over all words. Beyond E e^gap = 60 nothing is added, so
 * for gaps from 14 on the words below 2^18 are enough. Words below 256 take 32 further bits; of
 * these a sample is sorted and integrated by the trapezoidal rule, 2^19 of them for the word 0,
 * where the rate changes fastest.
 */
#include "oracle.h"
#include "outcome.h"
#include "place.h"
#include "statistics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define WORDS       (1u << 18)
#define FIRST_TAILS (1 << 19)
#define TAILS       256

typedef struct tail_point {
    double r2; /* the further bits */
    float g;
} tail_point;

typedef struct enumeration {
    float *g;               /* of word r >= 256 */
    tail_point *tails[256]; /* of words below, sorted by r2 */
    int counts[256];
} enumeration;

static int compare_tails(const void *a, const void *b)
{
    double x = ((const tail_point *)a)->r2, y = ((const tail_point *)b)->r2;
    return (x > y) - (x < y);
}

static enumeration enumerate(void)
{
    enumeration e = {.g = make_zeroed(WORDS, sizeof *e.g)};
    uint64_t random = 91;
    for (uint32_t r = 256; r < WORDS; r++) {
        place at = place_of_word(r, &random);
        e.g[r] = place_noise(&at);
    }
    for (uint32_t r = 0; r < 256; r++) {
        e.counts[r] = r == 0 ? FIRST_TAILS : TAILS;
        e.tails[r] = make_zeroed((size_t)e.counts[r], sizeof *e.tails[r]);
        for (int i = 0; i < e.counts[r]; i++) {
            place at = place_of_word(r, &random);
            uint32_t word, r2;
            place_words(&at, &word, &r2);
            e.tails[r][i] = (tail_point){r2, place_noise(&at)};
        }
        qsort(e.tails[r], (size_t)e.counts[r], sizeof *e.tails[r], compare_tails);
    }
    return e;
}

static void forget(enumeration *e)
{
    free(e->g);
    for (int r = 0; r < 256; r++)
        free(e->tails[r]);
}

static double wins(double g, double gap) { return exp(-exp(gap - g)); }

/* The mean of wins() over the further bits of a word. */
static double tail_mean(const tail_point *points, int count, double gap)
{
    double sum = 0, before = wins(points[0].g, gap), at = 0;
    for (int i = 0; i < count; i++) {
        double now = wins(points[i].g, gap);
        sum += (points[i].r2 - at) * (before + now) / 2;
        before = now;
        at = points[i].r2;
    }
    return (sum + (0x1p32 - at) * before) * 0x1p-32;
}

static double rate(const enumeration *e, double gap)
{
    double sum = 0;
    for (uint32_t r = 256; r < WORDS; r++)
        sum += wins(e->g[r], gap);
    for (int r = 0; r < 256; r++)
        sum += tail_mean(e->tails[r], e->counts[r], gap);
    return sum * 0x1p-32 * (1 + exp(gap));
}

/* The same for uniforms of 24 bits at midpoints, which other samplers use. */
static double rate_of_24_bits(double gap)
{
    double sum = 0;
    for (int k = 0; k < 1 << 16; k++)
        sum += exp(log1p(-(k + 0.5) * 0x1p-24) * exp(gap));
    return sum * 0x1p-24 * (1 + exp(gap));
}

static void tail_by_enumeration(void **state)
{
    (void)state;
    enumeration e = enumerate();
    print_message("gap   this contract   24-bit uniforms\n");
    for (int gap = 14; gap <= 30; gap += 2) {
        double ratio = rate(&e, gap), other = rate_of_24_bits(gap);
        print_message("%3d   %.5f         %.5f\n", gap, ratio, other);
        assert_true(fabs(ratio - 1) < 1e-3);
        /* The enumeration does tell them apart. */
        assert_true(gap < 18 || other < 0.6);
        assert_true(gap < 22 || other < 1e-3);
    }
    forget(&e);
}

/* One dominant token, V - 1 rare ones `gap` below; `total` draws. Returns how many were rare. */
static int64_t count_rare(gumbel_device *device, int64_t vocab, float gap, int64_t total)
{
    enum { CALL = 65536 };
    float *values = make_zeroed((size_t)vocab, sizeof *values);
    outcome *drawn = outcome_make(1, CALL);
    int64_t dominant = vocab / 2, rare = 0;
    uint32_t position = 0;
    uint64_t seed = (uint64_t)vocab;
    for (int64_t i = 0; i < vocab; i++)
        values[i] = i == dominant ? -3 : -3 - gap;
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = {values, GUMBEL_FLOAT32, 1, vocab, 0}};
    gumbel_sampling sampling = {
        .struct_size = sizeof sampling, .seed = &seed, .position = &position, .num_samples = CALL};
    for (; total > 0; total -= CALL, position++) {
        assert_int_equal(draw_logits(device, &input, &sampling, drawn), GUMBEL_OK);
        for (int s = 0; s < CALL; s++)
            rare += drawn->tokens[s] != dominant;
    }
    outcome_free(drawn);
    free(values);
    return rare;
}

static void tail_by_drawing(void **state)
{
    (void)state;
    const struct {
        int64_t vocab, draws;
        float gap;
    } cases[] = {{64, 1 << 18, 8}, {64, 1 << 20, 10}, {64, 1 << 21, 12}, {4096, 1 << 18, 16}};
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 0, 0);
    print_message("gap   V      draws      rare   expected\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t draws = cases[i].draws * nightly_factor();
        double odds = (double)(cases[i].vocab - 1) * exp(-cases[i].gap);
        double expected = (double)draws * odds / (1 + odds);
        int64_t rare = count_rare(device, cases[i].vocab, cases[i].gap, draws);
        print_message("%3.0f   %-6lld %-10lld %-6lld %.1f\n", (double)cases[i].gap,
                      (long long)cases[i].vocab, (long long)draws, (long long)rare, expected);
        /* Four standard deviations; a sampler that is 40% short at gap 16 is further off. */
        assert_true(fabs((double)rare - expected) < 4 * sqrt(expected));
        assert_true(4 * sqrt(expected) < 0.4 * expected);
    }
    gumbel_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tail_by_enumeration),
        cmocka_unit_test(tail_by_drawing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
