/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU whose kernels are fibers, for the entry points that verify drafts.
 */
#ifndef TESTS_EMULATOR_DRAFT_DEVICE_H
#define TESTS_EMULATOR_DRAFT_DEVICE_H

#include "launch_step.h"
#include "launch_team.h"
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

/* It draws from logits alone; a head is multiplied by a loop. */
struct emulated_device {
    gumbel_device base;
    uint64_t random;
    const char *what;
    int64_t parts;      /* that rows are cut into; 0: at random */
    race_effort effort; /* so far */
};

emulated_device *of(gumbel_device *device) { return (emulated_device *)device; }

gumbel_status call_size(const gumbel_device *, const gumbel_problem *, uint32_t, size_t *bytes,
                        gumbel_error *)
{
    *bytes = 0;
    return GUMBEL_OK;
}

/* Parts of a row, mostly short ones, where they are not said, and a launch's tag. */
void cut_rows(gumbel_weighing *p, gumbel_device *device, int64_t parts)
{
    const gumbel_problem &q = p->by.target;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t range = std::max<int64_t>(q.end_token - origin, 1);
    uint64_t *random = &of(device)->random;
    const int64_t units = (range + CUDA_MASS_UNIT - 1) / CUDA_MASS_UNIT;
    p->chunk = parts ? cuda_chunk(range, parts, CUDA_MASS_UNIT)
                     : CUDA_MASS_UNIT * (1 + random_below(random, one_in(random, 4) ? units : 3));
    p->parts = (int32_t)((range + p->chunk - 1) / p->chunk);
    p->tag = 1 + random_below(random, 1u << 30);
}

/* What a kernel that weighs finds in its workspace: anything. */
template <class T> std::vector<T> hostile(int64_t count)
{
    std::vector<T> generated((size_t)count);
    memset((void *)generated.data(), 0x5a, generated.size() * sizeof(T));
    return generated;
}

gumbel_status expand_drafts(gumbel_device *device, void *, const gumbel_verification *v,
                            const gumbel_proposal *by, gumbel_error *)
{
    gumbel_weighing p = {};
    if (!by) {
        emulate_expand_drafts(*v, &of(device)->random, of(device)->what);
        return GUMBEL_OK;
    }
    p.verification = *v;
    p.by = *by;
    emulate_expand_weighed(p, &of(device)->random, of(device)->what);
    return GUMBEL_OK;
}

size_t weighing_size(const gumbel_device *, const gumbel_verification *, const gumbel_proposal *)
{
    return 0;
}

float inverse_cap(const gumbel_problem &q) { return q.soft_cap > 0.0f ? 1.0f / q.soft_cap : 0.0f; }

void weigh(gumbel_device *device, const gumbel_verification &v, const gumbel_proposal &by)
{
    uint64_t *random = &of(device)->random;
    const int64_t parts = by.target.vocab / CUDA_MASS_UNIT + 2, said = of(device)->parts;
    auto masses = hostile<gumbel_summary>(2 * v.rows * parts);
    auto row_counters = hostile<uint64_t>(2 * v.rows);
    auto counters = hostile<uint64_t>(v.draft.requests);
    auto lists = hostile<gumbel_short_list>(v.draft.requests * parts * CUDA_MASS_THREADS / 32);
    auto contenders = hostile<gumbel_contender>(v.rows * parts);
    gumbel_weighing p = {};
    p.verification = v;
    p.by = by;
    p.inverse_caps[0] = inverse_cap(by.target);
    p.inverse_caps[1] = inverse_cap(by.draft);
    p.masses = masses.data();
    p.row_counters = row_counters.data();
    p.counters = counters.data();
    p.contenders = contenders.data();
    p.lists = lists.data();
    cut_rows(&p, device, said);
    emulate_weigh_drafts(p, random, of(device)->what);
    if (v.draft.rule == GUMBEL_RULE_BLOCK) {
        cut_rows(&p, device, said);
        emulate_sum_drafts(p, random, of(device)->what);
    }
    cut_rows(&p, device, said);
    const race_effort effort = emulate_race_drafts(p, random, of(device)->what);
    of(device)->effort.races += effort.races;
    of(device)->effort.tokens += effort.tokens;
    of(device)->effort.products += effort.products;
}

