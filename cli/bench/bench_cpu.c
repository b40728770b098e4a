/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to draw on a CPU, timed by the wall clock.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "head_screen.h"
#include "machine_ceilings.h"
#include "materialised.h"
#include "number_pages.h"
#include "source.h"

struct cpu_data {
    gumbel_device *single;         /* one thread, the same ISA */
    void *weights;                 /* [V, D] */
    void *hidden;                  /* [most_rows, D] */
    float *logits;                 /* [most_rows, V] of `weights` and `hidden` */
    float *stored, *probabilities; /* [most_rows, V] */
    struct head_screen screen;
};

static struct source head_source(const struct bench *bench, int64_t batch)
{
    const struct cpu_data *data = bench->data;
    const gumbel_tensor weight = {.data = data->weights,
                                  .dtype = bench->dtype,
                                  .rows = bench->vocab,
                                  .cols = bench->hidden_size};
    const gumbel_tensor hidden = {
        .data = data->hidden, .dtype = bench->dtype, .rows = batch, .cols = bench->hidden_size};

    return source_from_head(hidden, weight);
}

static struct source logits_source(const struct bench *bench, int64_t batch)
{
    const struct cpu_data *data = bench->data;

    return source_from_logits((gumbel_tensor){
        .data = data->logits, .dtype = GUMBEL_FLOAT32, .rows = batch, .cols = bench->vocab});
}

/* ------------------------------------------------------------------------ opening, ceiling ---- */

/* The larger of 1 GiB and twice the last-level cache, at most a quarter of the memory. */
static size_t choose_buffer_bytes(void)
{
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    size_t bytes = (size_t)1 << 30;

    if (cache > 0 && (size_t)cache * 2 > bytes) {
        bytes = (size_t)cache * 2;
    }
    return (double)bytes > memory / 4 ? (size_t)(memory / 4) / 4096 * 4096 : bytes;
}

static struct ceiling measure_ceiling(const gumbel_device_info *info, int64_t buffer_mib)
{
    struct ceiling ceiling = {
        .buffer_bytes = buffer_mib ? (size_t)buffer_mib << 20 : choose_buffer_bytes(),
    };
    void *buffer = map_pages("bandwidth buffer", ceiling.buffer_bytes);

    progress_show("measuring the read bandwidth");
    fill_numbers(buffer, ceiling.buffer_bytes, GUMBEL_FLOAT32, 0, 0, info->threads);
    ceiling.bandwidth =
        measure_read_bandwidth(buffer, ceiling.buffer_bytes, info->threads, info->isa);
    unmap_pages(buffer, ceiling.buffer_bytes);
    progress_show("measuring the multiply-add peak");
    ceiling.flops = measure_flops(info->threads, info->isa);
    return ceiling;
}

static void open_cpu(struct bench *bench)
{
    const size_t hidden_bytes = matrix_bytes(bench->most_rows, bench->hidden_size, bench->dtype);
    const size_t logits_bytes = matrix_bytes(bench->most_rows, bench->vocab, GUMBEL_FLOAT32);
    const int32_t threads = bench->info.threads;
    const struct device_choice single = {bench->choice.device, bench->info.isa, 1};
    struct cpu_data *data = require_memory("bench", 1, sizeof *data);
    struct source source;

    for (int way = 0; way < WAYS; way++) {
        bench->is_timed[way] = way != WAY_GEMM && (way != WAY_SCREENED || bench->screen);
    }
    bench->checked_rows = bench->most_rows;
    bench->ceiling = measure_ceiling(&bench->info, bench->buffer_mib);
    bench->data = data;
    progress_show("making a head");
    data->single = open_device(&single);
    data->weights = map_pages("weights", bench_weight_bytes(bench));
    data->hidden = map_pages("hidden states", hidden_bytes);
    data->logits = map_pages("logits", logits_bytes);
    data->stored = map_pages("logits", logits_bytes);
    data->probabilities = map_pages("probabilities", logits_bytes);
    fill_numbers(data->weights, bench_weight_bytes(bench), bench->dtype, -5, 0, threads);
    fill_numbers(data->hidden, hidden_bytes, bench->dtype, 0, 1, 1);
    source = head_source(bench, bench->most_rows);
    data->screen = (struct head_screen){0};
    if (bench->screen) {
        data->screen =
            head_screen_new(bench->device, &source.head.weight,
                            bench->nibbles ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES);
        bench->screen_bytes = data->screen.copy.bytes;
        bench->screen_seconds = data->screen.seconds;
    }
    progress_show("computing logits to check");
    source_logits(&source, bench->device, data->logits);
}

