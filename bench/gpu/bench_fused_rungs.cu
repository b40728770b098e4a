/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does each rung of the fused draw take on an NVIDIA GPU?
 *
 * usage: bench_fused_rungs; script/bench-gpu shows how benchmarks are built.
 *
 * One LM head, whose layout selects the rung: rows that are not a multiple of 16 bytes apart are
 * served by the naive kernel, a V that is no multiple of 16 by the portable one, the rest by the
 * Hopper kernel on a Hopper GPU. Tokens of the rungs are compared before anything
 * is timed. Times as in bench_fused_vs_gemm.cu; the naive kernel, which takes milliseconds, only up
 * to 8 rows.
 */
#include <cuda_bf16.h>

#include "bench/cuda_measure.cuh"

static const char CEILING[] = "D (V + B) times the size of an element / read bandwidth of this run";

constexpr int64_t VOCAB = 151936, MAX_HIDDEN = 4096, MAX_BATCH = 128;
constexpr size_t WEIGHTS = VOCAB * (MAX_HIDDEN + 1);

/* Tensors of one dtype on the GPU. */
template <class T> struct tensors {
    T *weight, *hidden;
    gumbel_dtype dtype;
};

template <class T> static tensors<T> make_tensors(gumbel_dtype dtype)
{
    tensors<T> t = {allocate<T>(WEIGHTS), allocate<T>(MAX_BATCH * (MAX_HIDDEN + 1)), dtype};
    make_random(t.hidden, MAX_BATCH * (MAX_HIDDEN + 1), 1, 1);
    make_random(t.weight, WEIGHTS, 3, 2.5f / sqrtf(float(MAX_HIDDEN)));
    return t;
}

template <class T>
static gumbel_head make_head(const tensors<T> &t, int64_t B, int64_t V, int64_t D, int64_t gap)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {t.hidden, t.dtype, B, D, D + gap};
    head.weight = {t.weight, t.dtype, V, D, D + gap};
    return head;
}

static void queue_product(const gpu_rows &b, const gumbel_head &head)
{
    CHECKED(gumbel_multiply, b.gpu, b.stream, &head, b.workspace, b.workspace_bytes, &error);
}

/* The portable rung draws from V - 1 tokens, so no row may draw the last one. */
template <class T> static void verify_tokens(const gpu_rows &b, const tensors<T> &t)
{
    const int64_t B = 64, D = 256;
    int differing = 0;
    queue_draw(b, make_head(t, B, VOCAB, D, 0), nullptr);
    CHECKED(cudaStreamSynchronize, b.stream);
    auto whole = copy_out(b.tokens, B);
    queue_draw(b, make_head(t, B, VOCAB - 1, D, 0), nullptr);
    CHECKED(cudaStreamSynchronize, b.stream);
    auto portable = copy_out(b.tokens, B);
    for (int row = 0; row < B; row++)
        differing += whole[row] != portable[row];
    if (differing > 1)
        die("%d of %d rows draw another token from V - 1 tokens", differing, int(B));
}

template <class F> static double time_of(const gpu_rows &b, F call)
{
    std::vector<double> times;
    time_call(b.stream, times, call);
    return make_spread(times).median;
}

/* Prints one line: the times of every rung for one shape. */
template <class T>
static void measure_rungs(const gpu_rows &b, const tensors<T> &t, int64_t D, int64_t B)
{
    bool sixteen = sizeof(T) == 2;
    gumbel_head naive = make_head(t, B, VOCAB, D, 1), portable = make_head(t, B, VOCAB - 1, D, 0),
                whole = make_head(t, B, VOCAB, D, 0);
    double floor = double(sizeof(T)) * D * (VOCAB + B) / b.bytes_per_us;
    double first = B <= 8 ? time_of(b, [&] { queue_draw(b, naive, nullptr); }) : NAN;
    double bare = time_of(b, [&] { queue_product(b, portable); });
    double second = time_of(b, [&] { queue_draw(b, portable, nullptr); });
    double logprobs = time_of(b, [&] { queue_draw(b, portable, b.logprobs); });
    double third = sixteen ? time_of(b, [&] { queue_draw(b, whole, nullptr); }) : NAN;
    printf("%5s %5lld %4lld %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %8.1f\n", sixteen ? "bf16" : "f32",
           (long long)D, (long long)B, floor, first, bare, second, logprobs, third,
           100 * floor / second);
    fflush(stdout);
}

template <class T> static void measure_all(const gpu_rows &b, gumbel_dtype dtype)
{
    tensors<T> t = make_tensors<T>(dtype);
    verify_tokens(b, t);
    for (int64_t D : {4096, 2048})
        for (int64_t B : {1, 8, 16, 32, 64, 128})
            measure_rungs(b, t, D, B);
    CHECKED(cudaFree, t.weight);
    CHECKED(cudaFree, t.hidden);
}

int main()
{
    cudaDeviceProp gpu;
    char driver[64];
    gpu_rows b = open_rows(MAX_BATCH, MAX_HIDDEN);
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    find_driver(driver, sizeof driver);
    auto *bytes = allocate<__nv_bfloat16>(WEIGHTS);
    make_random(bytes, WEIGHTS, 3, 1);
    b.bytes_per_us = measure_reading(b.stream, gpu.multiProcessorCount, bytes,
                                     WEIGHTS * sizeof *bytes, b.tokens);
    CHECKED(cudaFree, bytes);
    printf("question: what does each rung of the fused draw take on an NVIDIA GPU?\n");
    printf("machine: %s, driver %s, %d SMs, reads %.2f TB/s\n", gpu.name, driver,
           gpu.multiProcessorCount, b.bytes_per_us / 1e6);
    printf("ceiling: %s; V = %lld; microseconds\n\n", CEILING, (long long)VOCAB);
    printf("%5s %5s %4s %9s %9s %9s %9s %9s %9s %8s\n", "dtype", "D", "B", "ceiling", "naive",
           "bare", "portable", "logprobs", "Hopper", "% of it");
    measure_all<__nv_bfloat16>(b, GUMBEL_BFLOAT16);
    measure_all<float>(b, GUMBEL_FLOAT32);
    gumbel_close(b.gpu);
    return 0;
}
