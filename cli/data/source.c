/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "source.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "options.h"
#include "report.h"
#include "thread_ranges.h"

struct source source_from_head(gumbel_tensor hidden, gumbel_tensor weight)
{
    return (struct source){
        .head = {.struct_size = sizeof(gumbel_head), .hidden = hidden, .weight = weight},
    };
}

struct source source_from_logits(gumbel_tensor logits)
{
    return (struct source){
        .from_logits = true,
        .logits = {.struct_size = sizeof(gumbel_logits), .logits = logits},
    };
}

int64_t source_batch(const struct source *source)
{
    return source->from_logits ? source->logits.logits.rows : source->head.hidden.rows;
}

int64_t source_vocab(const struct source *source)
{
    return source->from_logits ? source->logits.logits.cols : source->head.weight.rows;
}

int64_t source_hidden_size(const struct source *source)
{
    return source->from_logits ? 0 : source->head.hidden.cols;
}

size_t dtype_size(gumbel_dtype dtype) { return dtype == GUMBEL_FLOAT32 ? 4 : 2; }

static int64_t row_stride(const gumbel_tensor *matrix)
{
    return matrix->stride ? matrix->stride : matrix->cols;
}

gumbel_tensor tensor_rows(gumbel_tensor matrix, int64_t first, int64_t count)
{
    const size_t offset = (size_t)first * (size_t)row_stride(&matrix) * dtype_size(matrix.dtype);

    matrix.stride = row_stride(&matrix);
    matrix.data = (const char *)matrix.data + offset;
    matrix.rows = count;
    return matrix;
}

static gumbel_tensor tensor_columns(gumbel_tensor matrix, int64_t begin, int64_t end)
{
    matrix.stride = row_stride(&matrix);
    matrix.data = (const char *)matrix.data + (size_t)begin * dtype_size(matrix.dtype);
    matrix.cols = end - begin;
    return matrix;
}

struct source source_rows(const struct source *source, int64_t first, int64_t count)
{
    struct source rows = *source;

    if (source->from_logits) {
        rows.logits.logits = tensor_rows(source->logits.logits, first, count);
    } else {
        rows.head.hidden = tensor_rows(source->head.hidden, first, count);
    }
    return rows;
}

struct source source_shard(const struct source *source, int64_t begin, int64_t end)
{
    struct source shard = *source;
    gumbel_head *head = &shard.head;

    if (source->from_logits) {
        shard.logits.logits = tensor_columns(source->logits.logits, begin, end);
        shard.logits.first_token += begin;
        return shard;
    }
    head->weight = tensor_rows(head->weight, begin, end - begin);
    if (head->bias.data) {
        head->bias = tensor_columns(head->bias, begin, end);
    }
    head->first_token += begin;
    return shard;
}

void *source_workspace(const struct source *source, gumbel_device *device, int32_t num_samples,
                       size_t *bytes)
{
    const gumbel_limits limits = {
        .struct_size = sizeof limits,
        .batch = source_batch(source),
        .hidden_size = source_hidden_size(source),
        .num_samples = num_samples,
        .screens = !source->from_logits && source->head.screen.data,
    };
    gumbel_error error = {"", ""};

    require_ok(gumbel_workspace_most(device, &limits, bytes, &error), &error);
    return require_aligned("workspace", (int64_t)*bytes, 1);
}

void *source_call_workspace(const struct source *source, gumbel_device *device,
                            const gumbel_sampling *sampling, const gumbel_output *output,
                            size_t *bytes)
{
    const gumbel_head *head = source->from_logits ? NULL : &source->head;
    const gumbel_logits *logits = source->from_logits ? &source->logits : NULL;
    gumbel_error error = {"", ""};

    require_ok(gumbel_workspace_size(device, head, logits, sampling, output, bytes, &error),
               &error);
    return require_aligned("workspace", (int64_t)*bytes, 1);
}

int32_t count_samples(const gumbel_sampling *sampling)
{
    return sampling->num_samples ? sampling->num_samples : 1;
}

void source_sample(const struct source *source, gumbel_device *device,
                   const gumbel_sampling *sampling, const gumbel_output *output)
{
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    void *workspace = source_call_workspace(source, device, sampling, output, &bytes);
    const gumbel_status status = source->from_logits
                                     ? gumbel_sample_logits(device, NULL, &source->logits, sampling,
                                                            output, workspace, bytes, &error)
                                     : gumbel_sample(device, NULL, &source->head, sampling, output,
                                                     workspace, bytes, &error);

    require_ok(status, &error);
    free(workspace);
}

