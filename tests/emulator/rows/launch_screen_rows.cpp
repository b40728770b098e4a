// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included, so that what stands in for the hardware's words comes before it.
#include "ptx_words.h"

#include "cuda/fused/screen/screen_rows.cu"

#include "ctas.h"
#include "launch_screen.h"

namespace
{

void rows_body(const void *argument) { gumbel_screen_cut(*(const cuda_screen_rows *)argument); }

} // namespace

void emulate_screen_rows(const cuda_screen_rows &rows, uint64_t *random, const char *what)
{
    run_ctas(
        rows_body, &rows,
        {rows.request.problem.batch, 1, CUDA_REQUEST_THREADS, CUDA_CLUSTER_SHARED_BYTES, memories},
        random, what);
}
