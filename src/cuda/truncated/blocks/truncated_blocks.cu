/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws truncated rows in which few tokens can matter. The kernel finds the largest logit of
 *        each block of 128 tokens, unless the product has stored these block maxima, and the last
 *        CTA of a row tries to serve it from the blocks that may matter (truncated_blocks.cuh).
 *        Fallback rows go to clusters (truncated_cluster.cu), or to a cooperative launch on GPUs
 *        without clusters (truncated_grid.cu).
 * COST   reads B V elements once and writes 1 / 128 of that; then a row takes about 8 us of one
 *        CTA, less if its multiprocessor has run this code before.
 * MAP    p.splits CTAs a row. A warp takes kWarpBlocks blocks at once, four neighbouring tokens a
 *        lane.
 * SMEM   33 KB of state (truncated_shared.cuh), the state of blocks (block_tops.cuh), and
 *        five bytes a block.
 * SYNC   no CTA waits for another: the last CTA of a row to increment a counter in global memory
 *        reads the results of all. Clusters of the next launch start once every CTA has allowed
 *        it or ended; by then each row's state word is written, and the clusters poll these words.
 *        A cooperative launch starts after this one.
 * NUMERICS  those of the naive kernel, bit for bit: tokens that are not read contribute to no
 *        output.
 */
#include "cuda/truncated/blocks/block_kernel.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_truncated_blocks(const __grid_constant__ cuda_truncated_params p)
{
    serve_split(p, truncation_rows());
}
