/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_source.h"

#include <stdlib.h>

#include "device_driver.h"
#include "device_memory.h"
#include "options.h"
#include "report.h"

/* What of a call is in device memory from its beginning to its end. */
struct uploaded {
    gumbel_tensor hidden;
    gumbel_sampling sampling;
    gumbel_summary *summaries;
    void *workspace;
    size_t workspace_bytes;
};

/* One value, or one a row where there is a stride. */
static void *upload_rows(const void *data, int64_t stride, int64_t batch, size_t size)
{
    const int64_t count = batch ? (batch - 1) * stride + 1 : 0;

    return device_memory_copy(data, (size_t)count * size);
}

static struct uploaded upload(const struct source *source, gumbel_device *device,
                              const gumbel_sampling *sampling, int64_t draws)
{
    const int64_t batch = source_batch(source);
    struct uploaded made = {.sampling = *sampling};
    gumbel_sampling *rows = &made.sampling;
    gumbel_error error = {"", ""};

    rows->temperature =
        upload_rows(rows->temperature, rows->temperature_stride, batch, sizeof *rows->temperature);
    rows->seed = upload_rows(rows->seed, rows->seed_stride, batch, sizeof *rows->seed);
    rows->position =
        upload_rows(rows->position, rows->position_stride, batch, sizeof *rows->position);
    if (!source->from_logits) {
        made.hidden = device_memory_copy_tensor(source->head.hidden);
    }
    require_ok(gumbel_workspace_size(device, batch, source_hidden_size(source),
                                     rows->num_samples ? rows->num_samples : 1,
                                     &made.workspace_bytes, &error),
               &error);
    made.workspace = device_memory_make(made.workspace_bytes);
    made.summaries = device_memory_make((size_t)draws * sizeof *made.summaries);
    return made;
}

static void free_uploaded(const struct uploaded *made)
{
    device_memory_free(made->sampling.temperature);
    device_memory_free(made->sampling.seed);
    device_memory_free(made->sampling.position);
    device_memory_free(made->hidden.data);
    device_memory_free(made->workspace);
    device_memory_free(made->summaries);
}

/* The summaries of one chunk, in device memory. */
static void summarise(const struct source *chunk, gumbel_device *device, const struct uploaded *on)
{
    gumbel_error error = {"", ""};

    if (chunk->from_logits) {
        gumbel_logits logits = chunk->logits;

        logits.logits = device_memory_copy_tensor(logits.logits);
        require_ok(gumbel_partial_logits(device, &logits, &on->sampling, on->summaries,
                                         on->workspace, on->workspace_bytes, &error),
                   &error);
        device_memory_free(logits.logits.data);
    } else {
        gumbel_head head = chunk->head;

        head.hidden = on->hidden;
        head.weight = device_memory_copy_tensor(head.weight);
        head.bias = device_memory_copy_tensor(head.bias);
        require_ok(gumbel_partial(device, &head, &on->sampling, on->summaries, on->workspace,
                                  on->workspace_bytes, &error),
                   &error);
        device_memory_free(head.weight.data);
        device_memory_free(head.bias.data);
    }
}

void cuda_source_sample(const struct source *source, gumbel_device *device, const char *name,
                        const gumbel_sampling *sampling, const gumbel_output *output, int64_t chunk)
{
    const int64_t vocab = source_vocab(source);
    const int32_t samples = sampling->num_samples ? sampling->num_samples : 1;
    const int64_t draws = source_batch(source) * samples;
    gumbel_summary *merged = require_memory("summaries", draws, sizeof *merged);
    gumbel_summary *part = require_memory("summaries", draws, sizeof *part);
    gumbel_error error = {"", ""};
    struct uploaded on;

    device_driver_use(name);
    on = upload(source, device, sampling, draws);
    gumbel_summary_clear(merged, draws);
    progress_start("sampling");
    for (int64_t begin = 0, end; begin < vocab; begin = end) {
        end = chunk && vocab - begin > chunk ? begin + chunk : vocab;
        const struct source shard = source_shard(source, begin, end);

        summarise(&shard, device, &on);
        device_memory_fetch(part, on.summaries, (size_t)draws * sizeof *part);
        gumbel_merge(merged, part, draws);
        progress_update(end, vocab);
    }
    progress_clear();
    require_ok(gumbel_finish(merged, source_batch(source), samples, output, &error), &error);
    free_uploaded(&on);
    free(part);
    free(merged);
}
