/* SPDX-License-Identifier: Apache-2.0 */
#include "shards.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

shard_split split_vocabulary(int64_t first, int64_t vocab, int32_t ranks, int aligned,
                             uint64_t *random)
{
    shard_split split = {.ranks = ranks};
    int64_t at[SHARDS_RANKS + 1] = {first};
    for (int32_t r = 1; r < ranks; r++) {
        at[r] = first + random_below(random, (uint32_t)vocab + 1);
        if (aligned)
            at[r] = at[r] / 64 * 64 > first ? at[r] / 64 * 64 : first;
    }
    at[ranks] = first + vocab;
    qsort(at, (size_t)ranks + 1, sizeof *at, by_value);
    int32_t turn = (int32_t)random_below(random, (uint32_t)ranks);
    for (int32_t r = 0; r < ranks; r++) {
        split.first[(r + turn) % ranks] = at[r];
        split.rows[(r + turn) % ranks] = at[r + 1] - at[r];
    }
    return split;
}

shard_split split_request(const request_plan *plan, int32_t ranks, int aligned, uint64_t *random)
{
    for (;;) {
        shard_split split =
            split_vocabulary(plan->first_token, plan->vocab, ranks, aligned, random);
        int32_t r = 0;
        while (r < ranks && split.rows[r] > 0)
            r++;
        if (r == ranks)
            return split;
        aligned &= plan->vocab >= 256 * ranks; /* a smaller vocabulary may have no aligned split */
    }
}

static const void *skip_columns(const gumbel_tensor *t, int64_t skip)
{
    return (const char *)t->data + (size_t)skip * dtype_size(t->dtype);
}

gumbel_head shards_head(const request *req, const shard_split *split, int32_t rank)
{
    gumbel_head h = req->head;
    int64_t skip = split->first[rank] - req->plan.first_token;
    int64_t stride = h.weight.stride ? h.weight.stride : h.weight.cols;
    h.weight.data = skip_columns(&h.weight, skip * stride);
    h.weight.rows = split->rows[rank];
    if (h.bias.data) {
        h.bias.data = skip_columns(&h.bias, skip);
        h.bias.cols = split->rows[rank];
        h.bias.stride = 0;
    }
    h.first_token = split->first[rank];
    return h;
}

gumbel_logits shards_logits(const request *req, const shard_split *split, int32_t rank)
{
    gumbel_logits l = req->logits;
    l.logits.stride = l.logits.stride ? l.logits.stride : l.logits.cols;
    l.logits.data = skip_columns(&l.logits, split->first[rank] - req->plan.first_token);
    l.logits.cols = split->rows[rank];
    l.first_token = split->first[rank];
    return l;
}

gumbel_sampling shards_sampling(const request *req, const shard_split *split, int32_t rank)
{
    gumbel_sampling s = req->sampling;
    if (s.noise) {
        s.noise_stride = s.noise_stride ? s.noise_stride : req->plan.vocab;
        s.noise += split->first[rank] - req->plan.first_token;
    }
    return s;
}

shard_outcome shards_outcome(const request *req, int wide)
{
    size_t batch = (size_t)req->plan.batch;
    shard_outcome generated = {.drawn = outcome_make(req->plan.batch, req->plan.samples)};
    gumbel_output *out = &generated.drawn->output;
    if (!wide)
        return generated;
    outcome_widen(generated.drawn, req->plan.num_top, req->plan.logprobs_of);
    if (req->plan.kept_capacity > 0)
        outcome_list_kept(generated.drawn, req->plan.kept_capacity);
    if (req->plan.entropy)
        outcome_add_entropy(generated.drawn);
    if (req->plan.num_top > 0)
        out->top_logits = generated.top_logits =
            make_zeroed(batch * (size_t)req->plan.num_top, sizeof *generated.top_logits);
    const int lists = req->plan.samples == 1 && !req->sampling.given.data;
    out->num_best = lists ? SHARDS_BEST : 0;
    if (lists && req->plan.seed % 3 != 0)
        out->best_ids = generated.best_ids =
            make_zeroed(batch * SHARDS_BEST, sizeof *generated.best_ids);
    if (lists && req->plan.seed % 3 != 1)
        out->best_scores = generated.best_scores =
            make_zeroed(batch * SHARDS_BEST, sizeof *generated.best_scores);
    return generated;
}

void shards_outcome_free(shard_outcome *generated)
{
    outcome_free(generated->drawn);
    free(generated->top_logits);
    free(generated->best_ids);
    free(generated->best_scores);
}

static int compare_floats(const float *a, const float *b, size_t count, const char *name,
                          const char *what)
{
    for (size_t i = 0; i < count && a; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            printf("%s: %s[%zu] is %a of one device and %a of ranks\n", what, name, i, (double)a[i],
                   (double)b[i]);
            return 0;
        }
    return 1;
}

int shards_same(const shard_outcome *whole, const shard_outcome *other, const char *what)
{
    size_t batch = (size_t)whole->drawn->batch, best = batch * SHARDS_BEST;
    if (!outcome_same(whole->drawn, 0, other->drawn, OUTCOME_ALL, what))
        return 0;
    if (whole->best_ids && memcmp(whole->best_ids, other->best_ids, best * 4) != 0) {
        printf("%s: best_ids differ\n", what);
        return 0;
    }
    return compare_floats(whole->best_scores, other->best_scores, best, "best_scores", what) &&
           compare_floats(whole->top_logits, other->top_logits,
                          batch * (size_t)whole->drawn->output.num_top, "top_logits", what);
}

gumbel_status shards_draw_whole(gumbel_device *device, const request *req, int fused,
                                shard_outcome *into)
{
    return (fused ? request_draw_fused : request_draw)(device, req, into->drawn);
}

gumbel_status shards_draw(gumbel_group *group, const request *req, const shard_split *split,
                          int32_t rank, int fused, shard_outcome *into, gumbel_error *error)
{
    gumbel_head head = {0};
    gumbel_logits logits = {0};
    gumbel_sampling sampling = shards_sampling(req, split, rank);
    size_t bytes = 0;
    if (fused)
        head = shards_head(req, split, rank);
    else
        logits = shards_logits(req, split, rank);
    gumbel_status status =
        gumbel_group_workspace_size(group, fused ? &head : NULL, fused ? NULL : &logits, &sampling,
                                    &into->drawn->output, &bytes, error);
    void *workspace = poisoned_workspace(status == GUMBEL_OK ? bytes : 64);
    outcome_poison(into->drawn);
    status = fused ? gumbel_group_sample(group, NULL, &head, &sampling, &into->drawn->output,
                                         workspace, bytes, error)
                   : gumbel_group_sample_logits(group, NULL, &logits, &sampling,
                                                &into->drawn->output, workspace, bytes, error);
    free(workspace);
    return status;
}
