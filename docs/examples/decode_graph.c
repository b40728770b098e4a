/* SPDX-License-Identifier: Apache-2.0
 *
 * A decode step captured into a CUDA graph, and a chain of its replays without the CPU: positions
 * move on and tokens land in a ring, all on the GPU. The trunk of the model is missing: its kernels
 * would stand at the head of the step, and write `hidden` from the tokens just drawn.
 */
#include <cuda.h>
#include <gumbel/gumbel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 4, V = 32000, D = 512, STEPS = 16 };

/* Every buffer is in the GPU's memory. */
typedef struct engine {
    gumbel_device *device;
    uint16_t *weight, *hidden; /* [V, D], [B, D] bfloat16 */
    float *temperature;        /* [1] */
    uint64_t *seed;            /* [1] */
    uint64_t *position;        /* [B] */
    int32_t *tokens, *ring;    /* [B], [STEPS, B] */
    void *workspace;
    size_t workspace_bytes;
} engine;

static void driver(CUresult result, const char *call)
{
    const char *words = "unknown error";
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorString(result, &words);
    fprintf(stderr, "decode_graph: %s: %s\n", call, words);
    exit(1);
}
#define DRIVER(call) driver(call, #call)

static void library(gumbel_status status, const gumbel_error *error)
{
    if (status == GUMBEL_OK)
        return;
    fprintf(stderr, "decode_graph: %s: %s\n", error->field, error->message);
    exit(1);
}

/* GPU memory with a copy of `from`, or zeros. */
static void *on_gpu(const void *from, size_t bytes)
{
    CUdeviceptr memory;
    DRIVER(cuMemAlloc(&memory, bytes));
    DRIVER(from ? cuMemcpyHtoD(memory, from, bytes) : cuMemsetD8(memory, 0, bytes));
    return (void *)(uintptr_t)memory;
}

/* Numbers in [-1/2, 1/2): any trained weights would do better. */
static uint16_t *numbers_on_gpu(size_t count, uint32_t salt)
{
    uint16_t *numbers = malloc(count * sizeof *numbers);
    if (!numbers)
        exit(1);
    for (size_t i = 0; i < count; i++) {
        union {
            float value;
            uint32_t bits;
        } x = {(float)(((uint32_t)i + salt) * 2654435761u >> 8) * 0x1p-24f - 0.5f};
        numbers[i] = (uint16_t)(x.bits >> 16);
    }
    void *there = on_gpu(numbers, count * sizeof *numbers);
    free(numbers);
    return there;
}

static engine engine_make(void)
{
    const gumbel_device_options options = {.struct_size = sizeof options, .device = "cuda:0"};
    const float temperature = 0.8f;
    const uint64_t seed = 42;
    const uint64_t position[B] = {0, 100, 7, 2000}; /* prompts of different lengths */
    engine e = {0};
    CUcontext context; /* the one that the library and the CUDA runtime use too */
    gumbel_error error;
    library(gumbel_open(&options, &e.device, &error), &error);
    const gumbel_limits limits = {.struct_size = sizeof limits, .batch = B, .hidden_size = D};
    library(gumbel_workspace_most(e.device, &limits, &e.workspace_bytes, &error), &error);
    DRIVER(cuInit(0));
    DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
    DRIVER(cuCtxSetCurrent(context));
    e.weight = numbers_on_gpu((size_t)V * D, 1);
    e.hidden = numbers_on_gpu((size_t)B * D, 77);
    e.temperature = on_gpu(&temperature, sizeof temperature);
    e.seed = on_gpu(&seed, sizeof seed);
    e.position = on_gpu(position, sizeof position);
    e.tokens = on_gpu(NULL, B * sizeof(int32_t));
    e.ring = on_gpu(NULL, (size_t)STEPS * B * sizeof(int32_t));
    e.workspace = on_gpu(NULL, e.workspace_bytes);
    return e;
}

/* Rows of D bfloat16 in GPU memory. */
static gumbel_tensor matrix(const void *data, int64_t rows)
{
    return (gumbel_tensor){.data = data, .dtype = GUMBEL_BFLOAT16, .rows = rows, .cols = D};
}

/* Queue one step on the stream. Nothing here waits or looks at GPU memory. */
static void queue_step(const engine *e, CUstream stream)
{
    const gumbel_head head = {
        .struct_size = sizeof head, .hidden = matrix(e->hidden, B), .weight = matrix(e->weight, V)};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .temperature = {e->temperature, GUMBEL_SAME},
                                      .seed = {e->seed, GUMBEL_SAME},
                                      .position = {e->position, 0}};
    const gumbel_output output = {.struct_size = sizeof output, .tokens = e->tokens};
    const gumbel_step step = {.struct_size = sizeof step,
                              .batch = B,
                              .tokens = e->tokens,
                              .position = e->position,
                              .ring = e->ring,
                              .ring_length = STEPS};
    gumbel_error error;
    /* the trunk's kernels go here */
    library(gumbel_sample(e->device, stream, &head, &sampling, &output, e->workspace,
                          e->workspace_bytes, &error),
            &error);
    library(gumbel_advance(e->device, stream, &step, &error), &error);
}

int main(void)
{
    engine e = engine_make();
    uint64_t start[B];
    int32_t ring[STEPS][B];
    CUstream stream;
    CUgraph graph;
    CUgraphExec step;
    DRIVER(cuMemcpyDtoH(start, (CUdeviceptr)(uintptr_t)e.position, sizeof start));
    DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    queue_step(&e, stream);
    DRIVER(cuStreamEndCapture(stream, &graph));
    DRIVER(cuGraphInstantiate(&step, graph, 0));
    for (int i = 0; i < STEPS; i++)
        DRIVER(cuGraphLaunch(step, stream));
    DRIVER(cuStreamSynchronize(stream)); /* the first time that the CPU waits */
    DRIVER(cuMemcpyDtoH(ring, (CUdeviceptr)(uintptr_t)e.ring, sizeof ring));
    for (uint64_t i = 0; i < STEPS; i++)
        for (int b = 0; b < B; b++) /* a row's tokens lie where its own positions say */
            printf("%6d%c", (int)ring[(start[b] + i) % STEPS][b], b + 1 < B ? ' ' : '\n');
    DRIVER(cuGraphExecDestroy(step));
    DRIVER(cuGraphDestroy(graph));
    gumbel_close(e.device); /* the process ends, and with it the memory */
    return 0;
}
