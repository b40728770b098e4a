/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_head_verify.h"

#include <stddef.h>
#include <string.h>

#include "cuda_uploads.h"
#include "device_memory.h"

/* A model of a call: head or logits, the other NULL, and its sampling. */
struct model {
    const gumbel_head *head;
    const gumbel_logits *logits;
    const gumbel_sampling *sampling;
};

/* A model on the GPU; the pointers in `pointers` are to the other fields. */
struct model_on_gpu {
    struct model pointers;
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    struct cuda_uploads uploads;
};

/* A cycle's inputs and results on the GPU. */
struct cycle_on_gpu {
    struct model_on_gpu target, drafter;
    gumbel_draft draft;
    gumbel_output rows;
    gumbel_verified verified;
};

/* The optional results: of each node, or of the single request; elements have 4 bytes. */
enum { ELEMENT_BYTES = 4 };
static const struct verified_array {
    size_t at; /* offset of its pointer in a gumbel_verified */
    enum { PER_REQUEST, PER_NODE } per;
} verified_arrays[] = {
    {offsetof(gumbel_verified, tokens), PER_NODE},
    {offsetof(gumbel_verified, emitted), PER_REQUEST},
    {offsetof(gumbel_verified, path), PER_NODE},
    {offsetof(gumbel_verified, finished), PER_REQUEST},
    {offsetof(gumbel_verified, status), PER_REQUEST},
    {offsetof(gumbel_verified, logprobs), PER_NODE},
};
enum { VERIFIED_ARRAYS = sizeof verified_arrays / sizeof *verified_arrays };

static void *read_pointer(const gumbel_verified *verified, int i)
{
    void *pointer = NULL;

    memcpy(&pointer, (const char *)verified + verified_arrays[i].at, sizeof pointer);
    return pointer;
}

static size_t count_bytes(const gumbel_draft *draft, int i)
{
    return ELEMENT_BYTES * (verified_arrays[i].per == PER_NODE ? (size_t)draft->max_nodes : 1);
}

/* ------------------------------------------------------------------------- inputs ---- */

/* Uploads the parameters of one row; `tokens` is the vocabulary size. */
static void upload_sampling(struct model_on_gpu *on_gpu, const gumbel_sampling *sampling,
                            int64_t tokens)
{
    gumbel_sampling *uploaded = &on_gpu->sampling;

    *uploaded = *sampling;
    uploaded->temperature.data =
        device_memory_copy(sampling->temperature.data, sizeof *sampling->temperature.data);
    uploaded->seed.data = device_memory_copy(sampling->seed.data, sizeof *sampling->seed.data);
    uploaded->position.data =
        device_memory_copy(sampling->position.data, sizeof *sampling->position.data);
    uploaded->first_sample.data =
        device_memory_copy(sampling->first_sample.data, sizeof *sampling->first_sample.data);
    cuda_uploads_copy(&on_gpu->uploads, uploaded, 1, tokens);
    on_gpu->pointers.sampling = uploaded;
}

/* Uploads a model; `weight` is its head's on the GPU. */
static void upload_model(struct model_on_gpu *on_gpu, const struct model *model,
                         const gumbel_tensor *weight)
{
    if (model->head) {
        on_gpu->head = *model->head;
        on_gpu->head.weight.data = weight->data;
        on_gpu->head.hidden = device_memory_copy_tensor(model->head->hidden);
        on_gpu->pointers.head = &on_gpu->head;
        upload_sampling(on_gpu, model->sampling, model->head->weight.rows);
    } else if (model->logits) {
        on_gpu->logits = *model->logits;
        on_gpu->logits.logits = device_memory_copy_tensor(model->logits->logits);
        on_gpu->pointers.logits = &on_gpu->logits;
        upload_sampling(on_gpu, model->sampling, model->logits->logits.cols);
    }
}

static void upload_draft(struct cycle_on_gpu *cycle, struct cuda_head *gpu,
                         const gumbel_draft *draft)
{
    const size_t nodes = (size_t)draft->max_nodes;
    const struct model drafter = {draft->head, draft->logits, draft->sampling};
    gumbel_draft *on_gpu = &cycle->draft;
    gumbel_tensor weight = {.data = NULL};

    if (draft->head) {
        weight = cuda_head_draft_weight(gpu, draft->head->weight);
    }
    upload_model(&cycle->drafter, &drafter, &weight);
    *on_gpu = *draft;
    on_gpu->head = cycle->drafter.pointers.head;
    on_gpu->logits = cycle->drafter.pointers.logits;
    on_gpu->sampling = cycle->drafter.pointers.sampling;
    on_gpu->lse = device_memory_copy(draft->lse, nodes * sizeof *draft->lse);
    on_gpu->logprobs = device_memory_copy(draft->logprobs, nodes * sizeof *draft->logprobs);
    on_gpu->tokens = device_memory_copy(draft->tokens, nodes * sizeof *draft->tokens);
    on_gpu->parents = device_memory_copy(draft->parents, nodes * sizeof *draft->parents);
    on_gpu->limit = device_memory_copy(draft->limit, sizeof *draft->limit);
    on_gpu->stop = cuda_uploads_lists(&draft->stop, draft->requests);
}

