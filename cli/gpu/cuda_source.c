/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_source.h"

#include <stdlib.h>

#include "cuda_uploads.h"
#include "device_driver.h"
#include "device_memory.h"
#include "options.h"
#include "report.h"

/* The device memory of a call. */
struct uploaded_call {
    gumbel_tensor hidden;
    gumbel_sampling sampling;
    struct cuda_uploads request;
    gumbel_summary *summaries; /* NULL: not in chunks */
    void *workspace;
    size_t workspace_bytes;
};

/* Uploads `source` and `sampling` except the weights; `output` is NULL for chunks. */
static void upload_call(struct uploaded_call *call, const struct source *source,
                        gumbel_device *device, const gumbel_sampling *sampling,
                        const gumbel_output *output, int64_t draws)
{
    const int64_t batch = source_batch(source);
    const int64_t first =
        source->from_logits ? source->logits.first_token : source->head.first_token;
    gumbel_sampling *rows = &call->sampling;
    gumbel_error error = {"", ""};

    *call = (struct uploaded_call){.sampling = *sampling};
    require_ok(gumbel_workspace_size(device, source->from_logits ? NULL : &source->head,
                                     source->from_logits ? &source->logits : NULL, sampling, output,
                                     &call->workspace_bytes, &error),
               &error);
    call->workspace = device_memory_new(call->workspace_bytes);
    rows->temperature.data = cuda_uploads_rows(rows->temperature.data, rows->temperature.stride, 1,
                                               batch, sizeof *rows->temperature.data);
    rows->seed.data =
        cuda_uploads_rows(rows->seed.data, rows->seed.stride, 1, batch, sizeof *rows->seed.data);
    rows->position.data = cuda_uploads_rows(rows->position.data, rows->position.stride, 1, batch,
                                            sizeof *rows->position.data);
    rows->first_sample.data = cuda_uploads_rows(rows->first_sample.data, rows->first_sample.stride,
                                                1, batch, sizeof *rows->first_sample.data);
    rows->given.data = cuda_uploads_rows(rows->given.data, rows->given.stride,
                                         count_samples(sampling), batch, sizeof *rows->given.data);
    cuda_uploads_copy(&call->request, rows, batch, first + source_vocab(source));
    if (!source->from_logits) {
        call->hidden = device_memory_copy_tensor(source->head.hidden);
    }
    call->summaries = output ? NULL : device_memory_new((size_t)draws * sizeof *call->summaries);
}

static void free_uploaded_call(const struct uploaded_call *call)
{
    device_memory_free(call->sampling.temperature.data);
    device_memory_free(call->sampling.seed.data);
    device_memory_free(call->sampling.position.data);
    device_memory_free(call->sampling.first_sample.data);
    device_memory_free(call->sampling.given.data);
    cuda_uploads_free(&call->request);
    device_memory_free(call->hidden.data);
    device_memory_free(call->workspace);
    device_memory_free(call->summaries);
}

/* Uploads the weights of `slice`, a range of the vocabulary, and calls the library: a draw if there
 * is an output, else the summaries of a chunk. */
static void sample_slice(const struct source *slice, gumbel_device *device,
                         const struct uploaded_call *uploaded, const gumbel_output *output)
{
    gumbel_error error = {"", ""};
    gumbel_status status = GUMBEL_OK;

    if (slice->from_logits) {
        gumbel_logits logits = slice->logits;

        logits.logits = device_memory_copy_tensor(logits.logits);
        status = output
                     ? gumbel_sample_logits(device, NULL, &logits, &uploaded->sampling, output,
                                            uploaded->workspace, uploaded->workspace_bytes, &error)
                     : gumbel_partial_logits(device, NULL, &logits, &uploaded->sampling,
                                             uploaded->summaries, uploaded->workspace,
                                             uploaded->workspace_bytes, &error);
        require_ok(status, &error);
        device_memory_free(logits.logits.data);
    } else {
        gumbel_head head = slice->head;

        head.hidden = uploaded->hidden;
        head.weight = device_memory_copy_tensor(head.weight);
        head.bias = device_memory_copy_tensor(head.bias);
        status = output
                     ? gumbel_sample(device, NULL, &head, &uploaded->sampling, output,
                                     uploaded->workspace, uploaded->workspace_bytes, &error)
                     : gumbel_partial(device, NULL, &head, &uploaded->sampling, uploaded->summaries,
                                      uploaded->workspace, uploaded->workspace_bytes, &error);
        require_ok(status, &error);
        device_memory_free(head.weight.data);
        device_memory_free(head.bias.data);
    }
}

/* Samples in chunks, which the host merges. */
static void sample_chunks(const struct source *source, gumbel_device *device,
                          const gumbel_sampling *sampling, const gumbel_output *output,
                          int64_t chunk, int32_t samples)
{
    const int64_t vocab = source_vocab(source);
    const int64_t draws = source_batch(source) * samples;
    gumbel_summary *merged = require_memory("summaries", draws, sizeof *merged);
    gumbel_summary *partial = require_memory("summaries", draws, sizeof *partial);
    gumbel_error error = {"", ""};
    struct uploaded_call uploaded;

    upload_call(&uploaded, source, device, sampling, NULL, draws);
    gumbel_summary_clear(merged, draws);
    progress_start("sampling");
    for (int64_t begin = 0, end; begin < vocab; begin = end) {
        end = vocab - begin > chunk ? begin + chunk : vocab;
        const struct source shard = source_shard(source, begin, end);

        sample_slice(&shard, device, &uploaded, NULL);
        device_memory_download(partial, uploaded.summaries, (size_t)draws * sizeof *partial);
        require_ok(gumbel_merge(NULL, NULL, merged, partial, draws, &error), &error);
        progress_update(end, vocab);
    }
    progress_clear();
    require_ok(gumbel_finish(NULL, NULL, merged, 1, source_batch(source), samples, output, &error),
               &error);
    free_uploaded_call(&uploaded);
    free(partial);
    free(merged);
}

void cuda_source_sample(const struct source *source, gumbel_device *device, const char *name,
                        const gumbel_sampling *sampling, const gumbel_output *output, int64_t chunk)
{
    const int64_t batch = source_batch(source);
    const int32_t samples = count_samples(sampling);

    device_driver_use(name);
    if (chunk) {
        sample_chunks(source, device, sampling, output, chunk, samples);
    } else {
        gumbel_output on_gpu;
        struct uploaded_call uploaded;

        upload_call(&uploaded, source, device, sampling, output, batch * samples);
        on_gpu = cuda_output_new(output, batch, samples);
        sample_slice(source, device, &uploaded, &on_gpu);
        cuda_output_download(output, &on_gpu, batch, samples);
        free_uploaded_call(&uploaded);
    }
}
