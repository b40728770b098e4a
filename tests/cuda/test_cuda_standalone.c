/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-alone functions of docs/standalone_calls.md on a GPU, compared with the CPU: softmax,
 * also with transforms and truncation, and in place; top-k with its values.
 */
#include "cuda_requests.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Probabilities computed on the GPU from logits in host memory, overwriting the logits if
 * `in_place`; free them. `how` has no host pointers. */
static float *gpu_rows(gumbel_logits host, const gumbel_sampling *how, int64_t stride, int softmax,
                       int in_place)
{
    gumbel_logits logits = gpu_logits(&host);
    size_t size = (size_t)(host.logits.rows * stride) * sizeof(float), bytes;
    float *generated = malloc(size ? size : 1);
    float *out = in_place ? (float *)(uintptr_t)logits.logits.data : gpu_make(size);
    gumbel_error error = {"", ""};
    if (gumbel_workspace_size(gpu, NULL, &logits, how, NULL, &bytes, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    void *workspace = gpu_hostile(bytes);
    gumbel_status status = (softmax ? gumbel_softmax : gumbel_process_logits)(
        gpu, NULL, &logits, how, out, stride, workspace, bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(generated, out, size);
    if (!in_place)
        gpu_free(out);
    gpu_free((void *)(uintptr_t)logits.logits.data);
    gpu_free(workspace);
    return generated;
}

static float *host_softmax(const gumbel_logits *logits, const gumbel_sampling *how, int64_t stride)
{
    size_t bytes;
    void *workspace = call_workspace(cpu, NULL, logits, how, NULL, &bytes);
    float *generated = make_zeroed((size_t)(logits->logits.rows * stride), sizeof *generated);
    gumbel_error error = {"", ""};
    CHECK(gumbel_softmax(cpu, NULL, logits, how, generated, stride, workspace, bytes, &error) ==
              GUMBEL_OK,
          "%s: %s", error.field, error.message);
    free(workspace);
    return generated;
}

/* A few ulp: masses are summed in another order, and the logarithm is another library's. */
static int are_near(const float *ours, const float *theirs, int64_t rows, int64_t count,
                    int64_t stride, const char *what)
{
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < count; i++) {
            float x = ours[b * stride + i], y = theirs[b * stride + i];
            int good = isnan(x) ? isnan(y) : fabsf(x - y) <= 0x1p-21f * y + 0x1p-149f;
            if (!CHECK(good, "%s: row %d, token %d: %a on the GPU, %a on the CPU", what, (int)b,
                       (int)i, (double)x, (double)y))
                return 0;
        }
    return 1;
}

/* Softmax of a plan's logits on both devices, with its scale, soft-cap and temperatures. */
static void check_softmax(const problem_plan *plan, gumbel_dtype dtype, int64_t gap)
{
    problem *host = problem_make(plan), *device = gpu_problem(host);
    gumbel_logits logits = make_logits(host, dtype, gap);
    int64_t stride = plan->vocab + gap;
    const char *what = problem_describe(plan);
    float *theirs = host_softmax(&logits, &host->sampling, stride);
    float *ours = gpu_rows(logits, &device->sampling, stride, 1, 0);
    are_near(ours, theirs, plan->batch, plan->vocab, stride, what);
    draws_compared += plan->batch;
    if (dtype == GUMBEL_FLOAT32) {
        float *again = gpu_rows(logits, &device->sampling, stride, 1, 1);
        for (int64_t b = 0; b < plan->batch; b++)
            CHECK(memcmp(ours + b * stride, again + b * stride,
                         (size_t)plan->vocab * sizeof *ours) == 0,
                  "%s: in place", what);
        free(again);
    }
    free(ours);
    free(theirs);
    free((void *)(uintptr_t)logits.logits.data);
    gpu_problem_free(device);
    problem_free(host);
}

static void standalone_softmax(void)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const int64_t vocabs[] = {1, 3, 63, 64, 65, 500, 2047, 2048, 4100, 12345};
    for (int i = 0; i < 120; i++) {
        problem_plan plan = {.batch = 1 + i % 7 * 3, .vocab = vocabs[i % 10], .hidden_size = 1};
        plan.temperature = i % 3 ? -0.8f : 0;
        plan.soft_cap = i % 4 ? 0 : 20;
        plan.scale = i % 5 ? 0 : 40;
        plan.vocab_size = i % 6 || plan.vocab < 9 ? 0 : plan.vocab - 5;
        plan.seed = (uint64_t)i;
        check_softmax(&plan, dtypes[i / 10 % 3], i / 30);
    }
    problem_plan large = {.batch = 70, .vocab = 151936, .hidden_size = 1, .temperature = -0.8f};
    check_softmax(&large, GUMBEL_FLOAT32, 0);
    large.batch = 1;
    check_softmax(&large, GUMBEL_BFLOAT16, 0);
}

/* Rows have the same bits alone, with more CTAs a row, and in a batch. */
static void standalone_invariance(void)
{
    problem_plan plan = {.batch = 300, .vocab = 20011, .hidden_size = 1, .seed = 5};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0), row = logits;
    float *whole = gpu_rows(logits, NULL, plan.vocab, 1, 0);
    row.logits.rows = 1;
    for (int64_t b = 0; b < plan.batch; b += 37) {
        row.logits.data = (const float *)logits.logits.data + b * plan.vocab;
        float *alone = gpu_rows(row, NULL, plan.vocab, 1, 0);
        CHECK(memcmp(alone, whole + b * plan.vocab, (size_t)plan.vocab * sizeof *alone) == 0,
              "row %d", (int)b);
        free(alone);
    }
    free(whole);
    free((void *)(uintptr_t)logits.logits.data);
    problem_free(host);
}

