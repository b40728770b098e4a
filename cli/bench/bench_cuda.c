/* SPDX-License-Identifier: Apache-2.0
 *
 * Times the ways to draw on an NVIDIA GPU: replays of graphs, timed by GPU events. Every replay
 * reads the position of its round from device memory.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "cuda_source.h"
#include "device_driver.h"
#include "device_gemm.h"
#include "device_graph.h"
#include "device_memory.h"
#include "device_reader.h"
#include "number_pages.h"
#include "source.h"

enum {
    CHECK_ROWS = 8,
    CHECK_TOKENS = 8192,
    SQUARE = 8192,           /* rows and columns of the product that measures FLOP/s */
    RANDOM_BYTES = 64 << 20, /* random bytes of a large buffer, repeated to fill it */
};

struct cuda_data {
    struct device_reader reader;
    struct device_gemm *gemm; /* NULL: not installed */
    gumbel_tensor weight;     /* [V, D] */
    gumbel_tensor hidden;     /* [most_rows, D] */
    gumbel_tensor logits;     /* [most_rows, V] float32, near-normal */
    gumbel_tensor stored;     /* [most_rows, V], written by cuBLAS; data NULL without cuBLAS */
    uint64_t *position;       /* [1] */
};

/* -------------------------------------------------------------------------------- ceiling ---- */

static int32_t host_threads(void) { return (int32_t)sysconf(_SC_NPROCESSORS_ONLN); }

/* Allocates [rows, cols] random numbers in device memory. */
static gumbel_tensor upload_random_matrix(const char *what, int64_t rows, int64_t cols,
                                          gumbel_dtype dtype, int exponent, uint64_t stream)
{
    const size_t bytes = matrix_bytes(rows, cols, dtype);
    void *pages = map_pages(what, bytes);
    gumbel_tensor matrix = {.dtype = dtype, .rows = rows, .cols = cols};

    fill_numbers(pages, bytes, dtype, exponent, stream, host_threads());
    matrix.data = device_memory_copy(pages, bytes);
    unmap_pages(pages, bytes);
    return matrix;
}

/* Logits with the standard deviation of trained heads. */
static gumbel_tensor upload_normal_logits(int64_t rows, int64_t cols)
{
    const size_t bytes = matrix_bytes(rows, cols, GUMBEL_FLOAT32);
    float *pages = map_pages("logits", bytes);
    gumbel_tensor matrix = {.dtype = GUMBEL_FLOAT32, .rows = rows, .cols = cols};

    fill_normal(pages, rows * cols, 2.5f, 2, host_threads());
    matrix.data = device_memory_copy(pages, bytes);
    unmap_pages(pages, bytes);
    return matrix;
}

static double measure_bandwidth(struct device_reader *reader, size_t bytes)
{
    const size_t random = bytes < RANDOM_BYTES ? bytes : RANDOM_BYTES;
    const gumbel_tensor part =
        upload_random_matrix("bandwidth buffer", 1, (int64_t)(random / 4), GUMBEL_FLOAT32, 0, 3);
    char *buffer = device_memory_new(bytes);
    double bandwidth = 0;

    for (size_t done = 0; done < bytes; done += random) {
        const size_t rest = bytes - done;

        require_driver(device_driver.copy((uintptr_t)buffer + done, (uintptr_t)part.data,
                                          rest < random ? rest : random),
                       "copy on the GPU");
    }
    bandwidth = device_reader_measure(reader, buffer, bytes);
    device_memory_free(part.data);
    device_memory_free(buffer);
    return bandwidth;
}

/* A square product, large enough to occupy every multiprocessor. */
struct square {
    struct device_gemm *gemm;
    gumbel_tensor matrix;
    void *out;
};

static void queue_square(void *argument, void *stream)
{
    struct square *square = argument;

    device_gemm_queue(square->gemm, square->matrix, square->matrix, square->out, stream);
}

static double measure_cublas_flops(struct device_gemm *gemm, gumbel_dtype dtype)
{
    enum { REPLAYS = 3 };
    struct square square = {gemm, upload_random_matrix("matrix", SQUARE, SQUARE, dtype, -6, 4),
                            device_memory_new(matrix_bytes(SQUARE, SQUARE, dtype))};
    const double seconds = measure_device_call(queue_square, &square, REPLAYS);

    device_memory_free(square.matrix.data);
    device_memory_free(square.out);
    return 2.0 * SQUARE * SQUARE * SQUARE / seconds;
}

/* ---------------------------------------------------------------------- opening, checking ---- */

