/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17, internal: fills the C structs of the calls between two draws.
 */
#ifndef GUMBEL_CXX_LOWERING_STEPS_HPP
#define GUMBEL_CXX_LOWERING_STEPS_HPP

#include <gumbel/cxx/lowering.hpp>
#include <gumbel/cxx/parameters_steps.hpp>

namespace gumbel
{
namespace detail
{

inline gumbel_rule_updates lower_updates(lowering &to, const rule_updates &u) noexcept
{
    gumbel_rule_updates into = {};
    const count rows = sized(u.batch), places = places_of(u.slots, rows);
    into.struct_size = sizeof into;
    into.batch = u.batch;
    const std::int64_t stride = u.token_stride == 0 ? 1 : u.token_stride;
    into.tokens = to.data("updates.tokens", u.tokens, extent(rows, 1, stride));
    into.token_stride = u.token_stride;
    into.logprobs = to.data("updates.logprobs", u.logprobs, extent(rows, 1, stride));
    into.slots = to.lower("updates.slots", u.slots, rows);
    into.live_rows = u.live_rows;
    into.surprise = to.data("updates.surprise", u.surprise, extent(places, 1, u.surprise_stride));
    into.surprise_stride = u.surprise_stride;
    to.lower(into.surprise_target, "updates.surprise_target", u.surprise_target, places);
    to.lower(into.surprise_rate, "updates.surprise_rate", u.surprise_rate, places);
    into.top_p = to.data("updates.top_p", u.top_p, extent(places, 1, u.top_p_stride));
    into.top_p_stride = u.top_p_stride;
    to.lower(into.top_p_first, "updates.top_p_first", u.top_p_first, places);
    to.lower(into.top_p_decay, "updates.top_p_decay", u.top_p_decay, places);
    to.lower(into.top_p_min, "updates.top_p_min", u.top_p_min, places);
    to.lower(into.top_p_reset, "updates.top_p_reset", u.top_p_reset, places);
    into.adaptive_target = to.data("updates.adaptive_target", u.adaptive_target,
                                   extent(places, 1, u.adaptive_target_stride));
    into.adaptive_target_stride = u.adaptive_target_stride;
    into.adaptive_sum =
        to.data("updates.adaptive_sum", u.adaptive_sum, extent(places, 1, u.adaptive_sum_stride));
    into.adaptive_sum_stride = u.adaptive_sum_stride;
    into.adaptive_weight = to.data("updates.adaptive_weight", u.adaptive_weight,
                                   extent(places, 1, u.adaptive_weight_stride));
    into.adaptive_weight_stride = u.adaptive_weight_stride;
    to.lower(into.adaptive_goal, "updates.adaptive_goal", u.adaptive_goal, places);
    to.lower(into.adaptive_decay, "updates.adaptive_decay", u.adaptive_decay, places);
    return into;
}

#ifdef GUMBEL_UNSTABLE

/* The C structs of rings, which point at each other. */
class lowered_recent
{
  public:
    lowered_recent(lowering &to, const recent &r, count places) noexcept
    {
        into_.struct_size = sizeof into_;
        into_.capacity = r.capacity;
        into_.tokens = to.data("recent.tokens", r.tokens, times(places, sized(r.capacity)));
        into_.count = to.data("recent.count", r.count, places);
        to.lower(into_.window, "recent.window", r.window, places);
        if (r.history != nullptr) {
            history_ = to.lower("recent.history", *r.history, places);
            into_.history = &history_;
        }
    }
    lowered_recent(const lowered_recent &) = delete;
    lowered_recent &operator=(const lowered_recent &) = delete;

    const gumbel_recent *get() const noexcept { return &into_; }

