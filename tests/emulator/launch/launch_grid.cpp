// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cooperative launches, included after the stand-ins for the hardware's intrinsics,
// with their headers compiled for exchanges in global memory. The memory for exchanges is poisoned,
// with guard bytes around it, except for the slots that the backend sets to zero.
#include "grid_ptx_emulated.h"

#define CUDA_ROWS_BY_GRID
#include "cluster_paths.h"

#include "cuda/truncated/grid/truncated_grid.cu"
#include "cuda/truncated/grid/program_grid.cu"

namespace
{

constexpr unsigned char kGuard = 0xa5;
constexpr size_t kGuardWords = 512;

/* The memory in which the groups of a launch exchange. */
class exchange_memory
{
  public:
    explicit exchange_memory(int64_t groups)
        : words_(2 * kGuardWords + (size_t)groups * (CUDA_GRID_STEP_WORDS + CUDA_GRID_MEMORY_WORDS),
                 poison())
    {
        std::fill_n(begin(), groups * CUDA_GRID_STEP_WORDS, 0);
    }

    uint64_t *begin() { return words_.data() + kGuardWords; }

    void check_guards(const char *what) const
    {
        for (size_t i = 0; i < kGuardWords; i++)
            if (words_[i] != poison() || words_[words_.size() - 1 - i] != poison())
                die("%s: a write outside the memory for exchanges", what);
    }

  private:
    static uint64_t poison()
    {
        uint64_t word;
        memset(&word, kGuard, sizeof word);
        return word;
    }

    std::vector<uint64_t> words_;
};

void grid_body(const void *argument)
{
    gumbel_truncated_grid(*(const cuda_truncated_params *)argument);
}

void program_body(const void *argument)
{
    gumbel_program_grid(*(const cuda_program_params *)argument);
}

/* The shape of a launch of `groups` groups. */
cta_shape shape_of(const cuda_truncated_params &p, int64_t groups)
{
    const size_t bytes = CUDA_CLUSTER_SHARED_BYTES + (size_t)p.split_size * sizeof(float);
    return {groups * kClusterCtas, kClusterCtas, kThreads, bytes, memories};
}

/* The call as the backend splits it for a cooperative launch. */
cuda_truncated_params split_by_grid(cuda_truncated_params p, exchange_memory &memory)
{
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    p.splits = CUDA_GRID_CTAS;
    p.split_size = cuda_grid_slice(std::max<int64_t>(q.end_token - origin, 1));
    p.exchange = memory.begin();
    return p;
}

} // namespace

std::vector<cluster_path> emulate_grid(const cuda_truncated_params &call, int64_t groups,
                                       uint64_t *random, const char *what)
{
    exchange_memory memory(groups);
    const cuda_truncated_params p = split_by_grid(call, memory);
    paths.assign((size_t)p.problem.batch, CLUSTER_LISTED);
    run_ctas(grid_body, &p, shape_of(p, groups), random, what);
    memory.check_guards(what);
    return paths;
}

std::vector<cluster_path> emulate_program_grid(const cuda_truncated_params &call, uint64_t *random,
                                               const char *what)
{
    const int64_t groups = 1 + random_below(random, (uint32_t)call.problem.batch);
    exchange_memory memory(groups);
    const cuda_program_params p = program_params_of(split_by_grid(call, memory));
    paths.assign((size_t)call.problem.batch, CLUSTER_LISTED);
    run_ctas(program_body, &p, shape_of(p.call, groups), random, what);
    memory.check_guards(what);
    return paths;
}
