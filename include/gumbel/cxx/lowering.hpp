/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17, internal: fills the structs of the C interface from those of C++. This code
 * checks that views hold as many elements as the call's shapes require. The C call checks all else.
 */
#ifndef GUMBEL_CXX_LOWERING_HPP
#define GUMBEL_CXX_LOWERING_HPP

#include <gumbel/cxx/parameters.hpp>

namespace gumbel
{
namespace detail
{

using count = std::uint64_t;

/* A negative size becomes 0 here; the C call returns an error for it. */
constexpr count sized(std::int64_t size) noexcept
{
    return size > 0 ? static_cast<count>(size) : 0;
}

/* a * b, or the largest count on overflow. */
constexpr count times(count a, count b) noexcept
{
    constexpr count half = count{1} << 32;
    if (a < half && b < half)
        return a * b;
    return b != 0 && a > ~count{0} / b ? ~count{0} : a * b;
}
constexpr count plus(count a, count b) noexcept { return a > ~count{0} - b ? ~count{0} : a + b; }

/* Elements that `rows` rows of `width` span at `stride`. */
constexpr count extent(count rows, count width, std::int64_t stride) noexcept
{
    if (rows == 0 || width == 0)
        return 0;
    if (stride == GUMBEL_SAME)
        return width;
    return plus(times(rows - 1, stride == 0 ? width : sized(stride)), width);
}

/* The sizes of a call's arguments: B, S, V, and the number of row parameters. */
struct shape {
    count batch = 0;
    count samples = 1;
    count vocab = 0;
    count tokens_end = 0; /* first_token + V */
    count places = 0;     /* B or slots */
};

constexpr shape shape_of(std::int64_t batch, std::int64_t vocab, std::int64_t first) noexcept
{
    shape sizes;
    sizes.batch = sizes.places = sized(batch);
    sizes.vocab = sized(vocab);
    sizes.tokens_end = plus(sizes.vocab, sized(first));
    return sizes;
}

constexpr count places_of(const slots &s, count batch) noexcept
{
    return s.of_row.absent() ? batch : sized(s.count);
}

/* Fills C structs and checks sizes. `reads` is true if the call reads data, `host` if the data are
 * in host memory. */
class lowering
{
  public:
    lowering(error &failure, bool host, bool reads = true) noexcept
        : failure_(failure), host_(host), reads_(reads)
    {
    }

    bool host() const noexcept { return host_; }
    bool reads() const noexcept { return reads_; }
    void refuse(const char *field, const char *message) noexcept
    {
        failure_.refuse(field, message);
    }

    template <class T> T *data(const char *field, const span<T> &view, count needed) noexcept
    {
        if (!view.absent())
            need(field, view.data(), view.size(), needed);
        return view.data();
    }
    void need(const char *field, const void *data, count has, count needed) noexcept
    {
        if (!reads_)
            return;
        if (has < needed)
            failure_.refuse_size(field, has, needed);
        else if (data == nullptr && needed > 0)
            failure_.refuse(field, "it has a size, and its pointer is null");
    }

    gumbel_tensor lower(const char *field, const tensor &t) noexcept
    {
        gumbel_tensor into = {t.data, static_cast<gumbel_dtype>(t.type), t.rows, t.cols, t.stride,
                              {0, 0}};
        if (t.rows > 0 && t.cols > 0)
            need(field, t.data, t.size, extent(sized(t.rows), sized(t.cols), t.stride));
        return into;
    }

    /* Fills a gumbel_row_* with parameters of `places` rows or slots. */
    template <class Into, class T>
    void lower(Into &into, const char *field, const row<T> &values, count places) noexcept
    {
        if (values.absent())
            return;
        if (values.is_value() && !host_)
            refuse(field, "a value is in host memory, and this device is a GPU: use row::same()");
        need(field, values.data(), values.size(), extent(places, 1, values.stride()));
        into.data = values.data();
        into.stride = values.stride();
    }

    gumbel_slots lower(const char *field, const slots &s, count batch) noexcept
    {
        return {data(field, s.of_row, batch), s.count};
    }