static void close_cpu(struct bench *bench)
{
    const size_t logits_bytes = matrix_bytes(bench->most_rows, bench->vocab, GUMBEL_FLOAT32);
    struct cpu_data *data = bench->data;

    gumbel_close(data->single);
    head_screen_free(&data->screen);
    unmap_pages(data->weights, bench_weight_bytes(bench));
    unmap_pages(data->hidden, matrix_bytes(bench->most_rows, bench->hidden_size, bench->dtype));
    unmap_pages(data->logits, logits_bytes);
    unmap_pages(data->stored, logits_bytes);
    unmap_pages(data->probabilities, logits_bytes);
    free(data);
}

static int64_t check_cpu(const struct bench *bench)
{
    const int64_t rows = bench->most_rows;
    const struct cpu_data *data = bench->data;
    struct source fused = head_source(bench, rows);
    const struct source logits = logits_source(bench, rows);
    const gumbel_sampling sampling = {.struct_size = sizeof sampling};
    int32_t *tokens = require_memory("tokens", 2 * rows, sizeof *tokens);
    float *scores = require_memory("scores", 2 * rows, sizeof *scores);
    gumbel_output output = {.struct_size = sizeof output, .tokens = tokens, .scores = scores};
    int64_t different = -1;

    fused.head.screen = data->screen.copy;
    source_sample(&fused, bench->device, &sampling, &output);
    output.tokens = tokens + rows;
    output.scores = scores + rows;
    source_sample(&logits, bench->device, &sampling, &output);
    for (int64_t b = rows - 1; b >= 0; b--) {
        if (tokens[b] != tokens[rows + b] || scores[b] != scores[rows + b] || tokens[b] < 0) {
            different = b;
        }
    }
    free(tokens);
    free(scores);
    return different;
}

/* ------------------------------------------------------------------------------ one batch ---- */

struct room {
    void *bytes;
    size_t size;
};

static struct room new_room(const struct source *source, gumbel_device *device)
{
    struct room room;

    room.bytes = source_workspace(source, device, 1, &room.size);
    return room;
}

struct cpu_stage {
    const struct bench *bench;
    struct source fused, screened, logits;
    struct room fused_room, screened_room, logits_room,
        single_room; /* single_room: for the device of one thread */
    gumbel_output output;
    double *uniforms;       /* [B] */
    double product_seconds; /* of this round */
    uint64_t position;
};

static void *new_stage(const struct bench *bench, int64_t batch, size_t *workspace_bytes,
                       char served[RUNG_NAMES_BYTES])
{
    const struct cpu_data *data = bench->data;
    struct cpu_stage *stage = require_memory("stage", 1, sizeof *stage);

    *stage = (struct cpu_stage){
        .bench = bench,
        .fused = head_source(bench, batch),
        .screened = head_source(bench, batch),
        .logits = logits_source(bench, batch),
        .output = {.struct_size = sizeof(gumbel_output)},
        .uniforms = require_memory("uniforms", batch, sizeof(double)),
    };
    stage->fused_room = new_room(&stage->fused, bench->device);
    stage->screened.head.screen = data->screen.copy;
    stage->screened_room = new_room(&stage->screened, bench->device);
    stage->logits_room = new_room(&stage->logits, bench->device);
    stage->single_room = new_room(&stage->logits, data->single);
    stage->output.tokens = require_memory("tokens", batch, sizeof(int32_t));
    if (bench->logprobs) {
        stage->output.logprobs = require_memory("logprobs", batch, sizeof(float));
    }
    *workspace_bytes = stage->fused_room.size;
    find_rungs(bench->device, &stage->fused.head, NULL, NULL, &stage->output, served);
    return stage;
}

static void free_stage(void *freed)
{
    struct cpu_stage *stage = freed;

    free(stage->fused_room.bytes);
    free(stage->screened_room.bytes);
    free(stage->logits_room.bytes);
    free(stage->single_room.bytes);
    free(stage->uniforms);
    free(stage->output.tokens);
    free(stage->output.logprobs);
    free(stage);
}

