/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: the calls of a device between two draws. The function of the same name in
 * gumbel.h, programs.h, recent.h or watermark.h documents each call.
 */
#ifndef GUMBEL_CXX_DEVICE_STEPS_HPP
#define GUMBEL_CXX_DEVICE_STEPS_HPP

#include <gumbel/cxx/lowering_drafts.hpp>
#include <gumbel/cxx/lowering_steps.hpp>

namespace gumbel
{

/* The CUstream on which a call on a GPU is queued. */
using stream = void *;

/* The base of basic_device, which is Device. */
template <class Policy, class Device> class step_calls
{
  public:
    template <class T> using returned = typename Policy::template returned<T>;

    returned<void> advance(const step &of, stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const gumbel_step lowered = to.lower(of);
        if (!failure)
            failure.set(gumbel_advance(device(), on, &lowered, failure.strings()));
        return Policy::give(failure);
    }

    returned<void> history_start(const history &of, std::int64_t batch, const slots &where = {},
                                 const token_lists &prompts = {}, const token_lists &outputs = {},
                                 stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count rows = detail::sized(batch);
        const gumbel_slots at = to.lower("slots", where, rows);
        const gumbel_history into = to.lower("history", of, detail::places_of(where, rows));
        const gumbel_token_lists before = to.lower("prompts", prompts, rows);
        const gumbel_token_lists after = to.lower("outputs", outputs, rows);
        if (!failure)
            failure.set(gumbel_history_start(device(), on, &into, batch, &at, &before, &after,
                                             failure.strings()));
        return Policy::give(failure);
    }

    /* `tokens` is [B] rows at their stride; `counts` is [B], or absent for one token a row. */
    returned<void> history_update(const history &of, const matrix<const std::int32_t> &tokens,
                                  const slots &where = {}, span<const std::int32_t> counts = {},
                                  stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count rows = detail::sized(tokens.rows);
        const gumbel_slots at = to.lower("slots", where, rows);
        const gumbel_history into = to.lower("history", of, detail::places_of(where, rows));
        const std::int64_t stride = need_tokens(to, tokens, counts);
        if (!failure)
            failure.set(gumbel_history_update(device(), on, &into, tokens.rows, &at, tokens.data,
                                              stride, counts.data(), failure.strings()));
        return Policy::give(failure);
    }

    returned<void> update_rules(const rule_updates &of, stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const gumbel_rule_updates lowered = detail::lower_updates(to, of);
        if (!failure)
            failure.set(gumbel_update_rules(device(), on, &lowered, failure.strings()));
        return Policy::give(failure);
    }

#ifdef GUMBEL_UNSTABLE
    /* -------------------------------------------------------------------- recent tokens ---- */

    returned<void> recent_start(const recent &of, std::int64_t batch, const slots &where = {},
                                const token_lists &prompts = {}, const token_lists &outputs = {},
                                stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count rows = detail::sized(batch);
        const gumbel_slots at = to.lower("slots", where, rows);
        const detail::lowered_recent into(to, of, detail::places_of(where, rows));
        const gumbel_token_lists before = to.lower("prompts", prompts, rows);
        const gumbel_token_lists after = to.lower("outputs", outputs, rows);
        if (!failure)
            failure.set(gumbel_recent_start(device(), on, into.get(), batch, &at, &before, &after,
                                            failure.strings()));
        return Policy::give(failure);
    }

    /* `tokens` and `counts` as in history_update(). */
    returned<void> recent_append(const recent &of, const matrix<const std::int32_t> &tokens,
                                 const slots &where = {}, span<const std::int32_t> counts = {},
                                 stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count rows = detail::sized(tokens.rows);
        const gumbel_slots at = to.lower("slots", where, rows);
        const detail::lowered_recent into(to, of, detail::places_of(where, rows));
        const std::int64_t stride = need_tokens(to, tokens, counts);
        if (!failure)
            failure.set(gumbel_recent_append(device(), on, into.get(), tokens.rows, &at,
                                             tokens.data, stride, counts.data(),
                                             failure.strings()));
        return Policy::give(failure);
    }

    /* `rings` may be null if the only rule is min_position. */
    returned<void> make_lists(const list_rules &rules, const recent *rings, std::int64_t batch,
                              const row_lists &lists, const slots &where = {}, stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count rows = detail::sized(batch), places = detail::places_of(where, rows);
        const gumbel_slots at = to.lower("slots", where, rows);
        const gumbel_list_rules by = detail::lower_rules(to, rules, rows, places);
        const detail::lowered_recent of(to, rings != nullptr ? *rings : recent{}, places);
        const gumbel_row_lists into = detail::lower_lists(to, lists, rows);
        if (!failure)
            failure.set(gumbel_make_lists(device(), on, &by, rings != nullptr ? of.get() : nullptr,
                                          batch, &at, &into, failure.strings()));
        return Policy::give(failure);
    }

    /* ----------------------------------------------------------------------- watermarks ---- */

    returned<void> watermark_rows(const watermark &mark, const recent &rings, std::int64_t batch,
                                  const watermark_draws &draws, stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count rows = detail::sized(batch),
                            places = detail::places_of(mark.slots, rows);
        const gumbel_watermark by = detail::lower_watermark(to, mark, rows);
        const detail::lowered_recent of(to, rings, places);
        const gumbel_watermark_draws into = detail::lower_draws(to, draws, places, places, rows);
        if (!failure)
            failure.set(gumbel_watermark_rows(device(), on, &by, of.get(), batch, &into,
                                              failure.strings()));
        return Policy::give(failure);
    }

    /* `rows` is n, the rows of the verification. */
    returned<void> watermark_nodes(const watermark &mark, const recent &rings, const draft &drafted,
                                   std::int64_t rows, const watermark_draws &draws,
                                   stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host());
        const detail::count nodes = detail::sized(rows), requests = detail::sized(drafted.requests),
                            places = detail::places_of(mark.slots, requests);
        const gumbel_watermark by = detail::lower_watermark(to, mark, requests);
        const detail::lowered_recent of(to, rings, places);
        const gumbel_draft at = detail::lower_nodes(to, drafted, nodes);
        const gumbel_watermark_draws into = detail::lower_draws(to, draws, places, nodes, nodes);
        if (!failure)
            failure.set(gumbel_watermark_nodes(device(), on, &by, of.get(), &at, rows, &into,
                                               failure.strings()));
        return Policy::give(failure);
    }