  private:
    gumbel_recent into_ = {};
    gumbel_history history_ = {};
};

inline gumbel_sequences lower_sequences(lowering &to, const char *field, const sequences &s,
                                        count batch) noexcept
{
    const count has = s.ids.size(), ends = s.offsets.size();
    gumbel_sequences into = {s.offsets.data(), s.ids.data(), 0,
                             to.data(field, s.of_row, plus(batch, 1)), 0};
    if (s.offsets.absent())
        return into;
    into.count = static_cast<std::int64_t>(ends > 0 ? ends - 1 : 0);
    to.need(field, s.offsets.data(), ends, 1);
    for (count k = 0; to.host() && into.offsets != nullptr && k < ends; k++)
        if (sized(s.offsets[k]) > has)
            to.need(field, s.ids.data(), has, sized(s.offsets[k]));
    return into;
}

inline gumbel_list_rules lower_rules(lowering &to, const list_rules &r, count batch,
                                     count places) noexcept
{
    gumbel_list_rules into = {};
    into.struct_size = sizeof into;
    to.lower(into.dry_multiplier, "rules.dry_multiplier", r.dry_multiplier, places);
    to.lower(into.dry_base, "rules.dry_base", r.dry_base, places);
    to.lower(into.dry_allowed_length, "rules.dry_allowed_length", r.dry_allowed_length, places);
    to.lower(into.dry_last_n, "rules.dry_last_n", r.dry_last_n, places);
    into.dry_breakers = lower_sequences(to, "rules.dry_breakers", r.dry_breakers, batch);
    to.lower(into.ngram_size, "rules.ngram_size", r.ngram_size, places);
    to.lower(into.ngram_window, "rules.ngram_window", r.ngram_window, places);
    into.ngram_keep = to.lower("rules.ngram_keep", r.ngram_keep, batch);
    into.bad_words = lower_sequences(to, "rules.bad_words", r.bad_words, batch);
    to.lower(into.position, "rules.position", r.position, places);
    to.lower(into.min_position, "rules.min_position", r.min_position, places);
    into.stop_tokens = to.lower("rules.stop_tokens", r.stop_tokens, batch);
    return into;
}

inline gumbel_row_lists lower_lists(lowering &to, const row_lists &l, count batch) noexcept
{
    gumbel_row_lists into = {};
    const count places = times(batch, sized(l.capacity));
    into.struct_size = sizeof into;
    into.capacity = l.capacity;
    into.offsets = to.data("lists.offsets", l.offsets, plus(batch, 1));
    into.banned = to.data("lists.banned", l.banned, places);
    into.late_ids = to.data("lists.late_ids", l.late_ids, places);
    into.late_values = to.data("lists.late_values", l.late_values, places);
    into.status = to.data("lists.status", l.status, batch);
    return into;
}

inline gumbel_watermark lower_watermark(lowering &to, const watermark &w, count batch) noexcept
{
    gumbel_watermark into = {};
    const count places = places_of(w.slots, batch);
    into.struct_size = sizeof into;
    into.key = to.data("watermark.key", w.key, extent(places, 2, w.key_stride));
    into.key_stride = w.key_stride;
    to.lower(into.context, "watermark.context", w.context, places);
    to.lower(into.text_start, "watermark.text_start", w.text_start, places);
    to.lower(into.seed, "watermark.seed", w.seed, places);
    to.lower(into.position, "watermark.position", w.position, places);
    into.slots = to.lower("watermark.slots", w.slots, batch);
    into.live_rows = w.live_rows;
    into.drafts =
        to.data("watermark.drafts", w.drafts, extent(batch, sized(w.num_drafts), w.draft_stride));
    into.draft_stride = w.draft_stride;
    into.num_drafts = w.num_drafts;
    return into;
}

/* `positions` and `rows` are the sizes of the arrays of positions and of `watermarked`. */
inline gumbel_watermark_draws lower_draws(lowering &to, const watermark_draws &d, count places,
                                          count positions, count rows) noexcept
{
    gumbel_watermark_draws into = {};
    into.struct_size = sizeof into;
    into.seed = to.data("draws.seed", d.seed, places);
    into.position = to.data("draws.position", d.position, positions);
    into.watermarked = to.data("draws.watermarked", d.watermarked, rows);
    return into;
}

#endif

} // namespace detail
} // namespace gumbel

#endif /* GUMBEL_CXX_LOWERING_STEPS_HPP */
