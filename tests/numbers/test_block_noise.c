/* SPDX-License-Identifier: Apache-2.0
 *
 * The joint distribution of a block's noise. Its 64 tokens share two words, and must still be
 * independent. Slightly wrong blocks, one for each way in which shared words can break
 * independence, must fail these tests.
 */
#include "oracle.h"
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

#include "inputs.h"

/* A correct sampler has a smaller p-value once in 10^4 tests. */
#define LOWEST_P 1e-4
/* A wrong sampler must have a smaller p-value. */
#define CAUGHT_P 1e-6

#define BLOCK        64
#define FINE         256 /* bins of one variate */
#define COARSE       16  /* bins of each of two variates */
#define ROUGH        8   /* bins of each of three variates */
#define BINS_MIN     1024
#define PAIRS        (BLOCK * (BLOCK - 1) / 2)
#define PAIRED_EVERY 4 /* count pairs in every fourth block only, as this takes longest */

/* Counts of a block's noise. */
typedef enum law {
    MARGINALS,
    LEAST,
    MEAN_MIN,
    PLACE,
    PLACE_AND_LEAST,
    SECOND_LEAST,
    PLACE_AND_SECOND,
    ALL_PAIRS,
    WORST_PAIR,
    NEIGHBOURS,
    TRIPLES,
    SUM,
    LAWS
} law;

static const char *const law_names[LAWS] = {
    "each place's E ~ Exp(1)",      "least E ~ Exp(64)", "mean of the least",
    "place of the least",           "place and least",   "second least - least ~ Exp(63)",
    "places of least and second",   "all pairs",         "the worst of all pairs",
    "pairs of neighbouring blocks", "triples",           "sum ~ Gamma(64)",
};

typedef struct tallies {
    int64_t marginal[BLOCK][FINE], least[BINS_MIN], place[BLOCK], second[FINE], sum[FINE];
    int64_t place_and_least[BLOCK][COARSE], place_and_second[BLOCK][BLOCK];
    int64_t pair[PAIRS][COARSE * COARSE], neighbour[BLOCK][COARSE * COARSE];
    int64_t triple[BLOCK][ROUGH * ROUGH * ROUGH];
    double sum_of_least;
    int64_t blocks;
    unsigned char before[BLOCK]; /* bins of the block before */
} tallies;

/* ---------------------------------------------------------------------------------- blocks ---- */

/* The exponentials E of block k; seed, position, sample, domain and id vary with k. */
static void draw_block(int64_t k, double e[BLOCK])
{
    float g[BLOCK];
    uint64_t seed = 3 + (uint64_t)(k % 7) * 0x9E3779B97F4A7C15ull;
    assert_int_equal(gumbel_noise(seed, (uint64_t)(k / 61), (uint32_t)(k % 5), (uint32_t)(k % 3),
                                  k % 61 * 39 * BLOCK, BLOCK, g, NULL),
                     GUMBEL_OK);
    for (int i = 0; i < BLOCK; i++)
        e[i] = exp(-(double)g[i]);
}

static int place_of_least(const double e[BLOCK])
{
    int place = 0;
    for (int i = 1; i < BLOCK; i++)
        place = e[i] < e[place] ? i : place;
    return place;
}

static void swap_values(double *a, double *b)
{
    double kept = *a;
    *a = *b;
    *b = kept;
}

/* Defects of a block; `place` is the index of the least exponential. */
typedef void (*wrong_block)(int64_t k, int place, double e[BLOCK]);

/* The least exponential is 1% too large. */
static void with_large_least(int64_t k, int place, double e[BLOCK])
{
    double more = 0.01 * e[place];
    (void)k;
    for (int i = 0; i < BLOCK; i++)
        e[i] += more;
}

/* One bit of the index is set too often. */
static void with_biased_place(int64_t k, int place, double e[BLOCK])
{
    if (k % 16 == 0)
        swap_values(&e[place], &e[place | 1]);
}

/* A bit of the index also determines the least exponential. */
static void with_place_of_least(int64_t k, int place, double e[BLOCK])
{
    (void)k;
    int bit = e[place] * BLOCK > log(2);
    swap_values(&e[place], &e[(place & ~1) | bit]);
}

