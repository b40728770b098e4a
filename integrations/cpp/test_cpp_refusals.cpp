/* SPDX-License-Identifier: Apache-2.0
 *
 * Wrong sizes, strides and null pointers are errors that name the argument; outputs are unchanged.
 */
#include "check.hpp"

#include <cstdint>

using gumbel::sampling;
using gumbel::status;

static const problem input;

/* Whether a draw returns an error for `field`, with its output unchanged. */
template <class In>
static bool returns_error(const char *field, const In &in, const sampling &how, int tokens_less = 0)
{
    static gumbel::values::device device = open_device();
    static gumbel::workspace space = space_of(1 << 22);
    std::vector<std::int32_t> tokens(B, 77);
    gumbel::output out;
    out.tokens = {tokens.data(), tokens.size() - static_cast<std::size_t>(tokens_less)};
    const auto done = call(device, in, how, out, space);
    const bool untouched = tokens == std::vector<std::int32_t>(B, 77);
    if (done || std::strcmp(done.error().field(), field) != 0)
        std::printf("%s: %s\n", done.error().field(), done.error().message());
    return !done && untouched && done.error().code() == status::argument &&
           std::strcmp(done.error().field(), field) == 0 && *done.error().message();
}

static void check_tensors()
{
    const std::vector<float> few(B * D - 1);
    const auto with = [](auto gumbel::head::*member, const gumbel::tensor &tensor) {
        gumbel::head in = input.head();
        in.*member = tensor;
        return in;
    };
    using gumbel::head;
    using gumbel::matrix;
    CHECK(returns_error("head.hidden", with(&head::hidden, matrix(few, B, D)), {}));
    CHECK(returns_error("head.hidden", with(&head::hidden, matrix(input.hidden, B, D, D + 1)), {}));
    CHECK(returns_error("head.hidden", with(&head::hidden, matrix(input.hidden, B, D, D - 1)), {}));
    CHECK(returns_error("head.hidden", with(&head::hidden, matrix(input.hidden, -1, D)), {}));
    CHECK(returns_error(
        "head.hidden", with(&head::hidden, matrix(static_cast<const float *>(nullptr), B, D)), {}));
    CHECK(returns_error("head.weight", with(&head::weight, matrix(input.weight, V + 1, D)), {}));
    const gumbel::tensor huge = matrix(input.weight, INT64_MAX, INT64_MAX);
    CHECK(returns_error("head.weight", with(&head::weight, huge), {}));
    CHECK(returns_error("head.weight", with(&head::weight, {}), {}));
    CHECK(returns_error("head.bias", with(&head::bias, matrix(few, 1, V)), {}));
    CHECK(returns_error("head.bias", with(&head::bias, matrix(input.weight, 2, V)), {}));
    gumbel::head odd = input.head();
    odd.hidden.type = static_cast<gumbel::dtype>(9);
    CHECK(returns_error("head.hidden", odd, {}));
    gumbel::logits in = input.logits();
    in.values.cols++;
    CHECK(returns_error("logits.logits", in, {}));
    CHECK(returns_error("output.tokens", input.logits(), {}, 1));
    CHECK(returns_error("output.tokens", input.logits(), {}, B));
}

static void check_row_parameters()
{
    const std::vector<float> few(B - 1, 0.5f), wide(2 * B - 2, 0.5f);
    const std::vector<std::uint64_t> words(B - 1);
    const std::vector<std::uint32_t> counters(B - 1);
    const std::vector<std::int32_t> tokens(B - 1), of_row = {0, 1, 2, 9}, table(V - 1);
    const auto with = [](auto sampling::*member, const auto &value) {
        sampling how;
        how.*member = value;
        return how;
    };
    const gumbel::head in = input.head();
    CHECK(returns_error("sampling.temperature", in, with(&sampling::temperature, few)));
    CHECK(returns_error("sampling.temperature", in,
                        with(&sampling::temperature, gumbel::row<float>::strided(wide, 2))));
    CHECK(returns_error("sampling.temperature", in,
                        with(&sampling::temperature, gumbel::row<float>::same(nullptr))));
    CHECK(returns_error("sampling.temperature[0]", in, with(&sampling::temperature, -1)));
    CHECK(returns_error("sampling.seed", in, with(&sampling::seed, words)));
    CHECK(returns_error("sampling.position", in, with(&sampling::position, words)));
    CHECK(returns_error("sampling.first_sample", in, with(&sampling::first_sample, counters)));
    CHECK(returns_error("sampling.given", in, with(&sampling::given, tokens)));
    CHECK(returns_error("sampling.noise", in, with(&sampling::noise, wide)));
    CHECK(returns_error("sampling.token_ids", in, with(&sampling::token_ids, table)));
    CHECK(returns_error("sampling.num_samples", in, with(&sampling::num_samples, -1)));
    CHECK(returns_error("sampling.slots", in, with(&sampling::slots, gumbel::slots{tokens, 9})));
    CHECK(returns_error("sampling.slots", in, with(&sampling::slots, gumbel::slots{of_row, 9})));
    CHECK(returns_error("sampling.slots", in,
                        with(&sampling::slots, gumbel::slots{of_row, INT64_MAX})));
    sampling slotted = with(&sampling::slots, gumbel::slots{of_row, 10});
    slotted.temperature = wide;
    CHECK(returns_error("sampling.temperature", in, slotted));
    gumbel::truncation kept;
    kept.top_p = few;
    CHECK(returns_error("sampling.truncation.top_p", in, with(&sampling::truncation, &kept)));
    gumbel::programs programs;
    kept.top_p = {};
    kept.programs = &programs;
    CHECK(returns_error("programs.count", in, with(&sampling::truncation, &kept)));
    const std::vector<gumbel::program> orders(17, {gumbel::program_rule::temperature});
    programs.rules = orders;
    CHECK(returns_error("programs.count", in, with(&sampling::truncation, &kept)));
    programs.rules = {orders.data(), 1};
    programs.typical_p = few;
    CHECK(returns_error("programs.typical_p", in, with(&sampling::truncation, &kept)));
    programs.typical_p = 2;
    CHECK(returns_error("programs.typical_p[0]", in, with(&sampling::truncation, &kept)));
    programs.typical_p = {};
    programs.program = tokens;
    CHECK(returns_error("programs.program", in, with(&sampling::truncation, &kept)));
    programs.program = 1;
    CHECK(returns_error("programs.program[0]", in, with(&sampling::truncation, &kept)));
    const std::vector<std::int64_t> offsets(B);
    programs.program = {};
    programs.xtc_keep.offsets = offsets;
    CHECK(returns_error("programs.xtc_keep", in, with(&sampling::truncation, &kept)));
}

