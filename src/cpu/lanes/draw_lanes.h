/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Draws from a row's logits (eq. 3, 4) and sums the mass of its blocks, on the sixteen lanes
 *        of cpu/isa/lanes_*.h: sampled rows by the sweep of sweep_lanes.h, greedy rows by the same
 *        comparison with the best so far, and rows whose noise was computed ahead.
 * COST   The mass takes about 15 vector operations a vector.
 */
#ifndef GUMBEL_CPU_DRAW_LANES_H
#define GUMBEL_CPU_DRAW_LANES_H

#include "cpu/cpu_policy.h"
#include "cpu/lanes/sweep_lanes.h"

/* Draws one sample from a block of 64 tokens whose noise was computed ahead: a load and an add.
 * Partial blocks at the ends of the shard lack some noise. */
LANES void draw_block_with_noise(const cpu_draw *d, int sample, const float *z, int at)
{
    uint32_t below = 0;
    if (at >= d->low && at + GUMBEL_BLOCK <= d->high) {
        const float *g = d->noise + sample * d->noise_stride + (at - d->low);
        v16f best = vf_set(d->summaries[sample].best_score);
        below = 0xffffu;
        UNROLLED
        for (int q = 0; q < 4; q++) {
            v16f score = vf_add(vf_load(z + 16 * q), vf_load(g + 16 * q));
            below &= vm_bits(vf_less(score, best));
        }
    }
    if (__builtin_expect(below != 0xffffu, 0) && !cpu_flag_invalid_logits(d->summaries, z))
        cpu_draw_with_noise(d, sample, z, at);
}

static void offer_greedy_block(const cpu_draw *d, const float *z, uint32_t token)
{
    for (uint32_t i = 0; i < GUMBEL_BLOCK; i++)
        cpu_offer_greedy_token(d->summaries, d->candidates, z[i], token + i);
}

/* exp(x) for x <= 0, with the operations of gumbel_exp(). */
LANES v16f lanes_exp(v16f x)
{
    static const float terms[GUMBEL_EXP_TERMS] = GUMBEL_EXP_POLYNOMIAL;
    v16f clamped = vf_max(x, vf_set(GUMBEL_EXP_LOWEST));
    v16f shifted = vf_fma(clamped, vf_set(GUMBEL_LOG2E), vf_set(GUMBEL_ROUNDING));
    v16f exponent = vf_sub(shifted, vf_set(GUMBEL_ROUNDING));
    v16f f = vf_fma(exponent, vf_set(-GUMBEL_LN2_LOW),
                    vf_fma(exponent, vf_set(-GUMBEL_LN2_HIGH), clamped));
    v16f p = vf_set(terms[GUMBEL_EXP_TERMS - 1]);
    UNROLLED
    for (int i = GUMBEL_EXP_TERMS - 2; i >= 0; i--)
        p = vf_fma(p, f, vf_set(terms[i]));
    p = vf_add(vf_fma(vf_mul(f, f), p, f), vf_set(1.0f));
    return vf_of_bits(vu_add(vu_of_bits(p), vu_shift_left(vu_of_bits(shifted), 23)));
}

LANES void add_mass(gumbel_summary *s, const v16f z[4], float largest)
{
    v16f m = vf_set(largest);
    v16f low = vf_add(lanes_exp(vf_sub(z[0], m)), lanes_exp(vf_sub(z[1], m)));
    v16f high = vf_add(lanes_exp(vf_sub(z[2], m)), lanes_exp(vf_sub(z[3], m)));
    s->max_z = largest > s->max_z ? largest : s->max_z;
    gumbel_mass_add_block(s, largest, vf_sum(vf_add(low, high)));
}

/* Adds a block's mass and finds its largest z; returns whether any of its tokens counts. */
LANES int add_block_mass(const cpu_draw *d, const float *y, float *largest)
{
    v16f z[4];
    if (!load_valid_block(d->summaries, y, d->factor, z))
        return 0;
    *largest = vf_largest(vf_max(vf_max(z[0], z[1]), vf_max(z[2], z[3])));
    if (*largest > -INFINITY)
        add_mass(d->summaries, z, *largest);
    return *largest > -INFINITY;
}

/* Prefetches the four cache lines of the block CPU_DRAW_AHEAD bytes ahead. A prefetch of an
 * unmapped page has no effect. */