static void open_cuda(struct bench *bench)
{
    enum { DEFAULT_MIB = 2048 };
    const int handle = device_driver_use(bench->info.name);
    const int64_t B = bench->most_rows, V = bench->vocab, D = bench->hidden_size;
    struct cuda_data *data = require_memory("bench", 1, sizeof *data);

    *data = (struct cuda_data){.reader = device_reader_new(handle), .gemm = device_gemm_open()};
    bench->data = data;
    if (!data->gemm) {
        fprintf(
            stderr,
            "gumbel bench: cuBLAS (libcublas.so.13 or .12) is not installed: its product and the "
            "materialised baseline are not measured\n");
    }
    for (int way = 0; way < WAYS; way++) {
        bench->is_timed[way] = way != WAY_LOGITS_ONE && way != WAY_SCREENED &&
                               (data->gemm || (way != WAY_GEMM && way != WAY_MATERIALISED));
    }
    bench->checked_rows = B < CHECK_ROWS ? B : CHECK_ROWS;
    bench->ceiling.buffer_bytes = (size_t)(bench->buffer_mib ? bench->buffer_mib : DEFAULT_MIB)
                                  << 20;
    progress_show("measuring read bandwidth and multiply-add peak");
    bench->ceiling.bandwidth = measure_bandwidth(&data->reader, bench->ceiling.buffer_bytes);
    bench->ceiling.flops = data->gemm ? measure_cublas_flops(data->gemm, bench->dtype) : 0;
    progress_show("making a head");
    data->weight = upload_random_matrix("weights", V, D, bench->dtype, -5, 0);
    data->hidden = upload_random_matrix("hidden states", B, D, bench->dtype, 0, 1);
    data->logits = upload_normal_logits(B, V);
    if (data->gemm) {
        data->stored = data->logits;
        data->stored.dtype = bench->dtype;
        data->stored.data = device_memory_new(matrix_bytes(B, V, bench->dtype));
    }
    data->position = device_memory_new(sizeof *data->position);
}

static void close_cuda(struct bench *bench)
{
    struct cuda_data *data = bench->data;

    device_gemm_close(data->gemm);
    device_memory_free(data->reader.never);
    device_memory_free(data->weight.data);
    device_memory_free(data->hidden.data);
    device_memory_free(data->logits.data);
    device_memory_free(data->stored.data);
    device_memory_free(data->position);
    free(data);
}

/* Copies a matrix from the GPU into host memory, which the caller frees. */
static gumbel_tensor fetch_tensor(gumbel_tensor matrix)
{
    const size_t bytes = (size_t)matrix.rows * (size_t)matrix.cols * dtype_size(matrix.dtype);
    void *copy = require_memory("check", (int64_t)bytes, 1);

    device_memory_download(copy, matrix.data, bytes);
    matrix.data = copy;
    return matrix;
}

static int64_t check_cuda(const struct bench *bench)
{
    const struct cuda_data *data = bench->data;
    const int64_t rows = bench->checked_rows;
    const int64_t tokens = bench->vocab < CHECK_TOKENS ? bench->vocab : CHECK_TOKENS;
    const struct source on =
        source_from_head(tensor_rows(data->hidden, 0, rows), tensor_rows(data->weight, 0, tokens));
    const struct source host =
        source_from_head(fetch_tensor(on.head.hidden), fetch_tensor(on.head.weight));
    const gumbel_sampling sampling = {.struct_size = sizeof sampling};
    int32_t found[CHECK_ROWS], expected[CHECK_ROWS];
    gumbel_output output = {.struct_size = sizeof output, .tokens = expected};
    gumbel_device *cpu = open_device(&(struct device_choice){0});
    int64_t different = -1;

    source_sample(&host, cpu, &sampling, &output);
    output.tokens = found;
    cuda_source_sample(&host, bench->device, bench->info.name, &sampling, &output, 0);
    for (int64_t b = rows - 1; b >= 0; b--) {
        different = found[b] != expected[b] || found[b] < 0 ? b : different;
    }
    gumbel_close(cpu);
    free((void *)(uintptr_t)host.head.hidden.data);
    free((void *)(uintptr_t)host.head.weight.data);
    return different;
}

/* ------------------------------------------------------------------------------ one batch ---- */

struct cuda_stage {
    const struct bench *bench;
    gumbel_head head;
    gumbel_logits logits, stored;
    gumbel_sampling sampling;
    gumbel_output output;
    void *workspace;
    size_t workspace_bytes;
    uint64_t round;
    struct device_graph *graphs[WAYS];
};

struct way_call {
    struct cuda_stage *stage;
    enum way way;
};

static void draw_logits(struct cuda_stage *stage, const gumbel_logits *logits, void *stream)
{
    gumbel_error error = {"", ""};

    require_ok(gumbel_sample_logits(stage->bench->device, stream, logits, &stage->sampling,
                                    &stage->output, stage->workspace, stage->workspace_bytes,
                                    &error),
               &error);
}

static void queue_way(void *argument, void *stream)
{
    const struct way_call *call = argument;
    struct cuda_stage *stage = call->stage;
    const struct bench *bench = stage->bench;
    const struct cuda_data *data = bench->data;
    gumbel_error error = {"", ""};

    switch (call->way) {
    case WAY_READ:
        device_reader_queue(&data->reader, data->weight.data, bench_weight_bytes(bench), stream);
        break;
    case WAY_PRODUCT:
        require_ok(gumbel_multiply(bench->device, stream, &stage->head, stage->workspace,
                                   stage->workspace_bytes, &error),
                   &error);
        break;
    case WAY_FUSED:
        require_ok(gumbel_sample(bench->device, stream, &stage->head, &stage->sampling,
                                 &stage->output, stage->workspace, stage->workspace_bytes, &error),
                   &error);
        break;
    case WAY_GEMM:
    case WAY_MATERIALISED:
        device_gemm_queue(data->gemm, stage->head.hidden, stage->head.weight,
                          (void *)(uintptr_t)stage->stored.logits.data, stream);
        if (call->way == WAY_MATERIALISED) {
            draw_logits(stage, &stage->stored, stream);
        }
        break;
    case WAY_LOGITS:
        draw_logits(stage, &stage->logits, stream);
        break;
    default:
        break;
    }
}

