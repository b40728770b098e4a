/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a row by one CTA from few of its blocks of 128 tokens. The edits that are supported here
 * only lower tokens, so the largest logit of a block bounds its tokens. The CTA reads the blocks
 * that reach a guess of the lowest z that matters. The tokens found determine whether the guess
 * missed any; if so, the CTA guesses lower, and if the tokens do not fit, higher. Rows that three
 * guesses do not settle, such as rows in which thousands of tokens matter, are fallback rows:
 * nothing is approximated. A product that stored only logits above a row's bound provides the first
 * guess, which holds for nearly all rows.
 */
#ifndef GUMBEL_CUDA_TRUNCATED_BLOCKS_CUH
#define GUMBEL_CUDA_TRUNCATED_BLOCKS_CUH

#include "cuda/truncated/blocks/block_subtiles.cuh"
#include "cuda/truncated/row/row_states.cuh"

namespace
{

constexpr int kGuesses = 3;

/* Result of a search through blocks. */
struct found_tokens {
    int count;      /* tokens in the list; -1 if some that can matter are missing */
    uint32_t flags; /* of the row */
};

/* The next larger z. */
__device__ __forceinline__ float next_above(float z)
{
    return gumbel_value_of_key(gumbel_key_of_value(z) + 1);
}

/* A guess of the lowest z that matters, if `nth` is the y of the last required token. */
__device__ __forceinline__ float make_guess(const row_blocks &blocks, float nth, float largest)
{
    const logit_values &values = blocks.values;
    return block_state().required.lower_bound(values.to_z(nth), values, values.to_value(largest));
}

/* Whether the list of list_reaching() at a guess holds all tokens that can matter; after a barrier.
 */
__device__ __forceinline__ bool found_all(const row_blocks &blocks, float guess)
{
    const block_scratch &x = block_state();
    bool enough = shared_state().count >= x.required.target;
    return guess <= x.required.lower_bound(enough ? INFINITY : -INFINITY, blocks.values,
                                           blocks.values.to_value(gumbel_value_of_key(x.seen)));
}

/* Guesses again. `count` blocks were expected to reach the first guess, and `own` is this thread's
 * result of list_reaching(). For all threads. */
__device__ __noinline__ found_tokens refine_guess(row_blocks blocks, float guess, float own,
                                                  int count)
{
    const block_scratch &x = block_state();
    const int required = max((int)x.required.target, 1);
#pragma unroll 1
    for (int guesses = 1; guesses < kGuesses; guesses++) {
        const float before = guess;
        float largest = gumbel_value_of_key(x.seen);
        /* Listed tokens are edited already, so `required` tokens reach this y for certain. */
        float nth = find_reached_by_threads(blocks.values, own, required);
        if (nth == -INFINITY) { /* edits left fewer tokens */
            count = 4 * count + 16;
            nth = find_reached_by_threads(blocks.values, blocks.largest_top(), count);
            largest = largest > -INFINITY ? largest : nth;
        }
        guess = make_guess(blocks, nth, largest);
        if (guess == before) /* no other guess */
            break;
        if (threadIdx.x == 0)
            blocks.start();
        __syncthreads();
        own = list_reaching(blocks, guess);
        if (found_all(blocks, guess) && shared_state().count <= kShortlist)
            return {(int)shared_state().count, 0};
    }
    return {-1, 0};
}

/* Lists all tokens of the row that can matter; for all threads. */
__device__ __forceinline__ found_tokens find_in_blocks(const row_blocks &blocks,
                                                       const loaded_blocks &loaded)
{
    const block_scratch &x = block_state();
    const cuda_truncated_params &p = shared_state().call;
    /* Edits may lower some tokens that reach a guess. */
    bool lowered = (p.problem.features & GUMBEL_FEATURE_MASK) && !p.stored_subtiles;
    lowered |= shared_state().row.edits.act && !p.unseen_block_maxima;
    int count = max((int)count_guessed_blocks(x.required.target, lowered), 1);
    const int each = count / kWarps + kBestSpare;
    tops_found tops = {};
    find_tops(blocks, 0, loaded, tops);
    if (is_rare(blocks.count > kTurnBlocks))
        tops = find_later_tops(blocks, tops);
    publish_best(tops, each);
    if (is_rare(__syncthreads_or(tops.infinite))) {
        uint32_t flags = find_flags_in_blocks(blocks);
        return {flags ? 0 : -1, flags};
    }
    select_two_best(each, rank_of_guessed_max(x.required.target, lowered), count);
    __syncthreads();
    float guess = make_guess(blocks, blocks.top_of_key(x.nth), blocks.top_of_key(x.top));
    float own = list_reaching(blocks, guess);
    if (is_rare(!found_all(blocks, guess) || shared_state().count > kShortlist))
        return refine_guess(blocks, guess, own, count);
    return {(int)shared_state().count, 0};
}

/* Sets the parameters of row b, by one thread in each of three warps. Returns whether this thread
 * finds that blocks cannot serve the row. */
__device__ __forceinline__ bool describe_row(const cuda_truncated_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    truncated_row &row = shared_state().row;
    if (threadIdx.x == 0) {
        set_draw(row, q, b);
        return row.flags != 0;
    }
    if (threadIdx.x == 32) {
        const bool greedy = is_greedy(q, b); /* loaded together with the rules */
        gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
        if (greedy)
            rules = without_truncation(rules);
        set_rules(row, rules);
        return !candidates_suffice(p, row, greedy, block_state().required);
    }
    if (threadIdx.x == 64) {
        set_edits(row, q, b);
        return !edits_only_lower(q, row);
    }
    return false;
}

/* Clears the state of a row, by one thread; before a barrier. */
__device__ __forceinline__ void start_row()
{
    row_blocks::start();
    block_state().nth = block_state().top = 0;
}

__device__ __forceinline__ logit_values values_of(const truncated_row &row)
{
    return {row.draw.inverse_temperature, row.rules.before != 0};
}

/* Finishes row b from the tokens found; clusters receive the state first. */
__device__ __forceinline__ void finish_row(int64_t b, found_tokens found)
{
    if (threadIdx.x == 0)
        publish_row_state(shared_state().call, b, CUDA_ROW_SERVED);
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = found.flags;
    seen.best_id = found.count > 0 ? 0 : -1;
    serve_shortlist(b, found.count, seen, seen, nullptr); /* raw masses are not supported here */
}

/* Rows that are truncated by an order of rules. */
struct truncation_rows {
    /* Whether reading row b can be worthwhile; candidates_suffice() refuses the other rows. For all
     * threads. */
    __device__ __forceinline__ bool is_worth_reading(const cuda_truncated_params &p,
                                                     int64_t b) const
    {
        const gumbel_problem &q = p.problem;
        const gumbel_rules r = gumbel_problem_rules(&q, b, 0);
        if (!gumbel_problem_row_is_live(&q, b))
            return false;
        return is_greedy(q, b) || (truncates_by_value(r) && r.top_k <= CUDA_TRUNCATED_TOP_MAX &&
                                   !(r.joint && r.top_p < 1.0f));
    }
    __device__ __forceinline__ bool set_parameters(const cuda_truncated_params &p, int64_t b) const
    {
        return describe_row(p, b);
    }
    __device__ __forceinline__ logit_values get_values() const
    {
        return values_of(shared_state().row);
    }
    __device__ __forceinline__ void finish(int64_t b, found_tokens found) const
    {
        finish_row(b, found);
    }
};

/* Serves row b by this CTA alone after load_call(); returns false for a fallback row. The block
 * maxima are requested before the row's parameters arrive. The usual path is inline: it runs once,
 * and each far jump waits for memory, which took 4 us more out of line. */
template <class Rows> __device__ __forceinline__ bool serve_from_blocks(int64_t b, Rows rows)
{
    const cuda_truncated_params &p = shared_state().call;
    row_blocks blocks(b, (int)p.blocks);
    const loaded_blocks loaded = blocks.load(0);
    const bool refused = rows.set_parameters(p, b);
    if (threadIdx.x == 96)
        start_row();
    if (is_rare(__syncthreads_or(refused)))
        return false;
    blocks.values = rows.get_values();
    const found_tokens found = find_in_blocks(blocks, loaded);
    if (is_rare(found.count < 0))
        return false;
    rows.finish(b, found);
    return true;
}

/* -------------------------------------------------------------- after a bounded product ---- */

/* Whether the product's bound does not settle a row, of which this thread has `loaded` blocks:
 * there is no bound, the blocks exceed a turn, the logits are not as stored, or a z may be
 * infinite. */
__device__ __forceinline__ bool needs_tops(const row_blocks &blocks, const loaded_blocks &loaded,
                                           float bound)
{
    bool needs = bound == -INFINITY || is_scaled(shared_state().call.problem) ||
                 blocks.count > kTurnBlocks ||
                 (uintptr_t)stored_row(blocks.b) % sizeof(float4) != 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        needs |= !(loaded.maxima.values[j] < kScaleMax);
    return needs;
}

/* find_in_blocks() from the start. */
__device__ __noinline__ found_tokens find_by_tops(row_blocks blocks)
{
    __syncthreads();
    if (threadIdx.x == 0)
        start_row();
    __syncthreads();
    return find_in_blocks(blocks, blocks.load(0));
}

/* Lists all tokens that can matter by the row's bound: the product has stored every token that
 * reaches the bound, and enough tokens do. No guess is searched for and no block is ranked. */
__device__ __forceinline__ found_tokens find_by_bound(const row_blocks &blocks,
                                                      const loaded_blocks &loaded, float bound)
{
    const block_scratch &x = block_state();
    const logit_values &values = blocks.values;
    const float min_z = next_above(values.to_z(bound));
    float largest = -INFINITY;
    if (x.required.log_min_p > -INFINITY)
        largest = values.to_value(read_published_largest());
    const float guess = fmaxf(min_z, x.required.lower_bound(min_z, values, largest));
    list_reaching_subtiles(blocks, loaded, guess);
    if (is_rare(!found_all(blocks, guess) || shared_state().count > kShortlist))
        return find_by_tops(blocks);
    return {(int)shared_state().count, 0};
}

/* Serves row b after describe_row() returned `refused`, as serve_from_blocks(). For all threads,
 * when the product has ended. */
__device__ __forceinline__ bool serve_by_bound(int64_t b, bool refused)
{
    row_blocks blocks(b, (int)shared_state().call.blocks);
    const bool by_min_p = shared_state().call.problem.truncation.min_p.data;
    const loaded_blocks loaded = blocks.load(0, by_min_p);
    const float bound = blocks.load_bound();
    if (by_min_p)
        publish_largest(loaded);
    const bool stops = __syncthreads_or(refused || needs_tops(blocks, loaded, bound));
    if (is_rare(stops && __syncthreads_or(refused)))
        return false;
    blocks.values = values_of(shared_state().row);
    const found_tokens found =
        is_rare(stops) ? find_by_tops(blocks) : find_by_bound(blocks, loaded, bound);
    if (is_rare(found.count < 0))
        return false;
    finish_row(b, found);
    return true;
}

} // namespace

#endif
