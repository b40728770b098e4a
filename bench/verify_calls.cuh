/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by benchmarks of drafts on an NVIDIA GPU: the calls that verify drafts, and drafts of
 * which four in five are accepted.
 */
#pragma once

#include "gumbel/drafts.h"

#include "request_calls.cuh"

/* Hidden size of the draft's LM head. */
constexpr int64_t DRAFT_HIDDEN = 1024;
/* The workspace holds the logits of both models if both have an LM head. */
constexpr size_t VERIFY_WORKSPACE = size_t(1) << 30;

/* R requests of M nodes: drafts and outputs. */
struct cycle {
    int64_t R, M;
    int32_t *drafted, *row_tokens, *tokens, *emitted;
    float *lse, *logprobs; /* of the draft's draws */
    void *workspace;
    int64_t rows() const { return R * M; }
};

/* The model that drew the drafts. */
struct drafter {
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
};

static cycle make_cycle(int64_t R, int64_t M, void *workspace)
{
    cycle c = {R, M};
    c.drafted = copy_in(std::vector<int32_t>(R * M, -1));
    c.row_tokens = allocate<int32_t>(R * M);
    c.tokens = allocate<int32_t>(R * M);
    c.emitted = allocate<int32_t>(R);
    c.lse = allocate<float>(R * M);
    c.logprobs = allocate<float>(R * M);
    c.workspace = workspace;
    return c;
}

static void free_cycle(const cycle &c)
{
    for (int32_t *array : {c.drafted, c.row_tokens, c.tokens, c.emitted})
        CHECKED(cudaFree, array);
    CHECKED(cudaFree, c.lse);
    CHECKED(cudaFree, c.logprobs);
}

/* Source of the draft's distribution if its model has an LM head. */
enum row_source { FROM_HEAD, STORED, SUPPLIED };

/* A verification from hidden states or logits. */
struct verification {
    bool fused;
    gumbel_rule rule = GUMBEL_RULE_COUPLED;
    row_source source = FROM_HEAD;
    question request = PLAIN; /* truncation, and outputs of rows */
    bool with_rows = false;   /* whether the call has outputs of rows */
};

static drafter describe_drafter(const bench &b, int64_t rows)
{
    drafter d = {};
    d.head.struct_size = sizeof d.head;
    d.head.hidden = {b.hidden, GUMBEL_BFLOAT16, rows, DRAFT_HIDDEN, 0};
    d.head.weight = {b.weight[PEAKED], GUMBEL_BFLOAT16, VOCAB, DRAFT_HIDDEN, 0};
    d.logits = describe_logits(b.logits[PEAKED], rows);
    d.sampling = make_sampling(b.rows.temperature, nullptr, nullptr);
    d.sampling.domain = GUMBEL_DOMAIN_DRAFT;
    return d;
}

static void verify_drafts(const bench &b, const cycle &c, const verification &how)
{
    const drafter d = describe_drafter(b, c.rows());
    call target;
    fill_call(b, how.request, target);
    target.sampling.temperature = {b.rows.temperature, 0};
    target.output.tokens = c.row_tokens;
    gumbel_draft draft = {};
    draft.struct_size = sizeof draft;
    draft.requests = c.R;
    draft.max_nodes = int32_t(c.M);
    draft.rule = how.rule;
    draft.tokens = c.drafted;
    if (how.rule != GUMBEL_RULE_COUPLED) {
        const bool has_head = how.fused && how.source != STORED;
        draft.head = has_head ? &d.head : nullptr;
        draft.logits = has_head ? nullptr : &d.logits;
        draft.lse = how.source == SUPPLIED ? c.lse : nullptr;
        draft.logprobs = how.source == SUPPLIED ? c.logprobs : nullptr;
        draft.sampling = &d.sampling;
    }
    gumbel_verified verified = {};
    verified.struct_size = sizeof verified;
    verified.tokens = c.tokens;
    verified.emitted = c.emitted;
    verified.rows = how.with_rows ? &target.output : nullptr;
    const gumbel_head head = describe_head(b, GAUSSIAN, c.rows());
    const gumbel_logits logits = describe_logits(b.logits[GAUSSIAN], c.rows());
    if (how.fused)
        CHECKED(gumbel_verify, b.rows.gpu, b.rows.stream, &head, &target.sampling, &draft,
                &verified, c.workspace, VERIFY_WORKSPACE, &error);
    else
        CHECKED(gumbel_verify_logits, b.rows.gpu, b.rows.stream, &logits, &target.sampling, &draft,
                &verified, c.workspace, VERIFY_WORKSPACE, &error);
}

/* Makes drafts for a coupled verification, of which four in five equal the target's draw, and
 * checks the tokens that it emits. */
static void make_drafts(const bench &b, const cycle &c, const verification &how)
{
    std::vector<int32_t> drafted(c.rows(), -1);
    verification of_rows = how;
    of_rows.with_rows = true;
    verify_drafts(b, c, of_rows);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    const auto drawn = copy_out(c.row_tokens, c.rows());
    for (int64_t i = 0; i < c.rows(); i++)
        if (i % c.M > 0)
            drafted[i] = i % 5 ? drawn[i - 1] : (drawn[i - 1] + 1) % int32_t(VOCAB);
    CHECKED(cudaMemcpy, c.drafted, drafted.data(), drafted.size() * sizeof(int32_t),
            cudaMemcpyHostToDevice);
    verify_drafts(b, c, how);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    const auto emitted = copy_out(c.emitted, c.R), tokens = copy_out(c.tokens, c.rows());
    for (int64_t r = 0; r < c.R; r++) {
        int64_t expected = 1;
        while (expected < c.M && (r * c.M + expected) % 5)
            expected++;
        if (emitted[r] != expected)
            die("request %lld: %d tokens are emitted, not %lld", (long long)r, emitted[r],
                (long long)expected);
        for (int64_t i = 0; i < expected; i++)
            if (tokens[r * c.M + i] != drawn[r * c.M + i])
                die("request %lld: token %lld is not the draw's", (long long)r, (long long)i);
    }
}

/* Writes the log-normaliser and log-probability of each draft, as the drafter's call does. */
static void supply_drafts(const bench &b, const cycle &c)
{
    const drafter d = describe_drafter(b, c.rows());
    std::vector<int32_t> drafts = copy_out(c.drafted, c.rows());
    drafts.erase(drafts.begin());
    drafts.push_back(-1);
    int32_t *on_gpu = copy_in(drafts);
    gumbel_sampling sampling = d.sampling;
    sampling.given = {on_gpu, 1};
    gumbel_output out = make_output(c.row_tokens, nullptr);
    out.lse = c.lse;
    out.logprobs = c.logprobs;
    CHECKED(gumbel_sample, b.rows.gpu, b.rows.stream, &d.head, &sampling, &out, c.workspace,
            VERIFY_WORKSPACE, &error);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    CHECKED(cudaFree, on_gpu);
}
