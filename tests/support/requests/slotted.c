/* SPDX-License-Identifier: Apache-2.0 */
#include "slotted.h"

#include <stdlib.h>
#include <string.h>

static void *allocate_owned(slotted *generated, size_t bytes)
{
    void *data = make_zeroed(bytes ? bytes : 1, 1);
    generated->owned[generated->owned_count++] = data;
    memset(data, 0xA7, bytes);
    return data;
}

/* Copies rows of `bytes` each, `apart` bytes from one to the next, to their slots. */
static void *spread_array(slotted *generated, const void *data, size_t apart, size_t bytes)
{
    char *slots = allocate_owned(generated, (size_t)generated->count * bytes);
    for (int64_t b = 0; b < generated->req.plan.batch; b++)
        memcpy(slots + (size_t)generated->of_row[b] * bytes, (const char *)data + (size_t)b * apart,
               bytes);
    return slots;
}

/* Copies a row parameter of `width` elements of `size` bytes to slots; a shared parameter is
 * unchanged. */
static const void *spread_rows(slotted *generated, const void *data, int64_t *stride, int64_t width,
                               size_t size)
{
    if (!data || *stride == GUMBEL_SAME)
        return data;
    size_t apart = (size_t)(*stride ? *stride : width) * size;
    *stride = 0;
    return spread_array(generated, data, apart, (size_t)width * size);
}

#define SPREAD(rows, width)                                                                        \
    (rows).data = spread_rows(generated, (rows).data, &(rows).stride, width, sizeof *(rows).data)

/* Widens 16-bit counts to 32 bits. */
static void widen_counts(slotted *generated, gumbel_history *h)
{
    size_t elements = (size_t)(generated->count * h->vocab_size);
    int32_t *wide = allocate_owned(generated, elements * sizeof *wide);
    for (size_t i = 0; i < elements; i++)
        wide[i] = ((const uint16_t *)h->counts)[i];
    h->counts = wide;
    h->count_bits = 32;
}

static void spread_history(slotted *generated, int wide)
{
    gumbel_history *h = &generated->req.history;
    size_t words = (size_t)(h->vocab_size + 31) / 32 * sizeof *h->prompt;
    size_t counts = (size_t)h->vocab_size * sizeof(uint16_t);
    h->prompt = spread_array(generated, h->prompt, words, words);
    h->output = spread_array(generated, h->output, words, words);
    h->counts = spread_array(generated, h->counts, counts, counts);
    if (wide)
        widen_counts(generated, h);
    generated->req.transforms.history = h;
}

static void spread_programs(slotted *generated, gumbel_programs *q)
{
    SPREAD(q->program, 1);
    SPREAD(q->min_keep, 1);
    SPREAD(q->temperature_range, 1);
    SPREAD(q->temperature_exponent, 1);
    SPREAD(q->typical_p, 1);
    SPREAD(q->top_n_sigma, 1);
    SPREAD(q->epsilon, 1);
    SPREAD(q->eta, 1);
    SPREAD(q->top_a, 1);
    SPREAD(q->surprise, 1);
    SPREAD(q->xtc_probability, 1);
    SPREAD(q->xtc_threshold, 1);
    SPREAD(q->smoothing_factor, 1);
    SPREAD(q->smoothing_curve, 1);
    SPREAD(q->adaptive_target, 1);
}

/* Assigns a random slot to each row. */
static void choose_slots(slotted *generated, uint64_t *random)
{
    int64_t batch = generated->req.plan.batch;
    int32_t *all = allocate_owned(generated, (size_t)generated->count * sizeof *all);
    for (int64_t i = 0; i < generated->count; i++) {
        uint32_t at = random_below(random, (uint32_t)i + 1);
        all[i] = all[at];
        all[at] = (int32_t)i;
    }
    generated->of_row = allocate_owned(generated, (size_t)batch * sizeof *generated->of_row);
    memcpy(generated->of_row, all, (size_t)batch * sizeof *all);
}

slotted *slotted_make(const request *whole, uint64_t *random)
{
    slotted *generated = make_zeroed(1, sizeof *generated);
    request *r = &generated->req;
    request_rows(whole, 0, whole->plan.batch, r);
    generated->count = whole->plan.batch + random_below(random, 5);
    choose_slots(generated, random);
    SPREAD(r->sampling.temperature, 1);
    SPREAD(r->sampling.seed, 1);
    SPREAD(r->sampling.position, 1);
    SPREAD(r->sampling.first_sample, 1);
    if (r->sampling.truncation) {
        SPREAD(r->truncation.min_p, 1);
        SPREAD(r->truncation.top_k, 1);
        SPREAD(r->truncation.top_p, 1);
        if (r->truncation.programs)
            spread_programs(generated, &r->programs);
    }
    if (r->sampling.transforms) {
        SPREAD(r->transforms.mask, (r->plan.first_token + r->plan.vocab + 31) / 32);
        SPREAD(r->transforms.repetition, 1);
        SPREAD(r->transforms.frequency, 1);
        SPREAD(r->transforms.presence, 1);
        if (r->transforms.history)
            spread_history(generated, random_below(random, 2) != 0);
    }
    r->sampling.slots = (gumbel_slots){generated->of_row, generated->count};
    return generated;
}

void slotted_free(slotted *generated)
{
    for (int i = 0; i < generated->owned_count; i++)
        free(generated->owned[i]);
    free(generated);
}
