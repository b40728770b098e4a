/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the benchmarks of screens on an NVIDIA GPU: the data of an LM head, its screens, and
 * the comparison of tokens, and options.
 */
#pragma once

#include "bench/cuda_measure.cuh"

#include "gumbel/screen.h"

constexpr int64_t VOCAB = 151936, MAX_HIDDEN = 8192, MAX_BATCH = 64;
constexpr int POSITIONS = 20; /* at which tokens are compared */

/* Options of all benchmarks of screens. */
struct shared_options {
    const char *json = nullptr, *commit = "unknown";
    std::vector<int64_t> sizes; /* D */
};

/* Reads argument i and its value if it is a shared option; i is then that of the last one read. */
static bool read_shared_option(shared_options &o, int argc, char **argv, int &i)
{
    if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
        o.json = argv[++i];
    else if (strcmp(argv[i], "--commit") == 0 && i + 1 < argc)
        o.commit = argv[++i];
    else if (atoll(argv[i]) >= 64 && atoll(argv[i]) <= MAX_HIDDEN)
        o.sizes.push_back(atoll(argv[i]));
    else
        return false;
    return true;
}

struct head_data {
    gpu_rows rows;
    __nv_bfloat16 *weight, *hidden; /* [VOCAB, D], [MAX_BATCH, D] */
};

/* Allocates data for hidden sizes up to `hidden_max`, with a workspace for any request. */
static head_data open_head(int64_t hidden_max)
{
    head_data m = {};
    gumbel_limits limits = {};
    limits.struct_size = sizeof limits;
    limits.batch = MAX_BATCH;
    limits.vocab_size = VOCAB;
    limits.hidden_size = hidden_max;
    limits.num_samples = 4;
    limits.requests = 1;
    limits.screens = 1;
    m.rows = open_rows(MAX_BATCH, hidden_max);
    CHECKED(cudaFree, m.rows.workspace);
    CHECKED(gumbel_workspace_most, m.rows.gpu, &limits, &m.rows.workspace_bytes, &error);
    m.rows.workspace = allocate<char>(m.rows.workspace_bytes);
    m.weight = allocate<__nv_bfloat16>(VOCAB * hidden_max);
    m.hidden = allocate<__nv_bfloat16>(MAX_BATCH * hidden_max);
    return m;
}

static gumbel_head make_head(const head_data &m, int64_t batch, int64_t hidden_size,
                             const gumbel_screen &screen)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {m.hidden, GUMBEL_BFLOAT16, batch, hidden_size, hidden_size};
    head.weight = {m.weight, GUMBEL_BFLOAT16, VOCAB, hidden_size, hidden_size};
    head.screen = screen;
    return head;
}

/* Memory for a screen of hidden sizes up to `hidden_max`. */
static gumbel_screen allocate_screen(int64_t hidden_max, gumbel_screen_format format)
{
    gumbel_screen screen = {};
    screen.bytes = size_t(VOCAB) * size_t(hidden_max + 256) + (1 << 20);
    screen.data = allocate<char>(screen.bytes);
    screen.format = format;
    return screen;
}

/* Makes a screen of the weights, and returns the median time in microseconds. */
static double prepare_screen(const head_data &m, int64_t hidden_size,
                             gumbel_screen_certificate certificate, const gumbel_screen &screen)
{
    const gumbel_head head = make_head(m, 1, hidden_size, {});
    const gumbel_screen_options how = {sizeof how, certificate, screen.format, nullptr};
    std::vector<double> times;
    size_t bytes;
    CHECKED(gumbel_screen_size, m.rows.gpu, &head.weight, &bytes, &error);
    if (bytes > screen.bytes)
        die("the screen needs %zu bytes", bytes);
    for (int i = 0; i < 3; i++) {
        cudaEvent_t begin, end;
        float milliseconds;
        CHECKED(cudaEventCreate, &begin);
        CHECKED(cudaEventCreate, &end);
        CHECKED(cudaEventRecord, begin, m.rows.stream);
        CHECKED(gumbel_screen_prepare, m.rows.gpu, m.rows.stream, &head.weight, &how, &screen,
                &error);
        CHECKED(cudaEventRecord, end, m.rows.stream);
        CHECKED(cudaEventSynchronize, end);
        CHECKED(cudaEventElapsedTime, &milliseconds, begin, end);
        times.push_back(milliseconds * 1e3);
        CHECKED(cudaEventDestroy, begin);
        CHECKED(cudaEventDestroy, end);
    }
    return make_spread(times).median;
}

static void set_positions(const head_data &m, uint64_t position)
{
    std::vector<uint64_t> positions(MAX_BATCH);
    for (int64_t b = 0; b < MAX_BATCH; b++)
        positions[b] = position + uint64_t(3 * b);
    CHECKED(cudaMemcpy, m.rows.position, positions.data(), MAX_BATCH * sizeof(uint64_t),
            cudaMemcpyHostToDevice);
}

/* Returns how many of POSITIONS * `draws` tokens differ between two ways to queue these draws. */
template <class F, class G>
static int count_differing(const head_data &m, int64_t draws, F queue_full, G queue_screened)
{
    int differing = 0;
    for (int i = 0; i < POSITIONS; i++) {
        set_positions(m, uint64_t(1000 * i));
        queue_full();
        CHECKED(cudaStreamSynchronize, m.rows.stream);
        auto full = copy_out(m.rows.tokens, draws);
        queue_screened();
        CHECKED(cudaStreamSynchronize, m.rows.stream);
        auto screened = copy_out(m.rows.tokens, draws);
        for (int64_t b = 0; b < draws; b++)
            differing += full[b] != screened[b];
    }
    return differing;
}

/* The environment variable GUMBEL_RUNGS, if set, prevails. */
static void prefer_screens()
{
    setenv("GUMBEL_RUNGS", "screen", 0); /* the screen, even if the full pass is faster */
}

/* Writes the spread as `"name": [p10, median, p90], `. */
static void write_spread(FILE *file, const char *name, const spread &s)
{
    fprintf(file, "\"%s\": [%.1f, %.1f, %.1f], ", name, s.p10, s.median, s.p90);
}
