// SPDX-License-Identifier: Apache-2.0
//
// The kernels of recent tokens, from source on a CPU, against the CPU backend: random rings and
// rules, lists without room, slots out of range; rings and windows started and appended to.
#include "launch_step.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "list_calls.h"
#include "outcome.h"
#include "validate/validate_recent.h"
}

#include "problems.h"

#include <cstring>
#include <vector>

namespace
{

/* ----------------------------------------------------------------------------------- lists ---- */

/* Whether a row has no ids, and the status of a slot out of range. */
bool is_refused(const gumbel_row_lists &lists, int64_t b)
{
    bool empty = lists.status[b] == GUMBEL_ROW_SLOT;
    for (int64_t i = b * lists.capacity; i < (b + 1) * lists.capacity; i++)
        empty = empty && lists.banned[i] == INT32_MAX && lists.late_ids[i] == INT32_MAX &&
                lists.late_values[i] == 0;
    return empty;
}

bool lists_pass(int index, gumbel_device *cpu)
{
    uint64_t random = 900 + (uint64_t)index;
    char what[60];
    gumbel_error error = {"", ""};
    snprintf(what, sizeof what, "lists %d", index);
    list_call *call = list_call_make((uint64_t)index, cpu);
    cuda_lists_params p = {};
    p.call.batch = call->batch;
    p.call.slots = call->slots;
    const gumbel_row_lists ours = list_call_outputs(call);
    p.places = cuda_list_places(ours.capacity);
    bool good = !fails(gumbel_make_lists(cpu, NULL, &call->rules, &call->recent, call->batch,
                                         &call->slots, &call->lists, &error),
                       error, what) &&
                !fails(gumbel_read_lists_call(&p.call, &call->rules, &call->recent, &ours, &error),
                       error, what);
    if (good) {
        emulate_make_lists(p, &random, what);
        good = list_call_same(call, &call->lists, &ours);
        if (!good)
            printf("%s: the lists differ\n", what);
    }
    if (good && call->slots.of_row) {
        const int64_t b = random_below(&random, (uint32_t)call->batch);
        const_cast<int32_t *>(call->slots.of_row)[b] =
            one_in(&random, 2) ? -1 : (int32_t)call->places;
        emulate_make_lists(p, &random, what);
        good = is_refused(ours, b);
        if (!good)
            printf("%s: row %d has lists of a slot out of range\n", what, (int)b);
    }
    list_call_free(call);
    return good;
}

/* ----------------------------------------------------------------------------------- rings ---- */

/* Rings with a history, in memory that holds arbitrary bytes. */
struct ring_memory {
    std::vector<int32_t> tokens, wide;
    std::vector<uint64_t> count;
    std::vector<uint32_t> prompt, output;
    std::vector<uint16_t> narrow;
    gumbel_history history = {};
    gumbel_recent recent = {};

    ring_memory(int64_t slots, int64_t capacity, int64_t vocab, int32_t bits)
        : tokens((size_t)(slots * capacity), 77), wide((size_t)(slots * vocab), 88),
          count((size_t)slots, 99), prompt((size_t)(slots * ((vocab + 31) / 32)), 0x5a5a5a5a),
          output(prompt), narrow((size_t)(slots * vocab), 88)
    {
        history.struct_size = sizeof history;
        history.vocab_size = vocab;
        history.prompt = prompt.data();
        history.output = output.data();
        history.counts = bits == 16 ? (void *)narrow.data() : (void *)wide.data();
        history.count_bits = bits;
        recent.struct_size = sizeof recent;
        recent.capacity = capacity;
        recent.tokens = tokens.data();
        recent.count = count.data();
    }

    bool operator==(const ring_memory &other) const
    {
        return tokens == other.tokens && count == other.count && prompt == other.prompt &&
               output == other.output && wide == other.wide && narrow == other.narrow;
    }
};

/* Token lists, and tokens to append, of some rows. */
struct ring_input {
    std::vector<int64_t> offsets{0};
    std::vector<int32_t> ids, of_row, tokens, counts;
    gumbel_token_lists lists = {};

    ring_input(int64_t batch, int64_t slots, int64_t vocab, int64_t width, uint64_t *random)
    {
        for (int64_t b = 0; b < batch; b++) {
            const uint32_t more = one_in(random, 3) ? 900 : 30;
            offsets.push_back(offsets.back() + random_below(random, more));
            of_row.push_back((int32_t)(slots - 1 - b));
            counts.push_back((int32_t)random_below(random, (uint32_t)width + 1));
            for (int64_t i = 0; i < width; i++)
                tokens.push_back((int32_t)random_below(random, (uint32_t)vocab + 4) - 2);
        }
        for (int64_t i = 0; i < offsets.back(); i++)
            ids.push_back(
                (int32_t)random_below(random, one_in(random, 9) ? (uint32_t)vocab + 2 : 9));
        lists.offsets = offsets.data();
        lists.ids = ids.data();
    }
};

bool rings_pass(int index, gumbel_device *cpu)
{
    uint64_t random = 5000 + (uint64_t)index;
    const int64_t batch = 1 + random_below(&random, 4), slots = batch + random_below(&random, 2);
    const int64_t capacity = 1 + random_below(&random, 200), width = 1 + random_below(&random, 6);
    const int64_t vocab = one_in(&random, 8) ? CUDA_HISTORY_TILE + 900 : 40;
    const int32_t bits = one_in(&random, 2) ? 16 : 32;
    const bool counted = !one_in(&random, 4), one_each = one_in(&random, 3);
    char what[60];
    gumbel_error error = {"", ""};
    snprintf(what, sizeof what, "rings %d", index);
    ring_memory host(slots, capacity, vocab, bits), ours(slots, capacity, vocab, bits);
    std::vector<int32_t> window((size_t)slots);
    for (int32_t &n : window)
        n = (int32_t)random_below(&random, (uint32_t)capacity + 1);
    for (ring_memory *memory : {&host, &ours}) {
        memory->recent.history = counted ? &memory->history : NULL;
        if (counted)
            memory->recent.window = {window.data(), 0};
    }
    const ring_input prompts(batch, slots, vocab, width, &random),
        outputs(batch, slots, vocab, width, &random);
    cuda_recent_params p = {};
    p.call.batch = batch;
    p.call.slots = {prompts.of_row.data(), slots};
    if (fails(gumbel_read_recent(&p.call, &ours.recent, &error), error, what))
        return false;
    p.tiles = counted ? (vocab + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE : 1;
    p.call.prompts = prompts.lists;
    p.call.outputs = outputs.lists;
    p.call.tokens = prompts.tokens.data();
    p.call.token_stride = width;
    p.call.counts = one_each ? NULL : prompts.counts.data();
    emulate_start_recent(p, &random, what);
    bool good = !fails(gumbel_recent_start(cpu, NULL, &host.recent, batch, &p.call.slots,
                                           &prompts.lists, &outputs.lists, &error),
                       error, what) &&
                host == ours;
    for (int step = 0; step < 8 && good; step++) {
        emulate_append_recent(p, &random, what);
        good = !fails(gumbel_recent_append(cpu, NULL, &host.recent, batch, &p.call.slots,
                                           p.call.tokens, width, p.call.counts, &error),
                      error, what) &&
               host == ours;
    }
    if (!good)
        printf("%s: the rings differ\n", what);
    return good;
}

} // namespace

/* usage: test_recent_lists [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    const int failed = run_problems(
        argc, argv, 300, 20000, [&](int i) { return lists_pass(i, cpu) && rings_pass(i, cpu); });
    gumbel_close(cpu);
    return failed != 0;
}
