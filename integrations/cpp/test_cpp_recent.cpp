/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of recent tokens and their lists through gumbel.hpp; row parameters that change.
 */
#include "check.hpp"

#include <algorithm>
#include <cmath>

using gumbel::row_status;
using gumbel::sampling;
using gumbel::status;

constexpr std::int32_t unused = INT32_MAX;
constexpr int capacity = 6, places = 4, words = (V + 31) / 32;

/* Rings of 5 slots, and a history of their last 3 tokens. */
struct rings {
    std::vector<std::int32_t> tokens = std::vector<std::int32_t>(5 * capacity);
    std::vector<std::uint64_t> count = std::vector<std::uint64_t>(5);
    std::vector<std::uint32_t> prompt = std::vector<std::uint32_t>(5 * words), output = prompt;
    std::vector<std::int32_t> counts = std::vector<std::int32_t>(5 * V);
    gumbel::history history;
    gumbel::recent of;

    rings()
    {
        history.vocab_size = V;
        history.prompt = prompt;
        history.output = output;
        history.counts = gumbel::span<std::int32_t>(counts);
        of.capacity = capacity;
        of.tokens = tokens;
        of.count = count;
        of.history = &history;
        of.window = 3;
    }
    rings(const rings &) = delete;
};

/* The lists of B rows. */
struct lists {
    std::vector<std::int64_t> offsets = std::vector<std::int64_t>(B + 1);
    std::vector<std::int32_t> banned = std::vector<std::int32_t>(B * places), late = banned;
    std::vector<float> values = std::vector<float>(B * places);
    std::vector<std::int32_t> status = std::vector<std::int32_t>(B, 77);
    gumbel::row_lists into;

    lists()
    {
        into.capacity = places;
        into.offsets = offsets;
        into.banned = banned;
        into.late_ids = late;
        into.late_values = values;
        into.status = status;
    }
    lists(const lists &) = delete;
    std::vector<std::int32_t> row(const std::vector<std::int32_t> &ids, int b) const
    {
        return {ids.begin() + b * places, ids.begin() + (b + 1) * places};
    }
};

static const std::vector<std::int32_t> of_row = {4, 0, 3, 1};
static const gumbel::slots where = {of_row, 5};

static void start(gumbel::values::device &device, const rings &r)
{
    const std::vector<std::int64_t> offsets = {0, 5, 6, 6, 10};
    const std::vector<std::int32_t> ids = {1, 2, 3, 1, 2, 9, 5, 6, 7, 8};
    gumbel::token_lists prompts;
    prompts.offsets = offsets;
    prompts.ids = ids;
    CHECK(device.recent_start(r.of, B, where, prompts));
}

/* The ring of row 0 wraps: 1 2 3 1 2, then 3 1 2. */
static void check_rings(gumbel::values::device &device)
{
    rings r;
    start(device, r);
    CHECK(r.count == std::vector<std::uint64_t>{1, 4, 0, 0, 5});
    const std::vector<std::int32_t> more = {3, 1, 2, 9, -1, 9, 4, 4, 4, 5, 5, 5},
                                    many = {3, 2, 0, 1};
    CHECK(device.recent_append(r.of, gumbel::matrix(more, B, 3), where, many));
    CHECK(r.count == std::vector<std::uint64_t>{2, 5, 0, 0, 8});
    const std::vector<std::int32_t> ring(r.tokens.end() - capacity, r.tokens.end());
    CHECK(ring == std::vector<std::int32_t>{1, 2, 3, 1, 2, 3});
    const std::int32_t *counts = r.counts.data() + 4 * V;
    CHECK(counts[1] == 1 && counts[2] == 1 && counts[3] == 1 && r.counts[9] == 2);
    CHECK(device.recent_append(r.of, gumbel::matrix(of_row, B, 1), where));
    CHECK(r.count[2] == 0 && r.count[4] == 9);
}

static void check_lists(const problem &problem, gumbel::values::device &device)
{
    rings r;
    lists l;
    start(device, r);
    const std::vector<float> multipliers = {1, 1, 1, 1, 0.5f};
    const std::vector<std::int64_t> offsets = {0, 2, 3}, of_rows = {0, 0, 1, 2, 2};
    const std::vector<std::int32_t> ids = {9, 40, 41};
    gumbel::list_rules rules;
    rules.dry_multiplier = multipliers;
    rules.bad_words.offsets = offsets;
    rules.bad_words.ids = ids;
    rules.bad_words.of_row = of_rows;
    CHECK(device.make_lists(rules, &r.of, B, l.into, where));
    CHECK(l.status == std::vector<std::int32_t>(B, 0));
    CHECK(l.offsets == std::vector<std::int64_t>{0, 4, 8, 12, 16});
    CHECK(l.row(l.late, 0) == std::vector<std::int32_t>{3, unused, unused, unused});
    CHECK(l.values[0] == -0.5f && l.row(l.late, 1)[0] == unused);
    CHECK(l.row(l.banned, 0)[0] == unused && l.row(l.banned, 3)[0] == unused);
    CHECK(l.row(l.banned, 1)[0] == 40 && l.row(l.banned, 2)[0] == 41);

    gumbel::transforms listed, plain;
    listed.banned.offsets = listed.late_bias.offsets = l.offsets;
    listed.banned.ids = l.banned;
    listed.late_bias.ids = l.late;
    listed.late_bias.values = l.values;
    listed.list_status = l.status;
    const std::vector<std::int64_t> one = {0, 0, 1, 2, 2}, first = {0, 1, 1, 1, 1};
    const std::vector<std::int32_t> banned = {40, 41}, late = {3};
    const std::vector<float> value = {-0.5f};
    plain.banned.offsets = one;
    plain.banned.ids = banned;
    plain.late_bias.offsets = first;
    plain.late_bias.ids = late;
    plain.late_bias.values = value;
    sampling s, other;
    s.seed = other.seed = 3;
    s.transforms = &listed;
    other.transforms = &plain;
    CHECK(draw(device, problem.logits(), s) == draw(device, problem.logits(), other));
    l.status[2] = static_cast<std::int32_t>(row_status::lists);
    const drawn without = draw(device, problem.logits(), s);
    CHECK(without.tokens[2] == -1 && without.tokens[1] >= 0);
    gumbel::list_rules stop;
    stop.min_position = 1;
    stop.stop_tokens = plain.banned;
    CHECK(device.make_lists(stop, nullptr, B, l.into, where));
    CHECK(l.row(l.banned, 1)[0] == 40 && l.row(l.late, 0)[0] == unused);
}

