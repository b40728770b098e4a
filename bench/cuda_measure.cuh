/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the benchmarks on an NVIDIA GPU: checked calls, random data on the GPU, row parameters
 * and outputs, the time of a call and the read bandwidth. A failure prints one line on stderr and
 * exits with 1.
 */
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "gumbel/gumbel.h"

constexpr int CALLS = 5, REPLAYS = 30;

/* ---------------------------------------------------------------------------------- errors ---- */

static gumbel_error error;

[[noreturn]] static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "bench: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static void check(cudaError_t result, const char *call)
{
    if (result != cudaSuccess)
        die("%s: %s", call, cudaGetErrorString(result));
}

static void check(cublasStatus_t result, const char *call)
{
    if (result != CUBLAS_STATUS_SUCCESS)
        die("%s: %s", call, cublasGetStatusString(result));
}

static void check(gumbel_status result, const char *call)
{
    if (result != GUMBEL_OK)
        die("%s: %s: %s", call, error.field, error.message);
}

#define CHECKED(function, ...) check(function(__VA_ARGS__), #function)

/* ------------------------------------------------------------------------------------ data ---- */

template <class T> static T *allocate(size_t count)
{
    void *data;
    CHECKED(cudaMalloc, &data, count * sizeof(T));
    return static_cast<T *>(data);
}

template <class T> static T *copy_in(const std::vector<T> &host)
{
    T *data = allocate<T>(host.size());
    CHECKED(cudaMemcpy, data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    return data;
}

template <class T> static std::vector<T> copy_out(const T *from, size_t count)
{
    std::vector<T> data(count);
    CHECKED(cudaMemcpy, data.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost);
    return data;
}

/* 64 random bits: the i-th of SplitMix64. */
__device__ inline uint64_t random_bits(uint64_t i)
{
    uint64_t x = i * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* Fills in approximately normal values: sums of the four 16-bit parts of SplitMix64 of the index.
 * Zeros would take less power, which would raise the clocks. */
template <class T>
__global__ void fill_random(T *into, size_t count, uint64_t seed, float deviation)
{
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t x = random_bits(i + (seed << 40));
        float sum =
            float(x & 65535) + float(x >> 16 & 65535) + float(x >> 32 & 65535) + float(x >> 48);
        into[i] = T((sum / 65536 - 2) * 1.7320508f * deviation); /* variance 4 / 12 before */
    }
}

template <class T> static void make_random(T *into, size_t count, uint64_t seed, float deviation)
{
    fill_random<<<1024, 256>>>(into, count, seed, deviation);
    CHECKED(cudaGetLastError);
    CHECKED(cudaDeviceSynchronize);
}

/* A standard normal number with exact tails, by Box and Muller: the i-th of a sequence. */
__device__ inline float random_normal(uint64_t i)
{
    uint64_t x = random_bits(i + 1);
    float u = (float(uint32_t(x)) + 1.0f) * 0x1p-32f, v = float(x >> 32) * 0x1p-32f;
    return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}

/* Fills in normal values with exact tails, which determine top_k, min_p and candidates. */
template <class T>
__global__ void fill_normal(T *into, size_t count, uint64_t seed, float deviation)
{
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        into[i] = T(deviation * random_normal(i + (seed << 40)));
}

template <class T> static void make_normal(T *into, size_t count, uint64_t seed, float deviation)
{
    fill_normal<<<1024, 256>>>(into, count, seed, deviation);
    CHECKED(cudaGetLastError);
    CHECKED(cudaDeviceSynchronize);
}

/* ----------------------------------------------------------------------------------- draws ---- */

/* A GPU and its stream, with row parameters and outputs in its memory. */
struct gpu_rows {
    cudaStream_t stream;
    gumbel_device *gpu;
    float *temperature, *logprobs;
    uint64_t *seed;
    uint64_t *position;
    int32_t *tokens;
    void *workspace;
    size_t workspace_bytes;
    double bytes_per_us; /* read in this run; 0 until it was measured */
};

/* Workspace of plain calls of up to these sizes. */
static size_t most_bytes(const gumbel_device *device, int64_t batch, int64_t hidden_size)
{
    gumbel_limits limits = {};
    size_t bytes;
    limits.struct_size = sizeof limits;
    limits.batch = batch;
    limits.hidden_size = hidden_size;
    limits.num_samples = 8; /* the maximum of all benchmarks */
    limits.screens = 1;
    CHECKED(gumbel_workspace_most, device, &limits, &bytes, &error);
    return bytes;
}

/* Rows up to `batch`, each with its own parameters, of hidden states up to `hidden_size`. */
static gpu_rows open_rows(int64_t batch, int64_t hidden_size)
{
    gpu_rows r = {};
    std::vector<float> temperature(batch);
    std::vector<uint64_t> seed(batch), position(batch);
    for (int64_t row = 0; row < batch; row++) {
        temperature[row] = 0.6f + 0.002f * float(row);
        seed[row] = 1000 + 77 * row;
        position[row] = uint64_t(3 * row);
    }
    gumbel_device_options options = {};
    options.struct_size = sizeof options;
    options.device = "cuda:0";
    CHECKED(cudaSetDevice, 0);
    CHECKED(gumbel_open, &options, &r.gpu, &error);
    CHECKED(cudaStreamCreate, &r.stream);
    r.workspace_bytes = most_bytes(r.gpu, batch, hidden_size);
    r.workspace = allocate<char>(r.workspace_bytes);
    r.tokens = allocate<int32_t>(batch);
    r.logprobs = allocate<float>(batch);
    r.temperature = copy_in(temperature);
    r.seed = copy_in(seed);
    r.position = copy_in(position);
    return r;
}

static gumbel_sampling make_sampling(const float *temperature, const uint64_t *seed,
                                     const uint64_t *position)
{
    gumbel_sampling sampling = {};
    sampling.struct_size = sizeof sampling;
    sampling.temperature = {temperature, 0};
    sampling.seed = {seed, 0};
    sampling.position = {position, 0};
    return sampling;
}

static gumbel_output make_output(int32_t *tokens, float *logprobs)
{
    gumbel_output output = {};
    output.struct_size = sizeof output;
    output.tokens = tokens;
    output.logprobs = logprobs;
    return output;
}

/* Queue the draw of the head's rows; logprobs NULL: tokens alone. */
static void queue_draw(const gpu_rows &r, const gumbel_head &head, float *logprobs)
{
    gumbel_sampling sampling = make_sampling(r.temperature, r.seed, r.position);
    gumbel_output output = make_output(r.tokens, logprobs);
    CHECKED(gumbel_sample, r.gpu, r.stream, &head, &sampling, &output, r.workspace,
            r.workspace_bytes, &error);
}

/* Rewrites hidden states unchanged, as an engine's norm writes them just before a draw. */
__global__ void write_again(__nv_bfloat16 *hidden, int64_t count)
{
    int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count)
        hidden[i] = __float2bfloat16(__bfloat162float(hidden[i]) * 1.0f);
}