/* NaN, +inf, no token, one token, and an invalid temperature. */
static void standalone_odd_rows(void)
{
    enum { B = 6, V = 70 };
    float values[B][V] = {{0}}, temperature[B] = {1, 1, 1, 1, -1, 1};
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(values, GUMBEL_FLOAT32, B, V, 0)};
    values[0][69] = NAN;
    values[1][3] = INFINITY;
    for (int i = 0; i < V; i++)
        values[2][i] = values[3][i] = -INFINITY;
    values[3][66] = -7;
    float *on_gpu = gpu_copy(temperature, sizeof temperature);
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {on_gpu, 0}};
    float *found = gpu_rows(logits, &how, V, 1, 0);
    for (int i = 0; i < V; i++) {
        CHECK(isnan(found[i]) && isnan(found[V + i]) && isnan(found[2 * V + i]), "token %d", i);
        CHECK(found[3 * V + i] == (i == 66), "token %d: %g", i, (double)found[3 * V + i]);
        CHECK(isnan(found[4 * V + i]), "token %d: %g", i, (double)found[4 * V + i]);
        CHECK(fabsf(found[5 * V + i] * V - 1) < 1e-6f, "token %d", i);
    }
    free(found);
    gpu_free(on_gpu);
}

/* Softmax of the kept tokens, with transforms and truncation. */
static void standalone_truncated(void)
{
    enum { B = 4, V = 3000 };
    problem_plan plan = {.batch = B, .vocab = V, .hidden_size = 1, .seed = 9};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0);
    float top_p[B] = {0.3f, 0.9f, 1, 0.99f};
    int32_t top_k[B] = {0, 5, 100, 0}, mask[(V + 31) / 32];
    for (int i = 0; i < (V + 31) / 32; i++)
        mask[i] = 0x3333ffff;
    void *copies[] = {gpu_copy(top_p, sizeof top_p), gpu_copy(top_k, sizeof top_k),
                      gpu_copy(mask, sizeof mask)};
    float *found[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        gumbel_truncation cut = {.struct_size = sizeof cut,
                                 .top_p = {i ? copies[0] : top_p, 0},
                                 .top_k = {i ? copies[1] : top_k, 0}};
        gumbel_transforms edits = {.struct_size = sizeof edits,
                                   .mask = {i ? copies[2] : mask, GUMBEL_SAME}};
        gumbel_sampling how = {.struct_size = sizeof how, .transforms = &edits, .truncation = &cut};
        found[i] = i ? gpu_rows(logits, &how, V, 1, 0) : host_softmax(&logits, &how, V);
    }
    are_near(found[1], found[0], B, V, V, "a request");
    draws_compared += B;
    for (int i = 0; i < 3; i++)
        gpu_free(copies[i]);
    free(found[0]);
    free(found[1]);
    free((void *)(uintptr_t)logits.logits.data);
    problem_free(host);
}

/* Rows of 16 bits in place: temperatures that overflow float16 or give subnormals, with and without
 * truncation, compared with the CPU's bits. */
static void check_rounded(gumbel_dtype dtype, int64_t vocab, int64_t gap, int truncated)
{
    float temperature[] = {1, 0.7f, 1e-4f, 1e7f, 0};
    int32_t top_k[] = {0, 5, 100, 1, 0};
    problem_plan plan = {.batch = 5, .vocab = vocab, .hidden_size = 1, .seed = 9};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, dtype, gap), on_gpu = gpu_logits(&logits);
    void *copies[] = {gpu_copy(temperature, sizeof temperature), gpu_copy(top_k, sizeof top_k)};
    void *rows[2] = {(void *)(uintptr_t)logits.logits.data, (void *)(uintptr_t)on_gpu.logits.data};
    size_t size = tensor_bytes(&logits.logits), bytes;
    uint16_t *found = make_zeroed(size, 1);
    for (int i = 0; i < 2; i++) {
        gumbel_truncation cut = {.struct_size = sizeof cut, .top_k = {i ? copies[1] : top_k, 0}};
        gumbel_sampling how = {.struct_size = sizeof how,
                               .temperature = {i ? copies[0] : temperature, 0},
                               .truncation = truncated ? &cut : NULL};
        const gumbel_logits *in = i ? &on_gpu : &logits;
        gumbel_device *device = i ? gpu : cpu;
        gumbel_error error = {"", ""};
        if (gumbel_workspace_size(device, NULL, in, &how, NULL, &bytes, &error) != GUMBEL_OK)
            die("%s: %s", error.field, error.message);
        void *workspace = i ? gpu_hostile(bytes) : poisoned_workspace(bytes);
        CHECK(gumbel_process_logits_into(device, NULL, in, &how, rows[i], dtype, in->logits.stride,
                                         workspace, bytes, &error) == GUMBEL_OK,
              "%s: %s", error.field, error.message);
        if (i)
            GPU(cuCtxSynchronize);
        (i ? gpu_free : free)(workspace);
    }
    gpu_fetch(found, rows[1], size);
    CHECK(memcmp(found, rows[0], size) == 0, "%s, V %d", dtype_name(dtype), (int)vocab);
    draws_compared += plan.batch;
    free(found);
    for (int i = 0; i < 2; i++)
        gpu_free(copies[i]);
    gpu_free(rows[1]);
    free(rows[0]);
    problem_free(host);
}