static void check_updates(gumbel::values::device &device)
{
    const std::vector<std::int32_t> tokens = {7, -1, 8, 7}, resets = {7};
    const std::vector<float> logprobs = {std::log(0.25f), 0, std::log(0.5f), 0};
    std::vector<float> surprise = {6, 6, 6, 6, 6}, top_p = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    gumbel::rule_updates u;
    u.batch = B;
    u.tokens = tokens;
    u.logprobs = logprobs;
    u.slots = where;
    u.surprise = surprise;
    u.surprise_target = 3;
    u.surprise_rate = 0.5;
    u.top_p = top_p;
    u.top_p_first = 0.75;
    u.top_p_decay = 0.5;
    u.top_p_reset = 7;
    CHECK(device.update_rules(u));
    CHECK(std::fabs(surprise[4] - 6.5f) < 1e-6f && std::fabs(surprise[3] - 7) < 1e-6f);
    CHECK(surprise[0] == 6 && surprise[2] == 6 && surprise[1] == 7.5f);
    CHECK(top_p == std::vector<float>{0.5f, 0.75f, 0.5f, 0.25f, 0.75f});
}

template <class Result> static bool names(const Result &done, const char *field)
{
    if (!done && std::strcmp(done.error().field(), field) != 0)
        std::printf("%s: %s\n", done.error().field(), done.error().message());
    return !done && done.error().code() == status::argument &&
           std::strcmp(done.error().field(), field) == 0;
}

static void check_adaptive_updates(gumbel::values::device &device)
{
    const std::vector<std::int32_t> tokens = {7, -1, 8, 7};
    const std::vector<float> logprobs = {std::log(0.5f), 0, std::log(0.5f), std::log(0.5f)};
    std::vector<float> target(5, 2), sum(5, 1), weight(5, 2);
    gumbel::rule_updates u;
    u.batch = B;
    u.tokens = tokens;
    u.logprobs = logprobs;
    u.slots = where;
    u.adaptive_target = target;
    u.adaptive_sum = sum;
    u.adaptive_weight = weight;
    u.adaptive_goal = 0.75;
    u.adaptive_decay = 0.5;
    CHECK(device.update_rules(u));
    for (const float found : target) /* of the slots of three rows */
        CHECK(found == 2 || std::fabs(found - 1) < 1e-6f);
    CHECK(std::count(target.begin(), target.end(), 2.0f) == 2);
    CHECK(std::count(sum.begin(), sum.end(), 1.0f) == 5 && weight == std::vector<float>(5, 2));
    u.adaptive_sum = {sum.data(), 3};
    CHECK(names(device.update_rules(u), "updates.adaptive_sum"));
}

static void check_refusals(gumbel::values::device &device)
{
    rings r;
    lists l;
    const std::vector<std::int32_t> tokens(B);
    r.of.tokens = {r.tokens.data(), r.tokens.size() - 1};
    CHECK(names(device.recent_start(r.of, B, where), "recent.tokens"));
    r.of.tokens = r.tokens;
    r.of.count = {r.count.data(), 4};
    CHECK(names(device.recent_append(r.of, gumbel::matrix(tokens, B, 1), where), "recent.count"));
    r.of.count = r.count;
    CHECK(names(device.recent_append(r.of, gumbel::matrix(tokens, B, 2), where), "tokens"));
    r.of.window = capacity + 1;
    CHECK(names(device.recent_start(r.of, B, where), "recent.window[0]"));
    r.of.window = 3;

    gumbel::list_rules rules;
    const std::vector<std::int64_t> offsets = {0, 3};
    const std::vector<std::int32_t> ids = {1, 2};
    rules.bad_words.offsets = offsets;
    rules.bad_words.ids = ids;
    CHECK(names(device.make_lists(rules, &r.of, B, l.into, where), "rules.bad_words"));
    rules.bad_words = {};
    rules.dry_multiplier = -1;
    CHECK(names(device.make_lists(rules, &r.of, B, l.into, where), "rules.dry_multiplier[0]"));
    rules.dry_multiplier = 1;
    CHECK(names(device.make_lists(rules, nullptr, B, l.into, where), "recent"));
    l.into.late_values = {l.values.data(), l.values.size() - 1};
    CHECK(names(device.make_lists(rules, &r.of, B, l.into, where), "lists.late_values"));
    CHECK(l.status == std::vector<std::int32_t>(B, 77));

    gumbel::rule_updates u;
    std::vector<float> values(B - 1);
    u.batch = B;
    u.tokens = tokens;
    u.top_p = values;
    CHECK(names(device.update_rules(u), "updates.top_p"));
    u.batch = B - 1;
    u.top_p_decay = 2;
    CHECK(names(device.update_rules(u), "updates.top_p_decay[0]"));
}

int main()
{
    gumbel::values::device device = open_device();
    const problem problem;
    check_rings(device);
    check_lists(problem, device);
    check_updates(device);
    check_adaptive_updates(device);
    check_refusals(device);
    return report("test_cpp_recent");
}
