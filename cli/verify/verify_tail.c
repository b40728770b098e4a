/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Two tokens, the rare one `gap` nats under the dominant one. The rare one wins if
 *        g2 - gap > g1, so that, the dominant noise g1 integrated out,
 *            P = sum over noise values g2 of P(g2) * exp(-exp(gap - g2)),
 *        and the truth is 1 / (1 + e^gap).
 * HOW    g2 is a function of the random word r. Philox is a bijection, so a counter can be found
 *        whose block holds any words one likes: gumbel_noise() at that counter shows its g2. All r
 *        from 256 up are enumerated as far as they matter. Below 256 u has 64 bits; that sum is a
 *        geometric series, to which the library's own values at random extension words give the
 *        correction (a few 1e-7).
 * COST   1.06 million words, three to a block, 16 tries a block: 0.3 s.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "report.h"
#include "verify.h"

enum {
    FIRST_GAP = 12,
    LAST_GAP = 30,
    GAP_STEP = 2,
    EXTENDED = 256,        /* words below this are extended to 64 bits */
    LOWEST_DRAWS = 300000, /* extension words looked at for r = 0, where all of a large gap lies */
    OTHER_DRAWS = 60,      /* and for each r in [1, EXTENDED) */
};
static const double tolerance = 1e-4; /* float32 noise near 30 is rounded to 1e-6 */
static const double reach = 40;       /* winners with e^gap * u beyond this are e^-40 of all */

/* --------------------------------------------------------------- counters for given words ---- */

/* The inverse of an odd number modulo 2^32: each step of Newton's doubles the right bits. */
static uint32_t inverse_of(uint32_t odd)
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
    const uint32_t inverse[2] = {inverse_of(multiplier[0]), inverse_of(multiplier[1])};
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

/* Where three tokens have the words that one likes. */
struct place {
    uint32_t counter[4];
    float noise[3];
};

/* A place whose words are words[0..3). The fourth word, taken from *spare on, is free: about one in
 * 16 gives a token below 2^31 and a domain below 2^31. */
static struct place find_place(const uint32_t words[3], uint64_t seed, uint32_t *spare)
{
    struct place place;
    gumbel_error error = {"", ""};

    do {
        const uint32_t block[4] = {words[0], words[1], words[2], (*spare)++};

        invert_philox(block, seed, place.counter);
    } while (place.counter[0] >> 29 != 0 || place.counter[3] >> 31 != 0);
    require_ok(gumbel_noise(seed, place.counter[1], place.counter[2], place.counter[3],
                            (int64_t)place.counter[0] * 4, 3, place.noise, &error),
               &error);
    return place;
}

/* ----------------------------------------------------------------------------------- sums ---- */

/* The noise of all words in [EXTENDED, end). */
static float *enumerate_noise(uint64_t seed, uint32_t end)
{
    float *noise = require_memory("noise", (int64_t)end - EXTENDED + 3, sizeof *noise);
    uint32_t spare = 0;

    progress_start("enumerating the noise");
    for (uint32_t r = EXTENDED; r < end; r += 3) {
        const uint32_t words[3] = {r, r + 1, r + 2};
        const struct place place = find_place(words, seed, &spare);

        for (uint32_t i = 0; i < 3; i++) {
            noise[r - EXTENDED + i] = place.noise[i];
        }
        progress_update(r, end);
    }
    progress_clear();
    return noise;
}

/* Some extended words: u as the contract has it, g as the library gives it. */
struct extended {
    double u;
    float noise;
    double weight; /* its share of the probability */
};

static int64_t draw_extended(uint64_t seed, struct extended *draws)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    int64_t count = 0;
    uint32_t spare = 0;

    for (uint32_t r = 0; r < EXTENDED; r++) {
        const int wanted = r == 0 ? LOWEST_DRAWS : OTHER_DRAWS;
        const uint32_t words[3] = {r, r, r};

        for (int done = 0; done < wanted; done += 3) {
            const struct place place = find_place(words, seed, &spare);
            const uint32_t counter[4] = {place.counter[0], place.counter[1], place.counter[2],
                                         place.counter[3] | UINT32_C(1) << 31};
            uint32_t low[4];

            require_ok(gumbel_philox4x32(counter, key, 10, low),
                       &(gumbel_error){"counter", "it is refused"});
            for (int i = 0; i < 3; i++) {
                draws[count++] = (struct extended){
                    .u = ((double)r * 0x1p32 + (double)low[i] + 0.5) * 0x1p-64,
                    .noise = place.noise[i],
                    .weight = 0x1p-32 / wanted,
                };
            }
        }
    }
    return count;
}

/* The sum over u = (k + 0.5) * step, k in [0, count), of step * exp(-e^gap * u). */
static double geometric_sum(double gap, double step, double count)
{
    const double a = exp(gap) * step;

    return step * exp(-0.5 * a) * expm1(-a * count) / expm1(-a);
}

/* What the library's noise makes of the extended words, relative to exact noise. */
static double extended_correction(double gap, const struct extended *draws, int64_t count)
{
    double exact = 0;
    double difference = 0;

    for (int64_t i = 0; i < count; i++) {
        const double truth = exp(exp(gap) * log1p(-draws[i].u));

        exact += draws[i].weight * truth;
        difference += draws[i].weight * (exp(-exp(gap - (double)draws[i].noise)) - truth);
    }
    return 1 + difference / exact;
}

static double rare_rate(double gap, const float *noise, uint32_t end, const struct extended *draws,
                        int64_t count)
{
    const double last = reach * exp(-gap) * 0x1p32;
    double sum =
        geometric_sum(gap, 0x1p-64, EXTENDED * 0x1p32) * extended_correction(gap, draws, count);

    for (uint32_t r = EXTENDED; r < end && r <= last; r++) {
        sum += 0x1p-32 * exp(-exp(gap - (double)noise[r - EXTENDED]));
    }
    return sum;
}

void verify_tail(uint64_t seed, struct verdicts *verdicts)
{
    const uint32_t end = (uint32_t)(reach * exp(-FIRST_GAP) * 0x1p32);
    float *noise = enumerate_noise(seed, end);
    struct extended *draws =
        require_memory("noise", LOWEST_DRAWS + EXTENDED * OTHER_DRAWS, sizeof *draws);
    const int64_t count = draw_extended(seed, draws);

    for (int gap = FIRST_GAP; gap <= LAST_GAP; gap += GAP_STEP) {
        const double truth = 1 / (1 + exp(gap));
        const double relative = rare_rate(gap, noise, end, draws, count) / truth;
        const double short_word = geometric_sum(gap, 0x1p-32, 0x1p32) / truth;
        const enum outcome outcome = fabs(relative - 1) <= tolerance ? PASSED : FAILED;
        json_t *details = json_object();
        char name[32];

        snprintf(name, sizeof name, "tail, gap %d", gap);
        json_put(details, "gap", json_integer(gap));
        json_put(details, "truth", json_number(truth));
        json_put(details, "relative_rate", json_number(relative));
        json_put(details, "relative_rate_with_32_bits", json_number(short_word));
        verdict(verdicts, outcome, name, details,
                "drawn at %.6f of the true rate %.3e (%.4f with 32 bits alone)", relative, truth,
                short_word);
    }
    free(draws);
    free(noise);
}
