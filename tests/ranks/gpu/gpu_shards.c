/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_shards.h"

gumbel_status gpu_shard_make(gpu_shard *generated, gumbel_group *group, const gpu_request *whole,
                             const shard_split *split, int32_t rank, int fused, int tokens_only,
                             const outcome *like, gumbel_error *error)
{
    *generated = (gpu_shard){.group = group, .fused = fused};
    generated->sampling = shards_sampling(&whole->req, split, rank);
    if (fused)
        generated->head = shards_head(&whole->req, split, rank);
    else
        generated->logits = shards_logits(&whole->req, split, rank);
    generated->req = generated->out = gpu_output_make(like);
    if (tokens_only)
        generated->req = (gumbel_output){.struct_size = sizeof generated->req,
                                         .tokens = generated->out.tokens,
                                         .scores = generated->out.scores,
                                         .status = generated->out.status};
    gumbel_status status = gumbel_group_workspace_size(
        group, fused ? &generated->head : NULL, fused ? NULL : &generated->logits,
        &generated->sampling, &generated->req, &generated->bytes, error);
    if (status != GUMBEL_OK && status != GUMBEL_ERROR_UNSUPPORTED)
        die("%s: %s", error->field, error->message);
    generated->workspace = gpu_hostile(generated->bytes);
    return status;
}

void gpu_shard_free(gpu_shard *generated)
{
    gpu_output_free(&generated->out);
    gpu_free(generated->workspace);
}

gumbel_status gpu_shard_draw(const gpu_shard *s, CUstream stream, gumbel_error *error)
{
    return s->fused ? gumbel_group_sample(s->group, stream, &s->head, &s->sampling, &s->req,
                                          s->workspace, s->bytes, error)
                    : gumbel_group_sample_logits(s->group, stream, &s->logits, &s->sampling,
                                                 &s->req, s->workspace, s->bytes, error);
}

void gpu_shard_cycle_make(gpu_shard_cycle *generated, gumbel_group *group, const gpu_cycle *whole,
                          const shard_split *split, int32_t rank, const verified_arrays *like)
{
    const cycle *c = &whole->req;
    const request req = {.head = c->head, .logits = c->logits};
    gumbel_error error = {"", ""};
    *generated = (gpu_shard_cycle){.group = group,
                                   .sampling = c->sampling,
                                   .transforms = c->transforms,
                                   .draft = &c->draft,
                                   .into = gpu_verified_make(like),
                                   .fused = c->of->plan.hidden_size > 0};
    if (generated->sampling.transforms) {
        generated->transforms.mask.stride = texts_words(c->of); /* a row is the whole's */
        generated->sampling.transforms = &generated->transforms;
    }
    if (generated->fused)
        generated->head = shards_head(&req, split, rank);
    else
        generated->logits = shards_logits(&req, split, rank);
    if (gumbel_group_verify_workspace_size(
            group, generated->fused ? &generated->head : NULL,
            generated->fused ? NULL : &generated->logits, &generated->sampling, generated->draft,
            &generated->into->to, &generated->bytes, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    generated->workspace = gpu_hostile(generated->bytes);
}

void gpu_shard_cycle_free(gpu_shard_cycle *generated)
{
    gpu_verified_free(generated->into);
    gpu_free(generated->workspace);
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
    const cycle *c = &whole->req;
    verified_arrays *generated =
        verified_make(c->of->plan.requests, c->max_nodes, c->of->plan.requests + 3);
    verified_arrays *there = gpu_verified_make(generated);
    gpu_cycle_prepare(whole, there);
    gpu_cycle_verify(NULL, whole, there);
    GPU(cuCtxSynchronize);
    gpu_verified_fetch(there, generated);
    gpu_verified_free(there);
    return generated;
}
