/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   transforms, truncates and draws rows of logits, with every option and output
 *        (docs/maths.md, sections 8 and 9), in one launch on GPUs with clusters: a row lies in the
 *        shared memory of eight CTAs.
 * COST   reads B V elements once: 76 KB a CTA at V = 151936, with two CTAs a multiprocessor. If at
 *        most kShortlist tokens can matter (top_k up to about 250, min_p, a greedy row), two or
 *        three passes over a slice and as many exchanges, and one CTA finishes the row. If only a
 *        token is requested, a larger top_k, a top_p alone or a joint top_p is drawn before
 *        truncation, in two passes (cluster_pivot.cuh): 14 to 16 us for rows that keep 1000
 *        to 30,000 tokens. A nucleus of few tokens is finished from a list and the mass of all
 *        tokens. All other rows take five to ten passes.
 * MAP    a cluster a row, an eighth of it a CTA; a thread takes quads of neighbouring tokens. Rows
 *        that the previous launch (truncated_blocks.cu) serves from few blocks are skipped; this
 *        launch begins with fallback rows while the previous one still serves others.
 * SMEM   the slice's y, and 33 KB of state (truncated_shared.cuh).
 * SYNC   each row has a state word: pending, served or fallback. A cluster polls a pending row's
 *        word, for which it waits for a CTA of the previous launch; after 1 ms it waits for the end
 *        of that launch instead. Every CTA waits for the end of the previous launch before it ends.
 *        The CTAs of a cluster wait for each other as described in cluster_exchange.cuh; the last
 *        barrier follows all reads of other CTAs' memory.
 * NUMERICS  those of the naive kernel, bit for bit: truncation and masses sum integers.
 */
#include "cuda/truncated/cluster/cluster_row.cuh"

extern "C" __global__ void __cluster_dims__(kClusterCtas, 1, 1) __launch_bounds__(kThreads, 2)
    gumbel_truncated_cluster(const __grid_constant__ cuda_truncated_params p)
{
    const cuda_truncated_params &call = load_call(p);
    serve_rows(p, [&](int64_t b) { serve_by_cluster(call, b); });
}
