/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Two tokens of different blocks, the rare one `gap` nats below the dominant one. The rare
 *        one wins if g2 - gap > g1. With the dominant noise g1 integrated out,
 *            P = sum over noise values g2 of P(g2) * exp(-exp(gap - g2)),
 *        and the exact value is 1 / (1 + e^gap).
 * HOW    One token of 64 has the least exponential m of its block, by two words: -log(m) is its g2.
 *        Philox is a bijection, so that a counter exists for any block of words; gumbel_noise() at
 *        that counter gives the library's noise. The 58 bits that determine m are split into
 *        strata, finer for smaller m; in each, the words at the two points of a Gauss rule
 *        represent all. The other tokens of a block have exponentials m + e, where e is a standard
 *        exponential and is integrated out, too: their part is exp(-m e^gap) / (1 + e^gap), 10^-3
 *        of P at gap 11 and less beyond.
 * COST   17,000 points, 512 tries each: 0.4 s.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "report.h"
#include "verify.h"

enum {
    FIRST_GAP = 4,
    LAST_GAP = 30,
    GAP_STEP = 2,
    BLOCK = 64,     /* tokens that share a least exponential */
    TAIL_BITS = 26, /* bits of the second word that are used if the first is below TAIL_WORDS */
    TAIL_WORDS = 256,
    STRATA = 128,      /* from each power of two to the next */
    UPPER_STRATA = 16, /* from the largest word down, where the function is smooth */
    MAX_LEASTS = 2 * (STRATA * (TAIL_BITS + 8 + 23) + UPPER_STRATA * 32) + 4096,
};
static const double tolerance = 1e-6; /* float32 noise near 30 is rounded to 10^-6, at random */

/* --------------------------------------------------------------- counters for given words ---- */

/* The inverse of an odd number modulo 2^32: each step of Newton's doubles the right bits. */
static uint32_t invert_odd(uint32_t odd)
{
    uint32_t inverse = odd;

    for (int step = 0; step < 5; step++) {
        inverse *= 2 - odd * inverse;
    }
    return inverse;
}

/* The counter whose Philox4x32-10 block under the key `seed` is `block`. */
static void invert_philox(const uint32_t block[4], uint64_t seed, uint32_t counter[4])
{
    const uint32_t multiplier[2] = {0xD2511F53, 0xCD9E8D57};
    const uint32_t weyl[2] = {0x9E3779B9, 0xBB67AE85};
    const uint32_t inverse[2] = {invert_odd(multiplier[0]), invert_odd(multiplier[1])};
    uint32_t x[4] = {block[0], block[1], block[2], block[3]};

    for (uint32_t round = 10; round-- > 0;) {
        const uint32_t key[2] = {(uint32_t)seed + round * weyl[0],
                                 (uint32_t)(seed >> 32) + round * weyl[1]};
        const uint32_t x0 = x[3] * inverse[0];
        const uint32_t x2 = x[1] * inverse[1];
        const uint64_t product0 = (uint64_t)multiplier[0] * x0;
        const uint64_t product1 = (uint64_t)multiplier[1] * x2;
        const uint32_t x1 = x[0] ^ (uint32_t)(product1 >> 32) ^ key[0];
        const uint32_t x3 = x[2] ^ (uint32_t)(product0 >> 32) ^ key[1];

        x[0] = x0;
        x[1] = x1;
        x[2] = x2;
        x[3] = x3;
    }
    for (int i = 0; i < 4; i++) {
        counter[i] = x[i];
    }
}

/* A block's words, and the noise of the token that has its least exponential. */
struct least {
    uint32_t words[2];
    double weight; /* its stratum's fraction of all blocks */
    float noise;
};

struct leasts {
    struct least *list;
    int64_t count;
};

/* The library's noise of that token at the counter whose block has these words. The other two words
 * of the Philox block, counted from *spare on, are free: one in 512 gives a token below 2^31 and
 * sets bit 31 of the domain, as in words of blocks. */
static float find_noise_of_words(const uint32_t words[2], uint64_t seed, uint64_t *spare)
{
    uint32_t counter[4];
    gumbel_error error = {"", ""};
    float noise;

    do {
        const uint32_t block[4] = {words[0], words[1], (uint32_t)*spare, (uint32_t)(*spare >> 32)};

        (*spare)++;
        invert_philox(block, seed, counter);
    } while (counter[0] >> 24 != 0 || counter[3] >> 31 != 1);
    require_ok(gumbel_noise(seed, counter[1], counter[2], counter[3] & 0x7FFFFFFF,
                            (int64_t)counter[0] * 2 * BLOCK + words[1] % BLOCK, 1, &noise, &error),
               &error);
    return noise;
}

/* --------------------------------------------------------------------------------- strata ---- */

static void add_least(struct leasts *leasts, uint32_t first, uint32_t second, double weight)
{
    leasts->list[leasts->count] = (struct least){{first, second}, weight, 0};
    leasts->count++;
}

/* Converts an index of a stratum to words. */
typedef void (*add_index)(struct leasts *leasts, uint64_t index, double weight);

