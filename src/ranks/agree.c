/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks/agree.h"

#include "core/fail.h"
#include "core/row_program.h"

#define MAGIC 0x67726b32u

uint64_t ranks_add_digest(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
    return digest;
}

#define ADD(field, value)                                                                          \
    header->digests[field] = ranks_add_digest(header->digests[field], &(value), sizeof(value))

/* Adds the token list of row b. */
static void digest_list(ranks_header *header, int field, const gumbel_problem *p, int64_t b,
                        const gumbel_token_lists *lists)
{
    int64_t list = gumbel_problem_list_of_row(p, b);
    int64_t count = lists->offsets[list + 1] - lists->offsets[list];
    ADD(field, count);
    header->digests[field] =
        ranks_add_digest(header->digests[field], lists->ids + lists->offsets[list],
                         (size_t)count * sizeof *lists->ids);
}

static void digest_program(ranks_header *header, const gumbel_problem *p, int64_t b)
{
    const gumbel_row_program r = gumbel_problem_program(p, b);
    const float values[] = {r.temperature_range,
                            r.temperature_exponent,
                            r.min_p,
                            r.top_p,
                            r.typical_p,
                            r.top_n_sigma,
                            r.epsilon,
                            r.eta,
                            r.top_a,
                            r.surprise,
                            r.xtc_probability,
                            r.xtc_threshold,
                            r.smoothing_factor,
                            r.smoothing_curve,
                            r.adaptive_target};
    ADD(RANKS_TRUNCATION, r.rules);
    ADD(RANKS_TRUNCATION, r.top_k);
    ADD(RANKS_TRUNCATION, r.min_keep);
    ADD(RANKS_TRUNCATION, values);
    if (p->programs.xtc_keep.offsets)
        digest_list(header, RANKS_TRUNCATION, p, b, &p->programs.xtc_keep);
}

/* Adds the parameters of row b: their values, independent of their layout. */
static void digest_row(ranks_header *header, const gumbel_problem *p, int64_t b)
{
    int64_t slot = gumbel_problem_slot(p, b);
    float temperature = gumbel_temperature_at(p, slot);
    gumbel_row row = gumbel_problem_row(p, b);
    ADD(RANKS_TEMPERATURE, temperature);
    ADD(RANKS_SEED, row.stream.seed);
    ADD(RANKS_POSITION, row.stream.position);
    ADD(RANKS_FIRST_SAMPLE, row.stream.sample);
    if (p->features & GUMBEL_FEATURE_PENALTIES) {
        gumbel_penalties penalties = gumbel_problem_penalties(p, b);
        ADD(RANKS_TRANSFORMS, penalties);
    }
    if (p->features & GUMBEL_FEATURE_ALLOWED)
        digest_list(header, RANKS_TRANSFORMS, p, b, &p->transforms.allowed);
    if (p->features & GUMBEL_FEATURE_PROGRAM)
        digest_program(header, p, b);
    if (p->transforms.list_status) {
        uint32_t flags = gumbel_problem_list_flags(p, b);
        ADD(RANKS_TRANSFORMS, flags);
    }
    if (p->features & GUMBEL_FEATURE_TRUNCATION) {
        gumbel_problem whole = *p;
        whole.vocab = INT64_C(1) << 32; /* above every top_k */
        gumbel_rules rules = gumbel_problem_rules(&whole, b, row.greedy);
        ADD(RANKS_TRUNCATION, rules.min_p);
        ADD(RANKS_TRUNCATION, rules.top_k);
        ADD(RANKS_TRUNCATION, rules.top_p);
    }
    const gumbel_row_i32 *given = &p->sampling.given;
    if (given->data)
        header->digests[RANKS_GIVEN] = ranks_add_digest(
            header->digests[RANKS_GIVEN], given->data + (p->first_row + b) * given->stride,
            (size_t)p->sampling.num_samples * sizeof *given->data);
}

/* Adds which outputs are requested. */
static void digest_output(ranks_header *header, const gumbel_output *out)
{
    const void *const pointers[] = {
        out->logprobs, out->scores,        out->lse,        out->ranks,    out->kept,
        out->top_ids,  out->top_logprobs,  out->top_logits, out->best_ids, out->best_scores,
        out->kept_ids, out->kept_logprobs, out->entropy};
    uint64_t requested = 0;
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        requested |= (uint64_t)(pointers[i] != NULL) << i;
    ADD(RANKS_OUTPUT, requested);
    ADD(RANKS_OUTPUT, out->num_top);
    ADD(RANKS_OUTPUT, out->num_best);
    ADD(RANKS_OUTPUT, out->kept_capacity);
    ADD(RANKS_OUTPUT, out->logprobs_of);
}

