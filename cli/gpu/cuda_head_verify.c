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

/* A model on the GPU; the pointers in `as` are to the other fields. */
struct model_there {
    struct model as;
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    struct cuda_uploads uploads;
};

/* A cycle's inputs and results on the GPU. */
struct cycle_there {
    struct model_there target, drafter;
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
static void upload_sampling(struct model_there *there, const gumbel_sampling *sampling,
                            int64_t tokens)
{
    gumbel_sampling *put = &there->sampling;

    *put = *sampling;
    put->temperature.data =
        device_memory_copy(sampling->temperature.data, sizeof *sampling->temperature.data);
    put->seed.data = device_memory_copy(sampling->seed.data, sizeof *sampling->seed.data);
    put->position.data =
        device_memory_copy(sampling->position.data, sizeof *sampling->position.data);
    put->first_sample.data =
        device_memory_copy(sampling->first_sample.data, sizeof *sampling->first_sample.data);
    cuda_uploads_copy(&there->uploads, put, 1, tokens);
    there->as.sampling = put;
}

/* Uploads a model; `weight` is its head's on the GPU. */
static void upload_model(struct model_there *there, const struct model *model,
                         const gumbel_tensor *weight)
{
    if (model->head) {
        there->head = *model->head;
        there->head.weight.data = weight->data;
        there->head.hidden = device_memory_copy_tensor(model->head->hidden);
        there->as.head = &there->head;
        upload_sampling(there, model->sampling, model->head->weight.rows);
    } else if (model->logits) {
        there->logits = *model->logits;
        there->logits.logits = device_memory_copy_tensor(model->logits->logits);
        there->as.logits = &there->logits;
        upload_sampling(there, model->sampling, model->logits->logits.cols);
    }
}

static void upload_draft(struct cycle_there *cycle, struct cuda_head *on, const gumbel_draft *draft)
{
    const size_t nodes = (size_t)draft->max_nodes;
    const struct model drafter = {draft->head, draft->logits, draft->sampling};
    gumbel_draft *there = &cycle->draft;
    gumbel_tensor weight = {.data = NULL};

    if (draft->head) {
        weight = cuda_head_other(on, draft->head->weight);
    }
    upload_model(&cycle->drafter, &drafter, &weight);
    *there = *draft;
    there->head = cycle->drafter.as.head;
    there->logits = cycle->drafter.as.logits;
    there->sampling = cycle->drafter.as.sampling;
    there->lse = device_memory_copy(draft->lse, nodes * sizeof *draft->lse);
    there->logprobs = device_memory_copy(draft->logprobs, nodes * sizeof *draft->logprobs);
    there->tokens = device_memory_copy(draft->tokens, nodes * sizeof *draft->tokens);
    there->parents = device_memory_copy(draft->parents, nodes * sizeof *draft->parents);
    there->limit = device_memory_copy(draft->limit, sizeof *draft->limit);
    there->stop = cuda_uploads_lists(&draft->stop, draft->requests);
}

static void allocate_results(struct cycle_there *there, const gumbel_verified *verified)
{
    there->rows = cuda_output_new(verified->rows, there->draft.max_nodes, 1);
    there->verified =
        (gumbel_verified){.struct_size = sizeof there->verified, .rows = &there->rows};
    for (int i = 0; i < VERIFIED_ARRAYS; i++) {
        void *memory =
            read_pointer(verified, i) ? device_memory_new(count_bytes(&there->draft, i)) : NULL;

        memcpy((char *)&there->verified + verified_arrays[i].at, &memory, sizeof memory);
    }
}

/* ------------------------------------------------------------------------ outputs ---- */

static void download_results(const struct cycle_there *there, const gumbel_verified *verified)
{
    for (int i = 0; i < VERIFIED_ARRAYS; i++) {
        if (read_pointer(verified, i)) {
            device_memory_download(read_pointer(verified, i), read_pointer(&there->verified, i),
                                   count_bytes(&there->draft, i));
            device_memory_free(read_pointer(&there->verified, i));
        }
    }
    cuda_output_download(verified->rows, &there->rows, there->draft.max_nodes, 1);
}

static void free_model(const struct model_there *there)
{
    device_memory_free(there->head.hidden.data);
    device_memory_free(there->logits.logits.data);
    device_memory_free(there->sampling.temperature.data);
    device_memory_free(there->sampling.seed.data);
    device_memory_free(there->sampling.position.data);
    device_memory_free(there->sampling.first_sample.data);
    cuda_uploads_free(&there->uploads);
}

static void free_cycle(const struct cycle_there *there)
{
    free_model(&there->target);
    free_model(&there->drafter);
    device_memory_free(there->draft.tokens);
    device_memory_free(there->draft.parents);
    device_memory_free(there->draft.limit);
    device_memory_free(there->draft.lse);
    device_memory_free(there->draft.logprobs);
    cuda_uploads_free_lists(&there->draft.stop);
}

/* ----------------------------------------------------------------------------- the call ---- */

static gumbel_status call_verify(const struct cycle_there *there, struct cuda_head *on,
                                 gumbel_error *error)
{
    gumbel_device *device = cuda_head_device(on);
    const struct model *by = &there->target.as;
    size_t bytes = 0;
    gumbel_status status = gumbel_verify_workspace_size(
        device, by->head, by->logits, by->sampling, &there->draft, &there->verified, &bytes, error);

    if (status != GUMBEL_OK) {
        return status;
    }
    return by->head ? gumbel_verify(device, NULL, by->head, by->sampling, &there->draft,
                                    &there->verified, cuda_head_workspace(on, bytes), bytes, error)
                    : gumbel_verify_logits(device, NULL, by->logits, by->sampling, &there->draft,
                                           &there->verified, cuda_head_workspace(on, bytes), bytes,
                                           error);
}

gumbel_status cuda_head_verify(void *context, const gumbel_head *head, const gumbel_logits *logits,
                               const gumbel_sampling *sampling, const gumbel_draft *draft,
                               const gumbel_verified *verified, gumbel_error *error)
{
    struct cuda_head *on = context;
    const struct model target = {head, logits, sampling};
    const gumbel_tensor weight = cuda_head_weight(on);
    struct cycle_there there = {.draft = {0}};
    gumbel_status status = GUMBEL_OK;

    upload_model(&there.target, &target, &weight);
    upload_draft(&there, on, draft);
    allocate_results(&there, verified);
    status = call_verify(&there, on, error);
    download_results(&there, verified);
    free_cycle(&there);
    return status;
}
