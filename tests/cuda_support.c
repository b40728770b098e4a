/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_support.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xA7

gumbel_device *gpu, *cpu;
gpu_driver driver;
int64_t draws_compared, near_ties;

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

void gpu_require(CUresult result, const char *call)
{
    const char *words = "?";
    if (result == CUDA_SUCCESS)
        return;
    driver.cuGetErrorString(result, &words);
    die("%s: %s", call, words);
}

/* The device, or the reason why there is none. */
static int open_gpu(gumbel_error *error)
{
    gumbel_device_options options = {.struct_size = sizeof options, .device = "cuda:0"};
    if (gumbel_open(&options, &gpu, error) != GUMBEL_OK)
        return 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found;
    CUcontext context;
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
    cpu = open_device(GUMBEL_ISA_AUTO, 0, 0);
    return 1;
}

static int is_wanted(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc == 1;
}

/* Why a test does not run; NULL where it does. */
static const char *reason_to_skip(const char *name, int available, const gumbel_error *error)
{
    if (!available)
        return error->message;
    int nightly = strncmp(name, "nightly", strlen("nightly")) == 0;
    return nightly && !getenv("GUMBEL_NIGHTLY") ? "GUMBEL_NIGHTLY is not set" : NULL;
}

int cuda_run_tests(int argc, char **argv, const cuda_test *tests)
{
    gumbel_error error = {"", ""};
    int available = open_gpu(&error), failed = 0, ran = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const cuda_test *test = tests; test->name; test++) {
        if (!is_wanted(argc, argv, test->name))
            continue;
        const char *reason = reason_to_skip(test->name, available, &error);
        if (reason) {
            printf("%-20s skipped: %s\n", test->name, reason);
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
    return ran == 0 ? SKIPPED : failed > 0;
}

/* ---------------------------------------------------------------------------------- memory ---- */

void *gpu_make(size_t bytes)
{
    CUdeviceptr made;
    GPU(cuMemAlloc, &made, bytes ? bytes : 1);
    GPU(cuMemsetD8, made, POISON, bytes ? bytes : 1);
    return (void *)(uintptr_t)made;
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
    void *made = gpu_make(bytes);
    if (bytes)
        GPU(cuMemcpyHtoD, (CUdeviceptr)(uintptr_t)made, from, bytes);
    return made;
}

void gpu_fetch(void *to, const void *from, size_t bytes)
{
    if (bytes)
        GPU(cuMemcpyDtoH, to, (CUdeviceptr)(uintptr_t)from, bytes);
}

static size_t tensor_bytes(const gumbel_tensor *t)
{
    return (size_t)(t->rows * (t->stride ? t->stride : t->cols)) * dtype_size(t->dtype);
}

problem *gpu_problem(const problem *host)
{
    problem *made = make_zeroed(1, sizeof *made);
    size_t batch = (size_t)host->plan.batch;
    *made = *host;
    made->weight = gpu_copy(host->weight, tensor_bytes(&host->head.weight));
    made->hidden = gpu_copy(host->hidden, tensor_bytes(&host->head.hidden));
    made->bias = gpu_copy(host->bias, host->bias ? tensor_bytes(&host->head.bias) : 0);
    made->temperature = gpu_copy(host->temperature, batch * sizeof(float));
    made->seed = gpu_copy(host->seed, batch * sizeof(uint64_t));
    made->position = gpu_copy(host->position, batch * sizeof(uint32_t));
    made->head.weight.data = made->weight;
    made->head.hidden.data = made->hidden;
    made->head.bias.data = made->bias;
    made->sampling.temperature = made->temperature;
    made->sampling.seed = made->seed;
    made->sampling.position = made->position;
    return made;
}

void gpu_problem_free(problem *made)
{
    gpu_free(made->weight);
    gpu_free(made->hidden);
    gpu_free(made->bias);
    gpu_free(made->temperature);
    gpu_free(made->seed);
    gpu_free(made->position);
    free(made);
}

gumbel_logits make_logits(const problem *made, gumbel_dtype dtype, int64_t gap)
{
    const problem_plan *plan = &made->plan;
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
        .logits = {data, dtype, plan->batch, plan->vocab, stride},
        .scale = made->head.scale,
        .soft_cap = made->head.soft_cap,
        .first_token = made->head.first_token,
        .vocab_size = made->head.vocab_size,
    };
}

gumbel_logits gpu_logits(const gumbel_logits *host)
{
    gumbel_logits made = *host;
    made.logits.data = gpu_copy(host->logits.data, tensor_bytes(&host->logits));
    return made;
}

/* ----------------------------------------------------------------------------------- draws ---- */

static void *gpu_workspace(const gumbel_head *head, const gumbel_logits *logits, int32_t samples,
                           size_t *bytes)
{
    int64_t batch = head ? head->hidden.rows : logits->logits.rows;
    gumbel_error error = {"", ""};
    if (gumbel_workspace_size(gpu, batch, head ? head->hidden.cols : 0, samples, bytes, &error) !=
        GUMBEL_OK)
        die("gumbel_workspace_size: %s: %s", error.field, error.message);
    return gpu_make(*bytes);
}

