/* SPDX-License-Identifier: Apache-2.0
 *
 * A row by one CTA, from few of its blocks of 128 tokens. The largest logit of a block bounds what
 * any of its tokens can be, since all that edits a row this way only lowers: the CTA reads the
 * blocks that reach a guess, and knows from their tokens whether the guess left anything out. Then
 * it guesses lower; where more is left than fits, higher. What three guesses do not settle, as rows
 * where thousands of tokens matter, is given up: nothing is approximate. A product that stored by
 * bounds leaves a first guess that needs no search, and holds of nearly all rows.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCKS_CUH
#define GUMBEL_CUDA_REQUEST_BLOCKS_CUH

#include "cuda/request/blocks/request_block_strips.cuh"

namespace
{

constexpr int kGuesses = 3;

/* What a search through blocks found. */
struct blocks_found {
    int count;      /* of tokens, in the list; -1 where not all that can matter are */
    uint32_t flags; /* of the row */
};

/* The next larger z. */
__device__ __forceinline__ float above(float z) { return gumbel_of_key(gumbel_key(z) + 1); }

/* A guess at that, where as many y as are wanted reach `nth`. */
__device__ __forceinline__ float guess_from(const row_blocks &blocks, float nth, float largest)
{
    const request_values &values = blocks.values;
    return shared_of_blocks().wanted.bound(values.z(nth), values, values.of(largest));
}

/* Whether no token can matter that look() has not found at a guess; behind a barrier. */
__device__ __forceinline__ bool have_all(const row_blocks &blocks, float guess)
{
    const block_shared &x = shared_of_blocks();
    bool enough = shared().count >= x.wanted.target;
    return guess <= x.wanted.bound(enough ? INFINITY : -INFINITY, blocks.values,
                                   blocks.values.of(gumbel_of_key(x.seen)));
}

/* Guess again, where `count` blocks were to reach the first guess, and `own` is what look() told
 * this thread; for all threads. */
__device__ __noinline__ blocks_found refine_guess(row_blocks blocks, float guess, float own,
                                                  int count)
{
    const block_shared &x = shared_of_blocks();
    const int wanted = max((int)x.wanted.target, 1);
#pragma unroll 1
    for (int guesses = 1; guesses < kGuesses; guesses++) {
        const float before = guess;
        float largest = gumbel_of_key(x.seen);
        /* What was seen is edited already: as many tokens as are wanted reach this for sure. */
        float nth = reached_by_threads(blocks.values, own, wanted);
        if (nth == -INFINITY) { /* unless edits have left fewer */
            count = 4 * count + 16;
            nth = reached_by_threads(blocks.values, blocks.largest_top(), count);
            largest = largest > -INFINITY ? largest : nth;
        }
        guess = guess_from(blocks, nth, largest);
        if (guess == before) /* nothing else to guess */
            break;
        if (threadIdx.x == 0)
            blocks.start();
        __syncthreads();
        own = look(blocks, guess);
        if (have_all(blocks, guess) && shared().count <= kShortlist)
            return {(int)shared().count, 0};
    }
    return {-1, 0};
}

/* Bring all tokens of the row that can matter into the list; for all threads. */
__device__ __forceinline__ blocks_found find_in_blocks(const row_blocks &blocks,
                                                       const turn_blocks &loaded)
{
    const block_shared &x = shared_of_blocks();
    const cuda_request_params &p = shared().call;
    /* Some of the tokens that reach a guess may be edited away. */
    bool lowered = (p.problem.request & GUMBEL_REQUEST_MASK) && !p.stored_subtiles;
    lowered |= shared().row.edits.act && !p.unseen_block_maxima;
    int count = max((int)blocks_guessed(x.wanted.target, lowered), 1);
    const int each = count / kWarps + kBestSpare;
    tops_found tops = {};
    find_tops(blocks, 0, loaded, tops);
    if (is_rare(blocks.count > kTurn))
        tops = find_later_tops(blocks, tops);
    show_best(tops, each);
    if (is_rare(__syncthreads_or(tops.infinite))) {
        uint32_t flags = flags_in_blocks(blocks);
        return {flags ? 0 : -1, flags};
    }
    rank_best(each, top_guessed(x.wanted.target, lowered), count);
    __syncthreads();
    float guess = guess_from(blocks, blocks.top_of_key(x.nth), blocks.top_of_key(x.top));
    float own = look(blocks, guess);
    if (is_rare(!have_all(blocks, guess) || shared().count > kShortlist))
        return refine_guess(blocks, guess, own, count);
    return {(int)shared().count, 0};
}

/* Describe row b, by three threads of as many warps side by side; whether one of them finds that
 * blocks cannot serve it. */
__device__ __forceinline__ bool describe_row(const cuda_request_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    request_row &row = shared().row;
    if (threadIdx.x == 0) {
        set_draw(row, q, b);
        return row.flags != 0;
    }
    if (threadIdx.x == 32) {
        const bool greedy = is_greedy(q, b); /* is on its way together with rules */
        gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
        if (greedy)
            rules = without_cuts(rules);
        set_rules(row, rules);
        return !can_screen(p, row, greedy, shared_of_blocks().wanted);
    }
    if (threadIdx.x == 64) {
        set_edits(row, q, b);
        return !edits_lower(q, row);
    }
    return false;
}

