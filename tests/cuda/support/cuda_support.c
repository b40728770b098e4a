/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_support.h"
#include "test_scale.h"

#include "hostile.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xA7

gumbel_device *gpu, *cpu;
gpu_driver driver;
static CUcontext context;

CUcontext gpu_context(void) { return context; }

static int failures;

/* ---------------------------------------------------------------------------------- runner ---- */

int check(int holds, const char *file, int line, const char *condition, const char *format, ...)
{
    if (holds)
        return 1;
    va_list arguments;
    va_start(arguments, format);
    printf("%s:%d: %s: ", file, line, condition);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    failures++;
    return 0;
}

int checks_failed(void) { return failures; }

void gpu_require(CUresult result, const char *call)
{
    const char *words = "?";
    if (result == CUDA_SUCCESS)
        return;
    driver.cuGetErrorString(result, &words);
    die("%s: %s", call, words);
}

int gpu_runs(CUstream stream)
{
    CUresult result = driver.cuStreamQuery(stream);
    if (result == CUDA_ERROR_NOT_READY)
        return 1;
    gpu_require(result, "cuStreamQuery");
    return 0;
}

/* Open the device, or give the reason why there is none. Ends the program if a GPU is present and
 * does not open. */
static int open_gpu(gumbel_error *error)
{
    gumbel_device_options options = {.struct_size = sizeof options, .device = "cuda:0"};
    gumbel_status status = gumbel_open(&options, &gpu, error);
    if (status == GUMBEL_ERROR_UNSUPPORTED)
        return 0;
    if (status != GUMBEL_OK)
        die("%s: %s: %s", gumbel_status_string(status), error->field, error->message);
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found;
    if (!library)
        die("libcuda: %s", dlerror());
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)
#define LOAD(name)                                                                                 \
    found = dlsym(library, TEXT(name));                                                            \
    if (!found)                                                                                    \
        die("libcuda lacks %s", TEXT(name));                                                       \
    memcpy(&driver.name, &found, sizeof found);
    GPU_FUNCTIONS(LOAD)
    GPU(cuDevicePrimaryCtxRetain, &context, 0);
    GPU(cuCtxSetCurrent, context);
    cpu = open_device(GUMBEL_ISA_AUTO, 4, 0); /* a dozen such programs share a machine */
    return 1;
}

static int is_wanted(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc == 1;
}

/* Why a test does not run; NULL if it does. */
static const char *reason_to_skip(const char *name, int available, const gumbel_error *error)
{
    if (!available)
        return error->message;
    int nightly = strncmp(name, "nightly", strlen("nightly")) == 0;
    return nightly && !is_nightly() ? "GUMBEL_NIGHTLY is not set" : NULL;
}

/* End the program if argv names an unknown test, which otherwise would count as passed. */
static void check_names(int argc, char **argv, const cuda_test *tests)
{
    for (int i = 1; i < argc; i++) {
        const cuda_test *test = tests;
        while (test->name && strcmp(test->name, argv[i]) != 0)
            test++;
        if (!test->name)
            die("%s: no test has this name", argv[i]);
    }
}

int cuda_run_tests(int argc, char **argv, const cuda_test *tests)
{
    gumbel_error error = {"", ""};
    check_names(argc, argv, tests);
    int available = open_gpu(&error), failed = 0, ran = 0, skipped = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const cuda_test *test = tests; test->name; test++) {
        if (!is_wanted(argc, argv, test->name))
            continue;
        const char *reason = reason_to_skip(test->name, available, &error);
        if (reason) {
            printf("%-20s skipped: %s\n", test->name, reason);
            skipped++;
            continue;
        }
        ran++;
        int before = failures;
        int64_t draws = draws_compared, ties = near_ties;
        test->run();
        printf("%-20s %s: %lld draws compared, %lld near ties\n", test->name,
               failures > before ? "FAILED" : "passed", (long long)(draws_compared - draws),
               (long long)(near_ties - ties));
        failed += failures > before;
    }
    gumbel_close(gpu);
    gumbel_close(cpu);
    printf("%d passed, %d failed, %d skipped\n", ran - failed, failed, skipped);
    return ran == 0 ? SKIPPED : failed > 0;
}