static void standalone_rounded(void)
{
    static const int64_t vocabs[] = {1, 70, 4097, 32000, 151936};
    for (int i = 0; i < 20; i++)
        check_rounded(i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, vocabs[i / 4], i % 3, i / 2 % 2);
}

/* ids [B, k] and values [B, k] of the CPU or the GPU, in that device's memory. */
static void select_top(gumbel_device *device, const gumbel_logits *logits, const float *temperature,
                       int32_t k, int32_t *ids, float *values, int32_t *tokens)
{
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {temperature, GUMBEL_SAME}};
    gumbel_output out = {.struct_size = sizeof out,
                         .tokens = tokens,
                         .top_ids = ids,
                         .top_logits = values,
                         .num_top = k};
    gumbel_error error = {"", ""};
    size_t bytes;
    if (gumbel_workspace_size(device, NULL, logits, &how, &out, &bytes, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    void *workspace = device == gpu ? gpu_hostile(bytes) : poisoned_workspace(bytes);
    CHECK(gumbel_sample_logits(device, NULL, logits, &how, &out, workspace, bytes, &error) ==
              GUMBEL_OK,
          "%s: %s", error.field, error.message);
    if (device != gpu) {
        free(workspace);
        return;
    }
    GPU(cuCtxSynchronize);
    gpu_free(workspace);
}

static void check_top(int64_t batch, int64_t vocab, int32_t k, gumbel_dtype dtype,
                      float temperature)
{
    problem_plan plan = {.batch = batch, .vocab = vocab, .hidden_size = 1, .seed = 3};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, dtype, 1), on_gpu = gpu_logits(&logits);
    size_t count = (size_t)(batch * k), size = count * 4;
    int32_t *ids = make_zeroed(2 * count, sizeof *ids), *tokens = make_zeroed((size_t)batch, 4);
    float *values = make_zeroed(2 * count, sizeof *values);
    void *outs[] = {gpu_make(size), gpu_make(size), gpu_make((size_t)batch * 4),
                    gpu_copy(&temperature, sizeof temperature)};
    select_top(cpu, &logits, &temperature, k, ids, values, tokens);
    select_top(gpu, &on_gpu, outs[3], k, outs[0], outs[1], outs[2]);
    gpu_fetch(ids + count, outs[0], size);
    gpu_fetch(values + count, outs[1], size);
    CHECK(memcmp(ids, ids + count, size) == 0, "ids of B %d, V %d", (int)batch, (int)vocab);
    CHECK(memcmp(values, values + count, size) == 0, "values of B %d, V %d", (int)batch,
          (int)vocab);
    draws_compared += batch;
    for (int i = 0; i < 4; i++)
        gpu_free(outs[i]);
    free(ids);
    free(values);
    free(tokens);
    gpu_free((void *)(uintptr_t)on_gpu.logits.data);
    free((void *)(uintptr_t)logits.logits.data);
    problem_free(host);
}

static void standalone_top_k(void)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const int32_t ks[] = {1, 7, 50, 128};
    for (int i = 0; i < 24; i++)
        check_top(1 + i % 5 * 4, 40 + 997 * (i / 4), ks[i % 4], dtypes[i % 3], (float)(i / 3 % 2));
    check_top(3, 151936, 128, GUMBEL_FLOAT32, 0);
}

/* Small problems for the softmax kernels, for sanitizers. */
static void standalone_small(void)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    for (int i = 0; i < 3; i++) {
        problem_plan plan = {.batch = 3, .vocab = 2500, .hidden_size = 1, .seed = 4};
        check_softmax(&plan, dtypes[i], i);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"standalone_softmax", standalone_softmax},
        {"standalone_invariance", standalone_invariance},
        {"standalone_odd_rows", standalone_odd_rows},
        {"standalone_truncated", standalone_truncated},
        {"standalone_rounded", standalone_rounded},
        {"standalone_top_k", standalone_top_k},
        {"standalone_small", standalone_small},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
