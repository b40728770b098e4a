/* SPDX-License-Identifier: Apache-2.0
 *
 * Does the fused draw on an NVIDIA GPU take longer than the product alone by cuBLAS?
 *
 * usage: bench_fused_vs_gemm [--json FILE] [--commit TEXT]; script/bench-gpu builds and runs it.
 *
 * Tokens are compared with the CPU's before anything is timed. A captured graph holds 5 calls, so
 * that host code is not timed; results are times of one call, over 30 replays. Product and draws
 * take turns at each replay, so that they run at the same clock rates: first without pauses, which
 * reaches the GPU's power limit at 64 rows and more, then "rested", with a pause before each
 * replay, as in a decode step.
 *
 * A draw of up to 64 rows starts while the previous kernel ends; in these graphs that kernel is
 * another draw. Product and draw are therefore timed a third time, without pauses, each after a
 * kernel that writes the hidden states, as a norm does. Both times include that kernel.
 *
 * "draw %" is the part of the fused draw's time that the same kernel without the draw does not
 * take.
 */
#include <cuda_bf16.h>

#include "cuda_measure.cuh"

static const char QUESTION[] =
    "does the fused draw on an NVIDIA GPU cost more than cuBLAS multiplying alone?";
static const char CEILING[] =
    "max(2 D (V + B) bytes / read bandwidth of this run, 2 V D B / 790 TFLOP/s)";

constexpr int64_t MAX_VOCAB = 151936, MAX_HIDDEN = 8192, MAX_BATCH = 512;
constexpr size_t WEIGHTS = size_t(128256) * 8192; /* elements of the largest LM head below */
constexpr useconds_t REST_US = 5000;
constexpr double FLOPS_PER_US = 790e6; /* four fifths of the peak in an H200's data sheet */

/* All data on the GPU, sized for the largest call. */
struct bench : gpu_rows {
    cublasHandle_t blas;
    __nv_bfloat16 *weight, *hidden, *product;
    float *logits;
};

static bench open_bench()
{
    bench b = {open_rows(MAX_BATCH, MAX_HIDDEN)};
    b.blas = open_blas(b.stream);
    b.weight = allocate<__nv_bfloat16>(WEIGHTS);
    b.hidden = allocate<__nv_bfloat16>(MAX_BATCH * MAX_HIDDEN);
    b.product = allocate<__nv_bfloat16>(MAX_BATCH * MAX_VOCAB);
    b.logits = allocate<float>(MAX_BATCH * MAX_VOCAB);
    make_random(b.hidden, MAX_BATCH * MAX_HIDDEN, 1, 1);
    make_random(b.logits, MAX_BATCH * MAX_VOCAB, 2, 2.5f);
    return b;
}

/* Weights that give logits a standard deviation of 2.5. */
static void make_weight(const bench &b, int64_t vocab, int64_t hidden)
{
    make_random(b.weight, size_t(vocab * hidden), 3, 2.5f / sqrtf(float(hidden)));
}

/* ----------------------------------------------------------------------------------- calls ---- */

static gumbel_head make_head(const void *hidden, const void *weight, int64_t B, int64_t V,
                             int64_t D)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {hidden, GUMBEL_BFLOAT16, B, D, 0};
    head.weight = {weight, GUMBEL_BFLOAT16, V, D, 0};
    return head;
}

static void queue_draw(const bench &b, int64_t B, int64_t V, int64_t D, float *logprobs)
{
    queue_draw(b, make_head(b.hidden, b.weight, B, V, D), logprobs);
}

static void queue_product(const bench &b, int64_t B, int64_t V, int64_t D)
{
    const gumbel_head head = make_head(b.hidden, b.weight, B, V, D);
    CHECKED(gumbel_multiply, b.gpu, b.stream, &head, b.workspace, b.workspace_bytes, &error);
}