/* ------------------------------------------------------------------- draws by chunks ------- */

/* Frees the resident pages of `weight`, a mapped file; a later read loads them again. */
static void drop_pages(const gumbel_tensor *weight)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)weight->data;
    const uintptr_t end =
        begin + (uintptr_t)weight->rows * (uintptr_t)row_stride(weight) * dtype_size(weight->dtype);
    const uintptr_t first = begin / page * page;
    const uintptr_t last = end / page * page;

    if (last > first) {
        madvise((void *)first, last - first, MADV_DONTNEED);
    }
}

void source_sample_chunks(const struct source *source, gumbel_device *device,
                          const gumbel_sampling *sampling, const gumbel_output *output,
                          int64_t chunk, bool drop_weights, const char *label)
{
    const int64_t vocab = source_vocab(source);
    const int32_t samples = count_samples(sampling);
    const int64_t summaries = source_batch(source) * samples;
    gumbel_summary *merged = require_memory("summaries", summaries, sizeof *merged);
    gumbel_summary *partial = require_memory("summaries", summaries, sizeof *partial);
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    void *workspace = source_call_workspace(source, device, sampling, NULL, &bytes);

    gumbel_summary_clear(merged, summaries);
    if (label) {
        progress_start(label);
    }
    for (int64_t begin = 0; begin < vocab;) {
        const int64_t end = vocab - begin > chunk ? begin + chunk : vocab;
        const struct source shard = source_shard(source, begin, end);
        const gumbel_status status =
            source->from_logits ? gumbel_partial_logits(device, NULL, &shard.logits, sampling,
                                                        partial, workspace, bytes, &error)
                                : gumbel_partial(device, NULL, &shard.head, sampling, partial,
                                                 workspace, bytes, &error);

        require_ok(status, &error);
        require_ok(gumbel_merge(NULL, NULL, merged, partial, summaries, &error), &error);
        if (drop_weights && !source->from_logits) {
            drop_pages(&shard.head.weight);
        }
        if (label) {
            progress_update(end, vocab);
        }
        begin = end;
    }
    progress_clear();
    require_ok(gumbel_finish(NULL, NULL, merged, 1, source_batch(source), samples, output, &error),
               &error);
    free(workspace);
    free(partial);
    free(merged);
}

/* ------------------------------------------------------------------------------- logits ---- */

struct logits_work {
    struct source source;
    gumbel_device *device;
    float *out; /* [B, V] */
};

/* Computes the logits of a range of tokens, by a greedy draw from each token alone: its score is
 * the token's logit. */
static void compute_logits(void *argument, int32_t index, int32_t threads)
{
    static const float greedy = 0.0f;
    const struct logits_work *work = argument;
    const int64_t vocab = source_vocab(&work->source);
    const int64_t batch = source_batch(&work->source);
    const struct item_range range = find_thread_range(vocab, 64, index, threads);
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .temperature = {&greedy, GUMBEL_SAME}};
    const gumbel_output output = {
        .struct_size = sizeof output,
        .tokens = require_memory("tokens", batch, sizeof *output.tokens),
        .scores = require_memory("scores", batch, sizeof *output.scores),
    };
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    void *workspace = source_workspace(&work->source, work->device, 1, &bytes);

    for (int64_t i = range.begin; i < range.end; i++) {
        const struct source row = source_shard(&work->source, i, i + 1);

        require_ok(gumbel_sample(work->device, NULL, &row.head, &sampling, &output, workspace,
                                 bytes, &error),
                   &error);
        for (int64_t b = 0; b < batch; b++) {
            work->out[b * vocab + i] = output.scores[b];
        }
    }
    free(workspace);
    free(output.scores);
    free(output.tokens);
}

void source_logits(const struct source *source, gumbel_device *device, float *out)
{
    struct logits_work work = {.source = *source, .device = device, .out = out};
    const gumbel_device_info info = describe_device(device);

    work.source.head.scale = 1;
    work.source.head.soft_cap = 0;
    work.source.head.vocab_size = 0;
    run_on_threads(info.threads, compute_logits, &work);
}