static void *new_stage(const struct bench *bench, int64_t batch, size_t *workspace_bytes,
                       char served[RUNG_NAMES_BYTES])
{
    const struct cuda_data *data = bench->data;
    struct cuda_stage *stage = require_memory("stage", 1, sizeof *stage);
    gumbel_error error = {"", ""};

    *stage = (struct cuda_stage){
        .bench = bench,
        .head = source_from_head(tensor_rows(data->hidden, 0, batch), data->weight).head,
        .logits = source_from_logits(tensor_rows(data->logits, 0, batch)).logits,
        .stored = source_from_logits(tensor_rows(data->stored, 0, batch)).logits,
        .sampling = {.struct_size = sizeof(gumbel_sampling),
                     .position = {data->position, GUMBEL_SAME}},
        .output = {.struct_size = sizeof(gumbel_output)},
    };
    const gumbel_limits limits = {
        .struct_size = sizeof limits, .batch = batch, .hidden_size = bench->hidden_size};
    require_ok(gumbel_workspace_most(bench->device, &limits, &stage->workspace_bytes, &error),
               &error);
    *workspace_bytes = stage->workspace_bytes;
    stage->workspace = device_memory_new(stage->workspace_bytes);
    stage->output.tokens = device_memory_new((size_t)batch * sizeof(int32_t));
    if (bench->logprobs) {
        stage->output.logprobs = device_memory_new((size_t)batch * sizeof(float));
    }
    device_memory_upload(data->position, &stage->round, sizeof stage->round);
    find_rungs(bench->device, &stage->head, NULL, &stage->sampling, &stage->output, served);
    for (int way = 0; way < WAYS; way++) {
        if (bench->is_timed[way]) {
            stage->graphs[way] =
                device_graph_new(queue_way, &(struct way_call){stage, (enum way)way});
        }
    }
    return stage;
}

static void free_stage(void *freed)
{
    struct cuda_stage *stage = freed;

    for (int way = 0; way < WAYS; way++) {
        device_graph_free(stage->graphs[way]);
    }
    device_memory_free(stage->workspace);
    device_memory_free(stage->output.tokens);
    device_memory_free(stage->output.logprobs);
    free(stage);
}

static double time_way(void *timed, enum way way, uint32_t round)
{
    struct cuda_stage *stage = timed;
    const struct cuda_data *data = stage->bench->data;

    if (stage->round != round) {
        stage->round = round;
        device_memory_upload(data->position, &stage->round, sizeof stage->round);
    }
    return device_graph_time(stage->graphs[way]);
}

/* --------------------------------------------------------------------------------- report ---- */

/* Writes the driver's version and the CUDA version that it supports. */
static void describe_driver(char *into, size_t size)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char word[32], module[32] = "unknown", probe = 0;
    int cuda = 0, numbers[2];

    while (file && strcmp(module, "unknown") == 0 && fscanf(file, "%31s", word) == 1) {
        if (sscanf(word, "%d.%d%c", &numbers[0], &numbers[1], &probe) >= 2) {
            memcpy(module, word, sizeof module);
        }
    }
    if (file) {
        fclose(file);
    }
    require_driver(device_driver.version(&cuda), "its version");
    snprintf(into, size, "%s (CUDA %d.%d)", module, cuda / 1000, cuda % 1000 / 10);
}

static void describe_machine(const struct bench *bench, char *line, size_t size)
{
    char driver[64];

    describe_driver(driver, sizeof driver);
    snprintf(line, size, "%s, driver %s, %d multiprocessors", bench->info.description, driver,
             bench->info.threads);
}

static void describe_json(const struct bench *bench, json_t *root)
{
    const struct cuda_data *data = bench->data;
    char driver[64];

    describe_driver(driver, sizeof driver);
    json_put(root, "gpu", json_string(bench->info.description));
    json_put(root, "driver", json_string(driver));
    json_put(root, "multiprocessors", json_integer(bench->info.threads));
    json_put(root, "cublas",
             data->gemm ? json_string(device_gemm_library(data->gemm)) : json_null());
}

const struct bench_machine bench_cuda = {
    .materialised_label =
        "cuBLAS writes [B, V] logits in the weights' dtype, then the draw from them",
    .flops_label = "of cuBLAS at 8192 cubed",
    .check_label = "the GPU draws the CPU's tokens, for a vocabulary of at most 8192",
    .open = open_cuda,
    .close = close_cuda,
    .check = check_cuda,
    .stage_new = new_stage,
    .stage_free = free_stage,
    .time_way = time_way,
    .describe = describe_machine,
    .describe_json = describe_json,
};