LANES void prefetch_ahead(const float *y)
{
    UNROLLED
    for (int i = 0; i < 4; i++)
        __builtin_prefetch((const char *)y + CPU_DRAW_AHEAD + 64 * i);
}

/* Draws `samples` <= SWEEP_SAMPLES samples, from sample `first` on; the first one may also sum the
 * mass. `samples` and `with_mass` are constants of each instance. */
LANES void sweep_samples(const float *y, const cpu_draw *d, int first, int samples, int with_mass)
{
    sweep_sample x[SWEEP_SAMPLES];
    float min_logits[SEGMENT_BLOCKS];
    for (int i = 0; i < samples; i++) {
        x[i].stream = d->row->stream;
        x[i].stream.sample += (uint32_t)(first + i);
        x[i].summary = &d->summaries[first + i];
        x[i].candidates = cpu_get_sample_candidates(d, first + i);
        x[i].waiting.count = 0;
    }
    sweep_segment s = {.y = y, .factor = d->factor, .token = d->token};
    for (int remaining = d->blocks, blocks; remaining > 0; remaining -= blocks) {
        s.begin = (int)(s.token / GUMBEL_BLOCK % 2);
        blocks = remaining < SEGMENT_BLOCKS - s.begin ? remaining : SEGMENT_BLOCKS - s.begin;
        s.end = s.begin + blocks;
        begin_segment(x, samples, &s, min_logits);
        /* No branch depends on which blocks pass, as no processor predicts it. */
        uint64_t passed = 0;
        for (int b = s.begin; b < s.end; b++, y += GUMBEL_BLOCK) {
            float largest;
            prefetch_ahead(y);
            if (with_mass && !add_block_mass(d, y, &largest))
                continue;
            passed |= (uint64_t)!is_all_below(y, min_logits[b]) << b;
        }
        for (; passed != 0; passed &= passed - 1)
            collect_samples(x, samples, &s, __builtin_ctzll(passed), d->summaries);
        s.y = y;
        s.token += (uint32_t)(blocks * GUMBEL_BLOCK);
    }
    for (int i = 0; i < samples; i++)
        score_waiting(&x[i], 1);
}

NOT_INLINED void sweep_one(const float *y, const cpu_draw *d)
{
    if (d->with_mass)
        sweep_samples(y, d, 0, 1, 1);
    else
        sweep_samples(y, d, 0, 1, 0);
}

NOT_INLINED void sweep_several(const float *y, const cpu_draw *d, int first, int samples)
{
    if (d->with_mass && first == 0)
        sweep_samples(y, d, first, samples, 1);
    else
        sweep_samples(y, d, first, samples, 0);
}

/* Greedy rows, whose factor is 1: skips blocks with no value above the best so far. */
NOT_INLINED void sweep_greedy(const float *z, const cpu_draw *d)
{
    gumbel_summary *s = d->summaries;
    float bound = nextafterf(s->best_score, INFINITY);
    for (int block = 0; block < d->blocks; block++, z += GUMBEL_BLOCK) {
        float largest;
        prefetch_ahead(z);
        if (d->with_mass && !add_block_mass(d, z, &largest))
            continue;
        if (__builtin_expect(is_all_below(z, bound), 1) || cpu_flag_invalid_logits(s, z))
            continue;
        offer_greedy_block(d, z, d->token + (uint32_t)(block * GUMBEL_BLOCK));
        bound = nextafterf(s->best_score, INFINITY);
    }
}

static void draw_given_noise(const float *z, const cpu_draw *d)
{
    for (int block = 0; block < d->blocks; block++, z += GUMBEL_BLOCK) {
        float largest;
        if (d->with_mass && !add_block_mass(d, z, &largest))
            continue;
        for (int s = 0; s < d->num_samples; s++)
            draw_block_with_noise(d, s, z, block * GUMBEL_BLOCK);
    }
}

static void draw_tokens(const float *y, const cpu_draw *d)
{
    if (d->noise || d->num_samples == 0) {
        draw_given_noise(y, d);
    } else if (d->row->greedy) {
        sweep_greedy(y, d);
    } else if (d->num_samples == 1) {
        sweep_one(y, d);
    } else {
        for (int s = 0; s < d->num_samples; s += SWEEP_SAMPLES) {
            int remaining = d->num_samples - s;
            sweep_several(y, d, s, remaining < SWEEP_SAMPLES ? remaining : SWEEP_SAMPLES);
        }
    }
}

#endif