    gumbel_token_lists lower(const char *field, const token_lists &lists, count batch) noexcept
    {
        const count has = lists.ids.size();
        gumbel_token_lists into = {data(field, lists.offsets, plus(batch, 1)), lists.ids.data(),
                                   lists.values.data(), 0};
        if (!reads_)
            return into;
        if (!lists.values.absent() && lists.values.size() < has)
            failure_.refuse_size(field, lists.values.size(), has);
        if (host_ && !lists.offsets.absent() && lists.offsets.size() > batch)
            for (count b = 0; b <= batch; b++)
                if (sized(lists.offsets[b]) > has)
                    failure_.refuse_size(field, has, sized(lists.offsets[b]));
        return into;
    }

    gumbel_history lower(const char *field, const history &h, count places) noexcept
    {
        gumbel_history into = {};
        const count tokens = sized(h.vocab_size), words = tokens / 32 + (tokens % 32 != 0);
        into.struct_size = sizeof into;
        into.vocab_size = h.vocab_size;
        into.prompt = data(field, h.prompt, times(places, words));
        into.output = data(field, h.output, times(places, words));
        into.counts = h.counts.data;
        into.count_bits = h.counts.bits;
        if (h.counts.data != nullptr || h.counts.size > 0)
            need(field, h.counts.data, h.counts.size, times(places, tokens));
        return into;
    }

    gumbel_head lower(const head &h, shape &sizes) noexcept
    {
        gumbel_head into = {};
        into.struct_size = sizeof into;
        into.hidden = lower("head.hidden", h.hidden);
        into.weight = lower("head.weight", h.weight);
        if (h.bias.data != nullptr || h.bias.rows != 0)
            into.bias = lower("head.bias", h.bias);
        into.scale = h.scale;
        into.soft_cap = h.soft_cap;
        into.first_token = h.first_token;
        into.vocab_size = h.vocab_size;
        into.screen = h.screen;
        sizes = shape_of(h.hidden.rows, h.weight.rows, h.first_token);
        return into;
    }

    gumbel_logits lower(const logits &l, shape &sizes) noexcept
    {
        gumbel_logits into = {};
        into.struct_size = sizeof into;
        into.logits = lower("logits.logits", l.values);
        into.scale = l.scale;
        into.soft_cap = l.soft_cap;
        into.first_token = l.first_token;
        into.vocab_size = l.vocab_size;
        sizes = shape_of(l.values.rows, l.values.cols, l.first_token);
        return into;
    }

    gumbel_output lower(const output &o, const shape &sizes) noexcept
    {
        gumbel_output into = {};
        const count draws = times(sizes.batch, sizes.samples);
        const count top = times(sizes.batch, sized(o.num_top));
        const count best = times(sizes.batch, sized(o.num_best));
        const count places = times(sizes.batch, sized(o.kept_capacity));
        into.struct_size = sizeof into;
        into.tokens = data("output.tokens", o.tokens, draws);
        into.logprobs = data("output.logprobs", o.logprobs, draws);
        into.scores = data("output.scores", o.scores, draws);
        into.lse = data("output.lse", o.lse, sizes.batch);
        into.status = data("output.status", o.status, sizes.batch);
        into.ranks = data("output.ranks", o.ranks, draws);
        into.kept = data("output.kept", o.kept, sizes.batch);
        into.top_ids = data("output.top_ids", o.top_ids, top);
        into.top_logprobs = data("output.top_logprobs", o.top_logprobs, top);
        into.num_top = o.num_top;
        into.logprobs_of = static_cast<gumbel_distribution>(o.logprobs_of);
        into.top_logits = data("output.top_logits", o.top_logits, top);
        into.best_ids = data("output.best_ids", o.best_ids, best);
        into.best_scores = data("output.best_scores", o.best_scores, best);
        into.num_best = o.num_best;
        into.kept_capacity = o.kept_capacity;
        into.kept_ids = data("output.kept_ids", o.kept_ids, places);
        into.kept_logprobs = data("output.kept_logprobs", o.kept_logprobs, places);
        into.entropy = data("output.entropy", o.entropy, sizes.batch);
        return into;
    }