static void check_transforms()
{
    const auto field = [](const char *name, const gumbel::transforms &t) {
        sampling how;
        how.transforms = &t;
        return returns_error(name, input.head(), how);
    };
    const std::vector<std::int32_t> words(B * 32 - 1, -1), ids = {1, 2};
    gumbel::transforms masked;
    masked.mask = words;
    CHECK(field("sampling.transforms.mask", masked));
    masked.mask = {words.data(), 31};
    masked.mask_stride = GUMBEL_SAME;
    CHECK(field("sampling.transforms.mask", masked));
    const std::vector<std::vector<std::int64_t>> odd = {{0, 0, 0, 3, 3},
                                                        {0, 1, 2, 2},
                                                        {0, 2, 1, 2, 2},
                                                        {-1, 0, 0, 0, 0},
                                                        {0, INT64_MAX, INT64_MAX, 2, 2}};
    for (const auto &offsets : odd) {
        gumbel::transforms listed;
        listed.banned.offsets = offsets;
        listed.banned.ids = ids;
        CHECK(field("sampling.transforms.banned", listed));
    }
    const std::vector<std::int64_t> offsets = {0, 2, 2, 2, 2};
    const std::vector<float> one(1);
    gumbel::transforms biased;
    biased.bias = {offsets, ids, one};
    CHECK(field("sampling.transforms.bias", biased));
    gumbel::transforms counted;
    counted.repetition = 1.5f;
    CHECK(field("sampling.transforms.history", counted));
    std::vector<std::uint32_t> bits(128);
    std::vector<std::int32_t> counts(B * V - 1);
    gumbel::history history;
    history.vocab_size = V;
    history.prompt = history.output = bits;
    history.counts = gumbel::span<std::int32_t>(counts);
    counted.history = &history;
    CHECK(field("sampling.transforms.history", counted));
}

static void check_other_calls()
{
    gumbel::values::device device = open_device(), none;
    gumbel::workspace space = space_of(1 << 22);
    const gumbel::logits in = input.logits();
    std::vector<float> z(B * V);
    const auto fills = [&](std::int64_t rows, std::size_t size, std::int64_t stride) {
        const gumbel::matrix<float> into({z.data(), size}, rows, V, stride);
        return device.softmax(in, {}, into, space).ok();
    };
    CHECK(!fills(B, B * V - 1, 0) && !fills(B, B * V, V + 1) && !fills(B, B * V, V - 1));
    CHECK(!fills(B - 1, B * V, 0) && fills(B, B * V, 0));
    std::vector<gumbel::summary> few(B - 1), all(B);
    CHECK(!device.partial_logits(in, {}, few, space));
    CHECK(!device.partial(input.head(), {}, few, space));
    CHECK(!device.merge(all, few) && !gumbel::values::device::merge_host(few, all));
    CHECK(!none.merge(all, all) && none.merge(all, all).error().code() == status::argument);
    std::vector<std::int32_t> tokens(B, 77), fewer(B - 1);
    gumbel::output out;
    out.tokens = tokens;
    CHECK(!device.finish(all, 2, B, 1, out) && !none.finish(all, 1, B, 1, out));
    CHECK(!device.finish(all, 1, INT64_MAX, 2, out) && !device.finish(all, -1, B, 1, out));
    CHECK(!device.finish(few, 1, B, 0, out));
    CHECK(!device.prepare_noise({}, B, 0, V, {z.data(), z.size() - 1}));
    CHECK(!device.noise(0, 0, 0, 1u << 31, 0, z) && !device.philox4x32({}, {}, 17));

    CHECK(device.sample(input.head(), {}, out, {}).error().code() == status::workspace);
    const gumbel::memory odd = {static_cast<char *>(space.data()) + 8, 1 << 20};
    CHECK(device.sample(input.head(), {}, out, odd).error().code() == status::workspace);
    CHECK(!device.sample(input.head(), {}, out, space, &device));
    CHECK(!none.sample(input.head(), {}, out, space) && !none.describe());
    CHECK(!none.workspace_size(in) && !none.explain(in) && !none.advance({}));
    CHECK(tokens == std::vector<std::int32_t>(B, 77));

    std::vector<std::uint64_t> position(B);
    std::vector<std::int32_t> ring(2 * B - 1);
    gumbel::step step;
    step.batch = B;
    step.tokens = tokens;
    step.position = position;
    step.ring = ring;
    step.ring_length = 2;
    CHECK(std::strcmp(device.advance(step).error().field(), "step.ring") == 0);
}