static void run_inverse_cdf(struct cpu_stage *stage)
{
    const struct bench *bench = stage->bench;
    const struct cpu_data *data = bench->data;
    const int64_t batch = source_batch(&stage->fused);
    const struct materialised work = {
        .batch = batch,
        .vocab = bench->vocab,
        .logits = data->logits,
        .stored = data->stored,
        .probabilities = data->probabilities,
        .uniforms = stage->uniforms,
        .inverse_temperature = 1.0f,
        .tokens = stage->output.tokens,
        .threads = bench->info.threads,
        .isa = bench->info.isa,
    };

    for (int64_t b = 0; b < batch; b++) {
        const uint64_t word = random_word((uint64_t)b + ((uint64_t)stage->position << 32));

        stage->uniforms[b] = (double)(word >> 11) * 0x1p-53;
    }
    materialised_draw(&work);
}

static void run_way(struct cpu_stage *stage, enum way way)
{
    const struct bench *bench = stage->bench;
    const struct cpu_data *data = bench->data;
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .position = {&stage->position, GUMBEL_SAME}};
    gumbel_error error = {"", ""};
    gumbel_status status = GUMBEL_OK;

    switch (way) {
    case WAY_READ:
        time_read_pass(data->weights, bench_weight_bytes(bench), bench->info.threads,
                       bench->info.isa);
        break;
    case WAY_PRODUCT:
        status = gumbel_multiply(bench->device, NULL, &stage->fused.head, stage->fused_room.bytes,
                                 stage->fused_room.size, &error);
        break;
    case WAY_FUSED:
        status = gumbel_sample(bench->device, NULL, &stage->fused.head, &sampling, &stage->output,
                               stage->fused_room.bytes, stage->fused_room.size, &error);
        break;
    case WAY_SCREENED:
        status =
            gumbel_sample(bench->device, NULL, &stage->screened.head, &sampling, &stage->output,
                          stage->screened_room.bytes, stage->screened_room.size, &error);
        break;
    case WAY_MATERIALISED:
        run_inverse_cdf(stage);
        break;
    case WAY_LOGITS:
        status = gumbel_sample_logits(bench->device, NULL, &stage->logits.logits, &sampling,
                                      &stage->output, stage->logits_room.bytes,
                                      stage->logits_room.size, &error);
        break;
    case WAY_LOGITS_ONE:
        status = gumbel_sample_logits(data->single, NULL, &stage->logits.logits, &sampling,
                                      &stage->output, stage->single_room.bytes,
                                      stage->single_room.size, &error);
        break;
    default:
        break;
    }
    require_ok(status, &error);
}

static double time_way(void *timed, enum way way, uint32_t round)
{
    struct cpu_stage *stage = timed;
    const double start = seconds_now();
    double seconds = 0;

    stage->position = round;
    run_way(stage, way);
    seconds = seconds_now() - start;
    if (way == WAY_PRODUCT) {
        stage->product_seconds = seconds;
    }
    return way == WAY_MATERIALISED ? seconds + stage->product_seconds : seconds;
}

/* --------------------------------------------------------------------------------- report ---- */

static void describe_machine(const struct bench *bench, char *line, size_t size)
{
    snprintf(line, size, "%s, isa %s, %d threads, tile %d", bench->info.description,
             gumbel_isa_name(bench->info.isa), bench->info.threads, bench->info.tile);
}

static void describe_json(const struct bench *bench, json_t *root)
{
    json_put(root, "cpu", json_string(bench->info.description));
    json_put(root, "isa", json_string(gumbel_isa_name(bench->info.isa)));
    json_put(root, "threads", json_integer(bench->info.threads));
    json_put(root, "tile", json_integer(bench->info.tile));
}

const struct bench_machine bench_cpu = {
    .materialised_label =
        "the product's time, then [B, V] float32 stores, softmax and inverse CDF in plain vector C",
    .flops_label = "float32",
    .check_label =
        "fused draws, also with a screen, have the tokens and scores of draws from logits",
    .open = open_cpu,
    .close = close_cpu,
    .check = check_cpu,
    .stage_new = new_stage,
    .stage_free = free_stage,
    .time_way = time_way,
    .describe = describe_machine,
    .describe_json = describe_json,
};
