/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_source.h"

#include <stdlib.h>

#include "cuda_uploads.h"
#include "device_driver.h"
#include "device_memory.h"
#include "options.h"
#include "report.h"

/* What of a call is in device memory from its beginning to its end. */
struct uploaded {
    gumbel_tensor hidden;
    gumbel_sampling sampling;
    struct cuda_uploads request;
    gumbel_summary *summaries; /* NULL: not chunk by chunk */
    void *workspace;
    size_t workspace_bytes;
};

static int32_t samples_of(const gumbel_sampling *sampling)
{
    return sampling->num_samples ? sampling->num_samples : 1;
}

/* Upload what `source` and `sampling` have but the weights; `output` is NULL for chunks. */
static void upload(struct uploaded *made, const struct source *source, gumbel_device *device,
                   const gumbel_sampling *sampling, const gumbel_output *output, int64_t draws)
{
    const int64_t batch = source_batch(source);
    const int64_t first =
        source->from_logits ? source->logits.first_token : source->head.first_token;
    gumbel_sampling *rows = &made->sampling;
    gumbel_error error = {"", ""};

    *made = (struct uploaded){.sampling = *sampling};
    require_ok(gumbel_workspace_size(device, source->from_logits ? NULL : &source->head,
                                     source->from_logits ? &source->logits : NULL, sampling, output,
                                     &made->workspace_bytes, &error),
               &error);
    made->workspace = device_memory_make(made->workspace_bytes);
    rows->temperature.data = cuda_uploads_rows(rows->temperature.data, rows->temperature.stride, 1,
                                               batch, sizeof *rows->temperature.data);
    rows->seed.data =
        cuda_uploads_rows(rows->seed.data, rows->seed.stride, 1, batch, sizeof *rows->seed.data);
    rows->position.data = cuda_uploads_rows(rows->position.data, rows->position.stride, 1, batch,
                                            sizeof *rows->position.data);
    rows->first_sample.data = cuda_uploads_rows(rows->first_sample.data, rows->first_sample.stride,
                                                1, batch, sizeof *rows->first_sample.data);
    rows->given.data = cuda_uploads_rows(rows->given.data, rows->given.stride, samples_of(sampling),
                                         batch, sizeof *rows->given.data);
    cuda_uploads_put(&made->request, rows, batch, first + source_vocab(source));
    if (!source->from_logits) {
        made->hidden = device_memory_copy_tensor(source->head.hidden);
    }
    made->summaries = output ? NULL : device_memory_make((size_t)draws * sizeof *made->summaries);
}

static void free_uploaded(const struct uploaded *made)
{
    device_memory_free(made->sampling.temperature.data);
    device_memory_free(made->sampling.seed.data);
    device_memory_free(made->sampling.position.data);
    device_memory_free(made->sampling.first_sample.data);
    device_memory_free(made->sampling.given.data);
    cuda_uploads_free(&made->request);
    device_memory_free(made->hidden.data);
    device_memory_free(made->workspace);
    device_memory_free(made->summaries);
}

/* One call on `part` of the vocabulary, in GPU memory: a draw where there is an output, else the
 * summaries of a chunk. */
static void call(const struct source *part, gumbel_device *device, const struct uploaded *on,
                 const gumbel_output *output)
{
    gumbel_error error = {"", ""};
    gumbel_status status = GUMBEL_OK;

    if (part->from_logits) {
        gumbel_logits logits = part->logits;

        logits.logits = device_memory_copy_tensor(logits.logits);
        status = output ? gumbel_sample_logits(device, NULL, &logits, &on->sampling, output,
                                               on->workspace, on->workspace_bytes, &error)
                        : gumbel_partial_logits(device, NULL, &logits, &on->sampling, on->summaries,
                                                on->workspace, on->workspace_bytes, &error);
        require_ok(status, &error);
        device_memory_free(logits.logits.data);
    } else {
        gumbel_head head = part->head;

        head.hidden = on->hidden;
        head.weight = device_memory_copy_tensor(head.weight);
        head.bias = device_memory_copy_tensor(head.bias);
        status = output ? gumbel_sample(device, NULL, &head, &on->sampling, output, on->workspace,
                                        on->workspace_bytes, &error)
                        : gumbel_partial(device, NULL, &head, &on->sampling, on->summaries,
                                         on->workspace, on->workspace_bytes, &error);
        require_ok(status, &error);
        device_memory_free(head.weight.data);
        device_memory_free(head.bias.data);
    }
}

/* Chunk after chunk; the host merges. */
static void sample_chunks(const struct source *source, gumbel_device *device,
                          const gumbel_sampling *sampling, const gumbel_output *output,
                          int64_t chunk, int32_t samples)
{
    const int64_t vocab = source_vocab(source);
    const int64_t draws = source_batch(source) * samples;
    gumbel_summary *merged = require_memory("summaries", draws, sizeof *merged);
    gumbel_summary *part = require_memory("summaries", draws, sizeof *part);
    gumbel_error error = {"", ""};
    struct uploaded on;

    upload(&on, source, device, sampling, NULL, draws);
    gumbel_summary_clear(merged, draws);
    progress_start("sampling");
    for (int64_t begin = 0, end; begin < vocab; begin = end) {
        end = vocab - begin > chunk ? begin + chunk : vocab;
        const struct source shard = source_shard(source, begin, end);

        call(&shard, device, &on, NULL);
        device_memory_fetch(part, on.summaries, (size_t)draws * sizeof *part);
        require_ok(gumbel_merge(NULL, NULL, merged, part, draws, &error), &error);
        progress_update(end, vocab);
    }
    progress_clear();
    require_ok(gumbel_finish(NULL, NULL, merged, 1, source_batch(source), samples, output, &error),
               &error);
    free_uploaded(&on);
    free(part);
    free(merged);
}

void cuda_source_sample(const struct source *source, gumbel_device *device, const char *name,
                        const gumbel_sampling *sampling, const gumbel_output *output, int64_t chunk)
{
    const int64_t batch = source_batch(source);
    const int32_t samples = samples_of(sampling);

    device_driver_use(name);
    if (chunk) {
        sample_chunks(source, device, sampling, output, chunk, samples);
    } else {
        gumbel_output there;
        struct uploaded on;

        upload(&on, source, device, sampling, output, batch * samples);
        there = cuda_output_make(output, batch, samples);
        call(source, device, &on, &there);
        cuda_output_fetch(output, &there, batch, samples);
        free_uploaded(&on);
    }
}
