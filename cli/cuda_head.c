/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_head.h"

#include <stdlib.h>
#include <string.h>

#include "device_driver.h"
#include "device_memory.h"
#include "options.h"

enum { MOST_ROWS = GENERATE_GROUP, MOST_DRAWS = GENERATE_GROUP * GENERATE_GROUP };

/* The row parameters of a step, as one copy takes them. */
struct step_input {
    uint64_t seed[MOST_ROWS];
    float temperature[MOST_ROWS];
    uint32_t position[MOST_ROWS];
};

/* Its results, likewise. */
struct step_output {
    int32_t tokens[MOST_DRAWS];
    float logprobs[MOST_DRAWS];
    int32_t status[MOST_ROWS];
};

struct cuda_head {
    gumbel_device *device;
    gumbel_tensor weight;       /* on the GPU, as the four pointers below */
    float *hidden;              /* [MOST_ROWS, D] */
    struct step_input *input;   /* [1] */
    struct step_output *output; /* [1] */
    void *workspace;
    size_t workspace_bytes;
};

struct cuda_head *cuda_head_new(gumbel_device *device, gumbel_tensor weight)
{
    struct cuda_head *made = require_memory("head", 1, sizeof *made);
    gumbel_device_info info = {.struct_size = sizeof info};
    gumbel_error error = {"", ""};

    gumbel_describe(device, &info);
    device_driver_use(info.name);
    *made = (struct cuda_head){
        .device = device,
        .weight = device_memory_copy_tensor(weight),
        .hidden = device_memory_make(MOST_ROWS * (size_t)weight.cols * sizeof *made->hidden),
        .input = device_memory_make(sizeof *made->input),
        .output = device_memory_make(sizeof *made->output),
    };
    require_ok(gumbel_workspace_size(device, MOST_ROWS, weight.cols, GENERATE_GROUP,
                                     &made->workspace_bytes, &error),
               &error);
    made->workspace = device_memory_make(made->workspace_bytes);
    return made;
}

void cuda_head_free(struct cuda_head *head)
{
    if (head) {
        device_memory_free(head->weight.data);
        device_memory_free(head->hidden);
        device_memory_free(head->input);
        device_memory_free(head->output);
        device_memory_free(head->workspace);
        free(head);
    }
}

/* One value, or one a row where there is a stride, to `to`; what stands for it on the GPU. */
static const void *pack(void *to, const void *values, int64_t stride, int64_t rows, size_t size,
                        const void *there)
{
    if (values) {
        memcpy(to, values, (size_t)((rows - 1) * stride + 1) * size);
    }
    return values ? there : NULL;
}

static gumbel_sampling put_step(const struct cuda_head *on, const gumbel_head *head,
                                const gumbel_sampling *sampling)
{
    const int64_t rows = head->hidden.rows;
    gumbel_sampling made = *sampling;
    struct step_input input = {.seed = {0}};

    made.temperature = pack(input.temperature, sampling->temperature, sampling->temperature_stride,
                            rows, sizeof *input.temperature, on->input->temperature);
    made.seed = pack(input.seed, sampling->seed, sampling->seed_stride, rows, sizeof *input.seed,
                     on->input->seed);
    made.position = pack(input.position, sampling->position, sampling->position_stride, rows,
                         sizeof *input.position, on->input->position);
    device_memory_put(on->input, &input, sizeof input);
    device_memory_put(on->hidden, head->hidden.data,
                      (size_t)rows * (size_t)head->hidden.cols * sizeof *on->hidden);
    return made;
}

gumbel_status cuda_head_draw(void *context, const gumbel_head *head,
                             const gumbel_sampling *sampling, const gumbel_output *output,
                             gumbel_error *error)
{
    const struct cuda_head *on = context;
    const gumbel_sampling put = put_step(on, head, sampling);
    const size_t rows = (size_t)head->hidden.rows;
    const size_t draws = rows * (size_t)sampling->num_samples;
    const gumbel_output there = {.struct_size = sizeof there,
                                 .tokens = on->output->tokens,
                                 .logprobs = on->output->logprobs,
                                 .status = on->output->status};
    gumbel_head copied = *head;
    struct step_output results;
    gumbel_status status = GUMBEL_OK;

    copied.weight = on->weight;
    copied.hidden.data = on->hidden;
    status =
        gumbel_sample(on->device, &copied, &put, &there, on->workspace, on->workspace_bytes, error);
    if (status != GUMBEL_OK) {
        return status;
    }
    device_memory_fetch(&results, on->output, sizeof results);
    memcpy(output->tokens, results.tokens, draws * sizeof *results.tokens);
    memcpy(output->logprobs, results.logprobs, draws * sizeof *results.logprobs);
    memcpy(output->status, results.status, rows * sizeof *results.status);
    return GUMBEL_OK;
}