    gumbel_step lower(const step &s) noexcept
    {
        gumbel_step into = {};
        const count samples = s.num_samples == 0 ? 1 : sized(s.num_samples);
        const count rows = sized(s.batch), places = places_of(s.slots, rows);
        into.struct_size = sizeof into;
        into.batch = s.batch;
        into.num_samples = s.num_samples;
        into.tokens = data("step.tokens", s.tokens, times(rows, samples));
        into.position = data("step.position", s.position, extent(places, 1, s.position_stride));
        into.position_stride = s.position_stride;
        into.ring = data("step.ring", s.ring, times(sized(s.ring_length), times(places, samples)));
        into.ring_length = s.ring_length;
        into.slots = lower("step.slots", s.slots, rows);
        into.live_rows = s.live_rows;
        return into;
    }

  private:
    error &failure_;
    bool host_;
    bool reads_;
};

/* The C structs of a sampling. They point at each other, so they are neither copied nor moved. */
class lowered_sampling
{
  public:
    /* For a call whose parameters are those of its rows. Sets samples and places of `sizes`. */
    lowered_sampling(lowering &to, const sampling &s, shape &sizes) noexcept
        : lowered_sampling(to, s, sizes, sizes.batch, sizes.batch, 0)
    {
    }
    /* For a verification. Its parameters are those of `batch` requests, or of `places` slots if the
     * sampling has no slots of its own. The mask has `mask_rows` rows; 0: as the other
     * parameters. */
    lowered_sampling(lowering &to, const sampling &s, shape &sizes, count batch, count places,
                     count mask_rows) noexcept
    {
        sizes.samples = s.num_samples == 0 ? 1 : sized(s.num_samples);
        sizes.places = places_of(s.slots, places);
        into_.struct_size = sizeof into_;
        to.lower(into_.temperature, "sampling.temperature", s.temperature, sizes.places);
        to.lower(into_.seed, "sampling.seed", s.seed, sizes.places);
        to.lower(into_.position, "sampling.position", s.position, sizes.places);
        to.lower(into_.first_sample, "sampling.first_sample", s.first_sample, sizes.places);
        into_.num_samples = s.num_samples;
        if (s.transforms != nullptr)
            lower_transforms(to, *s.transforms, sizes, batch,
                             mask_rows > 0 ? mask_rows : sizes.places);
        if (s.truncation != nullptr)
            lower_truncation(to, *s.truncation, sizes.places, batch);
        into_.slots = to.lower("sampling.slots", s.slots, batch);
        into_.live_rows = s.live_rows;
        into_.given.stride = s.given_stride;
        into_.given.data =
            to.data("sampling.given", s.given, extent(sizes.batch, sizes.samples, s.given_stride));
        into_.noise =
            to.data("sampling.noise", s.noise,
                    extent(times(sizes.batch, sizes.samples), sizes.vocab, s.noise_stride));
        into_.noise_stride = s.noise_stride;
        into_.domain = s.domain;
        into_.token_ids = to.data("sampling.token_ids", s.token_ids, sizes.vocab);
    }
    lowered_sampling(const lowered_sampling &) = delete;
    lowered_sampling &operator=(const lowered_sampling &) = delete;

    const gumbel_sampling *get() const noexcept { return &into_; }