int gpu_has_clusters(void)
{
    int major;
    GPU(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    return major >= 9;
}

/* ---------------------------------------------------------------------------------- memory ---- */

void *gpu_make(size_t bytes)
{
    CUdeviceptr generated;
    GPU(cuMemAlloc, &generated, bytes ? bytes : 1);
    gpu_poison((void *)(uintptr_t)generated, bytes ? bytes : 1);
    return (void *)(uintptr_t)generated;
}

void gpu_poison(void *to, size_t bytes)
{
    GPU(cuMemsetD8, (CUdeviceptr)(uintptr_t)to, POISON, bytes);
    GPU(cuStreamSynchronize, NULL);
}

void gpu_put(void *to, const void *from, size_t bytes)
{
    GPU(cuMemcpyHtoD, (CUdeviceptr)(uintptr_t)to, from, bytes);
    GPU(cuStreamSynchronize, NULL);
}

void gpu_free(void *memory)
{
    if (memory)
        GPU(cuMemFree, (CUdeviceptr)(uintptr_t)memory);
}

void *gpu_copy(const void *from, size_t bytes)
{
    if (!from)
        return NULL;
    void *generated = gpu_make(bytes);
    if (bytes)
        gpu_put(generated, from, bytes);
    return generated;
}

void *gpu_hostile(size_t bytes)
{
    void *filled = make_zeroed(1, bytes);
    hostile_fill(filled, bytes);
    void *generated = gpu_copy(filled, bytes);
    free(filled);
    return generated;
}

void gpu_fetch(void *to, const void *from, size_t bytes)
{
    if (bytes)
        GPU(cuMemcpyDtoH, to, (CUdeviceptr)(uintptr_t)from, bytes);
}

gpu_graph gpu_graph_begin(void)
{
    gpu_graph generated;
    GPU(cuStreamCreate, &generated.stream, CU_STREAM_NON_BLOCKING);
    GPU(cuStreamBeginCapture, generated.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    return generated;
}

void gpu_graph_end(gpu_graph *generated)
{
    GPU(cuStreamEndCapture, generated->stream, &generated->graph);
    GPU(cuGraphInstantiate, &generated->replay, generated->graph, 0);
}

void gpu_graph_replay(const gpu_graph *generated)
{
    GPU(cuGraphLaunch, generated->replay, generated->stream);
    GPU(cuStreamSynchronize, generated->stream);
}

void gpu_graph_free(const gpu_graph *generated)
{
    GPU(cuGraphExecDestroy, generated->replay);
    GPU(cuGraphDestroy, generated->graph);
    GPU(cuStreamDestroy, generated->stream);
}

size_t tensor_bytes(const gumbel_tensor *t)
{
    return (size_t)(t->rows * (t->stride ? t->stride : t->cols)) * dtype_size(t->dtype);
}

problem *gpu_problem(const problem *host)
{
    problem *generated = make_zeroed(1, sizeof *generated);
    size_t batch = (size_t)host->plan.batch;
    *generated = *host;
    generated->weight = gpu_copy(host->weight, tensor_bytes(&host->head.weight));
    generated->hidden = gpu_copy(host->hidden, tensor_bytes(&host->head.hidden));
    generated->bias = gpu_copy(host->bias, host->bias ? tensor_bytes(&host->head.bias) : 0);
    generated->temperature = gpu_copy(host->temperature, batch * sizeof(float));
    generated->seed = gpu_copy(host->seed, batch * sizeof(uint64_t));
    generated->position = gpu_copy(host->position, batch * sizeof(uint64_t));
    generated->first_sample = gpu_copy(host->first_sample, batch * sizeof(uint32_t));
    generated->head.weight.data = generated->weight;
    generated->head.hidden.data = generated->hidden;
    generated->head.bias.data = generated->bias;
    generated->sampling.temperature.data = generated->temperature;
    generated->sampling.seed.data = generated->seed;
    generated->sampling.position.data = generated->position;
    generated->sampling.first_sample.data = generated->first_sample;
    return generated;
}

void gpu_problem_free(problem *generated)
{
    gpu_free(generated->weight);
    gpu_free(generated->hidden);
    gpu_free(generated->bias);
    gpu_free(generated->temperature);
    gpu_free(generated->seed);
    gpu_free(generated->position);
    gpu_free(generated->first_sample);
    free(generated);
}

gumbel_logits make_logits(const problem *generated, gumbel_dtype dtype, int64_t gap)
{
    const problem_plan *plan = &generated->plan;
    int64_t stride = plan->vocab + gap;
    uint64_t state = plan->seed * 5 + 7;
    void *data = make_zeroed((size_t)(plan->batch * stride), dtype_size(dtype));
    for (int64_t b = 0; b < plan->batch; b++)
        for (int64_t i = 0; i < stride; i++)
            if (i < plan->vocab)
                dtype_store(data, dtype, b * stride + i, 3 * random_normal(&state));
            else
                dtype_store_nan(data, dtype, b * stride + i);
    return (gumbel_logits){
        .struct_size = sizeof(gumbel_logits),
        .logits = tensor_of(data, dtype, plan->batch, plan->vocab, stride),
        .scale = generated->head.scale,
        .soft_cap = generated->head.soft_cap,
        .first_token = generated->head.first_token,
        .vocab_size = generated->head.vocab_size,
    };
}

gumbel_logits gpu_logits(const gumbel_logits *host)
{
    gumbel_logits generated = *host;
    generated.logits.data = gpu_copy(host->logits.data, tensor_bytes(&host->logits));
    return generated;
}