static void check_histories()
{
    gumbel::values::device device = open_device();
    std::vector<std::uint32_t> bits(127);
    std::vector<std::uint16_t> counts(B * V);
    gumbel::history history;
    history.vocab_size = V;
    history.prompt = history.output = bits;
    history.counts = gumbel::span<std::uint16_t>(counts);
    CHECK(!device.history_start(history, B));
    CHECK(!device.history_start({}, B));
    const std::vector<std::int32_t> tokens(5, 1), many = {1, 1, 2};
    const gumbel::matrix<const std::int32_t> rows(tokens, 3, 2);
    CHECK(!device.history_update(history, rows, {}, many));
    CHECK(!device.history_update(history, rows, {}, {many.data(), 2}));
    CHECK(device.history_update(history, rows));
}

static void check_drafts()
{
    gumbel::values::device device = open_device();
    gumbel::workspace space = space_of(1 << 20);
    const std::vector<std::int32_t> drafted(B), few(B - 1), offsets = {0, 5};
    std::vector<std::int32_t> tokens(B, 77), emitted(1);
    gumbel::draft plain;
    plain.requests = 1;
    plain.max_nodes = B;
    plain.tokens = drafted;
    gumbel::verified out;
    out.tokens = tokens;
    out.emitted = emitted;
    const auto field = [&](const gumbel::draft &draft) {
        return std::string(
            device.verify_logits(input.logits(), {}, draft, out, space).error().field());
    };
    gumbel::draft draft = plain;
    draft.tokens = few;
    CHECK(field(draft) == "draft.tokens");
    draft = plain;
    draft.parents = few;
    CHECK(field(draft) == "draft.parents");
    draft = plain;
    draft.offsets = offsets;
    CHECK(field(draft) == "draft.offsets");
    draft.offsets = {offsets.data(), 1};
    CHECK(field(draft) == "draft.offsets");
    draft = plain;
    draft.requests = INT64_MAX;
    CHECK(field(draft) != "");
    out.tokens = {tokens.data(), B - 1};
    CHECK(field(plain) == "verified.tokens" && tokens[0] == 77);
    out.tokens = tokens;
    CHECK(field(plain) == "" && tokens[0] != 77);
}

static void check_devices()
{
    gumbel::device_options options;
    options.device = "abacus";
    CHECK(gumbel::values::device::open(options).error().code() == status::unsupported);
    options.device = "cuda:4096";
    CHECK(gumbel::values::device::open(options).error().code() == status::unsupported);
    options.device = nullptr;
    options.threads = -1;
    CHECK(gumbel::values::device::open(options).error().code() == status::argument);
    gumbel::workspace space;
    CHECK(!space.reserve(SIZE_MAX / 2) && space.bytes() == 0);
    CHECK(space.reserve(100) && space.reserve(10) && space.bytes() == 100);
    CHECK(reinterpret_cast<std::uintptr_t>(space.data()) % GUMBEL_WORKSPACE_ALIGNMENT == 0);
}

/* An error of GPUs, tested without one: the value of a row parameter is in host memory. */
static void check_memory_of_another_device()
{
    const float there = 1; /* nothing follows the pointer */
    for (const bool host : {false, true}) {
        gumbel::error failure;
        sampling how;
        how.temperature = 0.8f;
        const gumbel::detail::lowered_call<gumbel::head> call(failure, host, input.head(), how,
                                                              nullptr);
        CHECK(host == !failure);
        CHECK(host || std::strcmp(failure.field(), "sampling.temperature") == 0);
        gumbel::error none;
        how.temperature = gumbel::row<float>::same(&there);
        const gumbel::detail::lowered_call<gumbel::head> other(none, host, input.head(), how,
                                                               nullptr);
        CHECK(!none && other.sampling()->temperature.data == &there);
    }
}

int main()
{
    check_tensors();
    check_row_parameters();
    check_transforms();
    check_other_calls();
    check_histories();
    check_drafts();
    check_devices();
    check_memory_of_another_device();
    return report("test_cpp_refusals");
}