  private:
    void lower_transforms(lowering &to, const transforms &t, const shape &sizes, count batch,
                          count mask_rows) noexcept
    {
        const count words = sizes.tokens_end / 32 + (sizes.tokens_end % 32 != 0);
        transforms_ = {};
        transforms_.struct_size = sizeof transforms_;
        transforms_.mask.stride = t.mask_stride;
        transforms_.mask.data =
            to.data("sampling.transforms.mask", t.mask, extent(mask_rows, words, t.mask_stride));
        transforms_.allowed = to.lower("sampling.transforms.allowed", t.allowed, batch);
        transforms_.banned = to.lower("sampling.transforms.banned", t.banned, batch);
        transforms_.bias = to.lower("sampling.transforms.bias", t.bias, batch);
        to.lower(transforms_.repetition, "sampling.transforms.repetition", t.repetition,
                 sizes.places);
        to.lower(transforms_.frequency, "sampling.transforms.frequency", t.frequency, sizes.places);
        to.lower(transforms_.presence, "sampling.transforms.presence", t.presence, sizes.places);
        if (t.history != nullptr) {
            history_ = to.lower("sampling.transforms.history", *t.history, sizes.places);
            transforms_.history = &history_;
        }
        transforms_.prompt_tokens =
            to.lower("sampling.transforms.prompt_tokens", t.prompt_tokens, batch);
        transforms_.output_tokens =
            to.lower("sampling.transforms.output_tokens", t.output_tokens, batch);
        transforms_.late_bias = to.lower("sampling.transforms.late_bias", t.late_bias, batch);
        transforms_.list_status = to.data("sampling.transforms.list_status", t.list_status, batch);
        transforms_.max_allowed = t.max_allowed;
        into_.transforms = &transforms_;
    }

    void lower_programs(lowering &to, const programs &p, count places, count batch) noexcept
    {
        static_assert(sizeof(program) == GUMBEL_PROGRAM_LENGTH, "a program is an array of bytes");
        programs_ = {};
        programs_.struct_size = sizeof programs_;
        programs_.rules = reinterpret_cast<const std::uint8_t *>(p.rules.data());
        programs_.count = static_cast<std::int32_t>(
            p.rules.size() <= GUMBEL_PROGRAMS_MAX ? p.rules.size() : GUMBEL_PROGRAMS_MAX + 1);
        to.lower(programs_.program, "programs.program", p.program, places);
        to.lower(programs_.min_keep, "programs.min_keep", p.min_keep, places);
        to.lower(programs_.temperature_range, "programs.temperature_range", p.temperature_range,
                 places);
        to.lower(programs_.temperature_exponent, "programs.temperature_exponent",
                 p.temperature_exponent, places);
        to.lower(programs_.typical_p, "programs.typical_p", p.typical_p, places);
        to.lower(programs_.top_n_sigma, "programs.top_n_sigma", p.top_n_sigma, places);
        to.lower(programs_.epsilon, "programs.epsilon", p.epsilon, places);
        to.lower(programs_.eta, "programs.eta", p.eta, places);
        to.lower(programs_.top_a, "programs.top_a", p.top_a, places);
        to.lower(programs_.surprise, "programs.surprise", p.surprise, places);
        to.lower(programs_.xtc_probability, "programs.xtc_probability", p.xtc_probability, places);
        to.lower(programs_.xtc_threshold, "programs.xtc_threshold", p.xtc_threshold, places);
        programs_.xtc_keep = to.lower("programs.xtc_keep", p.xtc_keep, batch);
        to.lower(programs_.smoothing_factor, "programs.smoothing_factor", p.smoothing_factor,
                 places);
        to.lower(programs_.smoothing_curve, "programs.smoothing_curve", p.smoothing_curve, places);
        to.lower(programs_.adaptive_target, "programs.adaptive_target", p.adaptive_target, places);
        truncation_.programs = &programs_;
    }

    void lower_truncation(lowering &to, const truncation &t, count places, count batch) noexcept
    {
        truncation_ = {};
        truncation_.struct_size = sizeof truncation_;
        to.lower(truncation_.min_p, "sampling.truncation.min_p", t.min_p, places);
        to.lower(truncation_.top_k, "sampling.truncation.top_k", t.top_k, places);
        to.lower(truncation_.top_p, "sampling.truncation.top_p", t.top_p, places);
        truncation_.order = static_cast<gumbel_order>(t.order);
        truncation_.ties = static_cast<gumbel_ties>(t.ties);
        if (t.programs != nullptr)
            lower_programs(to, *t.programs, places, batch);
        into_.truncation = &truncation_;
    }

    gumbel_sampling into_ = {};
    gumbel_transforms transforms_; /* these four are filled only if they are used */
    gumbel_truncation truncation_;
    gumbel_programs programs_;
    gumbel_history history_;
};

} // namespace detail
} // namespace gumbel

#endif /* GUMBEL_CXX_LOWERING_HPP */
