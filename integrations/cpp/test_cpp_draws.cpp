/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws through gumbel.hpp equal those of the C interface, bit by bit.
 */
#include "check.hpp"

#include <array>
#include <cmath>
#include <memory>
#if __cplusplus >= 202002L
#include <span>
#include <string>
#endif

using gumbel::sampling;

static sampling how()
{
    sampling s;
    s.temperature = 0.8f;
    s.seed = 42;
    s.position = 7;
    return s;
}

static void check_known_tokens(const problem &of, gumbel::values::device &device)
{
    gumbel::head in = of.head();
    in.hidden.rows = 2;
    sampling s = how();
    s.position = 0;
    std::array<std::int32_t, 2> tokens{};
    gumbel::output out;
    out.tokens = tokens;
    gumbel::workspace space = space_of(*device.workspace_size(in, s, &out));
    CHECK(device.sample(in, s, out, space));
    CHECK(tokens[0] == 269 && tokens[1] == 983); /* the first line of docs/examples/engine.c */
}

/* A screen changes no token. */
static void check_screened_draws(const problem &of, gumbel::values::device &device)
{
    gumbel::head in = of.head();
    std::array<std::int32_t, B> tokens{}, by_screen{};
    gumbel::output out;
    out.tokens = tokens;
    gumbel::workspace space = space_of(*device.workspace_size(in, how(), &out));
    CHECK(device.sample(in, how(), out, space));
    const std::size_t bytes = *device.screen_size(in.weight);
    std::vector<unsigned char> room(bytes + GUMBEL_WORKSPACE_ALIGNMENT);
    void *at = room.data();
    std::size_t available = room.size();
    CHECK(std::align(GUMBEL_WORKSPACE_ALIGNMENT, bytes, at, available) != nullptr);
    const gumbel_screen screen{at, bytes, GUMBEL_SCREEN_BYTES};
    CHECK(device.screen_prepare(in.weight, screen));
    CHECK(device.screen_verify(in.weight, screen));
    in.screen = screen;
    out.tokens = by_screen;
    gumbel::workspace more = space_of(*device.workspace_size(in, how(), &out));
    CHECK(device.sample(in, how(), out, more));
    CHECK(tokens == by_screen);
}

/* A draw by the C interface, without the wrapper. */
static drawn draw_by_c(const problem &of, gumbel::values::device &device, int samples)
{
    const auto draws = static_cast<std::size_t>(B * samples);
    drawn into = {std::vector<std::int32_t>(draws), std::vector<float>(draws),
                  std::vector<float>(draws)};
    gumbel_head in = {};
    in.struct_size = sizeof in;
    in.hidden = {of.hidden.data(), GUMBEL_FLOAT32, B, D, 0, {0, 0}};
    in.weight = {of.weight.data(), GUMBEL_FLOAT32, V, D, 0, {0, 0}};
    const float temperatures[] = {0, 0.5f, 0.8f, 1.3f};
    const std::uint64_t seed = 42, position = 7;
    const std::uint32_t counters[] = {9, 0, UINT32_MAX, 3};
    const std::int32_t k = 50;
    gumbel_truncation kept = {};
    kept.struct_size = sizeof kept;
    kept.top_k = {&k, GUMBEL_SAME};
    gumbel_sampling s = {};
    s.struct_size = sizeof s;
    s.temperature = {temperatures, 0};
    s.seed = {&seed, GUMBEL_SAME};
    s.position = {&position, GUMBEL_SAME};
    s.first_sample = {counters, 0};
    s.num_samples = samples;
    s.truncation = &kept;
    gumbel_output out = {};
    out.struct_size = sizeof out;
    out.tokens = into.tokens.data();
    out.logprobs = into.logprobs.data();
    out.scores = into.scores.data();
    gumbel::workspace space = space_of(1 << 22);
    CHECK(gumbel_sample(device.get(), nullptr, &in, &s, &out, space.data(), space.bytes(),
                        nullptr) == GUMBEL_OK);
    return into;
}

