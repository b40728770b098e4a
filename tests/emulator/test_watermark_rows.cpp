// SPDX-License-Identifier: Apache-2.0
//
// The kernel of watermarked draws, from source on a CPU, against the oracle and the CPU backend:
// random rows, slots out of range, texts verified from drafts, and drafts that are invalid, which
// no host checks.
#include "draft_device.h"
#include "problems.h"

extern "C" {
#include "watermark_calls.h"
#include "watermark_texts.h"
}

#include <memory>

namespace
{

gumbel_status watermark(gumbel_device *device, void *, const gumbel_watermark_call *call,
                        gumbel_error *)
{
    emulate_watermark(*call, &device_of(device)->random, device_of(device)->what);
    return GUMBEL_OK;
}

gumbel_status call_rows(gumbel_device *device, watermark_call *c, gumbel_error *error)
{
    return gumbel_watermark_rows(device, NULL, &c->watermark, &c->recent, c->batch, &c->draws,
                                 error);
}

/* A row whose slot or context is out of range has no watermark; other rows keep theirs. */
bool spoiled_row_passes(emulated_device *device, watermark_call *c)
{
    gumbel_error error = {"", ""};
    const int64_t b = random_below(&device->random, (uint32_t)c->batch);
    const auto before = std::make_unique<watermark_call>(*c);
    const int64_t slot = c->watermark.slots.of_row ? c->of_row[b] : b;
    if (c->watermark.slots.of_row)
        c->of_row[b] = one_in(&device->random, 2) ? -1 : WATERMARK_PLACES;
    else if (c->watermark.context.data)
        c->context[b] = one_in(&device->random, 2) ? -1 : GUMBEL_CONTEXT_MAX + 1;
    else
        return true;
    watermark_call_poison(c);
    if (fails(call_rows(&device->base, c, &error), error, device->what))
        return false;
    bool good = c->watermarked[b] == 0;
    for (int64_t other = 0; other < c->batch; other++) {
        const int64_t place = c->watermark.slots.of_row ? before->of_row[other] : other;
        if (other != b)
            good = good && c->watermarked[other] == before->watermarked[other] &&
                   c->position[place] == before->position[place] &&
                   c->seed[place] == before->seed[place];
    }
    if (c->watermark.slots.of_row)
        good = good && c->position[slot] == UINT64_C(0x5a5a5a5a5a5a5a5a);
    if (!good)
        printf("%s: a row out of range changes others\n", device->what);
    return good;
}

bool rows_pass(int index, emulated_device *device)
{
    auto c = std::make_unique<watermark_call>();
    gumbel_error error = {"", ""};
    int64_t watermarked = 0, repeats = 0;
    watermark_call_make(c.get(), (uint64_t)index);
    if (fails(call_rows(&device->base, c.get(), &error), error, device->what) ||
        !watermark_call_agrees(c.get(), &watermarked, &repeats)) {
        printf("%s: differs\n", device->what);
        return false;
    }
    return spoiled_row_passes(device, c.get());
}

/* Nodes of a request that is invalid have position 0; those of the other request keep theirs. */
bool spoiled_nodes_pass(int index, emulated_device *device)
{
    enum { NODES = 6, ROWS = 2 * NODES };
    auto c = std::make_unique<watermark_call>();
    gumbel_error error = {"", ""};
    int32_t tokens[ROWS], parents[ROWS], nodes[2] = {NODES, NODES}, live = 2;
    int32_t watermarked[2][ROWS], context = 1 + index % 3;
    uint64_t positions[2][ROWS], seeds[2][WATERMARK_PLACES];
    watermark_call_make(c.get(), (uint64_t)index);
    gumbel_watermark w = c->watermark;
    w.drafts = NULL;
    w.num_drafts = 0;
    w.draft_stride = 0;
    w.live_rows = &live;
    w.context = {&context, GUMBEL_SAME};
    w.slots = {};
    for (int j = 0; j < ROWS; j++) {
        tokens[j] = (int32_t)random_below(&device->random, 3);
        parents[j] = j % NODES ? (int32_t)random_below(&device->random, (uint32_t)(j % NODES)) : 0;
    }
    gumbel_draft draft = {};
    draft.struct_size = sizeof draft;
    draft.requests = 2;
    draft.max_nodes = NODES;
    draft.tokens = tokens;
    draft.nodes = nodes;
    draft.parents = parents;
    const int32_t bad = (int32_t)random_below(&device->random, NODES - 1) + 1;
    for (int turn = 0; turn < 2; turn++) {
        gumbel_watermark_draws to = {sizeof to, seeds[turn], positions[turn], watermarked[turn]};
        if (turn == 1 && index % 2)
            parents[bad] = index % 4 == 1 ? bad : -1;
        else if (turn == 1)
            nodes[0] = index % 4 == 0 ? NODES + 1 : -1;
        if (fails(gumbel_watermark_nodes(&device->base, NULL, &w, &c->recent, &draft, ROWS, &to,
                                         &error),
                  error, device->what))
            return false;
    }
    bool good = true;
    for (int j = 0; j < ROWS; j++) {
        const bool spoiled = index % 2 ? j == bad : j < NODES;
        const bool below = index % 2 && j < NODES && j > bad; /* may descend from it */
        if (spoiled)
            good = good && positions[1][j] == 0 && watermarked[1][j] == 0;
        else if (!below)
            good = good && positions[0][j] == positions[1][j] &&
                   watermarked[0][j] == watermarked[1][j];
    }
    if (!good)
        printf("%s: an invalid draft changes other nodes\n", device->what);
    return good;
}

bool texts_pass(int index, gumbel_device *cpu, emulated_device *device)
{
    auto texts = std::make_unique<watermark_texts>();
    watermark_texts_counts counts = {0, 0};
    watermark_texts_make(texts.get(), (uint64_t)index, cpu);
    const bool good = watermark_texts_verify(texts.get(), cpu, &device->base, &counts);
    if (!good)
        printf("%s\n", device->what);
    return good;
}

} // namespace

/* usage: test_watermark_rows [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_backend backend = make_backend();
    backend.watermark = watermark;
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    emulated_device device = make_device(&backend);
    char what[32];
    device.what = what;
    const int failed = run_problems(argc, argv, 300, 20000, [&](int i) {
        snprintf(what, sizeof what, "problem %d", i);
        device.random = (uint64_t)i;
        return rows_pass(i, &device) && spoiled_nodes_pass(i, &device) &&
               (i % 300 || texts_pass(i, cpu, &device));
    });
    gumbel_close(cpu);
    return failed != 0;
}
