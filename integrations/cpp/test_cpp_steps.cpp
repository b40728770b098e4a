/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode steps through gumbel.hpp: histories, slots, rings, drafts.
 */
#include "check.hpp"

#include <numeric>

using gumbel::sampling;

static void check_histories(const problem &of, gumbel::values::device &device)
{
    constexpr int words = (V + 31) / 32;
    std::vector<std::uint32_t> prompt(B * words), output(B * words);
    std::vector<std::uint16_t> counts(B * V);
    gumbel::history history;
    history.vocab_size = V;
    history.prompt = prompt;
    history.output = output;
    history.counts = gumbel::span<std::uint16_t>(counts);
    const std::vector<std::int64_t> offsets = {0, 2, 3, 3, 4};
    const std::vector<std::int32_t> ids = {1, 2, 3, 999};
    gumbel::token_lists prompts;
    prompts.offsets = offsets;
    prompts.ids = ids;
    CHECK(device.history_start(history, B, {}, prompts));

    gumbel::transforms by_history, by_lists;
    for (gumbel::transforms *t : {&by_history, &by_lists}) {
        t->repetition = 1.5;
        t->frequency = 0.7;
        t->presence = 0.3;
    }
    by_history.history = &history;
    by_lists.prompt_tokens = prompts;
    std::vector<std::vector<std::int32_t>> texts(B);
    sampling s;
    s.seed = 3;
    for (int step = 0; step < 4; step++) {
        s.transforms = &by_history;
        const drawn found = draw(device, of.logits(), s);
        std::vector<std::int64_t> ends = {0};
        std::vector<std::int32_t> flat;
        for (const auto &text : texts) {
            flat.insert(flat.end(), text.begin(), text.end());
            ends.push_back(static_cast<std::int64_t>(flat.size()));
        }
        by_lists.output_tokens.offsets = ends;
        by_lists.output_tokens.ids = flat;
        s.transforms = &by_lists;
        CHECK(draw(device, of.logits(), s) == found);
        CHECK(device.history_update(history, gumbel::matrix(found.tokens, B, 1)));
        for (int b = 0; b < B; b++)
            texts[b].push_back(found.tokens[b]);
    }
    CHECK(std::accumulate(counts.begin(), counts.end(), 0) == 4 * B);
}

static void check_slots(const problem &of, gumbel::values::device &device)
{
    const std::vector<float> by_row = {0.4f, 0.6f, 0.8f, 1.2f},
                             by_slot = {9, 1.2f, 0.8f, 0.6f, 0.4f};
    const std::vector<std::uint64_t> seeds = {11, 12, 13, 14}, slot_seeds = {99, 14, 13, 12, 11};
    const std::vector<std::int32_t> of_row = {4, 3, 2, 1};
    sampling plain, by;
    plain.temperature = by_row;
    plain.seed = seeds;
    by.temperature = by_slot;
    by.seed = slot_seeds;
    by.slots = {of_row, 5};
    const drawn whole = draw(device, of.head(), plain);
    CHECK(draw(device, of.head(), by) == whole);
    const std::int32_t live = 2;
    plain.live_rows = &live;
    const drawn fewer = draw(device, of.head(), plain);
    CHECK(fewer.tokens[1] == whole.tokens[1] && fewer.tokens[2] == -1);
}

static void check_steps(gumbel::values::device &device)
{
    const std::vector<std::int32_t> tokens = {5, 6};
    std::vector<std::uint64_t> position = {7, 10};
    std::vector<std::int32_t> ring(3 * 2);
    gumbel::step step;
    step.batch = 2;
    step.tokens = tokens;
    step.position = position;
    step.ring = ring;
    step.ring_length = 3;
    CHECK(device.advance(step));
    CHECK(position == std::vector<std::uint64_t>{8, 11});
    CHECK(ring == std::vector<std::int32_t>{0, 0, 5, 6, 0, 0});
}

/* The tokens that a verification of one request emits; row j follows node j. */
template <class In>
static std::vector<std::int32_t> verify(gumbel::values::device &device, const In &in,
                                        const gumbel::draft &drafted)
{
    std::vector<std::int32_t> tokens(B), emitted(1);
    std::vector<std::uint64_t> position = {7}, histogram(B);
    sampling s;
    s.seed = 5;
    s.position = position;
    gumbel::verified out;
    out.tokens = tokens;
    out.emitted = emitted;
    out.position = position; /* advanced by the call */
    out.histogram = histogram;
    gumbel::workspace space = space_of(*device.verify_workspace_size(in, s, drafted, out));
    if constexpr (std::is_same_v<In, gumbel::head>)
        CHECK(device.verify(in, s, drafted, out, space));
    else
        CHECK(device.verify_logits(in, s, drafted, out, space));
    CHECK(position[0] == 7u + static_cast<unsigned>(emitted[0]));
    CHECK(std::accumulate(histogram.begin(), histogram.end(), std::uint64_t{0}) == 1);
    tokens.resize(static_cast<std::size_t>(emitted[0]));
    return tokens;
}

template <class In> static void check_chains(gumbel::values::device &device, const In &in)
{
    const std::vector<std::uint64_t> positions = {7, 8, 9, 10}, seeds(B, 5);
    sampling s;
    s.seed = seeds;
    s.position = positions;
    const std::vector<std::int32_t> own = draw(device, in, s).tokens;
    std::vector<std::int32_t> drafted = {0, own[0], own[1], own[2]};
    gumbel::draft draft;
    draft.requests = 1;
    draft.max_nodes = B;
    draft.tokens = drafted;
    CHECK(verify(device, in, draft) == own);
    drafted[2] = (own[1] + 1) % V;
    CHECK(verify(device, in, draft) == std::vector<std::int32_t>{own[0], own[1]});
}

/* If draft and target are one distribution, every draft is accepted with probability 1. */
static void check_rejection(const problem &of, gumbel::values::device &device)
{
    sampling by;
    by.seed = 77;
    by.domain = gumbel::draft_domain;
    const gumbel::logits in = of.logits();
    const std::vector<std::int32_t> drawn_by = draw(device, in, by).tokens;
    const std::vector<std::int32_t> drafted = {0, drawn_by[0], drawn_by[1], drawn_by[2]};
    gumbel::draft draft;
    draft.requests = 1;
    draft.max_nodes = B;
    draft.rule = gumbel::rule::rejection;
    draft.tokens = drafted;
    draft.logits = &in;
    draft.sampling = &by;
    std::vector<std::int32_t> emitted = verify(device, in, draft);
    CHECK(emitted.size() == B);
    emitted.pop_back();
    CHECK(emitted == std::vector<std::int32_t>(drafted.begin() + 1, drafted.end()));
    CHECK(gumbel::draft_domain_of(2) == GUMBEL_DRAFT_DOMAIN(2));
}

int main()
{
    const problem of;
    gumbel::values::device device = open_device();
    check_histories(of, device);
    check_slots(of, device);
    check_steps(device);
    check_chains(device, of.logits());
    check_chains(device, of.head());
    check_rejection(of, device);
    return report("test_cpp_steps");
}