    /* Requires no device; `scores` is [count], or absent. */
    static returned<detection> detect_watermark(const detector &with,
                                                span<const std::int32_t> tokens,
                                                span<double> scores = {})
    {
        error failure;
        detail::lowering to(failure, true);
        detection out;
        gumbel_detection found = {};
        gumbel_detector by = {};
        by.struct_size = sizeof by;
        by.key[0] = with.key[0];
        by.key[1] = with.key[1];
        by.context = with.context;
        by.sample = with.sample;
        by.domain = with.domain;
        by.first = with.first;
        found.struct_size = sizeof found;
        double *into = to.data("scores", scores, tokens.size());
        if (!failure)
            failure.set(gumbel_detect_watermark(&by, tokens.data(),
                                                static_cast<std::int64_t>(tokens.size()), into,
                                                &found, failure.strings()));
        if (!failure)
            out = {found.scored, found.statistic, found.p_value, found.log10_p};
        return Policy::template give<detection>(failure, std::move(out));
    }
#endif

  private:
    gumbel_device *device() const noexcept { return static_cast<const Device *>(this)->get(); }
    bool host() const noexcept { return static_cast<const Device *>(this)->in_host_memory(); }

    /* Checks the size of `tokens` and `counts`; returns the stride of the tokens. */
    static std::int64_t need_tokens(detail::lowering &to, const matrix<const std::int32_t> &tokens,
                                    span<const std::int32_t> counts)
    {
        const detail::count rows = detail::sized(tokens.rows);
        const std::int64_t stride = tokens.stride == 0 ? tokens.cols : tokens.stride;
        const detail::count width = counts.absent() ? rows > 0 : detail::sized(stride);
        to.need("tokens", tokens.data, tokens.size, detail::extent(rows, width, stride));
        to.data("counts", counts, rows);
        return stride;
    }
};

} // namespace gumbel

#endif /* GUMBEL_CXX_DEVICE_STEPS_HPP */
