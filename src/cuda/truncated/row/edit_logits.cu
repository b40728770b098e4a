/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   writes y, the transformed logits before temperature (docs/maths.md, section 8), for calls
 *        without truncation that need y of more tokens than are scored: for log-probabilities,
 *        edits by lists, or given noise. The kernels that draw from plain logits follow.
 * COST   reads and writes B V elements once; masks and histories add three bits a token.
 * MAP    a CTA takes a tile of 4096 tokens of a row; a thread takes two quads.
 * SMEM   a tile, if lists edit the row.
 * SYNC   no CTA waits for another: each reads only logits that no other CTA writes, as the output
 *        may be the logits themselves.
 */
#include "cuda/truncated/row/candidate_list.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    gumbel_edit_logits(const __grid_constant__ cuda_truncated_params p)
{
    __shared__ truncated_row row;
    extern __shared__ __align__(16) unsigned char memory[];
    staged_tile &staged = *(staged_tile *)memory;
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
    int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * kTruncatedTile;
    row_reader reader = {p, row, staged.stage, b, min(begin + kTruncatedTile, q.end_token)};
    float y[kThreadTokens], *to = (float *)p.processed + b * p.processed_stride - q.first_token;
    ptx_wait_for_launch();
    if (!gumbel_problem_row_is_live(&q, b))
        return;
    reader.load(begin, y);
    if (threadIdx.x == kThreads - 1)
        row = load_truncated_row(q, b);
    __syncthreads();
    reader.edit_tile(begin, y, staged.y);
#pragma unroll
    for (int i = 0; i < kThreadTokens; i += 4) {
        int64_t token = reader.token_of(begin, i);
        if (reader.is_valid(token) && reader.is_valid(token + 3) &&
            (uintptr_t)(to + token) % 16 == 0) {
            *(float4 *)(to + token) = make_float4(y[i], y[i + 1], y[i + 2], y[i + 3]);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (reader.is_valid(token + j))
                to[token + j] = y[i + j];
    }
}