/* Tell clusters what is known of row b, by one thread: they look for it until it is more than that
 * the row is tried. */
__device__ __forceinline__ void tell_row(const cuda_request_params &p, int64_t b, int32_t known)
{
    *(volatile int32_t *)&p.row_states[b] = known;
}

/* Begin with row b, which is described, by a thread; before a barrier. */
__device__ __forceinline__ void start_row()
{
    row_blocks::start();
    shared_of_blocks().nth = shared_of_blocks().top = 0;
}

__device__ __forceinline__ request_values values_of(const request_row &row)
{
    return {row.draw.inverse_temperature, row.rules.before != 0};
}

/* End row b, of which all that can matter was found; clusters are told before. */
__device__ __forceinline__ void end_row(int64_t b, blocks_found found)
{
    if (threadIdx.x == 0)
        tell_row(shared().call, b, CUDA_ROW_SERVED);
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = found.flags;
    seen.best_id = found.count > 0 ? 0 : -1;
    serve_shortlist(b, found.count, seen, seen, nullptr); /* no raw mass is asked for */
}

/* Serve row b by this CTA alone, which has the call; whether that was possible. The peaks are asked
 * for before the row's parameters are there: both come from far. All that a row mostly runs through
 * is inline, since it does so once and waits for memory at each far jump: out of line it took 4 us
 * more. */
__device__ __forceinline__ bool serve_from_blocks(int64_t b)
{
    const cuda_request_params &p = shared().call;
    row_blocks blocks(b, (int)p.blocks);
    const turn_blocks loaded = blocks.load(0);
    const bool refused = describe_row(p, b);
    if (threadIdx.x == 96)
        start_row();
    if (is_rare(__syncthreads_or(refused)))
        return false;
    blocks.values = values_of(shared().row);
    const blocks_found found = find_in_blocks(blocks, loaded);
    if (is_rare(found.count < 0))
        return false;
    end_row(b, found);
    return true;
}

/* ------------------------------------------------------------------------- behind bounds ---- */

/* Whether a bound does not tell all of the row, of which this thread knows `some`: there is none,
 * blocks are more than a turn, logits are not as stored, or a z may be infinite. */
__device__ __forceinline__ bool needs_tops(const row_blocks &blocks, const turn_blocks &loaded,
                                           float bound)
{
    bool needs = bound == -INFINITY || is_scaled(shared().call.problem) || blocks.count > kTurn ||
                 (uintptr_t)stored_row(blocks.b) % sizeof(float4) != 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        needs |= !(loaded.peaks.of[j] < kScaleMost);
    return needs;
}

/* find_in_blocks() from the start, behind what was looked at. */
__device__ __noinline__ blocks_found find_by_tops(row_blocks blocks)
{
    __syncthreads();
    if (threadIdx.x == 0)
        start_row();
    __syncthreads();
    return find_in_blocks(blocks, blocks.load(0));
}

/* Find the same by the row's bound: whatever reaches it is stored, and as many tokens as are wanted
 * do. So there is no guess to be found, and peaks need not be ranked. */
__device__ __forceinline__ blocks_found find_by_bound(const row_blocks &blocks,
                                                      const turn_blocks &loaded, float bound)
{
    const block_shared &x = shared_of_blocks();
    const request_values &values = blocks.values;
    const float least = above(values.z(bound));
    float largest = -INFINITY;
    if (x.wanted.log_min_p > -INFINITY)
        largest = values.of(largest_shown());
    const float guess = fmaxf(least, x.wanted.bound(least, values, largest));
    look_at_strips(blocks, loaded, guess);
    if (is_rare(!have_all(blocks, guess) || shared().count > kShortlist))
        return find_by_tops(blocks);
    return {(int)shared().count, 0};
}

/* Serve row b as serve_from_blocks(), which is described, where this thread knows whether that
 * `refused` it. For all threads, as soon as the product has ended. */
__device__ __forceinline__ bool serve_by_bound(int64_t b, bool refused)
{
    row_blocks blocks(b, (int)shared().call.blocks);
    const bool by_min_p = shared().call.problem.truncation.min_p.data;
    const turn_blocks loaded = blocks.load(0, by_min_p);
    const float bound = blocks.bound();
    if (by_min_p)
        show_largest(loaded);
    const bool stops = __syncthreads_or(refused || needs_tops(blocks, loaded, bound));
    if (is_rare(stops && __syncthreads_or(refused)))
        return false;
    blocks.values = values_of(shared().row);
    const blocks_found found =
        is_rare(stops) ? find_by_tops(blocks) : find_by_bound(blocks, loaded, bound);
    if (is_rare(found.count < 0))
        return false;
    end_row(b, found);
    return true;
}

} // namespace

#endif