[[maybe_unused]] static void queue_norm(cudaStream_t stream, __nv_bfloat16 *hidden, int64_t count)
{
    write_again<<<unsigned((count + 255) / 256), 256, 0, stream>>>(hidden, count);
    CHECKED(cudaGetLastError);
}

/* ---------------------------------------------------------------------------------- cuBLAS ---- */

[[maybe_unused]] static cublasHandle_t open_blas(cudaStream_t stream)
{
    constexpr size_t WORKSPACE_BYTES = 64 << 20;
    cublasHandle_t blas;
    CHECKED(cublasCreate, &blas);
    CHECKED(cublasSetStream, blas, stream);
    CHECKED(cublasSetWorkspace, blas, allocate<char>(WORKSPACE_BYTES), WORKSPACE_BYTES);
    return blas;
}

/* Computes [B, V] bfloat16 logits, summed in float32: the least that a method with logits writes.
 */
[[maybe_unused]] static void queue_gemm(cublasHandle_t blas, const __nv_bfloat16 *weight,
                                        const __nv_bfloat16 *hidden, __nv_bfloat16 *product,
                                        int64_t B, int64_t V, int64_t D)
{
    float one = 1, zero = 0;
    CHECKED(cublasGemmEx, blas, CUBLAS_OP_T, CUBLAS_OP_N, int(V), int(B), int(D), &one, weight,
            CUDA_R_16BF, int(D), hidden, CUDA_R_16BF, int(D), &zero, product, CUDA_R_16BF, int(V),
            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

/* ------------------------------------------------------------------------------------ time ---- */

struct spread {
    double p10, median, p90; /* microseconds of a call */
};

static spread make_spread(std::vector<double> times)
{
    std::sort(times.begin(), times.end());
    size_t last = times.size() - 1;
    return {times[last / 10], times[last / 2], times[last - last / 10]};
}

/* A graph of CALLS calls; a replay is one launch. */
struct captured {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaEvent_t begin, end;

    /* Captures the work that `call` queues on `stream`. */
    template <class F> captured(cudaStream_t stream, F call)
    {
        call();
        CHECKED(cudaStreamBeginCapture, stream, cudaStreamCaptureModeThreadLocal);
        for (int i = 0; i < CALLS; i++)
            call();
        CHECKED(cudaStreamEndCapture, stream, &graph);
        CHECKED(cudaGraphInstantiate, &replay, graph, 0);
        CHECKED(cudaEventCreate, &begin);
        CHECKED(cudaEventCreate, &end);
        CHECKED(cudaGraphLaunch, replay, stream); /* the first one uploads the graph */
        CHECKED(cudaStreamSynchronize, stream);
    }
    ~captured()
    {
        CHECKED(cudaEventDestroy, begin);
        CHECKED(cudaEventDestroy, end);
        CHECKED(cudaGraphExecDestroy, replay);
        CHECKED(cudaGraphDestroy, graph);
    }
    captured(const captured &) = delete;
    captured &operator=(const captured &) = delete;

    /* Microseconds of a call in a replay. */
    double time(cudaStream_t stream) const
    {
        float milliseconds;
        CHECKED(cudaEventRecord, begin, stream);
        CHECKED(cudaGraphLaunch, replay, stream);
        CHECKED(cudaEventRecord, end, stream);
        CHECKED(cudaEventSynchronize, end);
        CHECKED(cudaEventElapsedTime, &milliseconds, begin, end);
        return milliseconds * 1e3 / CALLS;
    }
};

/* Times of REPLAYS replays of each way, in turns: the GPU lowers its clocks at its power limit, and
 * turns give each way the same clocks. The GPU pauses for `rest_us` before each replay;
 * `begin_turn(i)` is called before the replays of turn i. */
template <size_t count, class F = void (*)(int)>
static std::array<spread, count> time_in_turns(
    cudaStream_t stream, const captured *const (&ways)[count], useconds_t rest_us = 0,
    F begin_turn = [](int) {})
{
    std::array<std::vector<double>, count> times;
    for (int i = 0; i < REPLAYS; i++) {
        begin_turn(i);
        for (size_t way = 0; way < count; way++) {
            if (rest_us > 0)
                usleep(rest_us);
            times[way].push_back(ways[way]->time(stream));
        }
    }
    std::array<spread, count> spreads;
    for (size_t way = 0; way < count; way++)
        spreads[way] = make_spread(times[way]);
    return spreads;
}

/* Adds to `times` the microseconds of a call in each of REPLAYS replays. */
template <class F> static void time_call(cudaStream_t stream, std::vector<double> &times, F call)
{
    const captured calls(stream, call);
    for (int i = 0; i < REPLAYS; i++)
        times.push_back(calls.time(stream));
}

/* Reads `count` times 16 bytes. The store, which never happens, keeps the loads. */
__global__ void read_all(const uint4 *from, size_t count, uint4 *never)
{
    size_t step = size_t(gridDim.x) * blockDim.x;
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint4 sum = {0, 0, 0, 0};
    auto add = [&](uint4 x) { sum = {sum.x ^ x.x, sum.y ^ x.y, sum.z ^ x.z, sum.w ^ x.w}; };
    for (; i + 3 * step < count; i += 4 * step) {
        uint4 words[4];
        for (int part = 0; part < 4; part++)
            words[part] = __ldcs(from + i + part * step);
        for (int part = 0; part < 4; part++)
            add(words[part]);
    }
    for (; i < count; i += step)
        add(__ldcs(from + i));
    if (sum.x == 0x12345 && sum.y == 0x54321 && sum.z == 0x13254 && sum.w == 0x45231)
        *never = sum;
}

/* Read bandwidth in bytes a microsecond: the best of several grids over `bytes` of GPU memory;
 * `never` has 16 bytes. */
static double measure_reading(cudaStream_t stream, int processors, const void *from, size_t bytes,
                              void *never)
{
    double best = INFINITY;
    for (int blocks : {2, 4, 8, 16})
        for (int threads : {256, 512, 1024}) {
            std::vector<double> times;
            time_call(stream, times, [&] {
                read_all<<<blocks * processors, threads, 0, stream>>>(
                    static_cast<const uint4 *>(from), bytes / sizeof(uint4),
                    static_cast<uint4 *>(never));
                CHECKED(cudaGetLastError);
            });
            best = std::min(best, make_spread(times).median);
        }
    return double(bytes) / best;
}

/* The version of the kernel module, and of the CUDA that it supports. */
static void find_driver(char *into, size_t size)
{
    char word[32], version[32] = "unknown", probe;
    int cuda, numbers[2];
    CHECKED(cudaDriverGetVersion, &cuda);
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    while (file && strcmp(version, "unknown") == 0 && fscanf(file, "%31s", word) == 1)
        if (sscanf(word, "%d.%d%c", &numbers[0], &numbers[1], &probe) >= 2)
            strcpy(version, word);
    if (file)
        fclose(file);
    snprintf(into, size, "%s (CUDA %d.%d)", version, cuda / 1000, cuda % 1000 / 10);
}
