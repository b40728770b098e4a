/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17, internal: fills the C structs of whole calls.
 */
#ifndef GUMBEL_CXX_LOWERING_DRAFTS_HPP
#define GUMBEL_CXX_LOWERING_DRAFTS_HPP

#include <gumbel/cxx/lowering.hpp>

namespace gumbel
{
namespace detail
{

/* The C struct of an input, which is a head or logits, and a NULL pointer for the other of the
 * two. */
template <class In> struct way_in;
template <> struct way_in<gumbel::head> {
    gumbel_head into;
    const gumbel_head *head() const noexcept { return &into; }
    const gumbel_logits *logits() const noexcept { return nullptr; }
};
template <> struct way_in<gumbel::logits> {
    gumbel_logits into;
    const gumbel_head *head() const noexcept { return nullptr; }
    const gumbel_logits *logits() const noexcept { return &into; }
};

/* Arguments of a call that draws. The structs point at each other. */
template <class In> class lowered_call
{
  public:
    lowered_call(error &failure, bool host, const In &in, const gumbel::sampling &how,
                 const gumbel::output *out, bool reads = true) noexcept
        : to_(failure, host, reads), in_{to_.lower(in, sizes_)}, sampling_(to_, how, sizes_)
    {
        if (out != nullptr) {
            output_ = to_.lower(*out, sizes_);
            has_output_ = true;
        }
    }

    const gumbel_head *head() const noexcept { return in_.head(); }
    const gumbel_logits *logits() const noexcept { return in_.logits(); }
    const gumbel_sampling *sampling() const noexcept { return sampling_.get(); }
    const gumbel_output *output() const noexcept { return has_output_ ? &output_ : nullptr; }

    /* Records an error if a view is not [B, S]. */
    void need_draws(error &failure, const char *field, const void *data, count has) const noexcept
    {
        lowering(failure, true).need(field, data, has, times(sizes_.batch, sizes_.samples));
    }

  private:
    lowering to_;
    shape sizes_;
    way_in<In> in_;
    lowered_sampling sampling_;
    gumbel_output output_;
    bool has_output_ = false;
};

/* The nodes of a draft, and its rule. */
inline gumbel_draft lower_nodes(lowering &to, const draft &d, count rows) noexcept
{
    gumbel_draft into = {};
    const count requests = sized(d.requests);
    into.struct_size = sizeof into;
    into.requests = d.requests;
    into.max_nodes = d.max_nodes;
    into.rule = static_cast<gumbel_rule>(d.rule);
    into.tokens = to.data("draft.tokens", d.tokens, rows);
    into.offsets = to.data("draft.offsets", d.offsets, plus(requests, 1));
    into.nodes = to.data("draft.nodes", d.nodes, requests);
    into.parents = to.data("draft.parents", d.parents, rows);
    return into;
}

/* Arguments of a verification. */
template <class In> class lowered_verify
{
  public:
    lowered_verify(error &failure, bool host, const In &in, const gumbel::sampling &how,
                   const gumbel::draft &drafted, const gumbel::verified &out,
                   bool reads = true) noexcept
        : to_(failure, host, reads), in_{to_.lower(in, sizes_)}, rows_(sizes_.batch),
          requests_(sized(drafted.requests)),
          sampling_(to_, how, sizes_, requests_, requests_, rows_),
          proposal_(to_, drafted.sampling != nullptr ? *drafted.sampling : none_, sizes_of_draft(),
                    requests_, sizes_.places, rows_)
    {
        lower_draft(drafted);
        lower_verified(out, sized(drafted.max_nodes));
    }

    const gumbel_head *head() const noexcept { return in_.head(); }
    const gumbel_logits *logits() const noexcept { return in_.logits(); }
    const gumbel_sampling *sampling() const noexcept { return sampling_.get(); }
    const gumbel_draft *draft() const noexcept { return &draft_; }
    const gumbel_verified *verified() const noexcept { return &verified_; }

  private:
    shape &sizes_of_draft() noexcept
    {
        proposal_sizes_ = sizes_;
        return proposal_sizes_;
    }

    void lower_draft(const gumbel::draft &d) noexcept
    {
        draft_ = lower_nodes(to_, d, rows_);
        draft_.limit = to_.data("draft.limit", d.limit, requests_);
        draft_.stop = to_.lower("draft.stop", d.stop, requests_);
        shape unused;
        if (d.head != nullptr) {
            head_ = to_.lower(*d.head, unused);
            draft_.head = &head_;
        }
        if (d.logits != nullptr) {
            logits_ = to_.lower(*d.logits, unused);
            draft_.logits = &logits_;
        }
        if (d.sampling != nullptr)
            draft_.sampling = proposal_.get();
        draft_.lse = to_.data("draft.lse", d.lse, rows_);
        draft_.logprobs = to_.data("draft.logprobs", d.logprobs, rows_);
        draft_.node_position = to_.data("draft.node_position", d.node_position, rows_);
    }

    void lower_verified(const gumbel::verified &v, count most) noexcept
    {
        const count all = times(requests_, most);
        verified_.struct_size = sizeof verified_;
        verified_.tokens = to_.data("verified.tokens", v.tokens, all);
        verified_.emitted = to_.data("verified.emitted", v.emitted, requests_);
        verified_.accepted = to_.data("verified.accepted", v.accepted, requests_);
        verified_.path = to_.data("verified.path", v.path, all);
        verified_.last_row = to_.data("verified.last_row", v.last_row, requests_);
        verified_.position = to_.data("verified.position", v.position, sizes_.places);
        verified_.finished = to_.data("verified.finished", v.finished, requests_);
        verified_.status = to_.data("verified.status", v.status, requests_);
        verified_.logprobs = to_.data("verified.logprobs", v.logprobs, all);
        verified_.scores = to_.data("verified.scores", v.scores, all);
        verified_.histogram = to_.data("verified.histogram", v.histogram, most);
        if (v.rows != nullptr) {
            shape of_rows;
            of_rows.batch = rows_;
            output_ = to_.lower(*v.rows, of_rows);
            verified_.rows = &output_;
        }
    }

    lowering to_;
    shape sizes_, proposal_sizes_;
    const gumbel::sampling none_ = {};
    way_in<In> in_;
    count rows_, requests_;
    lowered_sampling sampling_, proposal_;
    gumbel_draft draft_ = {};
    gumbel_verified verified_ = {};
    gumbel_head head_;
    gumbel_logits logits_;
    gumbel_output output_;
};

} // namespace detail
} // namespace gumbel

#endif /* GUMBEL_CXX_LOWERING_DRAFTS_HPP */
