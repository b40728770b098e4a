/* SPDX-License-Identifier: Apache-2.0 */
#include "draft_cycles.h"
#include "outcome.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0x5A

static void *allocate_owned(verified_arrays *v, size_t count, size_t size)
{
    void *generated = v->owned[v->owned_count++] = make_zeroed(count, size);
    memset(generated, POISON, count * size);
    return generated;
}

void verified_point(verified_arrays *v)
{
    v->to = (gumbel_verified){.struct_size = sizeof v->to,
                              .tokens = v->tokens,
                              .emitted = v->emitted,
                              .accepted = v->accepted,
                              .path = v->path,
                              .last_row = v->last_row,
                              .position = v->position,
                              .finished = v->finished,
                              .status = v->status,
                              .logprobs = v->logprobs,
                              .scores = v->scores,
                              .histogram = v->histogram};
}

verified_arrays *verified_make(int64_t requests, int32_t max_nodes, int64_t places)
{
    const size_t R = (size_t)requests, all = R * (size_t)max_nodes;
    verified_arrays *v = make_zeroed(1, sizeof *v);
    v->requests = requests;
    v->nodes = max_nodes;
    v->all = requests * max_nodes;
    v->places = places;
    v->tokens = allocate_owned(v, all, sizeof *v->tokens);
    v->emitted = allocate_owned(v, R, sizeof *v->emitted);
    v->accepted = allocate_owned(v, R, sizeof *v->accepted);
    v->path = allocate_owned(v, all, sizeof *v->path);
    v->last_row = allocate_owned(v, R, sizeof *v->last_row);
    v->finished = allocate_owned(v, R, sizeof *v->finished);
    v->status = allocate_owned(v, R, sizeof *v->status);
    v->position = allocate_owned(v, (size_t)places, sizeof *v->position);
    v->histogram = allocate_owned(v, (size_t)max_nodes, sizeof *v->histogram);
    v->logprobs = allocate_owned(v, all, sizeof *v->logprobs);
    v->scores = allocate_owned(v, all, sizeof *v->scores);
    memset(v->histogram, 0, (size_t)max_nodes * sizeof *v->histogram);
    verified_point(v);
    return v;
}

void verified_free(verified_arrays *v)
{
    for (int i = 0; i < v->owned_count; i++)
        free(v->owned[i]);
    free(v);
}

static int report_difference(const char *name, int32_t r, int64_t place, int64_t found,
                             int64_t expected)
{
    if (found == expected)
        return 0;
    printf("%s[%d] at %" PRId64 " is %" PRId64 ", expected %" PRId64 "\n", name, (int)r, place,
           found, expected);
    return 1;
}

static int report_float_difference(const char *name, int32_t r, int64_t place, float found,
                                   float expected, float tolerance)
{
    if (memcmp(&found, &expected, sizeof found) == 0 || (isnan(found) && isnan(expected)) ||
        fabsf(found - expected) <= tolerance)
        return 0;
    printf("%s[%d] at %" PRId64 " is %a, expected %a\n", name, (int)r, place, (double)found,
           (double)expected);
    return 1;
}

/* Compares the outputs of the nodes of request r. */
static int compare_request(const cycle *c, const int32_t *progress, const verified_arrays *v,
                           int32_t r, float tolerance)
{
    const texts *t = c->of;
    for (int32_t i = 0; i < c->max_nodes; i++) {
        int64_t at = r * c->max_nodes + i, place = r * t->plan.length + progress[r] + i;
        int emitted = i < c->emitted[r];
        if (report_difference("tokens", r, i, v->tokens[at], emitted ? t->tokens[place] : -1) ||
            report_difference("path", r, i, v->path[at], emitted ? c->path[at] : -1) ||
            report_float_difference("scores", r, i, v->scores[at], emitted ? t->scores[place] : NAN,
                                    0) ||
            report_float_difference("logprobs", r, i, v->logprobs[at],
                                    emitted ? t->logprobs[place] : NAN, tolerance))
            return 0;
    }
    return 1;
}

/* Whether the histogram counts request r. */
static int is_counted(const cycle *c, int32_t r)
{
    return c->status[r] != GUMBEL_ROW_UNUSED && c->status[r] != GUMBEL_ROW_DRAFT;
}

