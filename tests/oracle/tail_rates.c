/* SPDX-License-Identifier: Apache-2.0 */
#include "tail_rates.h"

#include "inputs.h"

#include <math.h>
#include <stdlib.h>

#define WORDS       (1u << 18)
#define FIRST_TAILS (1 << 19)
#define TAILS       256

typedef struct tail_point {
    double r2; /* the further bits */
    float g;
} tail_point;

struct tail_rates {
    float *g;               /* of word r >= 256 */
    tail_point *tails[256]; /* of words below, sorted by r2 */
    int counts[256];
};

static int compare_tails(const void *a, const void *b)
{
    double x = ((const tail_point *)a)->r2, y = ((const tail_point *)b)->r2;
    return (x > y) - (x < y);
}

static tail_point *make_tails(tail_noise noise, uint32_t r, int count, uint64_t *random)
{
    place *places = make_zeroed((size_t)count, sizeof *places);
    float *g = make_zeroed((size_t)count, sizeof *g);
    tail_point *tails = make_zeroed((size_t)count, sizeof *tails);
    for (int i = 0; i < count; i++)
        places[i] = place_of_word(r, random);
    noise(places, count, g);
    for (int i = 0; i < count; i++) {
        uint32_t word, r2;
        place_words(&places[i], &word, &r2);
        tails[i] = (tail_point){r2, g[i]};
    }
    qsort(tails, (size_t)count, sizeof *tails, compare_tails);
    free(g);
    free(places);
    return tails;
}

tail_rates *tail_rates_make(tail_noise noise)
{
    tail_rates *made = make_zeroed(1, sizeof *made);
    place *places = make_zeroed(WORDS, sizeof *places);
    uint64_t random = 91;
    made->g = make_zeroed(WORDS, sizeof *made->g);
    for (uint32_t r = 256; r < WORDS; r++)
        places[r] = place_of_word(r, &random);
    noise(places + 256, WORDS - 256, made->g + 256);
    free(places);
    for (uint32_t r = 0; r < 256; r++) {
        made->counts[r] = r == 0 ? FIRST_TAILS : TAILS;
        made->tails[r] = make_tails(noise, r, made->counts[r], &random);
    }
    return made;
}

void tail_rates_free(tail_rates *made)
{
    for (int r = 0; r < 256; r++)
        free(made->tails[r]);
    free(made->g);
    free(made);
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

double tail_rate(const tail_rates *made, double gap)
{
    double sum = 0;
    for (uint32_t r = 256; r < WORDS; r++)
        sum += wins(made->g[r], gap);
    for (int r = 0; r < 256; r++)
        sum += tail_mean(made->tails[r], made->counts[r], gap);
    return sum * 0x1p-32 * (1 + exp(gap));
}