static void queue_logits_draw(const bench &b, int64_t B, int64_t V, int samples)
{
    gumbel_logits logits = {};
    logits.struct_size = sizeof logits;
    logits.logits = {b.logits, GUMBEL_FLOAT32, B, V, 0};
    gumbel_sampling sampling = make_sampling(b.temperature, b.seed, b.position);
    sampling.num_samples = samples;
    gumbel_output output = make_output(b.tokens, nullptr);
    CHECKED(gumbel_sample_logits, b.gpu, b.stream, &logits, &sampling, &output, b.workspace,
            b.workspace_bytes, &error);
}

static void queue_gemm(const bench &b, int64_t B, int64_t V, int64_t D)
{
    queue_gemm(b.blas, b.weight, b.hidden, b.product, B, V, D);
}

/* Compares the GPU's tokens with the CPU's, at V = 8192, D = 256. */
static void verify_tokens(const bench &b)
{
    const int64_t B = 8, V = 8192, D = 256;
    make_weight(b, V, D);
    queue_draw(b, B, V, D, nullptr);
    CHECKED(cudaStreamSynchronize, b.stream);
    auto tokens = copy_out(b.tokens, B);
    auto weight = copy_out(b.weight, V * D), hidden = copy_out(b.hidden, B * D);
    auto temperature = copy_out(b.temperature, B);
    auto seed = copy_out(b.seed, B);
    auto position = copy_out(b.position, B);

    gumbel_device *cpu;
    std::vector<int32_t> expected(B);
    CHECKED(gumbel_open, nullptr, &cpu, &error);
    const size_t bytes = most_bytes(cpu, B, D);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!workspace)
        die("out of memory");
    gumbel_head head = make_head(hidden.data(), weight.data(), B, V, D);
    gumbel_sampling sampling = make_sampling(temperature.data(), seed.data(), position.data());
    gumbel_output output = make_output(expected.data(), nullptr);
    CHECKED(gumbel_sample, cpu, nullptr, &head, &sampling, &output, workspace, bytes, &error);
    for (int row = 0; row < B; row++)
        if (tokens[row] != expected[row])
            die("row %d: token %d on the GPU, %d on the CPU", row, tokens[row], expected[row]);
    free(workspace);
    gumbel_close(cpu);
}

/* ---------------------------------------------------------------------------------- report ---- */

struct fused_row {
    int64_t V, D, B;
    double read_us, ratio, percent_of_ceiling, draw_percent; /* ratio: fused / GEMM */
    spread gemm, fused, logprobs, product, gemm_rested, fused_rested, logprobs_rested,
        gemm_after_norm, fused_after_norm, logprobs_after_norm;
};

struct logits_row {
    int64_t V, B;
    int samples;
    spread draw;
};

struct report {
    cudaDeviceProp gpu;
    char driver[64];
    const char *commit;
    double bytes_per_us;
    std::vector<fused_row> fused;
    std::vector<logits_row> logits;
};

static fused_row measure_fused(const bench &b, int64_t V, int64_t D, int64_t B)
{
    const captured gemm(b.stream, [&] { queue_gemm(b, B, V, D); });
    const captured fused(b.stream, [&] { queue_draw(b, B, V, D, nullptr); });
    const captured logprobs(b.stream, [&] { queue_draw(b, B, V, D, b.logprobs); });
    const captured product(b.stream, [&] { queue_product(b, B, V, D); });
    const captured gemm_after_norm(b.stream, [&] {
        queue_norm(b.stream, b.hidden, B * D);
        queue_gemm(b, B, V, D);
    });
    const captured fused_after_norm(b.stream, [&] {
        queue_norm(b.stream, b.hidden, B * D);
        queue_draw(b, B, V, D, nullptr);
    });
    const captured logprobs_after_norm(b.stream, [&] {
        queue_norm(b.stream, b.hidden, B * D);
        queue_draw(b, B, V, D, b.logprobs);
    });
    const captured *const contestants[] = {&gemm, &fused, &logprobs, &product};
    const captured *const rested_contestants[] = {&gemm, &fused, &logprobs};
    const captured *const after_norm_contestants[] = {&gemm_after_norm, &fused_after_norm,
                                                      &logprobs_after_norm};
    const auto times = time_in_turns(b.stream, contestants);
    const auto after_norm = time_in_turns(b.stream, after_norm_contestants);
    const auto rested = time_in_turns(b.stream, rested_contestants, REST_US);
    fused_row row = {};
    row.V = V;
    row.D = D;
    row.B = B;
    row.gemm = times[0];
    row.fused = times[1];
    row.logprobs = times[2];
    row.product = times[3];
    row.gemm_rested = rested[0];
    row.fused_rested = rested[1];
    row.logprobs_rested = rested[2];
    row.gemm_after_norm = after_norm[0];
    row.fused_after_norm = after_norm[1];
    row.logprobs_after_norm = after_norm[2];
    row.read_us = 2.0 * D * (V + B) / b.bytes_per_us;
    row.ratio = row.fused.median / row.gemm.median;
    double ceiling = std::max(row.read_us, 2.0 * V * D * B / FLOPS_PER_US);
    row.percent_of_ceiling = 100 * ceiling / row.fused.median;
    row.draw_percent = 100 * (1 - row.product.median / row.fused.median);
    return row;
}

