/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_head_verify.h"

#include <stddef.h>
#include <string.h>

#include "cuda_uploads.h"
#include "device_memory.h"

/* A cycle's inputs and results on the GPU. */
struct cycle_there {
    gumbel_head head;
    gumbel_sampling sampling;
    struct cuda_uploads uploads;
    gumbel_draft draft;
    gumbel_output rows;
    gumbel_verified verified;
};

/* A result that is copied where it is asked for: of each node, or of the one request; all have
 * elements of 4 bytes. */
enum { ELEMENT_BYTES = 4 };
static const struct verified_array {
    size_t at; /* of its pointer in a gumbel_verified */
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

static void *pointer_of(const gumbel_verified *verified, int i)
{
    void *pointer = NULL;

    memcpy(&pointer, (const char *)verified + verified_arrays[i].at, sizeof pointer);
    return pointer;
}

static size_t bytes_of(const gumbel_draft *draft, int i)
{
    return ELEMENT_BYTES * (verified_arrays[i].per == PER_NODE ? (size_t)draft->max_nodes : 1);
}

/* ------------------------------------------------------------------------- what goes in ---- */

static void put_draft(gumbel_draft *there, const gumbel_draft *draft)
{
    const size_t nodes = (size_t)draft->max_nodes;

    *there = *draft;
    there->tokens = device_memory_copy(draft->tokens, nodes * sizeof *draft->tokens);
    there->parents = device_memory_copy(draft->parents, nodes * sizeof *draft->parents);
    there->limit = device_memory_copy(draft->limit, sizeof *draft->limit);
    there->stop = cuda_uploads_lists(&draft->stop, draft->requests);
}

static void put(struct cycle_there *there, const struct cuda_head *on, const gumbel_head *head,
                const gumbel_sampling *sampling)
{
    const gumbel_tensor *hidden = &head->hidden;

    there->head = *head;
    there->head.weight.data = cuda_head_weight(on).data;
    there->head.hidden.data =
        device_memory_copy(hidden->data, (size_t)(hidden->rows * hidden->cols) * sizeof(float));
    there->sampling = *sampling;
    there->sampling.temperature.data =
        device_memory_copy(sampling->temperature.data, sizeof *sampling->temperature.data);
    there->sampling.seed.data =
        device_memory_copy(sampling->seed.data, sizeof *sampling->seed.data);
    there->sampling.position.data =
        device_memory_copy(sampling->position.data, sizeof *sampling->position.data);
    cuda_uploads_put(&there->uploads, &there->sampling, 1, head->weight.rows);
}

static void make_results(struct cycle_there *there, const gumbel_verified *verified)
{
    there->rows = cuda_output_make(verified->rows, there->head.hidden.rows, 1);
    there->verified =
        (gumbel_verified){.struct_size = sizeof there->verified, .rows = &there->rows};
    for (int i = 0; i < VERIFIED_ARRAYS; i++) {
        void *memory =
            pointer_of(verified, i) ? device_memory_make(bytes_of(&there->draft, i)) : NULL;

        memcpy((char *)&there->verified + verified_arrays[i].at, &memory, sizeof memory);
    }
}

/* ------------------------------------------------------------------------ what comes out ---- */

static void fetch(const struct cycle_there *there, const gumbel_verified *verified)
{
    for (int i = 0; i < VERIFIED_ARRAYS; i++) {
        if (pointer_of(verified, i)) {
            device_memory_fetch(pointer_of(verified, i), pointer_of(&there->verified, i),
                                bytes_of(&there->draft, i));
            device_memory_free(pointer_of(&there->verified, i));
        }
    }
    cuda_output_fetch(verified->rows, &there->rows, there->head.hidden.rows, 1);
}

static void release(const struct cycle_there *there)
{
    device_memory_free(there->head.hidden.data);
    device_memory_free(there->sampling.temperature.data);
    device_memory_free(there->sampling.seed.data);
    device_memory_free(there->sampling.position.data);
    device_memory_free(there->draft.tokens);
    device_memory_free(there->draft.parents);
    device_memory_free(there->draft.limit);
    cuda_uploads_free_lists(&there->draft.stop);
    cuda_uploads_free(&there->uploads);
}

gumbel_status cuda_head_verify(void *context, const gumbel_head *head,
                               const gumbel_sampling *sampling, const gumbel_draft *draft,
                               const gumbel_verified *verified, gumbel_error *error)
{
    struct cuda_head *on = context;
    gumbel_device *device = cuda_head_device(on);
    struct cycle_there there;
    size_t bytes = 0;
    gumbel_status status = GUMBEL_OK;

    put(&there, on, head, sampling);
    put_draft(&there.draft, draft);
    make_results(&there, verified);
    status = gumbel_verify_workspace_size(device, &there.head, NULL, &there.sampling, &there.draft,
                                          &there.verified, &bytes, error);
    if (status == GUMBEL_OK) {
        status = gumbel_verify(device, NULL, &there.head, &there.sampling, &there.draft,
                               &there.verified, cuda_head_workspace(on, bytes), bytes, error);
    }
    fetch(&there, verified);
    release(&there);
    return status;
}