void gpu_draw(const gumbel_head *head, const gumbel_logits *logits, const gumbel_sampling *sampling,
              outcome_parts parts, outcome *into)
{
    size_t rows = (size_t)into->batch, draws = rows * (size_t)into->samples, bytes;
    gumbel_output out = {
        .struct_size = sizeof out,
        .tokens = gpu_make(draws * sizeof(int32_t)),
        .logprobs = parts & OUTCOME_MASS ? gpu_make(draws * sizeof(float)) : NULL,
        .scores = gpu_make(draws * sizeof(float)),
        .lse = parts & OUTCOME_MASS ? gpu_make(rows * sizeof(float)) : NULL,
        .status = gpu_make(rows * sizeof(int32_t)),
    };
    void *workspace = gpu_workspace(head, logits, into->samples, &bytes);
    gumbel_error error = {"", ""};
    gumbel_status status =
        head ? gumbel_sample(gpu, head, sampling, &out, workspace, bytes, &error)
             : gumbel_sample_logits(gpu, logits, sampling, &out, workspace, bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(into->tokens, out.tokens, draws * sizeof(int32_t));
    gpu_fetch(into->scores, out.scores, draws * sizeof(float));
    gpu_fetch(into->status, out.status, rows * sizeof(int32_t));
    if (parts & OUTCOME_MASS) {
        gpu_fetch(into->logprobs, out.logprobs, draws * sizeof(float));
        gpu_fetch(into->lse, out.lse, rows * sizeof(float));
    }
    gpu_free(out.tokens);
    gpu_free(out.logprobs);
    gpu_free(out.scores);
    gpu_free(out.lse);
    gpu_free(out.status);
    gpu_free(workspace);
}

void make_noise(gumbel_device *device, const gumbel_sampling *sampling, int64_t batch,
                int64_t first_token, int64_t count, float *noise, int64_t stride)
{
    gumbel_error error = {"", ""};
    if (gumbel_prepare_noise(device, sampling, batch, first_token, count, noise, stride, &error) !=
        GUMBEL_OK)
        die("gumbel_prepare_noise: %s: %s", error.field, error.message);
}

gumbel_summary *gpu_summarise(const gumbel_head *head, const gumbel_logits *logits,
                              const gumbel_sampling *sampling)
{
    int64_t batch = head ? head->hidden.rows : logits->logits.rows;
    int32_t samples = sampling->num_samples ? sampling->num_samples : 1;
    size_t count = (size_t)batch * (size_t)samples, bytes;
    void *workspace = gpu_workspace(head, logits, samples, &bytes);
    gumbel_summary *made = make_zeroed(count, sizeof *made);
    gumbel_summary *on_gpu = gpu_make(count * sizeof *made);
    gumbel_error error = {"", ""};
    gumbel_status status =
        head ? gumbel_partial(gpu, head, sampling, on_gpu, workspace, bytes, &error)
             : gumbel_partial_logits(gpu, logits, sampling, on_gpu, workspace, bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(made, on_gpu, count * sizeof *made);
    gpu_free(on_gpu);
    gpu_free(workspace);
    return made;
}

/* ------------------------------------------------------------------------------ comparison ---- */

static int is_aligned(int64_t elements, gumbel_dtype dtype)
{
    return elements * (int64_t)dtype_size(dtype) % 16 == 0;
}

int is_naive(const problem_plan *p)
{
    int hopper = p->weight_dtype != GUMBEL_FLOAT32 && p->vocab % 16 == 0 &&
                 p->hidden_size % 8 == 0 && p->first_token % 4 == 0;
    return p->weight_dtype != p->hidden_dtype || p->samples > (hopper ? 32 : 16) ||
           !is_aligned(p->hidden_size + p->weight_gap, p->weight_dtype) ||
           !is_aligned(p->hidden_size + p->hidden_gap, p->hidden_dtype);
}

static float largest_of_1(float x, float y) { return fmaxf(1, fmaxf(fabsf(x), fabsf(y))); }

static int near(float x, float y, float scale, float bound)
{
    return (isnan(x) && isnan(y)) || x == y || fabsf(x - y) <= bound * scale;
}

static int compare_draw(const outcome *host, const outcome *device, outcome_parts parts, int exact,
                        size_t at, const char *what)
{
    float theirs = host->scores[at], ours = device->scores[at];
    float lse = host->lse[at / (size_t)host->samples];
    int same = device->tokens[at] == host->tokens[at];
    int good = exact ? same && near(ours, theirs, 0, 0)
                     : near(ours, theirs, largest_of_1(ours, theirs), 1e-3f);
    draws_compared++;
    near_ties += !same && good;
    if (!CHECK(good, "%s: draw %zu: token %d score %a on the GPU, %d and %a on the CPU", what, at,
               (int)device->tokens[at], (double)ours, (int)host->tokens[at], (double)theirs))
        return 0;
    if (!(parts & OUTCOME_MASS) || !same)
        return 1;
    float scale = fmaxf(largest_of_1(lse, host->logprobs[at]), fabsf(theirs));
    return CHECK(near(device->logprobs[at], host->logprobs[at], scale, exact ? 0x1p-22f : 1e-3f),
                 "%s: draw %zu: log-probability %a on the GPU, %a on the CPU", what, at,
                 (double)device->logprobs[at], (double)host->logprobs[at]);
}

int compare(const outcome *host, const outcome *device, outcome_parts parts, int exact,
            const char *what)
{
    size_t rows = (size_t)host->batch, draws = rows * (size_t)host->samples;
    for (size_t b = 0; b < rows; b++) {
        if (!CHECK(host->status[b] == device->status[b],
                   "%s: row %zu: status %d on the GPU, %d on the CPU", what, b,
                   (int)device->status[b], (int)host->status[b]))
            return 0;
        if (parts & OUTCOME_MASS &&
            !CHECK(near(device->lse[b], host->lse[b], largest_of_1(host->lse[b], 1),
                        exact ? 0x1p-22f : 1e-3f),
                   "%s: row %zu: lse %a on the GPU, %a on the CPU", what, b, (double)device->lse[b],
                   (double)host->lse[b]))
            return 0;
    }
    for (size_t at = 0; at < draws; at++)
        if (!compare_draw(host, device, parts, exact, at, what))
            return 0;
    return 1;
}
