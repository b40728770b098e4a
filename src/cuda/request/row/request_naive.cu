/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   serves any request from logits (docs/maths.md, sections 8 and 9): the draw, every output,
 *        or the processed logits. The plain version of the faster kernels.
 * COST   reads a row once for its largest value; at most four times for each of top_k, top_p, a tie
 *        at the cutoff and the most likely tokens; once for the mass; once a sample, or twice with
 *        ranks. The kernel sorts nothing and stores nothing.
 * MAP    a CTA a row; a warp takes four blocks of 64 tokens at a time.
 * SMEM   1024 bins of a descent, and a tile of the row if lists edit it.
 * SYNC   a few __syncthreads() a pass.
 * NUMERICS  truncation sums integers; the draw is the plain one. Results are the CPU's bits except
 *        for the logarithm of the log-normaliser.
 */
#include "cuda/request/row/request_output.cuh"

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_request_naive(const __grid_constant__ cuda_request_params p)
{
    __shared__ request_shared x;
    extern __shared__ __align__(16) unsigned char memory[];
    int64_t b = blockIdx.x;
    if (end_unused_row(p, b, threadIdx.x == 0))
        return;
    if (threadIdx.x == 0)
        x.row = request_row_of(p.problem, b);
    __syncthreads();
    row_source source = {p, x.row, *(request_tile *)memory, b};
    serve_row(p, source, x, b);
}
