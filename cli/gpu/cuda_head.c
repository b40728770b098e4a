/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_head.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_uploads.h"
#include "device_driver.h"
#include "device_memory.h"
#include "options.h"

enum { ROWS_MAX = GENERATE_GROUP, MAX_TOP = ROWS_MAX * 128 };

/* The row parameters of a step, copied to the GPU at once. */
struct step_input {
    uint64_t seed[ROWS_MAX];
    float temperature[ROWS_MAX];
    uint64_t position[ROWS_MAX];
    uint32_t first_sample[ROWS_MAX];
};

/* The results of a step, copied to the host at once; ranks, kept and top tokens if requested. */
struct step_output {
    int32_t tokens[ROWS_MAX];
    float logprobs[ROWS_MAX];
    int32_t status[ROWS_MAX];
    int32_t ranks[ROWS_MAX];
    int32_t kept[ROWS_MAX];
    int32_t top_ids[MAX_TOP];
    float top_logprobs[MAX_TOP];
};

struct cuda_head {
    gumbel_device *device;
    gumbel_tensor weight;            /* on the GPU, as the next pointers */
    const void *draft_weight;        /* a copy of the draft head's weights; or NULL */
    const void *draft_weight_source; /* the original of `draft_weight`, in host memory */
    float *hidden;                   /* [ROWS_MAX, D] */
    struct step_input *input;        /* [1] */
    struct step_output *output;      /* [1] */
    void *workspace;
    size_t workspace_bytes;
};

struct cuda_head *cuda_head_new(gumbel_device *device, gumbel_tensor weight)
{
    struct cuda_head *copy = require_memory("head", 1, sizeof *copy);
    const gumbel_device_info info = describe_device(device);

    device_driver_use(info.name);
    *copy = (struct cuda_head){
        .device = device,
        .weight = device_memory_copy_tensor(weight),
        .hidden = device_memory_new(ROWS_MAX * (size_t)weight.cols * sizeof *copy->hidden),
        .input = device_memory_new(sizeof *copy->input),
        .output = device_memory_new(sizeof *copy->output),
    };
    return copy;
}

void cuda_head_free(struct cuda_head *head)
{
    if (head) {
        device_memory_free(head->weight.data);
        device_memory_free(head->draft_weight);
        device_memory_free(head->hidden);
        device_memory_free(head->input);
        device_memory_free(head->output);
        device_memory_free(head->workspace);
        free(head);
    }
}

/* Copies a row parameter, contiguous or one value, to `to`. Returns `on_gpu`, its address on the
 * GPU, or NULL if `values` is NULL. */
static const void *pack_rows(void *to, const void *values, int64_t stride, int64_t rows,
                             size_t size, const void *on_gpu)
{
    if (values) {
        memcpy(to, values, (size_t)(stride == GUMBEL_SAME ? 1 : rows) * size);
    }
    return values ? on_gpu : NULL;
}

static gumbel_sampling upload_step(const struct cuda_head *gpu, const gumbel_head *head,
                                   const gumbel_sampling *sampling)
{
    const int64_t rows = head->hidden.rows;
    gumbel_sampling copy = *sampling;
    struct step_input input = {.seed = {0}};

    copy.temperature.data =
        pack_rows(input.temperature, sampling->temperature.data, sampling->temperature.stride, rows,
                  sizeof *input.temperature, gpu->input->temperature);
    copy.seed.data = pack_rows(input.seed, sampling->seed.data, sampling->seed.stride, rows,
                               sizeof *input.seed, gpu->input->seed);
    copy.position.data =
        pack_rows(input.position, sampling->position.data, sampling->position.stride, rows,
                  sizeof *input.position, gpu->input->position);
    copy.first_sample.data =
        pack_rows(input.first_sample, sampling->first_sample.data, sampling->first_sample.stride,
                  rows, sizeof *input.first_sample, gpu->input->first_sample);
    device_memory_upload(gpu->input, &input, sizeof input);
    device_memory_upload(gpu->hidden, head->hidden.data,
                         (size_t)rows * (size_t)head->hidden.cols * sizeof *gpu->hidden);
    return copy;
}

gumbel_device *cuda_head_device(const struct cuda_head *head) { return head->device; }

gumbel_tensor cuda_head_weight(const struct cuda_head *head) { return head->weight; }

