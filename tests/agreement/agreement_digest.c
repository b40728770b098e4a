/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: agreement_digest ISA [THREADS [TILE]]
 *
 * Draws a fixed list of problems with one ISA and prints a line for each. A line holds 64-bit
 * FNV-1a hashes (digests) of the tokens, scores, log-probabilities, log-normalisers, row statuses
 * and noise; for requests also of ranks, kept counts, lists, processed logits and probabilities.
 * The lines are the same on every machine, and agreement_digests.txt records them. The program uses
 * no test framework, so that it can be cross-built and run under an emulator.
 */
#include "problem_plans.h"
#include "requests.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_bytes(const void *memory, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)memory)[i]) * 0x100000001b3ull;
    return hash;
}

static void print_outcome(const char *name, int index, const outcome *drawn)
{
    size_t rows = (size_t)drawn->batch, draws = rows * (size_t)drawn->samples;
    printf("%s %d: tokens %016" PRIx64 " scores %016" PRIx64 " logprobs %016" PRIx64
           " lse %016" PRIx64 " status %016" PRIx64 "\n",
           name, index, hash_bytes(drawn->tokens, draws * 4), hash_bytes(drawn->scores, draws * 4),
           hash_bytes(drawn->logprobs, draws * 4), hash_bytes(drawn->lse, rows * 4),
           hash_bytes(drawn->status, rows * 4));
}

static void draw_plan(gumbel_device *device, const char *name, int index, problem_plan plan)
{
    problem *generated = problem_make(&plan);
    outcome *drawn = outcome_make(generated->plan.batch, generated->plan.samples);
    if (draw(device, &generated->head, &generated->sampling, drawn) != GUMBEL_OK)
        die("%s %d cannot be drawn", name, index);
    print_outcome(name, index, drawn);
    outcome_free(drawn);
    problem_free(generated);
}

/* Draws from logits: the weights of the plan are the logits. */
static void draw_plan_logits(gumbel_device *device, int index, problem_plan plan)
{
    plan.spread = 40;
    problem *generated = problem_make(&plan);
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = generated->head.weight,
                            .scale = plan.scale,
                            .soft_cap = plan.soft_cap};
    gumbel_sampling sampling = generated->sampling;
    sampling.temperature.stride = GUMBEL_SAME;
    sampling.seed.stride = GUMBEL_SAME;
    sampling.position.stride = GUMBEL_SAME;
    sampling.first_sample.stride = GUMBEL_SAME;
    outcome *drawn = outcome_make(logits.logits.rows, generated->plan.samples);
    if (draw_logits(device, &logits, &sampling, drawn) != GUMBEL_OK)
        die("logits %d cannot be drawn", index);
    print_outcome("logits", index, drawn);
    outcome_free(drawn);
    problem_free(generated);
}

static void draw_request(gumbel_device *device, const char *name, int index, int fused)
{
    request_plan plan = request_plan_at_random(index, fused);
    plan.no_late_bias = 1;
    request *req = request_make(&plan, device);
    outcome *drawn = request_outcome(req);
    gumbel_status status =
        fused ? request_draw_fused(device, req, drawn) : request_draw(device, req, drawn);
    if (status != GUMBEL_OK)
        die("%s %d cannot be drawn", name, index);
    size_t rows = (size_t)plan.batch, listed = rows * (size_t)plan.num_top;
    print_outcome(name, index, drawn);
    printf("%s %d: ranks %016" PRIx64 " kept %016" PRIx64 " ids %016" PRIx64 " logprobs %016" PRIx64
           "\n",
           name, index, hash_bytes(drawn->ranks, rows * (size_t)plan.samples * 4),
           hash_bytes(drawn->kept, rows * 4), hash_bytes(drawn->top_ids, listed * 4),
           hash_bytes(drawn->top_logprobs, listed * 4));
    outcome_free(drawn);
    request_free(req);
}

static void process_request(gumbel_device *device, int index)
{
    request_plan plan = request_plan_at_random(index, 0);
    plan.no_late_bias = 1;
    request *req = request_make(&plan, device);
    size_t bytes = (size_t)(plan.batch * plan.vocab) * sizeof(float);
    float *processed = malloc(bytes);
    if (request_process(device, &req->logits, &req->sampling, processed) != GUMBEL_OK)
        die("request %d cannot be processed", index);
    printf("processed %d: %016" PRIx64 "\n", index, hash_bytes(processed, bytes));
    free(processed);
    request_free(req);
}

/* All NaN bit patterns give one digest. */
static void softmax_request(gumbel_device *device, int index)
{
    request_plan plan = request_plan_at_random(index, 0);
    plan.no_late_bias = 1;
    request *req = request_make(&plan, device);
    size_t size = (size_t)(plan.batch * plan.vocab), bytes;
    float *found = make_zeroed(size, sizeof *found);
    void *workspace = call_workspace(device, NULL, &req->logits, &req->sampling, NULL, &bytes);
    if (gumbel_softmax(device, NULL, &req->logits, &req->sampling, found, 0, workspace, bytes,
                       NULL) != GUMBEL_OK)
        die("request %d has no softmax", index);
    for (size_t i = 0; i < size; i++)
        found[i] = isnan(found[i]) ? -1 : found[i];
    printf("softmax %d: %016" PRIx64 "\n", index, hash_bytes(found, size * sizeof *found));
    free(workspace);
    free(found);
    request_free(req);
}

static void print_noise(int index)
{
    float g[4099];
    uint64_t state = (uint64_t)index;
    uint64_t seed = random_bits(&state);
    if (gumbel_noise(seed, (uint32_t)index, 0, 0, index * INT64_C(400000000), 4099, g, NULL) !=
        GUMBEL_OK)
        die("noise %d cannot be computed", index);
    printf("noise %d: %016" PRIx64 "\n", index, hash_bytes(g, sizeof g));
}

static gumbel_isa isa_of_name(const char *name)
{
    for (gumbel_isa isa = GUMBEL_ISA_REFERENCE; isa <= GUMBEL_ISA_NEON; isa++)
        if (strcmp(name, gumbel_isa_name(isa)) == 0)
            return isa;
    die("%s is not the name of an ISA", name);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4)
        die("usage: agreement_digest ISA [THREADS [TILE]]");
    gumbel_device *device = open_device(isa_of_name(argv[1]), argc > 2 ? atoi(argv[2]) : 1,
                                        argc > 3 ? atoi(argv[3]) : 0);
    for (int i = 0; i < PLANS_BY_SIZE; i++)
        draw_plan(device, "size", i, plan_by_size(i));
    for (int i = 0; i < PLANS_BY_VOCAB; i++)
        draw_plan(device, "vocab", i, plan_by_vocab(i));
    for (int i = 0; i < 60; i++)
        draw_plan(device, "mixed", i, plan_at_random(i));
    for (int i = 0; i < 40; i++)
        draw_plan_logits(device, i, plan_at_random(i));
    for (int i = 0; i < 60; i++)
        draw_request(device, "request", i, 0);
    for (int i = 0; i < 30; i++)
        draw_request(device, "fused_request", i, 1);
    for (int i = 0; i < 60; i++)
        process_request(device, i);
    for (int i = 0; i < 60; i++)
        softmax_request(device, i);
    for (int i = 0; i < 5; i++)
        print_noise(i);
    gumbel_close(device);
    return 0;
}
