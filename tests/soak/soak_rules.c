/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists and updated row parameters of a soak call (soak_call.h): in device memory, in the steps
 * that are queued, and on the CPU.
 */
#include "soak_call.h"

#include <stdlib.h>
#include <string.h>

static const step_memory gpu_memory = {gpu_copy, gpu_put, gpu_free};

static void require(const soak_call *call, gumbel_status status, const gumbel_error *error)
{
    if (status != GUMBEL_OK)
        die("%s: %s: %s", call->text, error->field, error->message);
}

/* The log-probabilities from which the surprise is updated; NULL: it stays. */
static const float *logprobs_of(const soak_call *call, const gumbel_output *out)
{
    return call->plan.req.logprobs_of == GUMBEL_PROCESSED ? out->logprobs : NULL;
}

/* --------------------------------------------------------------------------- on the GPU ---- */

void soak_rules_make(soak_call *call)
{
    request *r = &call->on_gpu->req;
    if (!call->plan.rules)
        return;
    call->rules = step_rules_make(&call->req->plan, &gpu_memory);
    step_rules_attach(call->rules, r, r->truncation.programs ? &call->on_gpu->programs : NULL);
}

void soak_rules_free(soak_call *call)
{
    if (call->rules)
        step_rules_free(call->rules);
    free(call->wanted_rules);
}

void soak_rules_reset(const soak_call *call)
{
    gumbel_error error = {"", ""};
    if (!call->rules)
        return;
    require(call, step_rules_start(call->rules, gpu, NULL, &error), &error);
    GPU(cuStreamSynchronize, NULL);
}

void soak_rules_queue_lists(const soak_call *call, CUstream stream)
{
    gumbel_error error = {"", ""};
    if (call->rules)
        require(call, step_rules_list(call->rules, gpu, stream, &error), &error);
}

void soak_rules_queue_updates(const soak_call *call, const gumbel_output *out, CUstream stream)
{
    gumbel_error error = {"", ""};
    if (call->rules)
        require(call,
                step_rules_follow(call->rules, gpu, stream, out->tokens, logprobs_of(call, out),
                                  call->req->plan.samples, &error),
                &error);
}

/* ---------------------------------------------------------------------------- comparison ---- */

/* The arrays of the rules, copied to host memory one after the other; the caller frees them. */
static char *fetch_arrays(const soak_call *call, const step_array arrays[STEP_ARRAYS])
{
    size_t bytes = 0, at = 0;
    for (int i = 0; i < STEP_ARRAYS; i++)
        bytes += arrays[i].bytes;
    char *all = make_zeroed(bytes + 1, 1);
    step_array on_gpu[STEP_ARRAYS];
    step_rules_arrays(call->rules, on_gpu);
    for (int i = 0; i < STEP_ARRAYS; at += arrays[i++].bytes)
        gpu_fetch(all + at, on_gpu[i].data, on_gpu[i].bytes);
    return all;
}

void soak_rules_expect(soak_call *call)
{
    step_array arrays[STEP_ARRAYS];
    if (!call->rules)
        return;
    step_rules_arrays(call->rules, arrays);
    free(call->wanted_rules);
    call->wanted_rules = fetch_arrays(call, arrays);
}

int soak_rules_check(const soak_call *call, const char *beside)
{
    step_array arrays[STEP_ARRAYS];
    size_t at = 0;
    int same = 1;
    if (!call->rules)
        return 1;
    step_rules_arrays(call->rules, arrays);
    char *found = fetch_arrays(call, arrays);
    for (int i = 0; i < STEP_ARRAYS && same; at += arrays[i++].bytes)
        same = CHECK(memcmp(found + at, call->wanted_rules + at, arrays[i].bytes) == 0,
                     "%s: %s differ %s", call->text, arrays[i].name, beside);
    free(found);
    return same;
}

step_rules *soak_rules_host(const soak_call *call, request *host)
{
    gumbel_error error = {"", ""};
    if (!call->rules)
        return NULL;
    step_rules *rules = step_rules_make(&host->plan, &step_host_memory);
    step_rules_attach(rules, host, host->truncation.programs ? &host->programs : NULL);
    require(call, step_rules_start(rules, cpu, NULL, &error), &error);
    require(call, step_rules_list(rules, cpu, NULL, &error), &error);
    return rules;
}

void soak_rules_compare(const soak_call *call, step_rules *host, const gumbel_output *out)
{
    step_array arrays[STEP_ARRAYS];
    gumbel_error error = {"", ""};
    size_t at = 0;
    int same = 1;
    if (!host)
        return;
    require(call,
            step_rules_follow(host, cpu, NULL, out->tokens, logprobs_of(call, out),
                              call->req->plan.samples, &error),
            &error);
    step_rules_arrays(host, arrays);
    char *found = fetch_arrays(call, arrays);
    for (int i = 0; i < STEP_ARRAYS && same; at += arrays[i++].bytes)
        same =
            !arrays[i].bytes || CHECK(memcmp(found + at, arrays[i].data, arrays[i].bytes) == 0,
                                      "%s: %s differ from the CPU's", call->text, arrays[i].name);
    free(found);
    step_rules_free(host);
}