gumbel_tensor cuda_head_draft_weight(struct cuda_head *head, gumbel_tensor weight)
{
    if (head->draft_weight_source != weight.data) {
        device_memory_free(head->draft_weight);
        head->draft_weight = device_memory_copy_tensor(weight).data;
        head->draft_weight_source = weight.data;
    }
    weight.data = head->draft_weight;
    return weight;
}

void *cuda_head_workspace(struct cuda_head *head, size_t bytes)
{
    if (!head->workspace || bytes > head->workspace_bytes) {
        device_memory_free(head->workspace);
        head->workspace = device_memory_new(bytes);
        head->workspace_bytes = bytes;
    }
    return head->workspace;
}

/* Calls gumbel_sample() on the GPU, with a workspace that grows to the largest. */
static gumbel_status sample_rows(struct cuda_head *gpu, const gumbel_head *head,
                                 const gumbel_sampling *sampling, const gumbel_output *output,
                                 gumbel_error *error)
{
    size_t bytes = 0;
    const gumbel_status status =
        gumbel_workspace_size(gpu->device, head, NULL, sampling, output, &bytes, error);

    if (status != GUMBEL_OK) {
        return status;
    }
    return gumbel_sample(gpu->device, NULL, head, sampling, output, cuda_head_workspace(gpu, bytes),
                         bytes, error);
}

/* Copies the results that `output` has pointers for from the GPU. */
static void download_step(const struct cuda_head *gpu, const gumbel_output *output, size_t rows)
{
    const size_t top = rows * (size_t)output->num_top;
    struct step_output results;

    device_memory_download(&results, gpu->output,
                           top ? sizeof results : offsetof(struct step_output, top_ids));
    memcpy(output->tokens, results.tokens, rows * sizeof *results.tokens);
    memcpy(output->logprobs, results.logprobs, rows * sizeof *results.logprobs);
    memcpy(output->status, results.status, rows * sizeof *results.status);
    if (output->ranks) {
        memcpy(output->ranks, results.ranks, rows * sizeof *results.ranks);
    }
    if (output->kept) {
        memcpy(output->kept, results.kept, rows * sizeof *results.kept);
    }
    if (top) {
        memcpy(output->top_ids, results.top_ids, top * sizeof *results.top_ids);
        memcpy(output->top_logprobs, results.top_logprobs, top * sizeof *results.top_logprobs);
    }
}

gumbel_status cuda_head_draw(void *context, const gumbel_head *head,
                             const gumbel_sampling *sampling, const gumbel_output *output,
                             gumbel_error *error)
{
    struct cuda_head *gpu = context;
    const size_t rows = (size_t)head->hidden.rows;
    gumbel_sampling uploaded = upload_step(gpu, head, sampling);
    const gumbel_output sets = {.struct_size = sizeof sets,
                                .kept_capacity = output->kept_capacity,
                                .kept_ids = output->kept_ids,
                                .kept_logprobs = output->kept_logprobs};
    const gumbel_output sets_on_gpu = cuda_output_new(&sets, head->hidden.rows, 1);
    gumbel_output on_gpu = *output;
    gumbel_head copied = *head;
    struct cuda_uploads uploads;
    gumbel_status status = GUMBEL_OK;

    on_gpu.tokens = gpu->output->tokens;
    on_gpu.logprobs = gpu->output->logprobs;
    on_gpu.status = gpu->output->status;
    on_gpu.ranks = output->ranks ? gpu->output->ranks : NULL;
    on_gpu.kept = output->kept ? gpu->output->kept : NULL;
    on_gpu.top_ids = output->num_top ? gpu->output->top_ids : NULL;
    on_gpu.top_logprobs = output->num_top ? gpu->output->top_logprobs : NULL;
    on_gpu.kept_ids = sets_on_gpu.kept_ids;
    on_gpu.kept_logprobs = sets_on_gpu.kept_logprobs;
    copied.weight.data = gpu->weight.data;
    copied.hidden.data = gpu->hidden;
    cuda_uploads_copy(&uploads, &uploaded, head->hidden.rows, head->weight.rows);
    status = sample_rows(gpu, &copied, &uploaded, &on_gpu, error);
    if (status == GUMBEL_OK) {
        download_step(gpu, output, rows);
        cuda_output_download(&sets, &sets_on_gpu, head->hidden.rows, 1);
    }
    cuda_uploads_free(&uploads);
    return status;
}