static void allocate_results(struct cycle_on_gpu *on_gpu, const gumbel_verified *verified)
{
    on_gpu->rows = cuda_output_new(verified->rows, on_gpu->draft.max_nodes, 1);
    on_gpu->verified =
        (gumbel_verified){.struct_size = sizeof on_gpu->verified, .rows = &on_gpu->rows};
    for (int i = 0; i < VERIFIED_ARRAYS; i++) {
        void *memory =
            read_pointer(verified, i) ? device_memory_new(count_bytes(&on_gpu->draft, i)) : NULL;

        memcpy((char *)&on_gpu->verified + verified_arrays[i].at, &memory, sizeof memory);
    }
}

/* ------------------------------------------------------------------------ outputs ---- */

static void download_results(const struct cycle_on_gpu *on_gpu, const gumbel_verified *verified)
{
    for (int i = 0; i < VERIFIED_ARRAYS; i++) {
        if (read_pointer(verified, i)) {
            device_memory_download(read_pointer(verified, i), read_pointer(&on_gpu->verified, i),
                                   count_bytes(&on_gpu->draft, i));
            device_memory_free(read_pointer(&on_gpu->verified, i));
        }
    }
    cuda_output_download(verified->rows, &on_gpu->rows, on_gpu->draft.max_nodes, 1);
}

static void free_model(const struct model_on_gpu *on_gpu)
{
    device_memory_free(on_gpu->head.hidden.data);
    device_memory_free(on_gpu->logits.logits.data);
    device_memory_free(on_gpu->sampling.temperature.data);
    device_memory_free(on_gpu->sampling.seed.data);
    device_memory_free(on_gpu->sampling.position.data);
    device_memory_free(on_gpu->sampling.first_sample.data);
    cuda_uploads_free(&on_gpu->uploads);
}

static void free_cycle(const struct cycle_on_gpu *on_gpu)
{
    free_model(&on_gpu->target);
    free_model(&on_gpu->drafter);
    device_memory_free(on_gpu->draft.tokens);
    device_memory_free(on_gpu->draft.parents);
    device_memory_free(on_gpu->draft.limit);
    device_memory_free(on_gpu->draft.lse);
    device_memory_free(on_gpu->draft.logprobs);
    cuda_uploads_free_lists(&on_gpu->draft.stop);
}

/* ----------------------------------------------------------------------------- the call ---- */

static gumbel_status call_verify(const struct cycle_on_gpu *on_gpu, struct cuda_head *gpu,
                                 gumbel_error *error)
{
    gumbel_device *device = cuda_head_device(gpu);
    const struct model *target = &on_gpu->target.pointers;
    size_t bytes = 0;
    gumbel_status status =
        gumbel_verify_workspace_size(device, target->head, target->logits, target->sampling,
                                     &on_gpu->draft, &on_gpu->verified, &bytes, error);

    if (status != GUMBEL_OK) {
        return status;
    }
    return target->head
               ? gumbel_verify(device, NULL, target->head, target->sampling, &on_gpu->draft,
                               &on_gpu->verified, cuda_head_workspace(gpu, bytes), bytes, error)
               : gumbel_verify_logits(device, NULL, target->logits, target->sampling,
                                      &on_gpu->draft, &on_gpu->verified,
                                      cuda_head_workspace(gpu, bytes), bytes, error);
}

gumbel_status cuda_head_verify(void *context, const gumbel_head *head, const gumbel_logits *logits,
                               const gumbel_sampling *sampling, const gumbel_draft *draft,
                               const gumbel_verified *verified, gumbel_error *error)
{
    struct cuda_head *gpu = context;
    const struct model target = {head, logits, sampling};
    const gumbel_tensor weight = cuda_head_weight(gpu);
    struct cycle_on_gpu on_gpu = {.draft = {0}};
    gumbel_status status = GUMBEL_OK;

    upload_model(&on_gpu.target, &target, &weight);
    upload_draft(&on_gpu, gpu, draft);
    allocate_results(&on_gpu, verified);
    status = call_verify(&on_gpu, gpu, error);
    download_results(&on_gpu, verified);
    free_cycle(&on_gpu);
    return status;
}
