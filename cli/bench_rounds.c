/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#define GUMBEL_EXPERIMENTAL
#include "bench_rounds.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "machine_peaks.h"
#include "materialised.h"
#include "options.h"
#include "source.h"
#include "team.h"

const char *const way_names[WAYS] = {
    "read weights", "product", "fused draw", "materialised", "from logits", "from logits, 1 thread",
};

/* -------------------------------------------------------------------------------- data ---- */

void *map_pages(const char *what, size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (pages == MAP_FAILED) {
        fail(what, "not enough memory for %zu bytes", bytes);
    }
    madvise(pages, bytes, MADV_HUGEPAGE);
    return pages;
}

void unmap_pages(void *pages, size_t bytes) { munmap(pages, bytes); }

/* The SplitMix64 finaliser: word `index` of a random buffer, whichever thread writes it. */
static uint64_t random_word(uint64_t index)
{
    uint64_t x = (index + 1) * UINT64_C(0x9E3779B97F4A7C15);

    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

struct fill_work {
    uint64_t *words;
    int64_t count;
    uint64_t keep;  /* sign and mantissa bits of each number */
    uint64_t set;   /* exponent bits of each number */
    uint64_t first; /* random word of words[0] */
};

static void fill_share(void *argument, int32_t member, int32_t size)
{
    const struct fill_work *work = argument;
    const struct team_part part = team_share(work->count, 4096, member, size);

    for (int64_t i = part.begin; i < part.end; i++) {
        work->words[i] = (random_word(work->first + (uint64_t)i) & work->keep) | work->set;
    }
}

void fill_numbers(void *pages, size_t bytes, gumbel_dtype dtype, int exponent, uint64_t stream,
                  int32_t threads)
{
    const uint64_t every16 = UINT64_C(0x0001000100010001);
    const uint64_t every32 = UINT64_C(0x0000000100000001);
    struct fill_work work = {.words = pages, .count = (int64_t)(bytes / 8), .first = stream << 48};

    switch (dtype) {
    case GUMBEL_FLOAT16:
        work.keep = 0x83FF * every16;
        work.set = (uint64_t)((exponent + 15) << 10) * every16;
        break;
    case GUMBEL_BFLOAT16:
        work.keep = 0x807F * every16;
        work.set = (uint64_t)((exponent + 127) << 7) * every16;
        break;
    default:
        work.keep = 0x807FFFFF * every32;
        work.set = (uint64_t)((exponent + 127) << 23) * every32;
    }
    team_run(threads, fill_share, &work);
}

/* Bytes of [rows, cols] numbers, rounded up to whole 64-bit words. */
static size_t matrix_bytes(int64_t rows, int64_t cols, gumbel_dtype dtype)
{
    return ((size_t)rows * (size_t)cols * dtype_size(dtype) + 63) / 64 * 64;
}

size_t bench_weight_bytes(const struct bench *bench)
{
    return matrix_bytes(bench->vocab, bench->hidden_size, bench->dtype);
}

static struct source bench_source(const struct bench *bench, int64_t batch)
{
    const gumbel_tensor weight = {.data = bench->weights,
                                  .dtype = bench->dtype,
                                  .rows = bench->vocab,
                                  .cols = bench->hidden_size};
    const gumbel_tensor hidden = {
        .data = bench->hidden, .dtype = bench->dtype, .rows = batch, .cols = bench->hidden_size};

    return source_from_head(hidden, weight);
}

static struct source bench_logits_source(const struct bench *bench, int64_t batch)
{
    return source_from_logits((gumbel_tensor){
        .data = bench->logits, .dtype = GUMBEL_FLOAT32, .rows = batch, .cols = bench->vocab});
}

void bench_prepare(struct bench *bench)
{
    const size_t weight_bytes = bench_weight_bytes(bench);
    const size_t hidden_bytes = matrix_bytes(bench->most_rows, bench->hidden_size, bench->dtype);
    const size_t logits_bytes = matrix_bytes(bench->most_rows, bench->vocab, GUMBEL_FLOAT32);
    struct source source;

    bench->weights = map_pages("weights", weight_bytes);
    bench->hidden = map_pages("hidden states", hidden_bytes);
    bench->logits = map_pages("logits", logits_bytes);
    bench->stored = map_pages("logits", logits_bytes);
    bench->probabilities = map_pages("probabilities", logits_bytes);
    fill_numbers(bench->weights, weight_bytes, bench->dtype, -5, 0, bench->info.threads);
    fill_numbers(bench->hidden, hidden_bytes, bench->dtype, 0, 1, 1);
    source = bench_source(bench, bench->most_rows);
    source_logits(&source, bench->device, bench->logits);
}

void bench_free(struct bench *bench)
{
    const size_t logits_bytes = matrix_bytes(bench->most_rows, bench->vocab, GUMBEL_FLOAT32);

    unmap_pages(bench->weights, bench_weight_bytes(bench));
    unmap_pages(bench->hidden, matrix_bytes(bench->most_rows, bench->hidden_size, bench->dtype));
    unmap_pages(bench->logits, logits_bytes);
    unmap_pages(bench->stored, logits_bytes);
    unmap_pages(bench->probabilities, logits_bytes);
}

int64_t bench_check(const struct bench *bench)
{
    const int64_t rows = bench->most_rows;
    const struct source fused = bench_source(bench, rows);
    const struct source logits = bench_logits_source(bench, rows);
    const gumbel_sampling sampling = {.struct_size = sizeof sampling};
    int32_t *tokens = require_memory("tokens", 2 * rows, sizeof *tokens);
    float *scores = require_memory("scores", 2 * rows, sizeof *scores);
    gumbel_output output = {.struct_size = sizeof output, .tokens = tokens, .scores = scores};
    int64_t different = -1;

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

/* ------------------------------------------------------------------------------ rounds ---- */

/* A workspace. */
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

/* The buffers of one batch size. */
struct stage {
    const struct bench *bench;
    struct source fused, logits;
    struct room fused_room, logits_room,
        single_room; /* the last is of the device with one thread */
    gumbel_output output;
    double *uniforms; /* [B] */
    uint32_t position;
};

static struct stage stage_new(const struct bench *bench, int64_t batch)
{
    struct stage stage = {
        .bench = bench,
        .fused = bench_source(bench, batch),
        .logits = bench_logits_source(bench, batch),
        .output = {.struct_size = sizeof(gumbel_output)},
        .uniforms = require_memory("uniforms", batch, sizeof(double)),
    };

    stage.fused_room = new_room(&stage.fused, bench->device);
    stage.logits_room = new_room(&stage.logits, bench->device);
    stage.single_room = new_room(&stage.logits, bench->single);
    stage.output.tokens = require_memory("tokens", batch, sizeof(int32_t));
    if (bench->logprobs) {
        stage.output.logprobs = require_memory("logprobs", batch, sizeof(float));
    }
    return stage;
}

static void stage_free(struct stage *stage)
{
    free(stage->fused_room.bytes);
    free(stage->logits_room.bytes);
    free(stage->single_room.bytes);
    free(stage->uniforms);
    free(stage->output.tokens);
    free(stage->output.logprobs);
}

static void run_inverse_cdf(struct stage *stage)
{
    const struct bench *bench = stage->bench;
    const int64_t batch = source_batch(&stage->fused);
    const struct materialised work = {
        .batch = batch,
        .vocab = bench->vocab,
        .logits = bench->logits,
        .stored = bench->stored,
        .probabilities = bench->probabilities,
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

static void run_way(struct stage *stage, enum way way)
{
    const struct bench *bench = stage->bench;
    const gumbel_sampling sampling = {.struct_size = sizeof sampling, .position = &stage->position};
    gumbel_error error = {"", ""};
    gumbel_status status = GUMBEL_OK;

    switch (way) {
    case WAY_READ:
        time_read_pass(bench->weights, bench_weight_bytes(bench), bench->info.threads,
                       bench->info.isa);
        break;
    case WAY_PRODUCT:
        status = gumbel_multiply(bench->device, &stage->fused.head, NULL, stage->fused_room.bytes,
                                 stage->fused_room.size, &error);
        break;
    case WAY_FUSED:
        status = gumbel_sample(bench->device, &stage->fused.head, &sampling, &stage->output,
                               stage->fused_room.bytes, stage->fused_room.size, &error);
        break;
    case WAY_MATERIALISED:
        run_inverse_cdf(stage);
        break;
    case WAY_LOGITS:
        status =
            gumbel_sample_logits(bench->device, &stage->logits.logits, &sampling, &stage->output,
                                 stage->logits_room.bytes, stage->logits_room.size, &error);
        break;
    case WAY_LOGITS_ONE:
        status =
            gumbel_sample_logits(bench->single, &stage->logits.logits, &sampling, &stage->output,
                                 stage->single_room.bytes, stage->single_room.size, &error);
        break;
    case WAYS:
        break;
    }
    require_ok(status, &error);
}

/* Median over rounds of times[way][round] / times[base][round]. */
static double median_ratio(const double *times, int rounds, enum way way, enum way base)
{
    double *ratios = require_memory("ratios", rounds, sizeof *ratios);
    double median = 0;

    for (int round = 0; round < rounds; round++) {
        ratios[round] = times[way * rounds + round] / times[base * rounds + round];
    }
    median = spread_of(ratios, rounds).median;
    free(ratios);
    return median;
}

struct bench_result bench_rounds(const struct bench *bench, int64_t batch, int rounds)
{
    struct stage stage = stage_new(bench, batch);
    struct bench_result result = {.batch = batch, .workspace_bytes = stage.fused_room.size};
    double *times = require_memory("times", (int64_t)WAYS * rounds, sizeof *times);

    for (int round = -1; round < rounds; round++) {
        stage.position = (uint32_t)(round + 1);
        for (int way = 0; way < WAYS; way++) {
            const double start = seconds_now();

            run_way(&stage, (enum way)way);
            if (round >= 0) {
                times[way * rounds + round] = seconds_now() - start;
            }
        }
        if (round >= 0) {
            times[WAY_MATERIALISED * rounds + round] += times[WAY_PRODUCT * rounds + round];
        }
        progress_update(round + 1, rounds);
    }
    for (int way = 0; way < WAYS; way++) {
        result.to_product[way] = median_ratio(times, rounds, (enum way)way, WAY_PRODUCT);
        result.to_materialised[way] = median_ratio(times, rounds, (enum way)way, WAY_MATERIALISED);
    }
    for (int way = 0; way < WAYS; way++) {
        result.seconds[way] = spread_of(times + way * rounds, rounds);
    }
    free(times);
    stage_free(&stage);
    return result;
}
