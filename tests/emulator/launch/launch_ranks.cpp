// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics. The CTAs of a launch
// run one after the other, so shared memory may be static.
#include "ptx_emulated.h"

#undef __shared__
#define __shared__ static
#include "cuda/step/ranks/exchange.cu"

#include "ctas.h"
#include "launch_ranks.h"

namespace
{

template <void (*kernel)(gumbel_gathered_rows)> void body(const void *argument)
{
    kernel(*(const gumbel_gathered_rows *)argument);
}

void exchange_body(const void *argument)
{
    gumbel_exchange_rows(*(const cuda_exchange_params *)argument);
}

} // namespace

void emulate_request_rows(const gumbel_gathered_rows &p, int64_t ctas, uint64_t *random,
                          const char *what)
{
    run_ctas(body<gumbel_request_rows>, &p, {ctas, 1, CUDA_EXCHANGE_THREADS, 0, memories}, random,
             what);
}

void emulate_scatter_rows(const gumbel_gathered_rows &p, int64_t ctas, uint64_t *random,
                          const char *what)
{
    run_ctas(body<gumbel_scatter_rows>, &p, {ctas, 1, CUDA_EXCHANGE_THREADS, 0, memories}, random,
             what);
}

void emulate_exchange(const cuda_exchange_params &p, int64_t ctas, uint64_t *random,
                      const char *what)
{
    run_ctas(exchange_body, &p, {ctas, 1, CUDA_EXCHANGE_THREADS, 0, memories}, random, what);
}