/* Transforms that all ranks pass; those of a shard may be absent on some. */
#define SHARED_TRANSFORMS (GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_ALLOWED)

void ranks_digest_host_arguments(ranks_header *header, const gumbel_problem *p,
                                 const gumbel_output *output)
{
    uint32_t transforms = p->features & SHARED_TRANSFORMS;
    int noise = p->sampling.noise != NULL;
    int given = p->sampling.given.data != NULL;
    for (int i = 0; i < RANKS_FIELDS; i++)
        header->digests[i] = RANKS_DIGEST_START;
    ADD(RANKS_BATCH, p->batch);
    ADD(RANKS_BATCH, p->first_row);
    ADD(RANKS_INPUT, p->hidden_size);
    ADD(RANKS_INPUT, p->scale);
    ADD(RANKS_INPUT, p->soft_cap);
    ADD(RANKS_SAMPLES, p->sampling.num_samples);
    ADD(RANKS_DOMAIN, p->sampling.domain);
    ADD(RANKS_NOISE, noise);
    ADD(RANKS_GIVEN, given);
    ADD(RANKS_TRANSFORMS, transforms);
    ADD(RANKS_TRUNCATION, p->truncation.order);
    ADD(RANKS_TRUNCATION, p->truncation.ties);
    if (p->features & GUMBEL_FEATURE_PROGRAM)
        header->digests[RANKS_TRUNCATION] =
            ranks_add_digest(header->digests[RANKS_TRUNCATION], p->programs.rules,
                             (size_t)p->programs.count * GUMBEL_PROGRAM_LENGTH);
    digest_output(header, output);
}

void ranks_digest_arguments(ranks_header *header, const gumbel_problem *p,
                            const gumbel_output *output)
{
    ranks_digest_host_arguments(header, p, output);
    for (int64_t b = 0; b < p->batch; b++)
        digest_row(header, p, b);
}
#undef ADD

static const char *const names[RANKS_FIELDS] = {
    [RANKS_CALL] = "group",
    [RANKS_BATCH] = "batch",
    [RANKS_INPUT] = "head",
    [RANKS_VOCAB_SIZE] = "vocab_size",
    [RANKS_SAMPLES] = "sampling.num_samples",
    [RANKS_TEMPERATURE] = "sampling.temperature",
    [RANKS_SEED] = "sampling.seed",
    [RANKS_POSITION] = "sampling.position",
    [RANKS_FIRST_SAMPLE] = "sampling.first_sample",
    [RANKS_DOMAIN] = "sampling.domain",
    [RANKS_TRANSFORMS] = "sampling.transforms",
    [RANKS_TRUNCATION] = "sampling.truncation",
    [RANKS_GIVEN] = "sampling.given",
    [RANKS_NOISE] = "sampling.noise",
    [RANKS_OUTPUT] = "output",
    [RANKS_DRAFT] = "draft",
};

gumbel_status ranks_compare_headers(const void *headers, size_t stride, int32_t ranks,
                                    gumbel_error *error)
{
    const ranks_header *first = headers;
#define HEADER(rank) ((const ranks_header *)((const unsigned char *)headers + (rank)*stride))
    for (int32_t r = 0; r < ranks; r++)
        if (HEADER(r)->magic != MAGIC || HEADER(r)->step != first->step)
            return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group",
                               "ranks 0 and %d make different calls", (int)r);
    for (int32_t r = 0; r < ranks; r++)
        if (HEADER(r)->status != GUMBEL_OK) {
            char field[sizeof HEADER(r)->field];
            memcpy(field, HEADER(r)->field, sizeof field);
            field[sizeof field - 1] = '\0';
            return gumbel_fail(error, GUMBEL_ERROR_GROUP, field, "rank %d: %s", (int)r,
                               gumbel_status_string((gumbel_status)HEADER(r)->status));
        }
    for (int i = 0; i < RANKS_FIELDS; i++)
        for (int32_t r = 1; r < ranks; r++)
            GUMBEL_FORWARD(HEADER(r)->digests[i] == first->digests[i]
                               ? GUMBEL_OK
                               : gumbel_fail(error, GUMBEL_ERROR_GROUP, names[i],
                                             "ranks 0 and %d pass different values", (int)r));
#undef HEADER
    return GUMBEL_OK;
}

ranks_header ranks_new_header(uint64_t step)
{
    ranks_header header = {.magic = MAGIC, .step = step};
    return header;
}