/* The second word's last bits are the token, which may be any. */
static void add_tail(struct leasts *leasts, uint64_t index, double weight)
{
    const uint64_t bits = index * BLOCK + leasts->count % BLOCK;

    add_least(leasts, (uint32_t)(bits >> 32), (uint32_t)bits, weight * 0x1p-58);
}

static void add_word(struct leasts *leasts, uint64_t index, double weight)
{
    add_least(leasts, (uint32_t)index, (uint32_t)(leasts->count % BLOCK), weight * 0x1p-32);
}

static void add_upper_word(struct leasts *leasts, uint64_t index, double weight)
{
    add_word(leasts, UINT32_MAX - index, weight);
}

/* Adds the indices of [start, 2 * start), a power of two, by `strata`; if they are few, each. */
static void add_octave(struct leasts *leasts, uint64_t start, int strata, add_index add)
{
    const double width = start > (uint64_t)strata ? (double)start / strata : 1;

    for (double at = (double)start; at < 2 * (double)start; at += width) {
        const double middle = at + width / 2;

        if (width == 1) {
            add(leasts, (uint64_t)at, 1);
            continue;
        }
        add(leasts, (uint64_t)(middle - width / sqrt(12)), width / 2);
        add(leasts, (uint64_t)(middle + width / sqrt(12)), width / 2);
    }
}

/* Enumerates the representatives, with the library's noise. */
static struct leasts enumerate_leasts(uint64_t seed)
{
    struct leasts leasts = {require_memory("noise", MAX_LEASTS, sizeof *leasts.list), 0};
    uint64_t spare = 0;

    add_tail(&leasts, 0, 1);
    for (int bit = 0; bit < TAIL_BITS + 8; bit++) {
        add_octave(&leasts, UINT64_C(1) << bit, STRATA, add_tail);
    }
    for (uint64_t start = TAIL_WORDS; start < UINT64_C(1) << 31; start *= 2) {
        add_octave(&leasts, start, start < 4096 ? (int)start : STRATA, add_word);
    }
    add_upper_word(&leasts, 0, 1);
    for (int bit = 0; bit < 31; bit++) {
        add_octave(&leasts, UINT64_C(1) << bit, UPPER_STRATA, add_upper_word);
    }
    progress_start("enumerating the noise");
    for (int64_t i = 0; i < leasts.count; i++) {
        leasts.list[i].noise = find_noise_of_words(leasts.list[i].words, seed, &spare);
        progress_update(i, leasts.count);
    }
    progress_clear();
    return leasts;
}

/* ----------------------------------------------------------------------------------- sums ---- */

/* The rare token's rate if exp(-m e^gap) is `survival`, as the token with the least exponential and
 * as one of the other 63. */
static double find_rate(double survival, double gap)
{
    return survival / BLOCK * (1 + (BLOCK - 1) / (1 + exp(gap)));
}

static double rare_rate(double gap, const struct leasts *leasts)
{
    double sum = 0;

    for (int64_t i = 0; i < leasts->count; i++) {
        const struct least least = leasts->list[i];

        sum += least.weight * find_rate(exp(-exp(gap - (double)least.noise)), gap);
    }
    return sum;
}

/* The rate if the first word alone determined m. */
static double find_rate_of_one_word(double gap, const struct leasts *leasts)
{
    double sum = 0;

    for (int64_t i = 0; i < leasts->count; i++) {
        const struct least least = leasts->list[i];
        const double least_of_word = -log1p(-((double)least.words[0] + 0.5) * 0x1p-32) / BLOCK;

        sum += least.weight * find_rate(exp(-exp(gap) * least_of_word), gap);
    }
    return sum;
}

static const char definition_of_gap[] =
    "         gap: the logit of a likely token minus that of a rare one, both divided by the\n"
    "         temperature. The true rate of the rare one is its probability, 1 / (1 + e^gap).";

void verify_tail(uint64_t seed, struct verdicts *verdicts)
{
    const struct leasts leasts = enumerate_leasts(seed);

    if (verdicts->print) {
        puts(definition_of_gap);
    }
    for (int gap = FIRST_GAP; gap <= LAST_GAP; gap += GAP_STEP) {
        const double truth = 1 / (1 + exp(gap));
        const double relative = rare_rate(gap, &leasts) / truth;
        const double short_word = find_rate_of_one_word(gap, &leasts) / truth;
        const enum outcome outcome = fabs(relative - 1) <= tolerance ? PASSED : FAILED;
        json_t *details = json_object();
        char name[32];

        snprintf(name, sizeof name, "tail, gap %d", gap);
        json_put(details, "gap", json_integer(gap));
        json_put(details, "truth", json_number(truth));
        json_put(details, "relative_rate", json_number(relative));
        json_put(details, "relative_rate_with_32_bits", json_number(short_word));
        record_verdict(verdicts, outcome, name, details,
                       "drawn at %.7f of the true rate %.3e (%.4f with noise of 32 bits only)",
                       relative, truth, short_word);
    }
    free(leasts.list);
}