int cycle_agrees(const cycle *c, const int32_t *progress, const verified_arrays *v, float tolerance)
{
    int64_t counted = 0;
    for (int32_t r = 0; r < c->of->plan.requests; r++) {
        int32_t n = c->emitted[r], last = n > 0 ? c->path[r * c->max_nodes + n - 1] : -1;
        uint64_t position = c->of->sampling.position.data[r] + (uint64_t)(progress[r] + n);
        if (r >= c->live_rows && c->sampling.slots.of_row)
            memset(&position, POISON, sizeof position);
        if (report_difference("emitted", r, 0, v->emitted[r], n) ||
            report_difference("accepted", r, 0, v->accepted[r], n > 0 ? n - 1 : 0) ||
            report_difference("last_row", r, 0, v->last_row[r], last) ||
            report_difference("finished", r, 0, v->finished[r], c->finished[r]) ||
            report_difference("status", r, 0, v->status[r], c->status[r]) ||
            report_difference("position", r, c->slots[r], (int64_t)v->position[c->slots[r]],
                              (int64_t)position) ||
            !compare_request(c, progress, v, r, tolerance))
            return 0;
        counted += is_counted(c, r);
    }
    for (int32_t i = 0; i < c->max_nodes; i++) {
        int64_t expected = 0;
        for (int32_t r = 0; r < c->of->plan.requests; r++)
            expected += is_counted(c, r) && v->accepted[r] == i;
        counted -= expected;
        if (report_difference("histogram", 0, i, (int64_t)v->histogram[i], expected))
            return 0;
    }
    return !report_difference("histogram's sum", 0, 0, counted, 0);
}

int verified_same(const verified_arrays *wanted, const verified_arrays *found, float tolerance)
{
    const int32_t most = (int32_t)wanted->nodes;
    for (int32_t r = 0; r < wanted->requests; r++)
        if (report_difference("emitted", r, 0, found->emitted[r], wanted->emitted[r]) ||
            report_difference("accepted", r, 0, found->accepted[r], wanted->accepted[r]) ||
            report_difference("last_row", r, 0, found->last_row[r], wanted->last_row[r]) ||
            report_difference("finished", r, 0, found->finished[r], wanted->finished[r]) ||
            report_difference("status", r, 0, found->status[r], wanted->status[r]))
            return 0;
    for (int64_t at = 0; at < wanted->all; at++) {
        const int32_t r = (int32_t)(at / most);
        if (report_difference("tokens", r, at % most, found->tokens[at], wanted->tokens[at]) ||
            report_difference("path", r, at % most, found->path[at], wanted->path[at]) ||
            report_float_difference("scores", r, at % most, found->scores[at], wanted->scores[at],
                                    tolerance) ||
            report_float_difference("logprobs", r, at % most, found->logprobs[at],
                                    wanted->logprobs[at], tolerance))
            return 0;
    }
    for (int64_t i = 0; i < wanted->nodes; i++)
        if (report_difference("histogram", 0, i, (int64_t)found->histogram[i],
                              (int64_t)wanted->histogram[i]))
            return 0;
    return 1;
}

int cycle_is_within_limits(const gumbel_device *device, const cycle *c, const verified_arrays *into)
{
    const gumbel_head *head = c->of->plan.hidden_size > 0 ? &c->head : NULL;
    const gumbel_logits *logits = head ? NULL : &c->logits;
    const gumbel_limits limits = {.struct_size = sizeof limits,
                                  .batch = head ? head->hidden.rows : logits->logits.rows,
                                  .vocab_size = head ? head->weight.rows : logits->logits.cols,
                                  .hidden_size = head ? head->hidden.cols : 0,
                                  .requests = 1,
                                  .screens = head && head->screen.data,
                                  .max_nodes = c->draft.max_nodes};
    gumbel_error error = {"", ""};
    size_t bytes = 0, most = 0;
    gumbel_status status = gumbel_verify_workspace_size(device, head, logits, &c->sampling,
                                                        &c->draft, &into->to, &bytes, &error);
    if (status == GUMBEL_OK)
        status = gumbel_workspace_most(device, &limits, &most, &error);
    if (status != GUMBEL_OK)
        return report_call("a workspace size", status, &error) == GUMBEL_OK;
    if (bytes > most)
        fprintf(stderr, "a verification takes %zu bytes, and gumbel_workspace_most() is %zu\n",
                bytes, most);
    return bytes <= most;
}

gumbel_status cycle_verify(gumbel_device *device, const cycle *c, verified_arrays *into)
{
    int fused = c->of->plan.hidden_size > 0;
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    gumbel_status status =
        gumbel_verify_workspace_size(device, fused ? &c->head : NULL, fused ? NULL : &c->logits,
                                     &c->sampling, &c->draft, &into->to, &bytes, &error);
    if (status != GUMBEL_OK)
        return report_call("gumbel_verify_workspace_size", status, &error);
    void *workspace = poisoned_workspace(bytes);
    status = fused ? gumbel_verify(device, NULL, &c->head, &c->sampling, &c->draft, &into->to,
                                   workspace, bytes, &error)
                   : gumbel_verify_logits(device, NULL, &c->logits, &c->sampling, &c->draft,
                                          &into->to, workspace, bytes, &error);
    free(workspace);
    return report_call("gumbel_verify", status, &error);
}
