/* SPDX-License-Identifier: Apache-2.0
 *
 * Support code of the GPU tests: the driver, problems in device memory, comparison of draws with
 * the CPU's, and a runner without a test framework, as GPU machines rarely have one.
 */
#ifndef TESTS_CUDA_SUPPORT_H
#define TESTS_CUDA_SUPPORT_H

#include "inputs.h"
#include "outcome.h"

#include <cuda.h>

/* Exit code of a test that was skipped. */
enum { SKIPPED = 77 };

/* ---------------------------------------------------------------------------------- runner ---- */

typedef struct cuda_test {
    const char *name;
    void (*run)(void);
} cuda_test;

/* Run the tests that argv names, or all; tests named nightly_ only if GUMBEL_NIGHTLY is set. Prints
 * a line for each test, and their numbers. Returns 0, 1 or, without a GPU or a build for it,
 * SKIPPED. A NULL name ends `tests`. */
int cuda_run_tests(int argc, char **argv, const cuda_test *tests);

/* Print the message and count a failure unless `condition` holds; returns the condition. */
#define CHECK(condition, ...) check(!!(condition), __FILE__, __LINE__, #condition, __VA_ARGS__)
int check(int holds, const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Failed checks since the program started. */
int checks_failed(void);

/* Devices of the running tests. */
extern gumbel_device *gpu, *cpu;

/* ---------------------------------------------------------------------------------- driver ---- */

#define GPU_FUNCTIONS(F)                                                                           \
    F(cuInit)                                                                                      \
    F(cuGetErrorString)                                                                            \
    F(cuDeviceGetAttribute)                                                                        \
    F(cuDevicePrimaryCtxRetain)                                                                    \
    F(cuCtxSetCurrent)                                                                             \
    F(cuMemAlloc)                                                                                  \
    F(cuMemFree)                                                                                   \
    F(cuMemHostAlloc)                                                                              \
    F(cuMemFreeHost)                                                                               \
    F(cuMemcpyHtoD)                                                                                \
    F(cuMemcpyDtoH)                                                                                \
    F(cuMemcpyDtoDAsync)                                                                           \
    F(cuMemsetD8)                                                                                  \
    F(cuCtxSynchronize)                                                                            \
    F(cuStreamCreate)                                                                              \
    F(cuStreamCreateWithPriority)                                                                  \
    F(cuCtxGetStreamPriorityRange)                                                                 \
    F(cuStreamDestroy)                                                                             \
    F(cuStreamQuery)                                                                               \
    F(cuStreamSynchronize)                                                                         \
    F(cuStreamWaitEvent)                                                                           \
    F(cuEventCreate)                                                                               \
    F(cuEventRecord)                                                                               \
    F(cuEventDestroy)                                                                              \
    F(cuModuleLoadData)                                                                            \
    F(cuModuleUnload)                                                                              \
    F(cuModuleGetFunction)                                                                         \
    F(cuFuncSetAttribute)                                                                          \
    F(cuLaunchKernel)                                                                              \
    F(cuStreamBeginCapture)                                                                        \
    F(cuStreamEndCapture)                                                                          \
    F(cuGraphInstantiate)                                                                          \
    F(cuGraphLaunch)                                                                               \
    F(cuGraphExecDestroy)                                                                          \
    F(cuGraphDestroy)
#define GPU_MEMBER(name) __typeof__(name) *name;
typedef struct gpu_driver {
    GPU_FUNCTIONS(GPU_MEMBER)
} gpu_driver;
#undef GPU_MEMBER
extern gpu_driver driver;

/* End the program with the driver's message unless driver.function(...) succeeds. */
#define GPU(function, ...) gpu_require(driver.function(__VA_ARGS__), #function)
void gpu_require(CUresult result, const char *call);

/* Whether the GPU has thread-block clusters. */
int gpu_has_clusters(void);

/* The GPU's context, for threads that a test starts. */
CUcontext gpu_context(void);

/* Whether work is queued on a stream; does not wait. */
int gpu_runs(CUstream stream);

/* Poisoned device memory of at least one byte; free it with gpu_free(). */
void *gpu_make(size_t bytes);
void gpu_free(void *memory);
/* Fill device memory with poison, or with a copy. Both wait until the memory is written, also for
 * non-blocking streams: the driver's own calls may return earlier. */
void gpu_poison(void *to, size_t bytes);
void gpu_put(void *to, const void *from, size_t bytes);
/* A copy in device memory; NULL for NULL. */
void *gpu_copy(const void *from, size_t bytes);
/* A workspace, filled by hostile_fill(). */
void *gpu_hostile(size_t bytes);
void gpu_fetch(void *to, const void *from, size_t bytes);

/* Calls captured on a separate stream, to be replayed. */
typedef struct gpu_graph {
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;
} gpu_graph;

/* Begin and end the capture of the graph's stream. */
gpu_graph gpu_graph_begin(void);
void gpu_graph_end(gpu_graph *generated);
/* Replay the calls, and wait for them. */
void gpu_graph_replay(const gpu_graph *generated);
void gpu_graph_free(const gpu_graph *generated);

/* ----------------------------------------------------------------------------------- draws ---- */

/* A problem with its tensors and row parameters in device memory. */
problem *gpu_problem(const problem *host);
void gpu_problem_free(problem *generated);

/* Logits [B, V] generated from a seed, in host memory, with the scale, soft-cap and range of the
 * problem's head. Free data with free(). `gap` columns of NaN follow each row. */
gumbel_logits make_logits(const problem *generated, gumbel_dtype dtype, int64_t gap);
/* Bytes of all rows, with the gap after the last one. */
size_t tensor_bytes(const gumbel_tensor *t);
/* A copy in device memory; gpu_free() the data. */
gumbel_logits gpu_logits(const gumbel_logits *host);

/* Draw on the GPU from a head, or from logits (the other NULL), into host memory. Outputs and
 * workspace are poisoned before. lse and logprobs are requested if `parts` has OUTCOME_MASS. Ends
 * the program on an error of the call. */
void gpu_draw(const gumbel_head *head, const gumbel_logits *logits, const gumbel_sampling *sampling,
              outcome_parts parts, outcome *into);

/* Noise by the CPU, or queued on the GPU; ends the program on an error. */
void make_noise(gumbel_device *device, void *stream, const gumbel_sampling *sampling, int64_t batch,
                int64_t first_token, int64_t count, float *noise, int64_t stride);

/* Summaries [B, S] by the GPU, copied to host memory; free them. */
gumbel_summary *gpu_summarise(const gumbel_head *head, const gumbel_logits *logits,
                              const gumbel_sampling *sampling);

/* ------------------------------------------------------------------------------ comparison ---- */

/* 1 if dot products have the CPU's bits on every GPU: dtypes are mixed, or the naive kernel serves
 * the plan, because its rows are not multiples of 16 bytes or it has too many samples. */
int is_exact(const problem_plan *plan);

/* Draws compared, and tokens that differed by a near tie, since the program started. */
extern int64_t draws_compared, near_ties;

/* CHECK that the GPU's outcome matches the CPU's. If `exact`, tokens and scores have the same bits,
 * and lse and logprobs are within two ulps of lse: the logarithm is another library's. Otherwise
 * scores differ by less than 1e-3 * max(1, |score|), the error of summing the dot product in
 * another order; a different token with such a score is a near tie. */
int compare(const outcome *host, const outcome *device, outcome_parts parts, int exact,
            const char *what);

/* CHECK that a draw from a head by noise computed ahead matches one by noise on the fly: tokens and
 * scores have the same bits; log-normalisers and log-probabilities differ as gumbel.h allows. */
int compare_ahead(const outcome *wanted, const outcome *found, const char *what);

/* ---------------------------------------------------------------------------------- checks ---- */

/* Draw on both devices with mass and without, and compare; `what` names the problem. */
void check_problem(const problem *host, const char *what);
/* check_problem() of a plan's problem. */
void check_plan(const problem_plan *plan);

/* Compare one draw on the GPU with shards of cuts[i] tokens merged on the host; 0 ends the list.
 * Tokens and scores have the same bits; other outputs do if shards are multiples of `border`. */
void check_shards(const problem_plan *plan, const int64_t *cuts, int64_t border);

/* A row has the same bits alone and in batches of many sizes at any index. One sample a row. */
void check_invariance(const problem_plan *plan, outcome_parts parts);

#endif
