/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks a soak call's results: alone, on the CPU, and beside other calls (soak_call.h).
 */
#include "soak_call.h"
#include "soak_watch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POISON_WORD 0xA7A7A7A7u

/* ----------------------------------------------------------------------------------- alone ---- */

/* Whether all words are valid tokens, -1, or (in a ring) entries that no step has written. */
static int in_range(const soak_call *call, const uint32_t *words, size_t count, int is_ring)
{
    const request_plan *req = &call->plan.req;
    int64_t end = req->first_token + req->vocab;
    if (req->vocab_size && req->vocab_size < end)
        end = req->vocab_size;
    for (size_t i = 0; i < count; i++) {
        int32_t token = (int32_t)words[i];
        int good = token == -1 || (token >= req->first_token && token < end) ||
                   (call->plan.has_table && token >= 0) || (is_ring && words[i] == POISON_WORD);
        if (!CHECK(good, "%s: token %zu of a step alone is %d", call->text, i, (int)token))
            return 0;
    }
    return 1;
}

void soak_call_expect(soak_call *call)
{
    size_t draws = call->places[0].count, length = (size_t)call->ring_length;
    soak_call_reset(call);
    for (int step = 0; step < call->plan.steps; step++) {
        soak_call_queue_alone(call, step);
        GPU(cuCtxSynchronize);
        watch_step("steps alone");
    }
    gpu_fetch(call->wanted_outputs, call->outputs, soak_output_bytes(call));
    if (length > 0) {
        gpu_fetch(call->wanted_ring, call->ring, soak_ring_bytes(call));
        in_range(call, call->wanted_ring, length * draws, 1);
    }
    soak_rules_expect(call);
    for (int slot = 0; slot < call->slots; slot++)
        in_range(call, call->wanted_outputs + (size_t)slot * call->words, draws, 0);
}

/* ------------------------------------------------------------------------------ on the CPU ---- */

static void *copy_tensor_to_host(gumbel_tensor *t)
{
    if (!t->data)
        return NULL;
    size_t bytes = soak_tensor_bytes(t);
    void *host = make_zeroed(bytes, 1);
    gpu_fetch(host, t->data, bytes);
    t->data = host;
    return host;
}

/* An outcome with the plan's outputs; other arrays stay poisoned. */
static outcome *make_outcome(const soak_call *call)
{
    outcome *generated = request_outcome(call->req);
    gumbel_output *out = &generated->output;
    int outputs = call->plan.outputs;
    if (!(outputs & SOAK_SCORES))
        out->scores = NULL;
    if (!(outputs & SOAK_STATUS))
        out->status = NULL;
    if (!(outputs & SOAK_MASS))
        out->lse = out->logprobs = NULL;
    if (!(outputs & SOAK_RANKS))
        out->ranks = NULL;
    if (!(outputs & SOAK_KEPT))
        out->kept = NULL;
    return generated;
}

/* Copies the outputs of the first step into an outcome. */
static void copy_step_to_host(const soak_call *call, outcome *into)
{
    void *all[SOAK_PLACES] = {into->tokens,       into->scores, into->status,   into->lse,
                              into->logprobs,     into->ranks,  into->kept,     into->top_ids,
                              into->top_logprobs, NULL,         into->kept_ids, into->kept_logprobs,
                              into->entropy};
    for (int i = 0; i < SOAK_PLACES; i++)
        if (all[i])
            gpu_fetch(all[i], call->outputs + call->places[i].at, call->places[i].count * 4);
}

void soak_call_compare_cpu(soak_call *call)
{
    request host = *call->req;
    int fused = host.plan.hidden_size > 0;
    outcome *theirs = make_outcome(call), *ours = make_outcome(call);
    soak_call_reset(call);
    soak_call_queue_alone(call, 0);
    GPU(cuCtxSynchronize);
    copy_step_to_host(call, ours);
    watch_step("the CPU");
    host.head = call->on_gpu->req.head;
    host.head.screen = (gumbel_screen){NULL, 0, 0};
    host.logits = call->on_gpu->req.logits;
    void *owned[] = {copy_tensor_to_host(&host.head.weight), copy_tensor_to_host(&host.head.hidden),
                     copy_tensor_to_host(&host.head.bias),
                     copy_tensor_to_host(&host.logits.logits)};
    step_rules *rules = soak_rules_host(call, &host);
    gumbel_status status = (fused ? request_draw_fused : request_draw)(cpu, &host, theirs);
    if (CHECK(status == GUMBEL_OK, "%s", call->text))
        compare_request(theirs, ours, call->text);
    soak_rules_compare(call, rules, &ours->output);
    for (int i = 0; i < 4; i++)
        free(owned[i]);
    outcome_free(theirs);
    outcome_free(ours);
    watch_step("the CPU's comparison is done");
}

/* --------------------------------------------------------------------------- beside others ---- */

static int is_nan(uint32_t word)
{
    float value;
    memcpy(&value, &word, sizeof value);
    return isnan(value);
}

static int same_words(const soak_call *call, const soak_place *place, const uint32_t *wanted,
                      const uint32_t *found, int step, const char *beside)
{
    for (size_t i = 0; i < place->count; i++) {
        int same =
            found[i] == wanted[i] || (place->is_float && is_nan(found[i]) && is_nan(wanted[i]));
        if (!CHECK(same, "%s: %s[%zu] of step %d is %#" PRIx32 " %s, %#" PRIx32 " alone",
                   call->text, place->name, i, step, found[i], beside, wanted[i]))
            return 0;
    }
    return 1;
}

static int same_outputs(const soak_call *call, const uint32_t *found, const char *beside)
{
    for (int slot = 0; slot < call->slots; slot++) {
        const size_t first = (size_t)slot * call->words;
        const int step = call->plan.in_graph ? call->plan.steps - 1 : slot;
        for (int i = 0; i < SOAK_PLACES; i++) {
            size_t at = first + call->places[i].at;
            if (!same_words(call, &call->places[i], call->wanted_outputs + at, found + at, step,
                            beside))
                return 0;
        }
    }
    return 1;
}

static int same_ring(const soak_call *call, const uint32_t *found, const char *beside)
{
    size_t draws = call->places[0].count;
    const soak_place slot = {"a slot of the ring", 0, draws, 0};
    for (int64_t i = 0; i < call->ring_length; i++)
        if (!same_words(call, &slot, call->wanted_ring + (size_t)i * draws,
                        found + (size_t)i * draws, (int)i, beside))
            return 0;
    return 1;
}

int soak_call_check(soak_call *call, const char *beside)
{
    size_t bytes = soak_output_bytes(call) + soak_ring_bytes(call);
    uint32_t *found = make_zeroed(bytes, 1), *ring = found + (size_t)call->slots * call->words;
    gpu_fetch(found, call->outputs, soak_output_bytes(call));
    gpu_fetch(ring, call->ring, soak_ring_bytes(call));
    draws_compared += (int64_t)call->places[0].count * call->plan.steps;
    int same = same_outputs(call, found, beside) && same_ring(call, ring, beside) &&
               soak_rules_check(call, beside);
    free(found);
    return same;
}
