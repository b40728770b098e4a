/* SPDX-License-Identifier: Apache-2.0 */
#include "tail_rates.h"

#include "inputs.h"

#include <math.h>
#include <stdlib.h>

#define OTHER_STRATA 4
#define TAIL_BITS    26  /* of r2 */
#define TAIL_WORDS   256 /* first words that take them */

/* A stratum's representative words; `weight` is the fraction of all words that it represents. */
typedef struct stratum {
    uint64_t index;
    double weight;
} stratum;

typedef struct strata {
    stratum *generated;
    int64_t count;
} strata;

/* A block's least exponential. */
typedef struct least {
    double weight;
    float m;
    float g; /* the device's noise of its token */
} least;

/* A token without the least exponential. */
typedef struct other {
    double weight;
    float m, g;
} other;

struct tail_rates {
    least *leasts;
    other *others;
    int64_t least_count, other_count;
};

/* -------------------------------------------------------------------------------- strata ---- */

/* The indices [first, 2 * first), first a power of two, or the index 0, by `parts` strata with
 * three nodes and weights of Gauss's rule; the middle node is between two indices. */
static void add_octave(strata *s, uint64_t first, uint64_t parts, double unit)
{
    uint64_t count = first ? first : 1;
    double width = (double)count / (double)(parts < count ? parts : count);
    for (double at = (double)first; at < (double)(first + count); at += width) {
        double reach = sqrt(0.6) * width / 2, middle = at + width / 2;
        if (width == 1) {
            s->generated[s->count++] = (stratum){(uint64_t)at, unit};
            continue;
        }
        s->generated[s->count++] = (stratum){(uint64_t)(middle - reach), unit * width * 5 / 18};
        s->generated[s->count++] = (stratum){(uint64_t)middle - 1, unit * width * 4 / 18};
        s->generated[s->count++] = (stratum){(uint64_t)middle, unit * width * 4 / 18};
        s->generated[s->count++] = (stratum){(uint64_t)(middle + reach), unit * width * 5 / 18};
    }
}

/* The indices [0, 2^bits), or from a power of two `from` on, by `parts` strata an octave; indices
 * below `whole` one by one. */
static strata make_strata(uint64_t from, uint64_t whole, int bits, int parts, double unit)
{
    strata s = {make_zeroed((size_t)(4 * parts * (bits + 1)) + whole, sizeof *s.generated), 0};
    if (from == 0)
        add_octave(&s, 0, 1, unit);
    for (uint64_t first = from ? from : 1; first < UINT64_C(1) << bits; first *= 2)
        add_octave(&s, first, first < whole ? first : (uint64_t)parts, unit);
    return s;
}

/* ---------------------------------------------------------------------------- enumerations ---- */

typedef struct listed {
    noise_place *places;
    least *generated;
    int64_t count;
} listed;

static void add_least(listed *all, uint32_t r, uint32_t r2, double weight, uint64_t *random)
{
    if (all->places)
        all->places[all->count] = find_token_by_block_words(r, r2, random);
    all->generated[all->count++] = (least){weight, oracle_exact_least(r, r2), 0};
}

/* Least exponentials of blocks: small first words with further bits, words up to 2^31, and from
 * 2^32 down; with places, many more. */
static listed list_leasts(int parts, int with_places, uint64_t *random)
{
    strata tails = make_strata(0, 0, TAIL_BITS + 8, with_places ? parts : 1, 0x1p-58),
           low = make_strata(TAIL_WORDS, with_places ? 4096 : 0, 31, parts, 0x1p-32),
           high = make_strata(0, 0, 31, OTHER_STRATA, 0x1p-32);
    size_t room = (size_t)(tails.count + low.count + high.count);
    listed all = {with_places ? make_zeroed(room, sizeof *all.places) : NULL,
                  make_zeroed(room, sizeof *all.generated), 0};
    for (int64_t i = 0; i < tails.count; i++) {
        uint64_t bits = tails.generated[i].index << 6 | (random_bits(random) & 63);
        add_least(&all, (uint32_t)(bits >> 32), (uint32_t)bits, tails.generated[i].weight, random);
    }
    for (int64_t i = 0; i < low.count; i++)
        add_least(&all, (uint32_t)low.generated[i].index, (uint32_t)random_bits(random),
                  low.generated[i].weight, random);
    for (int64_t i = 0; i < high.count; i++)
        add_least(&all, ~(uint32_t)high.generated[i].index, (uint32_t)random_bits(random),
                  high.generated[i].weight, random);
    free(tails.generated);
    free(low.generated);
    free(high.generated);
    return all;
}

static void list_others(tail_rates *generated, uint64_t *random)
{
    strata half = make_strata(0, 0, 31, OTHER_STRATA, 0x1p-32);
    listed leasts = list_leasts(OTHER_STRATA, 0, random);
    generated->others =
        make_zeroed((size_t)(2 * half.count * leasts.count), sizeof *generated->others);
    for (int64_t i = 0; i < 2 * half.count; i++) {
        stratum own = half.generated[i / 2];
        float e = oracle_exact_exponential((uint32_t)(i % 2 ? ~own.index : own.index));
        for (int64_t k = 0; k < leasts.count; k++) {
            least l = leasts.generated[k];
            generated->others[generated->other_count++] =
                (other){own.weight * l.weight, l.m, -oracle_exact_log(l.m + e)};
        }
    }
    free(leasts.generated);
    free(half.generated);
}

tail_rates *tail_rates_make(tail_noise noise, int parts)
{
    tail_rates *generated = make_zeroed(1, sizeof *generated);
    uint64_t random = 91;
    listed all = list_leasts(parts, 1, &random);
    float *g = make_zeroed((size_t)all.count, sizeof *g);
    noise(all.places, all.count, g);
    for (int64_t i = 0; i < all.count; i++)
        all.generated[i].g = g[i];
    free(g);
    free(all.places);
    generated->leasts = all.generated;
    generated->least_count = all.count;
    list_others(generated, &random);
    return generated;
}

void tail_rates_free(tail_rates *generated)
{
    free(generated->leasts);
    free(generated->others);
    free(generated);
}

/* ------------------------------------------------------------------------------------ sums ---- */

/* The probability that the dominant token's exponential, which includes m, is above E e^gap. */
static double probability_of_win(double g, double gap, double m)
{
    return exp(-fmax(0, exp(gap - g) - m));
}

double tail_rate(const tail_rates *generated, double gap, int same_block)
{
    double as_least = 0, as_other = 0;
    for (int64_t i = 0; i < generated->least_count; i++) {
        least l = generated->leasts[i];
        as_least += l.weight * probability_of_win(l.g, gap, same_block ? l.m : 0);
    }
    for (int64_t i = 0; i < generated->other_count; i++) {
        other o = generated->others[i];
        as_other += o.weight * probability_of_win(o.g, gap, same_block ? o.m : 0);
    }
    return (as_least + (same_block ? 62 : 63) * as_other) / 64 * (1 + exp(gap));
}