gumbel_status accept_drafts(gumbel_device *device, void *, const gumbel_verification *v,
                            const gumbel_proposal *by, gumbel_error *)
{
    if (by)
        weigh(device, *v, *by);
    else
        emulate_accept_drafts(*v, &of(device)->random, of(device)->what);
    return GUMBEL_OK;
}

/* Make the mask that lists of allowed tokens become. */
std::vector<uint32_t> allow(gumbel_device *device, gumbel_problem *q)
{
    cuda_allow_params p = {};
    p.problem = *q;
    p.words = (q->vocab + 31) / 32;
    p.slices = (32 * p.words + CUDA_HISTORY_SLICE - 1) / CUDA_HISTORY_SLICE;
    p.masked = (q->request & GUMBEL_REQUEST_MASK) != 0;
    std::vector<uint32_t> words((size_t)(q->batch * p.words));
    p.allowed = words.data();
    emulate_allow(p, &of(device)->random, of(device)->what);
    q->request = (q->request & ~GUMBEL_REQUEST_ALLOWED) | GUMBEL_REQUEST_MASK;
    q->mask_by_row = 1;
    q->transforms.mask = {(const int32_t *)words.data(), p.words};
    return words;
}

/* Serve rows by a team, to an output or as they are. */
void serve(gumbel_device *device, const gumbel_problem *problem, cuda_request_params p)
{
    std::vector<uint32_t> words;
    p.problem = *problem;
    if (p.problem.request & GUMBEL_REQUEST_ALLOWED)
        words = allow(device, &p.problem);
    p.parts = CUDA_REQUEST_CLUSTER;
    p.chunk = cuda_cluster_slice(p.problem.end_token);
    emulate_team(p, 1 + random_below(&of(device)->random, 2), &of(device)->random,
                 of(device)->what);
}

gumbel_status sample(gumbel_device *device, const gumbel_problem *problem,
                     const gumbel_output *output, void *, gumbel_error *)
{
    cuda_request_params p = {};
    p.output = *output;
    serve(device, problem, p);
    return GUMBEL_OK;
}

gumbel_status process(gumbel_device *device, const gumbel_problem *problem, float *processed,
                      int64_t stride, void *, gumbel_error *)
{
    cuda_request_params p = {};
    p.processed = processed;
    p.processed_stride = stride;
    serve(device, problem, p);
    return GUMBEL_OK;
}

/* A row of a tensor as floats. */
void load_row(const gumbel_tensor *of, int64_t row, std::vector<float> *into)
{
    into->resize((size_t)of->cols);
    for (int64_t k = 0; k < of->cols; k++)
        (*into)[(size_t)k] = dtype_load(of->data, of->dtype, row * of->stride + k);
}

/* Logits of a head by a plain loop: products that are exact have the CPU's bits. */
gumbel_status store(gumbel_device *, const gumbel_problem *q, float *logits, int64_t stride, void *,
                    gumbel_error *)
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
    emulated_device generated = {{backend}, 1, "", 0, {}};
    return generated;
}

gumbel_backend make_backend()
{
    gumbel_backend generated = {};
    generated.serves = GUMBEL_REQUEST_END - 1;
    generated.call_size = call_size;
    generated.sample = sample;
    generated.process = process;
    generated.expand_drafts = expand_drafts;
    generated.accept_drafts = accept_drafts;
    generated.weighing_size = weighing_size;
    generated.store = store;
    return generated;
}

/* Run the problems of a command line, as run_problems() does: each is passes(i, cpu, device) of the
 * CPU backend and of such a device. Returns how many failed. */
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
