/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU whose kernels are fibers, for the entry points that verify drafts.
 */
#ifndef TESTS_EMULATOR_DRAFT_DEVICE_H
#define TESTS_EMULATOR_DRAFT_DEVICE_H

#include "launch_step.h"
#include "launch_cluster.h"
#include "problems.h"

#include "core/backend.h"
#include "core/fail.h"
#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "outcome.h"
}

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <vector>

namespace
{

/* The device draws from logits only; a plain loop multiplies a head. */
struct emulated_device {
    gumbel_device base;
    uint64_t random;
    const char *what;
    int64_t splits;       /* splits of a row; 0: random */
    argmax_effort effort; /* sum over all calls */
};

emulated_device *device_of(gumbel_device *device) { return (emulated_device *)device; }

gumbel_status plan_call(const gumbel_device *, const gumbel_problem *, uint64_t, gumbel_plan *plan,
                        gumbel_error *)
{
    *plan = {};
    return GUMBEL_OK;
}

/* Divides rows into `splits` splits; 0: at random, mostly into short ones. Sets the launch's
 * tag. */
void split_rows(gumbel_rule_params *p, gumbel_device *device, int64_t splits)
{
    const gumbel_problem &q = p->proposal.target;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t range = std::max<int64_t>(q.end_token - origin, 1);
    uint64_t *random = &device_of(device)->random;
    const int64_t units = (range + CUDA_MASS_UNIT - 1) / CUDA_MASS_UNIT;
    p->split_size =
        splits ? cuda_split_size(range, splits, CUDA_MASS_UNIT)
               : CUDA_MASS_UNIT * (1 + random_below(random, one_in(random, 4) ? units : 3));
    p->splits = (int32_t)((range + p->split_size - 1) / p->split_size);
    p->tag = 1 + random_below(random, 1u << 30);
}

/* Workspace with arbitrary contents. */
template <class T> std::vector<T> hostile_array(int64_t count)
{
    std::vector<T> generated((size_t)count);
    memset((void *)generated.data(), 0x5a, generated.size() * sizeof(T));
    return generated;
}

gumbel_status expand_drafts(gumbel_device *device, void *, const gumbel_verification *v,
                            const gumbel_proposal *by, gumbel_error *)
{
    gumbel_rule_params p = {};
    if (!by) {
        emulate_expand_drafts(*v, &device_of(device)->random, device_of(device)->what);
        return GUMBEL_OK;
    }
    p.verification = *v;
    p.proposal = *by;
    emulate_expand_rule_drafts(p, &device_of(device)->random, device_of(device)->what);
    return GUMBEL_OK;
}

size_t size_rule_workspace(const gumbel_device *, const gumbel_verification *,
                           const gumbel_proposal *)
{
    return 0;
}

float inverse_cap(const gumbel_problem &q) { return q.soft_cap > 0.0f ? 1.0f / q.soft_cap : 0.0f; }

void apply_rule(gumbel_device *device, const gumbel_verification &v, const gumbel_proposal &by)
{
    uint64_t *random = &device_of(device)->random;
    const int64_t splits = by.target.vocab / CUDA_MASS_UNIT + 2,
                  splits_given = device_of(device)->splits;
    auto masses = hostile_array<gumbel_summary>(2 * v.rows * splits);
    auto row_counters = hostile_array<uint64_t>(2 * v.rows);
    auto counters = hostile_array<uint64_t>(v.draft.requests);
    auto lists =
        hostile_array<gumbel_short_list>(v.draft.requests * splits * CUDA_MASS_THREADS / 32);
    auto contenders = hostile_array<gumbel_contender>(v.rows * splits);
    gumbel_rule_params p = {};
    p.verification = v;
    p.proposal = by;
    p.inverse_caps[0] = inverse_cap(by.target);
    p.inverse_caps[1] = inverse_cap(by.draft);
    p.masses = masses.data();
    p.row_counters = row_counters.data();
    p.counters = counters.data();
    p.contenders = contenders.data();
    p.lists = lists.data();
    split_rows(&p, device, splits_given);
    emulate_sum_draft_masses(p, random, device_of(device)->what);
    if (v.draft.rule == GUMBEL_RULE_BLOCK) {
        split_rows(&p, device, splits_given);
        emulate_sum_draft_residuals(p, random, device_of(device)->what);
    }
    split_rows(&p, device, splits_given);
    const argmax_effort effort = emulate_draw_residuals(p, random, device_of(device)->what);
    device_of(device)->effort.races += effort.races;
    device_of(device)->effort.tokens += effort.tokens;
    device_of(device)->effort.products += effort.products;
}

gumbel_status accept_drafts(gumbel_device *device, void *, const gumbel_verification *v,
                            const gumbel_proposal *by, gumbel_error *)
{
    if (by)
        apply_rule(device, *v, *by);
    else
        emulate_accept_drafts(*v, &device_of(device)->random, device_of(device)->what);
    return GUMBEL_OK;
}

/* Makes the mask of a call's lists of allowed tokens. */
std::vector<uint32_t> make_allowed_mask(gumbel_device *device, gumbel_problem *q)
{
    cuda_allow_params p = {};
    p.problem = *q;
    p.words = (q->vocab + 31) / 32;
    p.tiles = (32 * p.words + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE;
    p.masked = (q->features & GUMBEL_FEATURE_MASK) != 0;
    std::vector<uint32_t> words((size_t)(q->batch * p.words));
    p.allowed = words.data();
    emulate_allow(p, &device_of(device)->random, device_of(device)->what);
    q->features = (q->features & ~GUMBEL_FEATURE_ALLOWED) | GUMBEL_FEATURE_MASK;
    q->mask_by_row = 1;
    q->transforms.mask = {(const int32_t *)words.data(), p.words};
    return words;
}

/* Serves rows by clusters, to outputs or as processed rows. */
void serve_rows(gumbel_device *device, const gumbel_problem *problem, cuda_truncated_params p)
{
    std::vector<uint32_t> words;
    p.problem = *problem;
    if (p.problem.features & GUMBEL_FEATURE_ALLOWED)
        words = make_allowed_mask(device, &p.problem);
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(p.problem.end_token);
    emulate_cluster(p, 1 + random_below(&device_of(device)->random, 2), &device_of(device)->random,
                    device_of(device)->what);
}

gumbel_status sample(gumbel_device *device, const gumbel_problem *problem, const gumbel_plan *,
                     const gumbel_output *output, void *, gumbel_error *)
{
    cuda_truncated_params p = {};
    p.output = *output;
    serve_rows(device, problem, p);
    return GUMBEL_OK;
}

gumbel_status process(gumbel_device *device, const gumbel_problem *problem, const gumbel_plan *,
                      gumbel_row_array processed, void *, gumbel_error *)
{
    cuda_truncated_params p = {};
    p.processed = processed.data;
    p.processed_dtype = processed.dtype;
    p.processed_stride = processed.stride;
    serve_rows(device, problem, p);
    return GUMBEL_OK;
}

/* A row of a tensor as floats. */
void load_row(const gumbel_tensor *of, int64_t row, std::vector<float> *into)
{
    into->resize((size_t)of->cols);
    for (int64_t k = 0; k < of->cols; k++)
        (*into)[(size_t)k] = dtype_load(of->data, of->dtype, row * of->stride + k);
}

/* Computes the logits of a head by a plain loop; if all products are exact, they have the CPU's
 * bits. */
gumbel_status store_logits(gumbel_device *, const gumbel_problem *q, float *logits, int64_t stride,
                           void *, gumbel_error *)
{
    const size_t size = (size_t)q->hidden_size;
    std::vector<std::vector<float>> hidden((size_t)q->batch);
    std::vector<float> weight;
    for (int64_t b = 0; b < q->batch; b++)
        load_row(&q->hidden, b, &hidden[(size_t)b]);
    for (int64_t i = 0; i < q->vocab; i++) {
        load_row(&q->weight, i, &weight);
        for (int64_t b = 0; b < q->batch; b++) {
            float sum = q->bias.data ? dtype_load(q->bias.data, q->bias.dtype, i) : 0.0f;
            for (size_t k = 0; k < size; k++)
                sum += hidden[(size_t)b][k] * weight[k];
            logits[b * stride + i] = sum;
        }
    }
    return GUMBEL_OK;
}

emulated_device make_device(const gumbel_backend *backend)
{
    emulated_device generated = {{backend, 0}, 1, "", 0, {}};
    return generated;
}

gumbel_backend make_backend()
{
    gumbel_backend generated = {};
    generated.supports = GUMBEL_FEATURE_END - 1;
    generated.plan = plan_call;
    generated.sample = sample;
    generated.store_processed = process;
    generated.expand_drafts = expand_drafts;
    generated.accept_drafts = accept_drafts;
    generated.rule_workspace_size = size_rule_workspace;
    generated.store_logits = store_logits;
    return generated;
}

/* Runs the problems of a command line, like run_problems(). passes(i, cpu, device) runs problem i
 * on the CPU backend and on an emulated device. Returns the number of failures. */
template <class F> int run_drafts(int argc, char **argv, int few, int many, F passes)
{
    const gumbel_backend backend = make_backend();
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    emulated_device device = make_device(&backend);
    char what[32];
    device.what = what;
    int failed = run_problems(argc, argv, few, many, [&](int i) {
        snprintf(what, sizeof what, "problem %d", i);
        device.random = (uint64_t)i;
        return passes(i, cpu, &device);
    });
    gumbel_close(cpu);
    return failed;
}

} // namespace

#endif
