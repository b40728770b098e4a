/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   transforms, truncates and draws rows of logits (docs/maths.md, sections 8 and 9): the
 *        draw, every output, or the processed logits. The plain version of the faster kernels, for
 *        every call.
 * COST   reads a row once for its largest value; at most four times for each of top_k, top_p, a tie
 *        at the cutoff and the most likely tokens; once for the mass; once or twice for a list of
 *        the kept set; once a sample, or twice with ranks. The kernel sorts nothing and stores
 *        nothing.
 * MAP    a CTA a row; a warp takes four blocks of 64 tokens at a time.
 * SMEM   1024 bins of a descent, and a tile of the row if lists edit it.
 * SYNC   threads of a CTA wait for each other a few times a pass; no CTA waits for another.
 * NUMERICS  truncation sums integers; the draw is the plain one. Results are the CPU's bits except
 *        for the logarithm of the log-normaliser.
 */
#include "cuda/truncated/row/serve_row.cuh"

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_truncated_naive(const __grid_constant__ cuda_truncated_params p)
{
    __shared__ truncated_shared x;
    int64_t b = blockIdx.x;
    if (end_unused_row(p, b, threadIdx.x == 0))
        return;
    if (threadIdx.x == 0)
        x.row = load_truncated_row(p.problem, b);
    __syncthreads();
    row_source source = {p, x.row, *(staged_tile *)get_dynamic_memory(), b};
    serve_row(p, source, x, b);
}
