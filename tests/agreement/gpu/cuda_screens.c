/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_screens.h"

#include "api/call.h"

#include <stdio.h>
#include <string.h>

static gumbel_error error;

int32_t *copy_masks_to_gpu(int64_t rows, int64_t words, int64_t empty_row)
{
    int32_t *masks = make_zeroed((size_t)(rows * words), sizeof *masks);
    uint64_t state = 5;
    for (int64_t i = 0; i < rows * words; i++) {
        const uint64_t a = random_bits(&state), b = random_bits(&state), c = random_bits(&state);
        const uint64_t few = a & b & c & (a >> 32) & (b >> 32) & (c >> 32);
        const int64_t row = i / words;
        masks[i] = (int32_t)(row == empty_row ? 0 : row % 3 == 0 ? a : row % 3 == 1 ? few : ~few);
    }
    int32_t *copied = gpu_copy(masks, (size_t)(rows * words) * sizeof *masks);
    free(masks);
    return copied;
}

gpu_head copy_head_to_gpu(const generated_head *generated, screen_kind kind)
{
    static const uint64_t seed = 7;
    const gumbel_screen_options options = {
        .struct_size = sizeof options,
        .certificate = kind == SCREEN_CERTAIN ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE,
        .format = kind == SCREEN_NIBBLES ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES,
        .seed = &seed};
    size_t element = dtype_size(generated->weight.dtype);
    gpu_head h = {.head = {.struct_size = sizeof h.head,
                           .hidden = generated->hidden,
                           .weight = generated->weight},
                  .screen.format = options.format};
    h.weight = gpu_copy(generated->weight.data,
                        (size_t)(generated->weight.rows * generated->weight.cols) * element);
    h.hidden = gpu_copy(generated->hidden.data,
                        (size_t)(generated->hidden.rows * generated->hidden.cols) * element);
    h.head.weight.data = h.weight;
    h.head.hidden.data = h.hidden;
    if (gumbel_screen_size(gpu, &h.head.weight, &h.screen.bytes, &error))
        die("gumbel_screen_size: %s: %s", error.field, error.message);
    h.screen.data = gpu_make(h.screen.bytes);
    if (gumbel_screen_prepare(gpu, NULL, &h.head.weight, &options, &h.screen, &error))
        die("gumbel_screen_prepare: %s: %s", error.field, error.message);
    h.head.screen = h.screen;
    return h;
}

void free_gpu_head(gpu_head *h)
{
    gpu_free(h->weight);
    gpu_free(h->hidden);
    gpu_free(h->screen.data);
}

int is_screened(const gumbel_head *head, const gumbel_sampling *sampling)
{
    char text[4096];
    gumbel_output output = {.struct_size = sizeof output, .tokens = (int32_t *)64};
    if (gumbel_explain(gpu, head, NULL, sampling, &output, text, sizeof text, &error))
        die("gumbel_explain: %s: %s", error.field, error.message);
    return strstr(text, "draw: screen:") != NULL || strstr(text, "draw: screen-tensor:") != NULL ||
           strstr(text, "draw: screen-truncated:") != NULL;
}

int draws_bytes_alone(void)
{
    const cuda_device *cuda = (const cuda_device *)gpu;
    for (int i = 0; i < CUDA_PRODUCTS; i++)
        if (strcmp(cuda_products[i].rung.name, "hopper") == 0 && cuda->rungs.excluded >> i & 1)
            return 1;
    return cuda->base.capability != CUDA_SM90_CAPABILITY;
}

int skips_truncated(void)
{
    if (draws_bytes_alone())
        printf("  skipped: without the Hopper kernels no screen serves truncated rows\n");
    return draws_bytes_alone();
}

cuda_workspace find_workspace_arrays(const gumbel_head *head, const gumbel_sampling *sampling,
                                     void *workspace)
{
    gumbel_problem call;
    cuda_plan plan;
    gumbel_cursor cursor = {workspace, 0};
    if (gumbel_read_call_of_head(&call, gpu, NULL, head, sampling, &error) ||
        cuda_plan_call(&plan, (cuda_device *)gpu, &call, 0, &error))
        die("%s: %s", error.field, error.message);
    const cuda_workspace arrays = cuda_carve_plan(&plan, &cursor, (cuda_device *)gpu, &call);
    if (!arrays.screen.state)
        die("no screened draw");
    return arrays;
}

void draw_rows_once(const gumbel_head *head, const gumbel_sampling *sampling, outcome *drawn,
                    screened_draw *d)
{
    size_t rows = (size_t)drawn->batch, bytes;
    gumbel_output out = {.struct_size = sizeof out,
                         .tokens = gpu_make(rows * sizeof(int32_t)),
                         .scores = gpu_make(rows * sizeof(float)),
                         .status = gpu_make(rows * sizeof(int32_t))};
    if (gumbel_workspace_size(gpu, head, NULL, sampling, &out, &bytes, &error))
        die("gumbel_workspace_size: %s: %s", error.field, error.message);
    d->workspace = gpu_hostile(bytes);
    if (gumbel_sample(gpu, NULL, head, sampling, &out, d->workspace, bytes, &error))
        die("gumbel_sample: %s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(drawn->tokens, out.tokens, rows * sizeof(int32_t));
    gpu_fetch(drawn->scores, out.scores, rows * sizeof(float));
    gpu_fetch(drawn->status, out.status, rows * sizeof(int32_t));
    gpu_free(out.tokens);
    gpu_free(out.scores);
    gpu_free(out.status);
    if (!head->screen.data)
        return;
    d->arrays = find_workspace_arrays(head, sampling, d->workspace);
    gpu_fetch(&d->state, d->arrays.screen.state, sizeof d->state);
}