static void measure_shapes(const bench &b, report &r)
{
    const int64_t shapes[][2] = {{151936, 4096}, {128256, 8192}, {151936, 2048}};
    printf("\n%7s %5s %4s %10s %9s %9s %15s %11s %10s %8s %12s %7s\n", "V", "D", "B", "floor us",
           "GEMM us", "fused us", "with logprob us", "fused/GEMM", "% ceiling", "rested",
           "after norm", "draw %");
    for (auto &shape : shapes) {
        make_weight(b, shape[0], shape[1]);
        for (int64_t B : {1, 8, 16, 32, 64, 128, 256, 512}) {
            fused_row row = measure_fused(b, shape[0], shape[1], B);
            printf("%7lld %5lld %4lld %10.1f %9.1f %9.1f %15.1f %11.3f %10.1f %8.3f %12.3f %7.1f\n",
                   (long long)row.V, (long long)row.D, (long long)row.B, row.read_us,
                   row.gemm.median, row.fused.median, row.logprobs.median, row.ratio,
                   row.percent_of_ceiling, row.fused_rested.median / row.gemm_rested.median,
                   row.fused_after_norm.median / row.gemm_after_norm.median, row.draw_percent);
            fflush(stdout);
            r.fused.push_back(row);
        }
    }
    printf("\nfrom float32 logits; small batches stay in L2, as right after the product\n");
    const struct {
        int64_t B;
        int samples;
    } draws[] = {{1, 1}, {8, 1}, {64, 1}, {256, 1}, {64, 4}, {64, 8}};
    printf("%7s %4s %7s %9s\n", "V", "B", "samples", "us");
    for (auto &d : draws) {
        std::vector<double> times;
        time_call(b.stream, times, [&] { queue_logits_draw(b, d.B, MAX_VOCAB, d.samples); });
        logits_row row = {MAX_VOCAB, d.B, d.samples, make_spread(times)};
        printf("%7lld %4lld %7d %9.1f\n", (long long)row.V, (long long)row.B, row.samples,
               row.draw.median);
        r.logits.push_back(row);
    }
}

static void write_spread(FILE *file, const char *name, const spread &s, const char *after)
{
    fprintf(file, "\"%s\": {\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f}%s", name,
            s.median, s.p10, s.p90, after);
}

