/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: a header-only wrapper of gumbel.h, drafts.h, programs.h, recent.h, screen.h
 * and watermark.h, which document each call.
 *
 *   gumbel::device device = gumbel::device::open();          // throws gumbel::exception
 *   gumbel::head head;
 *   head.hidden = gumbel::matrix(hidden, B, D);              // std::vector, std::span, pointers
 *   head.weight = gumbel::matrix(weight, V, D);
 *   gumbel::sampling how;
 *   how.temperature = 0.8;                                   // one value for all rows
 *   how.position = positions;                                // one value a row
 *   gumbel::output out;
 *   out.tokens = tokens;
 *   gumbel::workspace space;
 *   if (space.reserve(device.workspace_size(head, how, &out)))
 *       device.sample(head, how, out, space);
 *
 * gumbel::values::device has the same calls without exceptions. Its calls return a gumbel::result,
 * which converts to true on success. A compiler without exceptions has only this device.
 *
 * Memory.   Views own nothing. A call returns an error if a view holds fewer elements than the
 *           call's shapes require. The size of a matrix made from a bare pointer is not checked. On
 *           a device "cuda:N" all pointers, in spans too, are device pointers, and must stay valid
 *           until the stream has passed the call; a row parameter held as a value is an error.
 * Cost.     A call fills the C structs on the stack and checks sizes, in 50 to 80 ns; the smallest
 *           draw takes 850 ns. Calls allocate nothing, apart from explain(), which makes a string.
 */
#ifndef GUMBEL_GUMBEL_HPP
#define GUMBEL_GUMBEL_HPP

#include <gumbel/cxx/device.hpp>

namespace gumbel
{

namespace values
{
using device = basic_device<as_values>;
}
#if defined(__cpp_exceptions)
using device = basic_device<as_exceptions>;
#endif

/* The version of the linked library, as GUMBEL_VERSION and as text. */
inline int version() noexcept { return gumbel_version(); }
inline const char *version_string() noexcept { return gumbel_version_string(); }

/* The GPU architectures of the linked library's kernels; "" if it has none. */
inline const char *cuda_architectures() noexcept { return gumbel_cuda_architectures(); }

#ifdef GUMBEL_UNSTABLE
/* The architecture whose kernels ("portable", "clusters", "hopper") serve a GPU of this capability,
 * 10 * major + minor; "" if none does. */
inline const char *cuda_architecture(const char *kernels, int capability) noexcept
{
    return gumbel_cuda_architecture(kernels, capability);
}
#endif

inline const char *to_string(status of) noexcept
{
    return gumbel_status_string(static_cast<gumbel_status>(of));
}
inline const char *to_string(row_status of) noexcept
{
    return gumbel_row_status_string(static_cast<gumbel_row_status>(of));
}
inline const char *to_string(isa of) noexcept
{
    return gumbel_isa_name(static_cast<gumbel_isa>(of));
}
inline bool isa_available(isa of) noexcept
{
    return gumbel_isa_available(static_cast<gumbel_isa>(of)) != 0;
}

inline std::uint64_t row_seed(std::uint64_t seed, std::uint64_t row) noexcept
{
    return gumbel_row_seed(seed, row);
}

/* The domain with which a drafter under rule::block draws token `step` of its draft. */
constexpr std::uint32_t draft_domain_of(std::uint32_t step) noexcept
{
    return GUMBEL_DRAFT_DOMAIN(step);
}

/* Initialises summaries in host memory as empty. */
inline void clear(span<summary> summaries) noexcept
{
    gumbel_summary_clear(summaries.data(), static_cast<std::int64_t>(summaries.size()));
}

} // namespace gumbel

#endif /* GUMBEL_GUMBEL_HPP */