/* The least exponential is not added to the other tokens' exponentials. */
static void with_low_others(int64_t k, int place, double e[BLOCK])
{
    double least = e[place];
    (void)k;
    for (int i = 0; i < BLOCK; i++)
        e[i] -= i == place ? 0 : least;
}

/* Two tokens share a word. */
static void with_shared_word(int64_t k, int place, double e[BLOCK])
{
    (void)k;
    if (place != 5 && place != 37)
        e[37] = e[5];
}

/* ---------------------------------------------------------------------------------- counts ---- */

static int bin_of(double u, int bins)
{
    int bin = (int)(u * bins);
    return bin < 0 ? 0 : bin < bins ? bin : bins - 1;
}

/* P(Gamma(64) > x) = e^-x sum of x^k / k!, k < 64. */
static double above_sum(double x)
{
    double term = exp(-x), sum = term;
    for (int k = 1; k < BLOCK; k++)
        sum += term *= x / k;
    return sum;
}

static void count_least(tallies *t, const double e[BLOCK])
{
    int place = place_of_least(e), second = place == 0;
    double sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        second = i != place && e[i] < e[second] ? i : second;
        sum += e[i];
    }
    double least = -expm1(-BLOCK * e[place]), rest = -expm1(-(BLOCK - 1) * (e[second] - e[place]));
    t->least[bin_of(least, BINS_MIN)]++;
    t->sum_of_least += e[place];
    t->place[place]++;
    t->place_and_least[place][bin_of(least, COARSE)]++;
    t->second[bin_of(rest, FINE)]++;
    t->place_and_second[place][second]++;
    t->sum[bin_of(above_sum(sum), FINE)]++;
}

/* Counts the noise of the other tokens. */
static void count_places(tallies *t, const double e[BLOCK])
{
    unsigned char bins[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        int bin = bin_of(-expm1(-e[i]), FINE);
        t->marginal[i][bin]++;
        bins[i] = (unsigned char)(bin * COARSE / FINE);
    }
    for (int i = 0; i < BLOCK; i++) {
        t->neighbour[i][t->before[i] * COARSE + bins[(i * 29 + 5) % BLOCK]]++;
        t->triple[i][(bins[i] / 2 * ROUGH + bins[(i + 1) % BLOCK] / 2) * ROUGH +
                     bins[(i + 17) % BLOCK] / 2]++;
    }
    if (t->blocks % PAIRED_EVERY == 0)
        for (int i = 0, pair = 0; i < BLOCK; i++)
            for (int j = i + 1; j < BLOCK; j++)
                t->pair[pair++][bins[i] * COARSE + bins[j]]++;
    memcpy(t->before, bins, sizeof bins);
}

/* -------------------------------------------------------------------------------- verdicts ---- */

/* Chi-squared of `cells` counts against equal probabilities. */
static double flat_statistic(const int64_t *counts, int cells)
{
    double total = 0, statistic = 0;
    for (int i = 0; i < cells; i++)
        total += (double)counts[i];
    for (int i = 0; i < cells; i++)
        statistic += pow((double)counts[i] - total / cells, 2) * cells / total;
    return statistic;
}

static double flat_p(const int64_t *counts, int cells)
{
    return chi_squared_p(flat_statistic(counts, cells), cells - 1);
}

/* The p-value of a pair's table given its marginals, without which the tables of pairs with a
 * common token would be dependent. */
static double pair_p(const int64_t *counts, int cells)
{
    int64_t of_rows[COARSE] = {0}, of_columns[COARSE] = {0};
    for (int i = 0; i < cells; i++) {
        of_rows[i / COARSE] += counts[i];
        of_columns[i % COARSE] += counts[i];
    }
    return chi_squared_p(flat_statistic(counts, cells) - flat_statistic(of_rows, COARSE) -
                             flat_statistic(of_columns, COARSE),
                         (COARSE - 1) * (COARSE - 1));
}

/* The p-value of the p-values of `tables` tables of `cells` counts; *worst is their minimum. */
static double tables_p(double (*table_p)(const int64_t *counts, int cells), const int64_t *counts,
                       int tables, int cells, double *worst)
{
    double *p = make_zeroed((size_t)tables, sizeof *p);
    *worst = 1;
    for (int i = 0; i < tables; i++) {
        p[i] = table_p(counts + (int64_t)i * cells, cells);
        *worst = fmin(*worst, p[i]);
    }
    double all = uniform_p(p, tables);
    free(p);
    return all;
}