static void write_json(const char *path, const report &r)
{
    FILE *file = fopen(path, "w");
    if (!file)
        die("%s: cannot be written", path);
    fprintf(file, "{\n  \"question\": \"%s\",\n  \"version\": \"%d.%d.%d\",\n", QUESTION,
            GUMBEL_VERSION_MAJOR, GUMBEL_VERSION_MINOR, GUMBEL_VERSION_PATCH);
    fprintf(file, "  \"commit\": \"%s\",\n  \"gpu\": \"%s\",\n  \"driver\": \"%s\",\n", r.commit,
            r.gpu.name, r.driver);
    fprintf(file, "  \"multiprocessors\": %d,\n  \"read_bytes_per_second\": %.8e,\n",
            r.gpu.multiProcessorCount, r.bytes_per_us * 1e6);
    fprintf(file, "  \"ceiling\": \"%s\",\n  \"dtype\": \"bf16\",\n", CEILING);
    fprintf(file, "  \"calls_a_replay\": %d,\n  \"replays\": %d,\n  \"fused\": [", CALLS, REPLAYS);
    for (size_t i = 0; i < r.fused.size(); i++) {
        const fused_row &row = r.fused[i];
        fprintf(file, "%s\n    {\"vocab\": %lld, \"hidden\": %lld, ", i ? "," : "",
                (long long)row.V, (long long)row.D);
        fprintf(file, "\"batch\": %lld, \"floor_us\": %.3f, ", (long long)row.B, row.read_us);
        write_spread(file, "gemm", row.gemm, ", ");
        write_spread(file, "fused", row.fused, ", ");
        write_spread(file, "fused_with_logprobs", row.logprobs, ", ");
        write_spread(file, "product_alone", row.product, ", ");
        write_spread(file, "gemm_rested", row.gemm_rested, ", ");
        write_spread(file, "fused_rested", row.fused_rested, ", ");
        write_spread(file, "fused_with_logprobs_rested", row.logprobs_rested, ", ");
        write_spread(file, "gemm_behind_norm", row.gemm_after_norm, ", ");
        write_spread(file, "fused_behind_norm", row.fused_after_norm, ", ");
        write_spread(file, "fused_with_logprobs_behind_norm", row.logprobs_after_norm, ", ");
        fprintf(file, "\"fused_vs_gemm\": %.5f, \"percent_of_ceiling\": %.2f, ", row.ratio,
                row.percent_of_ceiling);
        fprintf(file, "\"percent_of_draw\": %.2f}", row.draw_percent);
    }
    fprintf(file, "\n  ],\n  \"from_float32_logits\": [");
    for (size_t i = 0; i < r.logits.size(); i++) {
        fprintf(file, "%s\n    {\"vocab\": %lld, \"batch\": %lld, ", i ? "," : "",
                (long long)r.logits[i].V, (long long)r.logits[i].B);
        fprintf(file, "\"samples\": %d, ", r.logits[i].samples);
        write_spread(file, "draw", r.logits[i].draw, "");
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]\n}\n");
    bool failed = ferror(file);
    if (fclose(file) != 0 || failed)
        die("%s: writing failed", path);
}

int main(int argc, char **argv)
{
    const char *json = nullptr;
    report r = {};
    r.commit = "unknown";
    for (int i = 1; i < argc; i += 2)
        if (i + 1 < argc && strcmp(argv[i], "--json") == 0)
            json = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--commit") == 0)
            r.commit = argv[i + 1];
        else
            die("%s: the options are --json FILE and --commit TEXT", argv[i]);
    for (const char *at = r.commit; *at; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
            die("--commit: plain ASCII without quotes and backslashes is expected");

    bench b = open_bench();
    CHECKED(cudaGetDeviceProperties, &r.gpu, 0);
    find_driver(r.driver, sizeof r.driver);
    verify_tokens(b);
    make_random(b.weight, WEIGHTS, 3, 1);
    r.bytes_per_us = measure_reading(b.stream, r.gpu.multiProcessorCount, b.weight,
                                     WEIGHTS * sizeof *b.weight, b.product);
    b.bytes_per_us = r.bytes_per_us;
    printf("question: %s\n", QUESTION);
    printf("machine: %s, driver %s, %d SMs, reads %.2f TB/s\n", r.gpu.name, r.driver,
           r.gpu.multiProcessorCount, r.bytes_per_us / 1e6);
    printf("ceiling: %s\n", CEILING);
    measure_shapes(b, r);
    if (json)
        write_json(json, r);
    gumbel_close(b.gpu);
    return 0;
}
