// SPDX-License-Identifier: Apache-2.0
//
// Drafts verified by the source of the kernels: the entry point runs over a device whose kernels
// are fibers, and every text must equal the CPU backend's text decoded step by step. An invalid
// draft, which no host checks, must spoil only its own request. Histories of the kernels must equal
// those of the CPU backend.
#include "draft_device.h"
#include "problems.h"

extern "C" {
#include "draft_cycles.h"
}

namespace
{

/* ------------------------------------------------------------------------------ drafts ---- */

/* Makes one request's draft invalid, in a way that depends on `turn`; returns the request, or -1 if
 * the cycle has no such draft. */
int32_t spoil(cycle *c, int turn, uint64_t *random)
{
    const int32_t R = c->of->plan.requests;
    int32_t r = (int32_t)random_below(random, (uint32_t)c->live_rows + 1);
    if (r >= c->live_rows || c->nodes[r] == 0)
        return -1;
    switch (turn % 6) {
    case 0:
        c->nodes[r] = -1;
        return r;
    case 1:
        c->nodes[r] = c->max_nodes + 1;
        return r;
    case 2:
    case 3:
        if (!c->draft.parents || c->nodes[r] < 2)
            return -1;
        c->parents[c->offsets[r] + 1] = turn % 6 == 2 ? 1 : -1;
        return r;
    case 4:
        c->offsets[0] = c->draft.offsets ? -1 : 0;
        return c->draft.offsets && c->nodes[0] > 0 && c->live_rows > 0 ? 0 : -1;
    default:
        c->offsets[R] = (int32_t)c->rows + 1;
        return c->draft.offsets && c->nodes[R - 1] > 0 && c->live_rows == R ? R - 1 : -1;
    }
}

/* Sets the expected result of a request whose draft is invalid. */
void expect_nothing(cycle *c, int32_t r)
{
    c->emitted[r] = 0;
    c->finished[r] = GUMBEL_FINISHED_NOT;
    c->status[r] = GUMBEL_ROW_DRAFT;
    std::fill_n(c->path + r * c->max_nodes, c->max_nodes, -1);
}

/* Numbers of tokens emitted, invalid drafts, and tokens accepted by probabilities. */
struct draft_counts {
    int64_t emitted, spoiled, accepted;
};

bool cycle_passes(emulated_device *device, const texts *text, int32_t *progress, int turn,
                  draft_counts *counts)
{
    const int32_t R = text->plan.requests;
    cycle *req = cycle_make(text, progress, &device->random);
    verified_arrays *found = verified_make(R, req->max_nodes, R + 3);
    int32_t bad = turn % 2 ? spoil(req, turn / 2, &device->random) : -1;
    if (bad >= 0)
        expect_nothing(req, bad);
    counts->spoiled += bad >= 0;
    bool good = turn % 2 && bad < 0;
    const bool skipped = good;
    if (!skipped)
        good = cycle_verify(&device->base, req, found) == GUMBEL_OK &&
               cycle_agrees(req, progress, found, 1e-5f);
    for (int32_t r = 0; r < R && good && !skipped; r++) {
        counts->emitted += found->emitted[r];
        progress[r] += found->emitted[r];
        if (progress[r] + 10 > text->plan.length)
            progress[r] = 0;
    }
    verified_free(found);
    cycle_free(req);
    return good;
}

bool texts_pass(int index, gumbel_device *cpu, emulated_device *device, draft_counts *counts)
{
    texts_plan plan = texts_plan_at_random(2 * index); /* from logits */
    texts *text = texts_make(&plan, cpu);
    int32_t progress[8] = {0};
    bool good = true;
    for (int turn = 0; turn < 12 && good; turn++)
        good = cycle_passes(device, text, progress, turn, counts);
    if (!good)
        printf("%s\n", device->what);
    texts_free(text);
    return good;
}

/* ------------------------------------------------------------------------------- rules ---- */

/* Rules that compare probabilities must emit the CPU backend's tokens. */
bool rules_pass(int index, gumbel_device *cpu, emulated_device *device, draft_counts *counts)
{
    texts_plan plan = texts_plan_at_random(index);
    texts *text = texts_make(&plan, cpu);
    int32_t progress[8] = {0};
    cycle *req = cycle_make(text, progress, &device->random);
    /* Block rules verify from logits only. */
    const bool block = index / 2 % 2 && plan.hidden_size == 0;
    cycle_set_rule(req, block ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, &device->random);
    verified_arrays *wanted = verified_make(plan.requests, req->max_nodes, plan.requests + 3);
    verified_arrays *found = verified_make(plan.requests, req->max_nodes, plan.requests + 3);
    bool good = cycle_verify(cpu, req, wanted) == GUMBEL_OK &&
                cycle_verify(&device->base, req, found) == GUMBEL_OK &&
                verified_same(wanted, found, 1e-5f);
    for (int32_t r = 0; r < plan.requests; r++)
        counts->accepted += wanted->accepted[r];
    verified_free(wanted);
    verified_free(found);
    cycle_free(req);
    if (!good)
        printf("%s: rules\n", device->what);
    texts_free(text);
    return good;
}

/* --------------------------------------------------------------------------- histories ---- */

/* A history of some slots with counts of either width. */
struct kept_history {
    gumbel_history h;
    std::vector<uint32_t> prompt, output;
    std::vector<int32_t> wide;
    std::vector<uint16_t> narrow;
};

void make_history(kept_history *generated, int64_t slots, int64_t vocab, int32_t bits,
                  uint64_t random)
{
    const size_t words = (size_t)(slots * ((vocab + 31) / 32)), counts = (size_t)(slots * vocab);
    for (size_t i = 0; i < words; i++) {
        generated->prompt.push_back((uint32_t)random_bits(&random));
        generated->output.push_back((uint32_t)random_bits(&random));
    }
    for (size_t i = 0; i < counts; i++) {
        generated->wide.push_back(GUMBEL_COUNT_MAX - (int32_t)random_below(&random, 3));
        generated->narrow.push_back((uint16_t)generated->wide.back());
    }
    generated->h = {};
    generated->h.struct_size = sizeof generated->h;
    generated->h.vocab_size = vocab;
    generated->h.prompt = generated->prompt.data();
    generated->h.output = generated->output.data();
    generated->h.counts =
        bits == 16 ? (void *)generated->narrow.data() : (void *)generated->wide.data();
    generated->h.count_bits = bits;
}

gumbel_token_lists make_lists(std::vector<int64_t> *offsets, std::vector<int32_t> *ids,
                              int64_t batch, int64_t vocab, uint64_t *random)
{
    offsets->push_back(0);
    for (int64_t b = 0; b < batch; b++) {
        for (uint32_t i = random_below(random, 40); i > 0; i--)
            ids->push_back(
                (int32_t)random_below(random, (uint32_t)std::min<int64_t>(vocab + 3, 30)));
        offsets->push_back((int64_t)ids->size());
    }
    gumbel_token_lists lists = {};
    lists.offsets = offsets->data();
    lists.ids = ids->data();
    return lists;
}

bool histories_pass(int index, gumbel_device *cpu)
{
    uint64_t random = (uint64_t)index + 77;
    const int64_t slots = 1 + random_below(&random, 5), vocab = 1 + random_below(&random, 40000);
    const int64_t batch = 1 + random_below(&random, (uint32_t)slots), width = 4;
    const int32_t bits = one_in(&random, 2) ? 16 : 32;
    char what[100];
    snprintf(what, sizeof what, "history %d: %d of %d slots, V %d, %d bits", index, (int)batch,
             (int)slots, (int)vocab, (int)bits);
    kept_history host, ours;
    make_history(&host, slots, vocab, bits, 5);
    make_history(&ours, slots, vocab, bits, 5);
    std::vector<int32_t> of_row, tokens, more;
    std::vector<int64_t> prompt_offsets, output_offsets;
    std::vector<int32_t> prompt_ids, output_ids;
    for (int64_t b = 0; b < batch; b++) {
        of_row.push_back((int32_t)(slots - 1 - b));
        more.push_back((int32_t)random_below(&random, (uint32_t)width + 1));
        for (int64_t i = 0; i < width; i++)
            tokens.push_back((int32_t)random_below(&random, (uint32_t)vocab + 2) - 1);
    }
    cuda_history_params p = {};
    p.history = ours.h;
    p.batch = batch;
    p.slots = {of_row.data(), slots};
    p.prompts = make_lists(&prompt_offsets, &prompt_ids, batch, vocab, &random);
    p.outputs = make_lists(&output_offsets, &output_ids, batch, vocab, &random);
    p.slices = (vocab + CUDA_HISTORY_SLICE - 1) / CUDA_HISTORY_SLICE;
    p.tokens = tokens.data();
    p.token_stride = width;
    p.counts = one_in(&random, 4) ? NULL : more.data();
    emulate_start_history(p, &random, what);
    emulate_update_history(p, &random, what);
    gumbel_error error = {"", ""};
    bool good = gumbel_history_start(cpu, NULL, &host.h, batch, &p.slots, &p.prompts, &p.outputs,
                                     &error) == GUMBEL_OK &&
                gumbel_history_update(cpu, NULL, &host.h, batch, &p.slots, p.tokens, width,
                                      p.counts, &error) == GUMBEL_OK &&
                host.prompt == ours.prompt && host.output == ours.output &&
                host.wide == ours.wide && host.narrow == ours.narrow;
    if (!good)
        printf("%s: %s\n", what, error.message);
    return good;
}

} // namespace

/* usage: test_drafts [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    draft_counts counts = {};
    auto passes = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return texts_pass(i, cpu, device, &counts) && rules_pass(i, cpu, device, &counts) &&
               histories_pass(i, cpu);
    };
    int failed = run_drafts(argc, argv, 2, 300, passes);
    printf("%d tokens emitted, %d drafts that cannot be, %d accepted by probabilities\n",
           (int)counts.emitted, (int)counts.spoiled, (int)counts.accepted);
    return failed != 0;
}
