/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a CTA of the rung `tensor` for its columns and samples, and which threads may access
 * it.
 *
 * Between two barriers of the CTA a warp writes only its own data (best tokens, masses), or uses
 * atomics (values that thresholds will be raised to, flags); thresholds change only in intervals in
 * which no warp reads them. The state therefore needs no locks. Wide kernels may publish a value
 * that another warp is raising: each value is a valid bound. No warp reads other data that another
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
    float reaches[kWarps]; /* each warp's own: noise bound of its warp tile's block, packed; two
                            * warps that take the same tokens have different columns */
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

/* Tokens of a warp that passed their bounds and wait to be scored: a place has the four neighbours
 * that a lane holds. */
constexpr int kPassing = CUDA_SM80_PASSING;
struct __align__(16) passing_tokens
{
    float4 y[kPassing];
    uint32_t target[kPassing]; /* i * GUMBEL_BLOCK + the first token % GUMBEL_BLOCK */
};

/* State of a CTA; i is column * S + sample. */
struct cta_state {
    passing_tokens *passing; /* [warp of the CTA] */
    row_state *states;
    uint32_t *raised;         /* [i]: ordered bits of the next threshold; 0: none */
    uint32_t *flags;          /* [i] */
    unsigned long long *keys; /* [warp][i]: ordered score, then ~id: the best is the largest */
    float *zs;                /* [warp][i]: z of that token */
    gumbel_summary *masses;   /* [warp][column] */
};

/* A scored token: z, and a key with the order of (score, then lower id); 0: no token. */
struct scored_token {
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
 * the bound; `raised` and `flags` are the column's, `reach` is the warp's noise bound. */
__device__ __noinline__ scored_token score_four(const row_state *s, uint32_t *raised,
                                                uint32_t *flags, float4 y, uint32_t token,
                                                float reach)
{
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

    /* The CTA draws for rows [first_row, first_row + rows). */
    __device__ __forceinline__ threshold_exchange(const cuda_params &p, const cta_state &all,
                                                  int first_row, int rows)
        : t(all), word(nullptr), tag(p.tag), published(-INFINITY)
    {
        const int samples = p.problem.sampling.num_samples;
        if (threadIdx.x < rows * samples)
            word = &p.row_thresholds[CUDA_THRESHOLD_WORDS * (first_row * samples + threadIdx.x)];
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

/* Places the state of n columns and `warps` warps behind the ring, at `shared`. The host computes
 * the same sizes (cuda_policy.h). */
template <int n, int warps>
__device__ __forceinline__ cta_state place_state(unsigned char *shared, int samples)
{
    cta_state t;
    int count = n * samples;
    t.passing = (passing_tokens *)shared;
    t.states = (row_state *)(t.passing + warps);
    t.keys = (unsigned long long *)(t.states + count);
    t.zs = (float *)(t.keys + kWarps * count);
    t.raised = (uint32_t *)(t.zs + kWarps * count);
    t.flags = t.raised + count;
    t.masses = (gumbel_summary *)(t.flags + count);
    return t;
}
static_assert(CUDA_SM80_STATE_BYTES ==
                  sizeof(row_state) + kWarps * (sizeof(uint64_t) + sizeof(float)) + 8,
              "the host counts what the kernel places");
static_assert(CUDA_SM80_PASSING_BYTES == sizeof(passing_tokens),
              "the host counts what the kernel places");
static_assert(CUDA_SM80_MASS_BYTES == kWarps * sizeof(gumbel_summary),
              "the host counts what the kernel places");
static_assert(CUDA_SM80_STATES <= kThreads, "a thread exchanges one threshold");

/* The part of the CTA's state of warp tile `warp` and of the columns from `column` on; `index` is
 * that of the warp in the CTA. */
template <int n>
__device__ __forceinline__ cta_state select_state(cta_state t, int index, int warp, int column,
                                                  int samples)
{
    t.passing += index;
    t.states += column * samples;
    t.raised += column * samples;
    t.flags += column * samples;
    t.keys += (warp * n + column) * samples;
    t.zs += (warp * n + column) * samples;
    t.masses += warp * n + column;
    return t;
}

/* Prepares the state for rows [first_row, first_row + rows); by all `threads` of the CTA. */
template <int n, int threads>
__device__ __forceinline__ void clear_state(const cuda_params &p, const cta_state &t, int first_row,
                                            int rows)
{
    const gumbel_problem &q = p.problem;
    int samples = q.sampling.num_samples, used = rows * samples, count = n * samples;
    const row_state idle = {INFINITY, 1.0f, {}, {}};
    for (int i = threadIdx.x; i < count; i += threads) {
        t.states[i] = i < used ? make_row_state(q, first_row + i / samples, i % samples) : idle;
        t.raised[i] = t.flags[i] = 0;
    }
    for (int i = threadIdx.x; i < kWarps * count; i += threads)
        t.keys[i] = 0;
    if (q.with_mass)
        for (int i = threadIdx.x; i < kWarps * n; i += threads)
            gumbel_summary_empty(&t.masses[i]);
}

/* Writes the split's summary of each of `rows` rows and its samples, merged from the warps' best
 * tokens and masses. */
template <int n>
__device__ __forceinline__ void write_summary(const cuda_params &p, const cta_state &t, int split,
                                              int first_row, int rows)
{
    int samples = p.problem.sampling.num_samples, i = threadIdx.x;
    gumbel_summary s;
    if (i >= rows * samples)
        return;
    gumbel_summary_empty(&s);
    for (int warp = 0; warp < kWarps; warp++) {
        int at = warp * n * samples + i;
        if (p.problem.with_mass)
            gumbel_summary_merge(&s, &t.masses[warp * n + i / samples]);
        if (t.keys[at])
            gumbel_summary_offer(&s, ordered_float((uint32_t)(t.keys[at] >> 32)), t.zs[at],
                                 (int32_t) ~(uint32_t)t.keys[at]);
    }
    s.flags = t.flags[i];
    p.summaries[(split * p.problem.batch + first_row) * samples + i] = s;
}

/* First token of a split of the vocabulary: even ranges in units of tokens, by global ids. */
template <int unit> __device__ __forceinline__ int64_t range_begin(const cuda_params &p, int split)
{
    int64_t origin = p.problem.first_token / unit * unit;
    uint32_t units = (uint32_t)((p.problem.end_token - origin + unit - 1) / unit);
    uint32_t each = units / (uint32_t)p.splits, more = units % (uint32_t)p.splits;
    return origin + (int64_t)(each * split + min((uint32_t)split, more)) * unit;
}

} // namespace

#endif
