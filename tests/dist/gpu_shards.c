/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_shards.h"

shard_cut gpu_shards_cut(const request_plan *plan, int32_t ranks, int aligned, uint64_t *random)
{
    for (;;) {
        shard_cut cut = shards_cut(plan->first_token, plan->vocab, ranks, aligned, random);
        int32_t r = 0;
        while (r < ranks && cut.rows[r] > 0)
            r++;
        if (r == ranks)
            return cut;
        aligned &= plan->vocab >= 256 * ranks; /* else no such cut may be found */
    }
}

gumbel_status gpu_shard_make(gpu_shard *made, gumbel_group *group, const gpu_request *whole,
                             const shard_cut *cut, int32_t rank, int fused, const outcome *like,
                             gumbel_error *error)
{
    *made = (gpu_shard){.group = group, .fused = fused};
    made->sampling = shards_sampling(&whole->asked, cut, rank);
    if (fused)
        made->head = shards_head(&whole->asked, cut, rank);
    else
        made->logits = shards_logits(&whole->asked, cut, rank);
    made->out = gpu_output_make(like);
    gumbel_status status =
        gumbel_group_workspace_size(group, fused ? &made->head : NULL, fused ? NULL : &made->logits,
                                    &made->sampling, &made->out, &made->bytes, error);
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
    return s->fused ? gumbel_group_sample(s->group, stream, &s->head, &s->sampling, &s->out,
                                          s->workspace, s->bytes, error)
                    : gumbel_group_sample_logits(s->group, stream, &s->logits, &s->sampling,
                                                 &s->out, s->workspace, s->bytes, error);
}
