/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the tests of gumbel.hpp: counted checks, and the problem that all of them draw from.
 */
#ifndef CHECK_HPP
#define CHECK_HPP

#include <gumbel/gumbel.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

inline int checks_failed = 0;

inline void check(bool holds, const char *text, const char *file, int line)
{
    if (!holds) {
        std::printf("%s:%d: check failed: %s\n", file, line, text);
        checks_failed++;
    }
}
#define CHECK(...) check(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

constexpr int B = 4, V = 1000, D = 64;

/* Pseudo-random numbers in [-0.5, 0.5]. */
inline std::vector<float> values(std::size_t count)
{
    std::vector<float> into(count);
    for (std::uint32_t i = 0; i < count; i++)
        into[i] = static_cast<float>((i * 2654435761u >> 8) % 2001) / 2000 - 0.5f;
    return into;
}

struct problem {
    std::vector<float> weight = values(V * D);
    std::vector<float> hidden{weight.begin(), weight.begin() + B *D};
    std::vector<float> scores = values(B * V);

    problem()
    {
        for (float &score : scores)
            score *= 8;
    }
    gumbel::head head() const
    {
        gumbel::head of;
        of.hidden = gumbel::matrix(hidden, B, D);
        of.weight = gumbel::matrix(weight, V, D);
        return of;
    }
    gumbel::logits logits() const
    {
        gumbel::logits of;
        of.values = gumbel::matrix(scores, B, V);
        return of;
    }
};

/* Opens a device, or ends the test. */
inline gumbel::values::device open_device(const gumbel::device_options &options = {})
{
    auto opened = gumbel::values::device::open(options);
    CHECK(opened);
    return std::move(*opened);
}

inline gumbel::workspace space_of(std::size_t bytes)
{
    gumbel::workspace space;
    CHECK(space.reserve(bytes));
    return space;
}

template <class T> bool same_bits(const std::vector<T> &a, const std::vector<T> &b)
{
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/* Tokens, log-probabilities and scores [B, S] of a draw. */
struct drawn {
    std::vector<std::int32_t> tokens;
    std::vector<float> logprobs, scores;
    bool operator==(const drawn &other) const
    {
        return tokens == other.tokens && same_bits(logprobs, other.logprobs) &&
               same_bits(scores, other.scores);
    }
};

inline auto call(gumbel::values::device &device, const gumbel::head &in,
                 const gumbel::sampling &how, const gumbel::output &out, gumbel::memory space)
{
    return device.sample(in, how, out, space);
}
inline auto call(gumbel::values::device &device, const gumbel::logits &in,
                 const gumbel::sampling &how, const gumbel::output &out, gumbel::memory space)
{
    return device.sample_logits(in, how, out, space);
}

template <class In>
drawn draw(gumbel::values::device &device, const In &in, const gumbel::sampling &how)
{
    const auto draws = static_cast<std::size_t>(B * how.num_samples);
    drawn into = {std::vector<std::int32_t>(draws, -2), std::vector<float>(draws),
                  std::vector<float>(draws)};
    gumbel::output out;
    out.tokens = into.tokens;
    out.logprobs = into.logprobs;
    out.scores = into.scores;
    const auto bytes = device.workspace_size(in, how, &out);
    CHECK(bytes);
    gumbel::workspace space = space_of(*bytes);
    CHECK(call(device, in, how, out, space));
    return into;
}

inline int report(const char *name)
{
    std::printf("%s: %d checks failed\n", name, checks_failed);
    return checks_failed != 0;
}

#endif /* CHECK_HPP */
