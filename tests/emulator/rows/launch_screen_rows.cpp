// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"

#include "cuda/fused/screen/screen_rows.cu"

#include "ctas.h"
#include "launch_screen.h"

namespace
{

void rows_body(const void *argument)
{
    gumbel_screen_truncate(*(const cuda_screen_rows *)argument);
}

} // namespace

void emulate_screen_rows(const cuda_screen_rows &rows, uint64_t *random, const char *what)
{
    run_ctas(rows_body, &rows,
             {rows.request.problem.batch, 1, CUDA_TRUNCATED_THREADS, CUDA_CLUSTER_SHARED_BYTES,
              memories},
             random, what);
}