static void test_least(const tallies *t, double p[LAWS])
{
    double blocks = (double)t->blocks;
    int64_t apart[BLOCK * (BLOCK - 1)];
    for (int i = 0, n = 0; i < BLOCK; i++)
        for (int j = 0; j < BLOCK; j++)
            if (i != j)
                apart[n++] = t->place_and_second[i][j];
    p[LEAST] = flat_p(t->least, BINS_MIN);
    /* The mean of n exponentials is off by 1 / sqrt(n) of itself. */
    p[MEAN_MIN] = erfc(fabs(t->sum_of_least * BLOCK / blocks - 1) * sqrt(blocks / 2));
    p[PLACE] = flat_p(t->place, BLOCK);
    p[PLACE_AND_LEAST] = flat_p(t->place_and_least[0], BLOCK * COARSE);
    p[SECOND_LEAST] = flat_p(t->second, FINE);
    p[PLACE_AND_SECOND] = flat_p(apart, BLOCK * (BLOCK - 1));
    p[SUM] = flat_p(t->sum, FINE);
}

static void test_places(const tallies *t, double p[LAWS])
{
    double worst;
    p[MARGINALS] = tables_p(flat_p, t->marginal[0], BLOCK, FINE, &worst);
    p[ALL_PAIRS] = tables_p(pair_p, t->pair[0], PAIRS, COARSE * COARSE, &worst);
    p[WORST_PAIR] = fmin(1, worst * PAIRS);
    p[NEIGHBOURS] = tables_p(pair_p, t->neighbour[0], BLOCK, COARSE * COARSE, &worst);
    p[TRIPLES] = tables_p(flat_p, t->triple[0], BLOCK, ROUGH * ROUGH * ROUGH, &worst);
}

/* Draws blocks, applies a defect if one is given, and tests them: by the distributions of the least
 * exponential and its neighbours, and with `places` by all. */
static void draw_and_test(wrong_block wrong, int64_t blocks, int places, double p[LAWS])
{
    tallies *t = make_zeroed(1, sizeof *t);
    for (int64_t k = 0; k < blocks; k++) {
        double e[BLOCK];
        draw_block(k, e);
        if (wrong)
            wrong(k, place_of_least(e), e);
        count_least(t, e);
        if (places)
            count_places(t, e);
        t->blocks++;
    }
    test_least(t, p);
    if (places)
        test_places(t, p);
    free(t);
}

static void block_noise_has_the_joint_distribution(void **state)
{
    (void)state;
    double p[LAWS];
    int64_t blocks = draws_of(1 << 18) * nightly_factor();
    draw_and_test(NULL, blocks, 1, p);
    print_message("%" PRId64 " blocks\n", blocks);
    for (int i = 0; i < LAWS; i++) {
        print_message("%s: p %.4f\n", law_names[i], p[i]);
        assert_true(p[i] > LOWEST_P);
    }
}

static void wrong_blocks_are_detected(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        wrong_block wrong;
        law broken;
        int64_t blocks;
        int places; /* 1 if the defect requires the tests of single tokens */
    } cases[] = {
        {"a least exponential 1% too large", with_large_least, MEAN_MIN, 1 << 19, 0},
        {"a bit of the index set too often", with_biased_place, PLACE, 1 << 15, 0},
        {"a bit of the index that determines the least", with_place_of_least, PLACE_AND_LEAST,
         1 << 15, 0},
        {"other exponentials without the least added", with_low_others, MARGINALS, 1 << 15, 1},
        {"two tokens that share a word", with_shared_word, WORST_PAIR, 1 << 15, 1},
    };
    if (TEST_SANITIZED)
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double p[LAWS];
        draw_and_test(cases[i].wrong, cases[i].blocks, cases[i].places, p);
        print_message("%s: %s: p %.1e\n", cases[i].name, law_names[cases[i].broken],
                      p[cases[i].broken]);
        assert_true(p[cases[i].broken] < CAUGHT_P);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_noise_has_the_joint_distribution),
        cmocka_unit_test(wrong_blocks_are_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