static void check_requests(const problem &of, gumbel::values::device &device)
{
    const std::vector<float> temperatures = {0, 0.5f, 0.8f, 1.3f};
    const std::vector<std::uint32_t> counters = {9, 0, UINT32_MAX, 3};
    gumbel::truncation kept;
    kept.top_k = 50;
    sampling s = how();
    s.temperature = temperatures;
    s.first_sample = counters;
    s.truncation = &kept;
    for (int samples : {1, 3}) {
        s.num_samples = samples;
        CHECK(draw(device, of.head(), s) == draw_by_c(of, device, samples));
    }
}

/* Each row draws by its own program, with the bits of a batch that has this program alone. */
static void check_programs(const problem &of, gumbel::values::device &device)
{
    using gumbel::program_rule;
    const gumbel::program orders[] = {
        {program_rule::temperature, program_rule::typical_p, program_rule::top_n_sigma},
        {program_rule::typical_p, program_rule::min_p, program_rule::xtc,
         program_rule::temperature}};
    const std::vector<std::int32_t> which = {1, 0, 0, 1}, ids = {5};
    const std::vector<std::int64_t> offsets(B + 1, 0);
    gumbel::programs programs;
    programs.typical_p = 0.6f;
    programs.top_n_sigma = 2.5f;
    programs.xtc_probability = 0.5f;
    programs.xtc_threshold = 0.001f;
    programs.xtc_keep = {offsets, ids, {}};
    gumbel::truncation kept;
    kept.min_p = 0.1f;
    kept.programs = &programs;
    sampling s = how();
    s.truncation = &kept;
    const auto draw_by = [&](gumbel::span<const gumbel::program> rules,
                             const gumbel::row<std::int32_t> &program) {
        programs.rules = rules;
        programs.program = program;
        return draw(device, of.logits(), s);
    };
    const drawn each = draw_by(orders, which);
    const drawn one[] = {draw_by({orders, 1}, {}), draw_by({orders + 1, 1}, {})};
    CHECK(!(one[0] == one[1]));
    for (std::size_t b = 0; b < B; b++) {
        const drawn &own = one[static_cast<std::size_t>(which[b])];
        CHECK(each.tokens[b] == own.tokens[b] && each.logprobs[b] == own.logprobs[b]);
    }

    /* A program of min_p, top_k and top_p equals the order with these rules. */
    const gumbel::program known[] = {
        {program_rule::top_k, program_rule::min_p, program_rule::temperature}};
    gumbel::truncation ordered;
    ordered.min_p = kept.min_p;
    kept.top_k = ordered.top_k = 40;
    ordered.order = gumbel::order::top_k_top_p_min_p_temperature;
    programs = {};
    const drawn by_program = draw_by(known, {});
    s.truncation = &ordered;
    CHECK(by_program == draw(device, of.logits(), s));
}

static void check_outputs(const problem &of, gumbel::values::device &device)
{
    std::vector<std::int32_t> tokens(B), status(B, -1), ranks(B), kept(B), ids(B * 5),
        best_ids(B * 3), kept_ids(B * V);
    std::vector<float> logprobs(B), scores(B), lse(B), top(B * 5), raw(B * 5), best(B * 3),
        kept_logprobs(B * V), entropy(B);
    gumbel::output out;
    out.tokens = tokens;
    out.logprobs = logprobs;
    out.scores = scores;
    out.lse = lse;
    out.status = status;
    out.ranks = ranks;
    out.kept = kept;
    out.top_ids = ids;
    out.top_logprobs = top;
    out.top_logits = raw;
    out.num_top = 5;
    out.best_ids = best_ids;
    out.best_scores = best;
    out.num_best = 3;
    out.kept_ids = kept_ids;
    out.kept_logprobs = kept_logprobs;
    out.kept_capacity = V;
    out.entropy = entropy;
    const gumbel::logits in = of.logits();
    gumbel::workspace space = space_of(*device.workspace_size(in, how(), &out));
    CHECK(device.sample_logits(in, how(), out, space));
    for (int b = 0; b < B; b++) {
        CHECK(status[b] == static_cast<int>(gumbel::row_status::ok) && kept[b] == V);
        CHECK(raw[b * 5] == of.scores[b * V + ids[b * 5]] && raw[b * 5] >= raw[b * 5 + 1]);
        CHECK(top[b * 5] >= top[b * 5 + 1] && top[b * 5] >= logprobs[b]);
        CHECK(best_ids[b * 3] == tokens[b] && best[b * 3] == scores[b]);
        CHECK(kept_ids[b * V + V - 1] == V - 1);
        CHECK(kept_logprobs[b * V + tokens[b]] == logprobs[b]);
        CHECK(std::isfinite(lse[b]) && ranks[b] >= 1);
        double expected = 0;
        for (int i = 0; i < V; i++)
            expected -= kept_logprobs[b * V + i] * std::exp(double(kept_logprobs[b * V + i]));
        CHECK(std::fabs(entropy[b] - expected) < 1e-4);
    }
}

