/* SPDX-License-Identifier: Apache-2.0 */
#include "planned_calls.h"

#include "inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

cuda_device plan_device(int hopper)
{
    cuda_device generated;
    memset(&generated, 0, sizeof generated);
    generated.base.capability = hopper ? 90 : 80;
    generated.multiprocessors = hopper ? 132 : 108;
    generated.shared_bytes = (hopper ? 228 : 164) * 1024;
    generated.fused_sm80[CUDA_BF16][0] = (CUfunction)&generated;
    generated.truncated_cluster = hopper ? (CUfunction)&generated : NULL;
    generated.truncated_grid = (CUfunction)&generated;
    generated.has_cooperative_launch = 1;
    return generated;
}

_Alignas(16) char plan_data[64];

gumbel_problem plan_problem(int64_t batch, int64_t hidden_size, uint32_t request)
{
    gumbel_problem p = {.batch = batch, .vocab = 151936, .scale = 1, .features = request};
    p.end_token = p.vocab;
    p.sampling.num_samples = 1;
    p.hidden_size = hidden_size;
    if (hidden_size) {
        p.weight = tensor_of(plan_data, GUMBEL_BFLOAT16, p.vocab, hidden_size, hidden_size);
        p.hidden = tensor_of(plan_data, GUMBEL_BFLOAT16, batch, hidden_size, hidden_size);
    }
    return p;
}

const uint8_t plan_top_k_program[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TOP_K,
                                                           GUMBEL_PROGRAM_TEMPERATURE};

void plan_program(gumbel_problem *p, const uint8_t *rules)
{
    p->features &= ~(uint32_t)GUMBEL_FEATURE_TRUNCATION;
    p->features |= GUMBEL_FEATURE_PROGRAM;
    p->programs = (gumbel_programs){.rules = rules, .count = 1};
}

void plan_force_rungs(cuda_device *device, const char *names)
{
    assert_int_equal(cuda_read_rungs(&device->rungs, names, "rungs", NULL), GUMBEL_OK);
}

const char *plan_rungs(const cuda_device *device, const gumbel_problem *p, uint64_t more)
{
    static char names[64];
    static gumbel_error error;
    cuda_plan plan;
    gumbel_problem masked = cuda_replace_allowed(p);
    if (cuda_plan_call(&plan, device, &masked, more, &error) != GUMBEL_OK)
        return strcmp(error.field, "options.rungs") == 0 ? "none" : error.field;
    snprintf(names, sizeof names, "%s%s%s", plan.product ? plan.product->rung.name : "",
             plan.product && plan.rows ? " " : "", plan.rows ? plan.rows->rung.name : "");
    return names;
}
