/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls on a GPU as work on streams: repeats, two streams at once, graphs, and refusals.
 */
#include "cuda_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call whose buffers are in device memory for as long as a test lasts. */
typedef struct call {
    problem *host, *device;
    void *workspace;
    size_t workspace_bytes;
    gumbel_output output; /* tokens and scores */
    int64_t draws;
} call;

static call call_make(int64_t batch, uint64_t seed)
{
    problem_plan plan = {.batch = batch,
                         .vocab = 4096,
                         .hidden_size = 256,
                         .seed = seed,
                         .weight_dtype = GUMBEL_BFLOAT16,
                         .hidden_dtype = GUMBEL_BFLOAT16};
    call c = {.host = problem_make(&plan), .draws = batch};
    gumbel_error error;
    c.device = gpu_problem(c.host);
    CHECK(gumbel_workspace_size(gpu, batch, plan.hidden_size, 1, &c.workspace_bytes, &error) ==
              GUMBEL_OK,
          "%s", error.message);
    c.workspace = gpu_make(c.workspace_bytes);
    c.output = (gumbel_output){.struct_size = sizeof c.output,
                               .tokens = gpu_make((size_t)batch * sizeof(int32_t)),
                               .scores = gpu_make((size_t)batch * sizeof(float))};
    return c;
}

static void call_free(call *c)
{
    gpu_free(c->workspace);
    gpu_free(c->output.tokens);
    gpu_free(c->output.scores);
    gpu_problem_free(c->device);
    problem_free(c->host);
}

static void call_queue(call *c, CUstream stream)
{
    gumbel_error error = {"", ""};
    c->device->sampling.stream = stream;
    gumbel_status status = gumbel_sample(gpu, &c->device->head, &c->device->sampling, &c->output,
                                         c->workspace, c->workspace_bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

/* Tokens, then the bits of scores. */
static int32_t *call_results(const call *c)
{
    size_t bytes = (size_t)c->draws * sizeof(int32_t);
    int32_t *results = make_zeroed(2 * (size_t)c->draws, sizeof *results);
    gpu_fetch(results, c->output.tokens, bytes);
    gpu_fetch(results + c->draws, c->output.scores, bytes);
    return results;
}

static void check_results(const call *c, const int32_t *wanted, const char *what, int index)
{
    int32_t *found = call_results(c);
    for (int64_t i = 0; i < 2 * c->draws; i++)
        if (!CHECK(found[i] == wanted[i], "%s %d, B %d: result %d is %d, not %d", what, index,
                   (int)c->draws, (int)i, (int)found[i], (int)wanted[i]))
            break;
    free(found);
}

static void repeats(void)
{
    static const int64_t batches[] = {1, 5, 64, 256};
    for (int i = 0; i < 4; i++) {
        call c = call_make(batches[i], 40 + (uint64_t)i);
        call_queue(&c, NULL);
        GPU(cuCtxSynchronize);
        int32_t *wanted = call_results(&c);
        for (int repeat = 0; repeat < 1000; repeat++) {
            call_queue(&c, NULL);
            GPU(cuCtxSynchronize);
            check_results(&c, wanted, "repeat", repeat);
        }
        free(wanted);
        call_free(&c);
    }
}

static void two_streams(void)
{
    call a = call_make(3, 50), b = call_make(130, 51);
    CUstream first, second;
    GPU(cuStreamCreate, &first, CU_STREAM_NON_BLOCKING);
    GPU(cuStreamCreate, &second, CU_STREAM_NON_BLOCKING);
    call_queue(&a, first);
    GPU(cuCtxSynchronize);
    call_queue(&b, first);
    GPU(cuCtxSynchronize);
    int32_t *wanted_a = call_results(&a), *wanted_b = call_results(&b);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 8; i++) {
            call_queue(&a, first);
            call_queue(&b, second);
        }
        GPU(cuStreamSynchronize, first);
        GPU(cuStreamSynchronize, second);
        check_results(&a, wanted_a, "first stream, round", round);
        check_results(&b, wanted_b, "second stream, round", round);
    }
    GPU(cuStreamDestroy, first);
    GPU(cuStreamDestroy, second);
    free(wanted_a);
    free(wanted_b);
    call_free(&a);
    call_free(&b);
}

/* A step captured once and replayed with positions advanced in device memory. */
static void graphs(void)
{
    static const int64_t batches[] = {1, 20, 300};
    enum { STEPS = 30 };
    for (int i = 0; i < 3; i++) {
        call c = call_make(batches[i], 60 + (uint64_t)i);
        size_t bytes = (size_t)c.draws * sizeof(uint32_t);
        int32_t *wanted[STEPS];
        CUstream stream;
        CUgraph graph;
        CUgraphExec replay;
        GPU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        for (int step = 0; step < STEPS; step++) {
            for (int64_t b = 0; b < c.draws; b++)
                c.host->position[b]++;
            GPU(cuMemcpyHtoD, (CUdeviceptr)(uintptr_t)c.device->position, c.host->position, bytes);
            call_queue(&c, stream);
            GPU(cuStreamSynchronize, stream);
            wanted[step] = call_results(&c);
        }
        GPU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        call_queue(&c, stream);
        GPU(cuStreamEndCapture, stream, &graph);
        GPU(cuGraphInstantiate, &replay, graph, 0);
        GPU(cuMemsetD8, (CUdeviceptr)(uintptr_t)c.workspace, 0xA7, c.workspace_bytes);
        for (int64_t b = 0; b < c.draws; b++)
            c.host->position[b] -= STEPS;
        for (int step = 0; step < STEPS; step++) {
            for (int64_t b = 0; b < c.draws; b++)
                c.host->position[b]++;
            GPU(cuMemcpyHtoD, (CUdeviceptr)(uintptr_t)c.device->position, c.host->position, bytes);
            GPU(cuGraphLaunch, replay, stream);
            GPU(cuStreamSynchronize, stream);
            check_results(&c, wanted[step], "replay", step);
            free(wanted[step]);
        }
        GPU(cuGraphExecDestroy, replay);
        GPU(cuGraphDestroy, graph);
        GPU(cuStreamDestroy, stream);
        call_free(&c);
    }
}

static void refusals(void)
{
    call c = call_make(2, 70);
    gumbel_error error = {"", ""};
    gumbel_device_info info = {.struct_size = sizeof info};
    gumbel_device *none;
    gumbel_device_options options = {.struct_size = sizeof options, .device = "cuda:99"};
    CHECK(gumbel_describe(gpu, &info) == GUMBEL_OK && strcmp(info.name, "cuda:0") == 0, "%s",
          info.name);
    printf("%s: %s, %d multiprocessors\n", info.name, info.description, (int)info.threads);
    CHECK(gumbel_open(&options, &none, &error) == GUMBEL_ERROR_UNSUPPORTED && !none, "%s",
          error.message);
    CHECK(gumbel_sample(gpu, &c.device->head, &c.device->sampling, &c.output, c.workspace,
                        c.workspace_bytes - 1, &error) == GUMBEL_ERROR_WORKSPACE,
          "%s", error.message);
    c.host->sampling.stream = &c;
    CHECK(gumbel_sample(cpu, &c.host->head, &c.host->sampling, &c.output, c.workspace,
                        c.workspace_bytes, &error) == GUMBEL_ERROR_ARGUMENT &&
              strcmp(error.field, "sampling.stream") == 0,
          "%s: %s", error.field, error.message);
    call_free(&c);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"repeats", repeats}, {"two_streams", two_streams},
        {"graphs", graphs},   {"refusals", refusals},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