static void check_processed_logits(const problem &of, gumbel::values::device &device)
{
    std::vector<float> z(B * V), p(B * V), own = of.scores;
    gumbel::workspace space = space_of(*device.workspace_size(of.logits(), how()));
    CHECK(device.process_logits(of.logits(), how(), gumbel::matrix(z, B, V), space));
    CHECK(device.softmax(of.logits(), how(), gumbel::matrix(p, B, V), space));
    gumbel::logits in_place = of.logits();
    in_place.values = gumbel::matrix(own, B, V);
    CHECK(device.process_logits(in_place, how(), gumbel::matrix(own, B, V), space));
    CHECK(same_bits(z, own) && std::fabs(z[3] - of.scores[3] / 0.8f) < 1e-5);
    std::vector<gumbel::bfloat16> halves(B * V), apart(B * V);
    for (int i = 0; i < B * V; i++) /* values in [1, 16) */
        halves[i].bits = static_cast<std::uint16_t>(0x3f80 + i % 512);
    in_place.values = gumbel::matrix(halves, B, V);
    CHECK(device.process_logits(in_place, how(), gumbel::matrix(z, B, V), space));
    CHECK(device.process_logits(in_place, how(), gumbel::matrix(apart, B, V), space));
    CHECK(device.process_logits(in_place, how(), gumbel::matrix(halves, B, V), space));
    for (int i = 0; i < B * V; i++) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &z[i], sizeof bits);
        CHECK(halves[i].bits == apart[i].bits);
        CHECK(halves[i].bits == (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    CHECK(!device.process_logits(of.logits(), how(), gumbel::matrix(halves, B, V), space));
    for (int b = 0; b < B; b++) {
        double sum = 0;
        for (int i = 0; i < V; i++)
            sum += p[b * V + i];
        CHECK(std::fabs(sum - 1) < 1e-4);
    }
}

static void check_shards(const problem &of, gumbel::values::device &device)
{
    constexpr int half = 512;
    gumbel::head first = of.head(), second = of.head();
    first.weight = gumbel::matrix(of.weight.data(), half, D);
    first.vocab_size = V;
    second.weight = gumbel::matrix(of.weight.data() + half * D, V - half, D);
    second.first_token = half;
    std::vector<gumbel::summary> parts(2 * B);
    gumbel::clear(parts);
    CHECK(parts[0].best_id == -1);
    gumbel::workspace space = space_of(*device.workspace_size(of.head(), how()));
    CHECK(device.partial(first, how(), {parts.data(), B}, space));
    CHECK(device.partial(second, how(), {parts.data() + B, B}, space));
    const drawn whole = draw(device, of.head(), how());

    drawn found = whole;
    const auto finish = [&](gumbel::span<const gumbel::summary> summaries, int count, bool host) {
        std::fill(found.tokens.begin(), found.tokens.end(), -2);
        std::fill(found.scores.begin(), found.scores.end(), 0.0f);
        gumbel::output out;
        out.tokens = found.tokens;
        out.logprobs = found.logprobs;
        out.scores = found.scores;
        CHECK(host ? gumbel::values::device::finish_host(summaries, count, B, 1, out)
                   : device.finish(summaries, count, B, 1, out));
        return found == whole;
    };
    CHECK(finish(parts, 2, false) && finish(parts, 2, true));
    std::vector<gumbel::summary> into(parts.begin(), parts.begin() + B), again = into;
    CHECK(device.merge(into, {parts.data() + B, B}) && finish(into, 1, false));
    CHECK(gumbel::values::device::merge_host(again, {parts.data() + B, B}));
    CHECK(finish(again, 1, true));
    CHECK(device.partial_logits(of.logits(), how(), again, space));
    finish(again, 1, true);
    CHECK(found.tokens == draw(device, of.logits(), how()).tokens);
}

static void check_given_tokens_and_noise(const problem &of, gumbel::values::device &device)
{
    const drawn plain = draw(device, of.logits(), how());
    sampling given = how();
    given.given = plain.tokens;
    const drawn scored = draw(device, of.logits(), given);
    CHECK(scored.tokens == plain.tokens && same_bits(scored.logprobs, plain.logprobs));

    std::vector<float> ahead(B * V), own(V);
    CHECK(device.prepare_noise(how(), B, 0, V, ahead));
    sampling with = how();
    with.noise = ahead;
    CHECK(draw(device, of.head(), with) == draw(device, of.head(), how()));
    for (std::uint64_t b = 0; b < B; b++) {
        CHECK(device.noise(gumbel::row_seed(42, b), 7, 0, gumbel::target_domain, 0, own));
        CHECK(std::memcmp(own.data(), &ahead[b * V], V * sizeof(float)) == 0);
    }
    const auto block = device.philox4x32({}, {}); /* the published answer */
    CHECK(block && (*block)[0] == 0x6627e8d5 && (*block)[3] == 0x9b00dbd8);
}

/* Rows with ids: the draws of rows with the noise that the table prepares, as ids. */
static void check_table(const problem &of, gumbel::values::device &device)
{
    std::vector<std::int32_t> ids(V);
    for (int i = 0; i < V; i++)
        ids[i] = 7 * i + 3;
    sampling table = how(), rows = how();
    table.token_ids = ids;
    std::vector<float> ahead(B * V), one(1);
    CHECK(device.prepare_noise(table, B, 0, V, ahead));
    CHECK(device.noise(gumbel::row_seed(42, 1), 7, 0, gumbel::target_domain, ids[2], one));
    CHECK(std::memcmp(one.data(), &ahead[V + 2], sizeof(float)) == 0);
    rows.noise = ahead;
    auto expected = draw(device, of.head(), rows);
    for (std::int32_t &token : expected.tokens)
        token = ids[token];
    CHECK(draw(device, of.head(), table) == expected);
    gumbel::limits most;
    most.batch = B;
    most.vocab_size = V;
    most.requests = true;
    const auto plain = device.workspace_most(most);
    most.token_ids = true;
    const auto with = device.workspace_most(most);
    CHECK(plain && with && *with >= *plain + sizeof(float) * B * V);
}

static void check_transforms(const problem &of, gumbel::values::device &device)
{
    const std::vector<std::int64_t> offsets = {0, 1, 2, 3, 4};
    const std::vector<std::int32_t> ids = {5, 6, 7, 8};
    const std::vector<float> pushes(B, 1e6f);
    gumbel::transforms only, pushed;
    only.allowed.offsets = offsets;
    only.allowed.ids = ids;
    pushed.bias = {offsets, ids, pushes};
    sampling s = how();
    for (const gumbel::transforms *t : {&only, &pushed}) {
        s.transforms = t;
        CHECK(draw(device, of.head(), s).tokens == ids);
    }
    only.max_allowed = 1;
    s.transforms = &only;
    CHECK(draw(device, of.head(), s).tokens == ids);
}

/* Row parameters by stride, by one pointer for all rows, and by views of every kind. */
static void check_views(const problem &of, gumbel::values::device &device)
{
    const float wide[] = {0.5f, 9, 0.6f, 9, 0.7f, 9, 0.8f}, one = 0.8f;
    std::array<float, B> narrow = {0.5f, 0.6f, 0.7f, 0.8f};
    sampling strided = how(), each = how(), same = how();
    strided.temperature = gumbel::row<float>::strided(wide, 2);
    each.temperature = narrow;
    same.temperature = gumbel::row<float>::same(&one);
    CHECK(draw(device, of.head(), strided) == draw(device, of.head(), each));
    CHECK(draw(device, of.head(), same) == draw(device, of.head(), how()));
#if __cplusplus >= 202002L
    each.temperature = std::span<float>(narrow);
    CHECK(draw(device, of.head(), strided) == draw(device, of.head(), each));
#endif
    gumbel::head wider = of.head();
    std::vector<float> padded(B * (D + 3));
    for (int b = 0; b < B; b++)
        std::memcpy(&padded[b * (D + 3)], &of.hidden[b * D], D * sizeof(float));
    wider.hidden = gumbel::matrix(padded, B, D, D + 3);
    CHECK(draw(device, wider, how()) == draw(device, of.head(), how()));
    static_assert(!std::is_convertible_v<std::vector<float>, gumbel::span<const float>>,
                  "a view of a temporary object");
    static_assert(!std::is_convertible_v<const std::vector<float> &, gumbel::span<float>>);
    static_assert(!std::is_copy_constructible_v<gumbel::values::device> &&
                  std::is_nothrow_move_constructible_v<gumbel::values::device>);
}

static void check_devices(const problem &of, gumbel::values::device &device)
{
    const auto info = device.describe();
    CHECK(info && std::strcmp(info->name, "cpu") == 0 && device.in_host_memory());
    CHECK(gumbel::isa_available(gumbel::isa::reference));
    CHECK(std::strcmp(gumbel::to_string(gumbel::isa::reference), "reference") == 0);
    CHECK(gumbel::version() == GUMBEL_VERSION && *gumbel::version_string() == '0');
    const std::string kernels = gumbel::cuda_architectures();
    CHECK(kernels.empty() || kernels.find("sm_90") != std::string::npos);
    CHECK(kernels.find(gumbel::cuda_architecture("hopper", 90)) != std::string::npos);
    CHECK(*gumbel::cuda_architecture("hopper", 120) == 0 && device.capability() == 0);
    CHECK(*gumbel::to_string(gumbel::status::argument) &&
          *gumbel::to_string(gumbel::row_status::nan));
    const auto text = device.explain(of.head(), how());
    CHECK(text && text->size() > 3);
    gumbel::limits most;
    most.batch = B;
    most.hidden_size = D;
    CHECK(*device.workspace_most(most) > 0);

    gumbel::device_options options;
    options.threads = 5;
    options.parallel_for = [](void *, std::int32_t count, gumbel_task task, void *argument) {
        for (std::int32_t i = count - 1; i >= 0; i--)
            task(argument, i);
    };
    gumbel::values::device pooled = open_device(options);
    CHECK(draw(pooled, of.head(), how()) == draw(device, of.head(), how()));
    gumbel::values::device moved = std::move(pooled);
    CHECK(!pooled && moved && moved.describe()->threads == 5);
    pooled = std::move(moved);
    CHECK(draw(pooled, of.head(), how()) == draw(device, of.head(), how()));
}

int main()
{
    const problem of;
    gumbel::values::device device = open_device();
    check_known_tokens(of, device);
    check_screened_draws(of, device);
    check_programs(of, device);
    check_requests(of, device);
    check_outputs(of, device);
    check_processed_logits(of, device);
    check_shards(of, device);
    check_given_tokens_and_noise(of, device);
    check_table(of, device);
    check_transforms(of, device);
    check_views(of, device);
    check_devices(of, device);
    return report("test_cpp_draws");
}
