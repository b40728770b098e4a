/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_shards.h"

gumbel_status gpu_shard_make(gpu_shard *made, gumbel_group *group, const gpu_request *whole,
                             const shard_cut *cut, int32_t rank, int fused, int bare,
                             const outcome *like, gumbel_error *error)
{
    *made = (gpu_shard){.group = group, .fused = fused};
    made->sampling = shards_sampling(&whole->asked, cut, rank);
    if (fused)
        made->head = shards_head(&whole->asked, cut, rank);
    else
        made->logits = shards_logits(&whole->asked, cut, rank);
    made->asked = made->out = gpu_output_make(like);
    if (bare)
        made->asked = (gumbel_output){.struct_size = sizeof made->asked,
                                      .tokens = made->out.tokens,
                                      .scores = made->out.scores,
                                      .status = made->out.status};
    gumbel_status status =
        gumbel_group_workspace_size(group, fused ? &made->head : NULL, fused ? NULL : &made->logits,
                                    &made->sampling, &made->asked, &made->bytes, error);
    if (status != GUMBEL_OK && status != GUMBEL_ERROR_UNSUPPORTED)
        die("%s: %s", error->field, error->message);
    made->workspace = gpu_hostile(made->bytes);
    return status;
}

void gpu_shard_free(gpu_shard *made)
{
    gpu_output_free(&made->out);
    gpu_free(made->workspace);
}

gumbel_status gpu_shard_draw(const gpu_shard *s, CUstream stream, gumbel_error *error)
{
    return s->fused ? gumbel_group_sample(s->group, stream, &s->head, &s->sampling, &s->asked,
                                          s->workspace, s->bytes, error)
                    : gumbel_group_sample_logits(s->group, stream, &s->logits, &s->sampling,
                                                 &s->asked, s->workspace, s->bytes, error);
}

void gpu_shard_cycle_make(gpu_shard_cycle *made, gumbel_group *group, const gpu_cycle *whole,
                          const shard_cut *cut, int32_t rank, const verified_arrays *like)
{
    const cycle *c = &whole->asked;
    const request asked = {.head = c->head, .logits = c->logits};
    gumbel_error error = {"", ""};
    *made = (gpu_shard_cycle){.group = group,
                              .sampling = c->sampling,
                              .transforms = c->transforms,
                              .draft = &c->draft,
                              .into = gpu_verified_make(like),
                              .fused = c->of->plan.hidden_size > 0};
    if (made->sampling.transforms) {
        made->transforms.mask.stride = texts_words(c->of); /* a row is the whole's */
        made->sampling.transforms = &made->transforms;
    }
    if (made->fused)
        made->head = shards_head(&asked, cut, rank);
    else
        made->logits = shards_logits(&asked, cut, rank);
    if (gumbel_group_verify_workspace_size(
            group, made->fused ? &made->head : NULL, made->fused ? NULL : &made->logits,
            &made->sampling, made->draft, &made->into->to, &made->bytes, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    made->workspace = gpu_hostile(made->bytes);
}

void gpu_shard_cycle_free(gpu_shard_cycle *made)
{
    gpu_verified_free(made->into);
    gpu_free(made->workspace);
}

gumbel_status gpu_shard_cycle_verify(const gpu_shard_cycle *s, CUstream stream, gumbel_error *error)
{
    return s->fused
               ? gumbel_group_verify(s->group, stream, &s->head, &s->sampling, s->draft,
                                     &s->into->to, s->workspace, s->bytes, error)
               : gumbel_group_verify_logits(s->group, stream, &s->logits, &s->sampling, s->draft,
                                            &s->into->to, s->workspace, s->bytes, error);
}

verified_arrays *gpu_cycle_outcome(gpu_cycle *whole)
{
    const cycle *c = &whole->asked;
    verified_arrays *made =
        verified_make(c->of->plan.requests, c->max_nodes, c->of->plan.requests + 3);
    verified_arrays *there = gpu_verified_make(made);
    gpu_cycle_prepare(whole, there);
    gpu_cycle_verify(NULL, whole, there);
    GPU(cuCtxSynchronize);
    gpu_verified_fetch(there, made);
    gpu_verified_free(there);
    return made;
}
