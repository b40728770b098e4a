/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a CTA of the portable rung for its columns and samples, and which threads may access
 * it.
 *
 * Between two barriers of the CTA a warp writes only its own data (best tokens, masses), or uses
 * atomics (values that thresholds will be raised to, flags); thresholds change only in intervals in
 * which no warp reads them. The state therefore needs no locks, and no warp reads data that another
 * may be writing.
 */
#ifndef GUMBEL_CUDA_CTA_STATE_SM80_CUH
#define GUMBEL_CUDA_CTA_STATE_SM80_CUH

#include "cuda/common/row_thresholds.cuh"

namespace
{

/* In the first tile one CTA in this many publishes its threshold of a row: all at once would queue.
 */
constexpr int kEarlyPublishers = 8;

/* State of a row and sample that the inner loop reads. 48 bytes: the reads of four lanes, eight or
 * four bytes each, two columns apart, then hit different banks. */
struct __align__(16) row_state
{
    float threshold; /* at first only -inf is lower */
    float inverse_temperature;
    float reaches[kWarps]; /* each warp's own: noise bound of its warp tile's block, packed */
    draw_philox philox;
};
static_assert(sizeof(row_state) == 48, "the stride that keeps lanes out of each other's banks");

/* Whether a row with that packed noise bound is greedy: then the bound is 0 but for the index of
 * the token of most noise. */
__device__ __forceinline__ bool is_greedy(float reach) { return reach < 1.0f; }

/* Out of line, as it is called once before the loop, whose registers it would take. */
__device__ __noinline__ row_state make_row_state(const gumbel_problem &q, int64_t b, int sample)
{
    gumbel_row row = gumbel_problem_row(&q, b);
    row.stream.sample += (uint32_t)sample;
    row_state s = {-FLT_MAX, row.inverse_temperature, {}, draw_philox_of(row.stream)};
    s.reaches[0] = row.greedy ? 0.0f : 1.0f; /* until the first noise bounds are computed */
    for (int warp = 1; warp < kWarps; warp++)
        s.reaches[warp] = s.reaches[0];
    return s;
}

/* State of a CTA; i is column * S + sample. */
struct cta_state {
    row_state *states;
    uint32_t *raised;         /* [i]: ordered bits of the next threshold; 0: none */
    uint32_t *flags;          /* [i] */
    unsigned long long *keys; /* [warp][i]: ordered score, then ~id: the best is the largest */
    float *zs;                /* [warp][i]: z of that token */
    gumbel_summary *masses;   /* [warp][column] */
};

/* A scored token: z, and a key with the order of (score, then lower id); 0: no token. */
struct candidate {
    unsigned long long key;
    float z;
};

/* The score of a token with that z and random word r; NaN if it cannot reach the threshold. */
__device__ __forceinline__ float score_one(const row_state *s, float reach, float z, uint32_t r,
                                           uint32_t token)
{
    if (is_greedy(reach))
        return z;
    if (token % GUMBEL_BLOCK != draw_place_of_reach(reach) &&
        !draw_passes_filter(z, draw_min_exponential_of_reach(reach), r,
                            draw_filter_offset(s->threshold)))
        return NAN;
    return z + draw_noise_from_words(draw_block_of(s->philox, token), token, r);
}

/* Scores the four tokens from `token` on and returns the best. Out of line, since few tokens pass
 * the bound; `raised` and `flags` are the column's. */
__device__ __noinline__ candidate score_four(const row_state *s, uint32_t *raised, uint32_t *flags,
                                             float4 y, uint32_t token)
{
    const float reach = s->reaches[threadIdx.x / 32];
    uint4 w = draw_philox_words(s->philox, token / 4, 0);
    draw_winner best = draw_winner_none();
    const float ys[4] = {y.x, y.y, y.z, y.w};
    uint32_t pass = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        pass |=
            (uint32_t)draw_passes_bound(fmaf(ys[k], s->inverse_temperature, reach), s->threshold)
            << k;
    /* Iterates over bits, so that lanes with one different token each still take one turn. */
    for (; pass != 0; pass &= pass - 1) {
        int k = __ffs(pass) - 1;
        float low = k & 1 ? y.y : y.x, high = k & 1 ? y.w : y.z;
        float z = (k & 2 ? high : low) * s->inverse_temperature;
        if (!(z < INFINITY))
            atomicOr(flags, isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
        else if (z > -INFINITY)
            draw_winner_offer(best, score_one(s, reach, z, draw_select_word(w, k), token + k), z,
                              (int)token + k);
    }
    if (best.id < 0)
        return {0, 0.0f};
    atomicMax(raised, ordered_bits(draw_threshold(best.score)));
    /* Adding 0 makes -0 equal to +0, as scores compare. */
    return {(unsigned long long)ordered_bits(best.score + 0.0f) << 32 | ~(uint32_t)best.id, best.z};
}

/* Exchanges the threshold of a thread's column and sample between the warps of the CTA, and through
 * global memory between CTAs. */
struct threshold_exchange {
    const cta_state &t;
    uint64_t *word; /* NULL: this thread owns none */
    uint64_t tag;
    float published; /* published to other CTAs */

    __device__ __forceinline__ threshold_exchange(const cuda_params &p, const cta_state &all)
        : t(all), word(nullptr), tag(p.tag), published(-INFINITY)
    {
        if (threadIdx.x < p.problem.batch * p.problem.sampling.num_samples)
            word = &p.row_thresholds[CUDA_THRESHOLD_WORDS * threadIdx.x];
    }

    /* Publishes the CTA's value; only one CTA in `every` does, by phase. */
    __device__ __forceinline__ void publish_raised(int phase, int every)
    {
        if (!word || (threadIdx.x + phase) % every != 0)
            return;
        uint32_t bits = t.raised[threadIdx.x];
        if (bits && ordered_float(bits) > published) {
            published = ordered_float(bits);
            raise_threshold(word, published, tag);
        }
    }

    /* Raises the threshold to the CTA's own value and the shared one. */
    __device__ __forceinline__ void update() const
    {
        if (!word)
            return;
        uint64_t found = load_threshold(word);
        uint32_t bits = t.raised[threadIdx.x];
        float own = bits ? ordered_float(bits) : -INFINITY;
        float theirs = found >> THRESHOLD_BITS == tag ? unpack_threshold(found) : -INFINITY;
        t.states[threadIdx.x].threshold = fmaxf(fmaxf(own, theirs), -FLT_MAX);
    }
};

} // namespace

#endif
