/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a request from logits (docs/maths.md, sections 8 and 9) for anyone to read, and for
 *        whatever is asked: the draw, every output, or the processed logits.
 * COST   reads a row once for its largest value, four times at most for each of top_k, top_p, a
 *        tie at a cut and a list of the most likely tokens, once for the mass, and once or, with
 *        ranks, twice a sample. Nothing is sorted, nothing is kept.
 * MAP    a CTA a row; a warp takes four blocks of 64 tokens at a time.
 * SMEM   1024 bins of a descent, and where edits come from lists a piece of the row.
 * SYNC   a few __syncthreads() a pass.
 * NUMERICS  cuts are of integers; the rest is that of the plain draw: the CPU's bits, but for the
 *        logarithm of the log-normaliser.
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
