// SPDX-License-Identifier: Apache-2.0
//
// Watermarks through the C++ header: a text that is decoded, verified from a draft, and detected.
#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

constexpr std::int64_t vocab = 64, steps = 120;
static const std::vector<std::uint64_t> key = {0x0123456789abcdef, 77};

/* Logits after a token, in an order that depends on it. */
static std::vector<float> logits_after(std::int32_t token)
{
    std::vector<float> logits(vocab);
    for (int i = 0; i < vocab; i++)
        logits[static_cast<std::size_t>(i)] =
            3 * std::sin(static_cast<float>(i + 1) * static_cast<float>(token + 2) * 1.7f);
    return logits;
}

/* A row whose ring is its text. */
struct row_text {
    std::vector<std::int32_t> ring = std::vector<std::int32_t>(steps), watermarked = {0};
    std::vector<std::uint64_t> count = {0}, seed = {0}, position = {0};
    std::vector<std::int32_t> text;
    int marked = 0;
    gumbel::recent of;
    gumbel::watermark mark;
    gumbel::watermark_draws draws;

    row_text()
    {
        of.capacity = steps;
        of.tokens = ring;
        of.count = count;
        mark.key = key;
        mark.key_stride = GUMBEL_SAME;
        mark.context = 2;
        mark.seed = std::uint64_t{5};
        draws.seed = seed;
        draws.position = position;
        draws.watermarked = watermarked;
    }
};

static void decode(gumbel::values::device &device, row_text &t)
{
    std::vector<std::int32_t> token = {0};
    gumbel::workspace space;
    for (std::uint64_t step = 0; step < steps; step++) {
        t.mark.position = step;
        CHECK(device.watermark_rows(t.mark, t.of, 1, t.draws));
        const std::vector<float> values = logits_after(t.text.empty() ? 0 : t.text.back());
        gumbel::logits in;
        in.values = gumbel::matrix(values, 1, vocab);
        gumbel::sampling how;
        how.seed = t.seed;
        how.position = t.position;
        gumbel::output out;
        out.tokens = token;
        const auto bytes = device.workspace_size(in, how, &out);
        CHECK(bytes && space.reserve(*bytes));
        CHECK(device.sample_logits(in, how, out, space));
        CHECK(device.recent_append(t.of, gumbel::matrix(token, 1, 1)));
        t.text.push_back(token[0]);
        t.marked += t.watermarked[0];
    }
}

static void check_detection(const row_text &t)
{
    std::vector<double> scores(t.text.size());
    gumbel::detector with;
    with.key = {key[0], key[1]};
    with.context = 2;
    const auto found = gumbel::values::device::detect_watermark(with, t.text, scores);
    CHECK(found && found->scored == t.marked && t.marked > 40 && found->p_value < 1e-6);
    CHECK(std::fabs(found->log10_p - std::log10(found->p_value)) < 1e-6);
    CHECK(steps -
              std::count_if(scores.begin(), scores.end(), [](double s) { return std::isnan(s); }) ==
          t.marked);
    with.key = {1, 2};
    CHECK(gumbel::values::device::detect_watermark(with, t.text)->p_value > 1e-4);
    with.context = 17;
    const auto refused = gumbel::values::device::detect_watermark(with, t.text);
    CHECK(!refused && std::strcmp(refused.error().field(), "detector.context") == 0);
}

/* The right draft of the last four tokens is accepted. */
static void check_nodes(gumbel::values::device &device, row_text &t)
{
    const std::size_t root = steps - 5;
    std::vector<std::int32_t> nodes(t.text.begin() + root, t.text.begin() + root + 4), tokens(4),
        emitted(1);
    std::vector<std::uint64_t> positions(4), own = {root + 1};
    std::vector<float> values;
    t.count[0] = root + 1;
    t.mark.position = own[0];
    t.draws.position = positions;
    t.draws.watermarked = {};
    gumbel::draft drafted;
    drafted.requests = 1;
    drafted.max_nodes = 4;
    drafted.tokens = nodes;
    CHECK(device.watermark_nodes(t.mark, t.of, drafted, 4, t.draws));
    drafted.node_position = positions;
    for (const std::int32_t token : nodes)
        for (const float value : logits_after(token))
            values.push_back(value);
    gumbel::logits in;
    in.values = gumbel::matrix(values, 4, vocab);
    gumbel::sampling how;
    how.seed = t.seed;
    how.position = own;
    gumbel::verified out;
    out.tokens = tokens;
    out.emitted = emitted;
    gumbel::workspace space;
    const auto bytes = device.verify_workspace_size(in, how, drafted, out);
    CHECK(bytes && space.reserve(*bytes));
    CHECK(device.verify_logits(in, how, drafted, out, space));
    CHECK(emitted[0] == 4 && std::equal(tokens.begin(), tokens.end(), t.text.end() - 4));
    drafted.node_position = {positions.data(), 3};
    const auto refused = device.verify_logits(in, how, drafted, out, space);
    CHECK(!refused && std::strcmp(refused.error().field(), "draft.node_position") == 0);
}

int main()
{
    gumbel::values::device device = open_device();
    row_text text;
    decode(device, text);
    check_detection(text);
    check_nodes(device, text);
    text.mark.key = {key.data(), 1};
    const auto refused = device.watermark_rows(text.mark, text.of, 1, text.draws);
    CHECK(!refused && std::strcmp(refused.error().field(), "watermark.key") == 0);
    return report("test_cpp_watermarks");
}
