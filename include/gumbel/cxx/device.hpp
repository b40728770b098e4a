/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: a device and its calls. The function of the same name in gumbel.h, drafts.h
 * or screen.h documents each call; device_steps.hpp has the calls between two draws. The wrappers
 * are inline, allocate nothing and keep no pointer.
 */
#ifndef GUMBEL_CXX_DEVICE_HPP
#define GUMBEL_CXX_DEVICE_HPP

#include <gumbel/cxx/device_steps.hpp>
#include <gumbel/cxx/lowering_drafts.hpp>

#include <array>
#include <string>

namespace gumbel
{

/* A device, closed by its destructor; movable, not copyable. Policy decides whether a call returns
 * a result or throws (errors.hpp). Calls may run at the same time if their outputs and workspaces
 * differ. A default-constructed or moved-from object has no device: its calls return an error. */
template <class Policy> class basic_device : public step_calls<Policy, basic_device<Policy>>
{
  public:
    template <class T> using returned = typename Policy::template returned<T>;

    static returned<basic_device> open(const device_options &options = {})
    {
        gumbel_device_options to = {};
        to.struct_size = sizeof to;
        to.device = options.device;
        to.isa = static_cast<gumbel_isa>(options.isa);
        to.threads = options.threads;
        to.tile = options.tile;
        to.parallel_for = options.parallel_for;
        to.parallel_context = options.parallel_context;
        to.rungs = options.rungs;
        error failure;
        basic_device opened;
        failure.set(gumbel_open(&to, &opened.device_, failure.strings()));
        gumbel_device_info info = {};
        info.struct_size = sizeof info;
        if (!failure)
            failure.set(gumbel_describe(opened.device_, &info));
        opened.host_ = std::strncmp(info.name, "cuda", 4) != 0;
        return Policy::template give<basic_device>(failure, std::move(opened));
    }

    basic_device() noexcept = default;
    basic_device(basic_device &&other) noexcept
        : device_(std::exchange(other.device_, nullptr)), host_(other.host_)
    {
    }
    basic_device &operator=(basic_device &&other) noexcept
    {
        if (this != &other) {
            gumbel_close(device_);
            device_ = std::exchange(other.device_, nullptr);
            host_ = other.host_;
        }
        return *this;
    }
    basic_device(const basic_device &) = delete;
    basic_device &operator=(const basic_device &) = delete;
    ~basic_device() { gumbel_close(device_); }

    /* The handle for calls of the C interface; this object still owns it. */
    gumbel_device *get() const noexcept { return device_; }
    explicit operator bool() const noexcept { return device_ != nullptr; }
    /* Whether the device's data are in host memory: true for a CPU, false for a GPU. */
    bool in_host_memory() const noexcept { return host_; }

#ifdef GUMBEL_UNSTABLE
    /* Compute capability of a GPU, 10 * major + minor; 0 for a CPU. */
    int capability() const noexcept { return gumbel_device_capability(device_); }
#endif

    returned<device_info> describe() const
    {
        error failure;
        device_info info = {};
        info.struct_size = sizeof info;
        failure.set(gumbel_describe(device_, &info));
        return Policy::template give<device_info>(failure, std::move(info));
    }

    /* ----------------------------------------------------------------------- workspaces ---- */

    /* In is gumbel::head or gumbel::logits. */
    template <class In>
    returned<std::size_t> workspace_size(const In &in, const sampling &how = {},
                                         const output *out = nullptr) const
    {
        error failure;
        const detail::lowered_call<In> call(failure, host_, in, how, out, false);
        std::size_t bytes = 0;
        if (!failure)
            failure.set(gumbel_workspace_size(device_, call.head(), call.logits(), call.sampling(),
                                              call.output(), &bytes, failure.strings()));
        return Policy::template give<std::size_t>(failure, std::move(bytes));
    }

    returned<std::size_t> workspace_most(const limits &most) const
    {
        error failure;
        std::size_t bytes = 0;
        const gumbel_limits to = {
            sizeof to,     most.batch,   most.vocab_size, most.hidden_size, most.num_samples,
            most.requests, most.screens, most.max_nodes,  most.token_ids,   0};
        failure.set(gumbel_workspace_most(device_, &to, &bytes, failure.strings()));
        return Policy::template give<std::size_t>(failure, std::move(bytes));
    }

#ifdef GUMBEL_UNSTABLE
    /* -------------------------------------------------------------------------- screens ---- */

    returned<std::size_t> screen_size(const tensor &weight) const
    {
        error failure;
        detail::lowering to(failure, host_, false);
        const gumbel_tensor lowered = to.lower("weight", weight);
        std::size_t bytes = 0;
        if (!failure)
            failure.set(gumbel_screen_size(device_, &lowered, &bytes, failure.strings()));
        return Policy::template give<std::size_t>(failure, std::move(bytes));
    }

    /* `into`: screen_size() bytes, aligned as a workspace; then the value of head::screen. */
    returned<void> screen_prepare(const tensor &weight, const gumbel_screen &into,
                                  stream on = nullptr,
                                  const gumbel_screen_options *options = nullptr) const
    {
        error failure;
        detail::lowering to(failure, host_);
        const gumbel_tensor lowered = to.lower("weight", weight);
        if (!failure)
            failure.set(
                gumbel_screen_prepare(device_, on, &lowered, options, &into, failure.strings()));
        return Policy::give(failure);
    }

    returned<void> screen_verify(const tensor &weight, const gumbel_screen &screen,
                                 stream on = nullptr) const
    {
        error failure;
        detail::lowering to(failure, host_);
        const gumbel_tensor lowered = to.lower("weight", weight);
        if (!failure)
            failure.set(gumbel_screen_verify(device_, on, &lowered, &screen, failure.strings()));
        return Policy::give(failure);
    }
#endif

    template <class In>
    returned<std::size_t> verify_workspace_size(const In &in, const sampling &how,
                                                const draft &drafted, const verified &out) const
    {
        error failure;
        const detail::lowered_verify<In> call(failure, host_, in, how, drafted, out, false);
        std::size_t bytes = 0;
        if (!failure)
            failure.set(gumbel_verify_workspace_size(device_, call.head(), call.logits(),
                                                     call.sampling(), call.draft(), call.verified(),
                                                     &bytes, failure.strings()));
        return Policy::template give<std::size_t>(failure, std::move(bytes));
    }

    /* ------------------------------------------------------------------------- sampling ---- */

    returned<void> sample(const head &in, const sampling &how, const output &out, memory space,
                          stream on = nullptr)
    {
        error failure;
        const detail::lowered_call<head> call(failure, host_, in, how, &out);
        if (!failure)
            failure.set(gumbel_sample(device_, on, call.head(), call.sampling(), call.output(),
                                      space.data, space.bytes, failure.strings()));
        return Policy::give(failure);
    }

    returned<void> sample_logits(const logits &in, const sampling &how, const output &out,
                                 memory space, stream on = nullptr)
    {
        error failure;
        const detail::lowered_call<logits> call(failure, host_, in, how, &out);
        if (!failure)
            failure.set(gumbel_sample_logits(device_, on, call.logits(), call.sampling(),
                                             call.output(), space.data, space.bytes,
                                             failure.strings()));
        return Policy::give(failure);
    }

    returned<void> process_logits(const logits &in, const sampling &how, matrix<float> processed,
                                  memory space, stream on = nullptr)
    {
        return fill(gumbel_process_logits, "processed", in, how, processed, space, on);
    }

    /* `processed` has the dtype of the logits, and may be the logits themselves. */
    template <class T>
    returned<void> process_logits(const logits &in, const sampling &how, matrix<T> processed,
                                  memory space, stream on = nullptr)
    {
        return fill(gumbel_process_logits_into, "processed", in, how, processed, space, on,
                    static_cast<gumbel_dtype>(dtype_of<T>::value));
    }

    returned<void> softmax(const logits &in, const sampling &how, matrix<float> probabilities,
                           memory space, stream on = nullptr)
    {
        return fill(gumbel_softmax, "probabilities", in, how, probabilities, space, on);
    }

    /* --------------------------------------------------------------------------- drafts ---- */

    returned<void> verify(const head &in, const sampling &how, const draft &drafted,
                          const verified &out, memory space, stream on = nullptr)
    {
        error failure;
        const detail::lowered_verify<head> call(failure, host_, in, how, drafted, out);
        if (!failure)
            failure.set(gumbel_verify(device_, on, call.head(), call.sampling(), call.draft(),
                                      call.verified(), space.data, space.bytes, failure.strings()));
        return Policy::give(failure);
    }

    returned<void> verify_logits(const logits &in, const sampling &how, const draft &drafted,
                                 const verified &out, memory space, stream on = nullptr)
    {
        error failure;
        const detail::lowered_verify<logits> call(failure, host_, in, how, drafted, out);
        if (!failure)
            failure.set(gumbel_verify_logits(device_, on, call.logits(), call.sampling(),
                                             call.draft(), call.verified(), space.data, space.bytes,
                                             failure.strings()));
        return Policy::give(failure);
    }

    /* ------------------------------------------------------------------------ summaries ---- */

    returned<void> partial(const head &in, const sampling &how, span<summary> summaries,
                           memory space, stream on = nullptr)
    {
        error failure;
        const detail::lowered_call<head> call(failure, host_, in, how, nullptr);
        call.need_draws(failure, "summaries", summaries.data(), summaries.size());
        if (!failure)
            failure.set(gumbel_partial(device_, on, call.head(), call.sampling(), summaries.data(),
                                       space.data, space.bytes, failure.strings()));
        return Policy::give(failure);
    }

    returned<void> partial_logits(const logits &in, const sampling &how, span<summary> summaries,
                                  memory space, stream on = nullptr)
    {
        error failure;
        const detail::lowered_call<logits> call(failure, host_, in, how, nullptr);
        call.need_draws(failure, "summaries", summaries.data(), summaries.size());
        if (!failure)
            failure.set(gumbel_partial_logits(device_, on, call.logits(), call.sampling(),
                                              summaries.data(), space.data, space.bytes,
                                              failure.strings()));
        return Policy::give(failure);
    }

    /* into[i] = merge(into[i], from[i]) in this device's memory; both spans have the same size. */
    returned<void> merge(span<summary> into, span<const summary> from, stream on = nullptr)
    {
        error failure = present();
        return merged(failure, device_, into, from, on);
    }
    /* As merge(), in host memory and without a device. */
    static returned<void> merge_host(span<summary> into, span<const summary> from)
    {
        error failure;
        return merged(failure, nullptr, into, from, nullptr);
    }

    /* `summaries` is [parts, B, S]; `out` has B rows. */
    returned<void> finish(span<const summary> summaries, std::int32_t parts, std::int64_t batch,
                          std::int32_t num_samples, const output &out, stream on = nullptr)
    {
        error failure = present();
        return finished(failure, device_, summaries, parts, batch, num_samples, out, on);
    }
    static returned<void> finish_host(span<const summary> summaries, std::int32_t parts,
                                      std::int64_t batch, std::int32_t num_samples,
                                      const output &out)
    {
        error failure;
        return finished(failure, nullptr, summaries, parts, batch, num_samples, out, nullptr);
    }

    /* ---------------------------------------------------------------------------- noise ---- */

    /* `into` is [B, S, count] at `stride` elements a draw; 0 means count. */
    returned<void> prepare_noise(const sampling &how, std::int64_t batch, std::int64_t first_token,
                                 std::int64_t count, span<float> into, std::int64_t stride = 0,
                                 stream on = nullptr)
    {
        error failure;
        detail::lowering to(failure, host_);
        detail::shape sizes = detail::shape_of(batch, count, first_token);
        const detail::lowered_sampling call(to, how, sizes);
        to.need("noise", into.data(), into.size(),
                detail::extent(detail::times(sizes.batch, sizes.samples), sizes.vocab, stride));
        if (!failure)
            failure.set(gumbel_prepare_noise(device_, on, call.get(), batch, first_token, count,
                                             into.data(), stride, failure.strings()));
        return Policy::give(failure);
    }

    /* Writes the noise of into.size() tokens, in host memory. */
    static returned<void> noise(std::uint64_t seed, std::uint64_t position, std::uint32_t sample,
                                std::uint32_t domain, std::int64_t first_token, span<float> into)
    {
        error failure;
        const auto tokens = static_cast<std::int64_t>(into.size());
        failure.set(gumbel_noise(seed, position, sample, domain, first_token, tokens, into.data(),
                                 failure.strings()));
        return Policy::give(failure);
    }

    static returned<std::array<std::uint32_t, 4>>
    philox4x32(const std::array<std::uint32_t, 4> &counter, const std::array<std::uint32_t, 2> &key,
               int rounds = 10)
    {
        error failure;
        std::array<std::uint32_t, 4> out{};
        failure.set(gumbel_philox4x32(counter.data(), key.data(), rounds, out.data()));
        return Policy::template give<std::array<std::uint32_t, 4>>(failure, std::move(out));
    }

    /* ---------------------------------------------------------------------- diagnostics ---- */

    template <class In>
    returned<std::string> explain(const In &in, const sampling &how = {},
                                  const output *out = nullptr) const
    {
        error failure;
        const detail::lowered_call<In> call(failure, host_, in, how, out, false);
        char text[2048] = "";
        if (!failure)
            failure.set(gumbel_explain(device_, call.head(), call.logits(), call.sampling(),
                                       call.output(), text, sizeof text, failure.strings()));
        return Policy::template give<std::string>(failure, std::string(text));
    }

#ifdef GUMBEL_UNSTABLE
    returned<void> multiply(const head &in, memory space, stream on = nullptr)
    {
        error failure;
        const detail::lowered_call<head> call(failure, host_, in, {}, nullptr);
        if (!failure)
            failure.set(gumbel_multiply(device_, on, call.head(), space.data, space.bytes,
                                        failure.strings()));
        return Policy::give(failure);
    }
#endif

  private:
    /* An object without a device is an error; a NULL handle would mean host memory to the C
     * call. */
    error present() const noexcept
    {
        error failure;
        if (device_ == nullptr)
            failure.refuse("device", "it is none: never opened, or moved from");
        return failure;
    }

    /* `element` is the C call's argument `dtype`, if it has one. */
    template <class Call, class T, class... Dtype>
    returned<void> fill(Call *c_call, const char *field, const logits &in, const sampling &how,
                        matrix<T> into, memory space, stream on, Dtype... element)
    {
        error failure;
        const detail::lowered_call<logits> call(failure, host_, in, how, nullptr);
        if (into.rows != in.values.rows || into.cols != in.values.cols)
            failure.refuse(field, "its shape is not that of the logits");
        detail::lowering(failure, host_)
            .need(field, into.data, into.size,
                  detail::extent(detail::sized(into.rows), detail::sized(into.cols), into.stride));
        if (!failure)
            failure.set(c_call(device_, on, call.logits(), call.sampling(), into.data, element...,
                               into.stride, space.data, space.bytes, failure.strings()));
        return Policy::give(failure);
    }

    static returned<void> merged(error &failure, gumbel_device *device, span<summary> into,
                                 span<const summary> from, stream on)
    {
        if (into.size() != from.size())
            failure.refuse_size("from", from.size(), into.size());
        if (!failure)
            failure.set(gumbel_merge(device, on, into.data(), from.data(),
                                     static_cast<std::int64_t>(into.size()), failure.strings()));
        return Policy::give(failure);
    }

    static returned<void> finished(error &failure, gumbel_device *device,
                                   span<const summary> summaries, std::int32_t parts,
                                   std::int64_t batch, std::int32_t num_samples, const output &out,
                                   stream on)
    {
        detail::lowering to(failure, true);
        detail::shape sizes = detail::shape_of(batch, 0, 0);
        sizes.samples = num_samples == 0 ? 1 : detail::sized(num_samples);
        const detail::count rows = detail::times(sizes.batch, sizes.samples);
        to.need("summaries", summaries.data(), summaries.size(),
                detail::times(detail::sized(parts), rows));
        const gumbel_output lowered = to.lower(out, sizes);
        if (!failure)
            failure.set(gumbel_finish(device, on, summaries.data(), parts, batch, num_samples,
                                      &lowered, failure.strings()));
        return Policy::give(failure);
    }

    gumbel_device *device_ = nullptr;
    bool host_ = true;
};

} // namespace gumbel

#endif /* GUMBEL_CXX_DEVICE_HPP */
