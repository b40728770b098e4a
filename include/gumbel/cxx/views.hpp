/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: views of the caller's memory. Views own nothing: the memory must stay valid
 * until the call returns, and on CUDA until the stream has passed the call.
 *
 * A view made from a container, or from a pointer and a count, knows its size; a call returns an
 * error if that is too small. An empty view means an absent argument.
 */
#ifndef GUMBEL_CXX_VIEWS_HPP
#define GUMBEL_CXX_VIEWS_HPP

#include <gumbel/cxx/errors.hpp>

#include <cstddef>
#include <iterator>
#include <new>
#include <type_traits>

namespace gumbel
{

/* The size of a view that is not checked. */
inline constexpr std::size_t any_size = ~std::size_t{0};

/* A pointer and a count of elements. Converts from arrays, std::vector, std::array, std::span and
 * everything with data() and size(), but not from a temporary container. */
template <class T> class span
{
    template <class C>
    using pointer_of = std::remove_pointer_t<decltype(std::data(std::declval<C &>()))> (*)[];
    template <class C>
    static constexpr bool lives =
        std::is_lvalue_reference_v<C> || std::is_trivially_copyable_v<std::remove_reference_t<C>>;

  public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class C,
              class = std::enable_if_t<lives<C &&> && !std::is_same_v<std::decay_t<C>, span> &&
                                       std::is_convertible_v<pointer_of<C>, T (*)[]>>>
    constexpr span(C &&container) noexcept
        : data_(std::data(container)), size_(std::size(container))
    {
    }

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool absent() const noexcept { return data_ == nullptr && size_ == 0; }
    constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* 16-bit element types, for programs without types of their own. */
struct float16 {
    std::uint16_t bits;
};
struct bfloat16 {
    std::uint16_t bits;
};

enum class dtype : int {
    float32 = GUMBEL_FLOAT32,
    float16 = GUMBEL_FLOAT16,
    bfloat16 = GUMBEL_BFLOAT16,
};

/* The dtype of an element type. Programs may add specialisations, for example
 *   template <> struct gumbel::dtype_of<__nv_bfloat16> : gumbel::dtype_of<gumbel::bfloat16> {}; */
template <class T> struct dtype_of;
template <> struct dtype_of<float> : std::integral_constant<dtype, dtype::float32> {
};
template <> struct dtype_of<float16> : std::integral_constant<dtype, dtype::float16> {
};
template <> struct dtype_of<bfloat16> : std::integral_constant<dtype, dtype::bfloat16> {
};

/* A row-major matrix of T. `stride` is in elements; 0 means cols. */
template <class T> struct matrix {
    constexpr matrix() noexcept = default;
    constexpr matrix(span<T> of, std::int64_t height, std::int64_t width,
                     std::int64_t pitch = 0) noexcept
        : data(of.data()), size(of.size()), rows(height), cols(width), stride(pitch)
    {
    }
    constexpr matrix(T *of, std::int64_t height, std::int64_t width,
                     std::int64_t pitch = 0) noexcept
        : data(of), size(any_size), rows(height), cols(width), stride(pitch)
    {
    }
    /* Converts to a read-only matrix. */
    template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
    constexpr matrix(const matrix<U> &of) noexcept
        : data(of.data), size(of.size), rows(of.rows), cols(of.cols), stride(of.stride)
    {
    }

    T *data = nullptr;
    std::size_t size = 0; /* elements in memory */
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;
};
template <class C>
matrix(C &&, std::int64_t, std::int64_t, std::int64_t = 0)
    -> matrix<std::remove_pointer_t<decltype(std::data(std::declval<C &>()))>>;
template <class T> matrix(T *, std::int64_t, std::int64_t, std::int64_t = 0) -> matrix<T>;

/* A read-only matrix whose dtype is a run-time value. */
struct tensor {
    constexpr tensor() noexcept = default;
    template <class T>
    constexpr tensor(const matrix<T> &of) noexcept
        : data(of.data), size(of.size), type(dtype_of<std::remove_const_t<T>>::value),
          rows(of.rows), cols(of.cols), stride(of.stride)
    {
    }
    constexpr tensor(const void *of, dtype element, std::int64_t height, std::int64_t width,
                     std::int64_t pitch = 0, std::size_t elements = any_size) noexcept
        : data(of), size(elements), type(element), rows(height), cols(width), stride(pitch)
    {
    }

    const void *data = nullptr;
    std::size_t size = 0; /* elements in memory */
    dtype type = dtype::float32;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;
};

/* A row parameter: absent (the default), one value for all rows, or one value for each row (with
 * slots, for each slot). A value is in host memory; on CUDA use same(). */
template <class T> class row
{
  public:
    constexpr row() noexcept = default;
    template <class V, class = std::enable_if_t<std::is_arithmetic_v<V>>>
    constexpr row(V value) noexcept : value_(static_cast<T>(value)), is_value_(true)
    {
    }
    template <class C, class = std::enable_if_t<!std::is_arithmetic_v<std::decay_t<C>>>,
              class = std::enable_if_t<std::is_convertible_v<C &&, span<const T>>>>
    constexpr row(C &&values) noexcept : values_(values)
    {
    }
    /* One value for all rows, in the device's memory. */
    static constexpr row same(const T *value) noexcept
    {
        return row(span<const T>(value, 1), GUMBEL_SAME);
    }
    /* One value for each row, at `stride` elements. */
    static constexpr row strided(span<const T> values, std::int64_t stride) noexcept
    {
        return row(values, stride);
    }

    constexpr bool is_value() const noexcept { return is_value_; }
    constexpr bool absent() const noexcept { return !is_value_ && values_.absent(); }
    constexpr const T *data() const noexcept { return is_value_ ? &value_ : values_.data(); }
    constexpr std::size_t size() const noexcept { return is_value_ ? 1 : values_.size(); }
    constexpr std::int64_t stride() const noexcept { return is_value_ ? GUMBEL_SAME : stride_; }

  private:
    constexpr row(span<const T> values, std::int64_t stride) noexcept
        : values_(values), stride_(stride)
    {
    }

    span<const T> values_;
    std::int64_t stride_ = 0;
    T value_{};
    bool is_value_ = false;
};

/* Memory for a call's workspace, aligned to GUMBEL_WORKSPACE_ALIGNMENT: the caller's memory (on
 * CUDA device memory), or a gumbel::workspace. */
struct memory {
    void *data = nullptr;
    std::size_t bytes = 0;
};

/* Aligned host memory, which only reserve() grows. */
class workspace
{
  public:
    workspace() noexcept = default;
    workspace(workspace &&other) noexcept { swap(other); }
    workspace &operator=(workspace &&other) noexcept
    {
        workspace(std::move(other)).swap(*this);
        return *this;
    }
    workspace(const workspace &) = delete;
    workspace &operator=(const workspace &) = delete;
    ~workspace() { ::operator delete(memory_.data, alignment); }

    /* Ensures `bytes` or more. The contents are lost if the memory grows. Returns false, and
     * changes nothing, if there is no memory. */
    [[nodiscard]] bool reserve(std::size_t bytes) noexcept
    {
        if (bytes <= memory_.bytes)
            return true;
        void *more = ::operator new(bytes, alignment, std::nothrow);
        if (more == nullptr)
            return false;
        ::operator delete(memory_.data, alignment);
        memory_ = {more, bytes};
        return true;
    }

    std::size_t bytes() const noexcept { return memory_.bytes; }
    void *data() const noexcept { return memory_.data; }
    operator memory() const noexcept { return memory_; }

  private:
    static constexpr std::align_val_t alignment{GUMBEL_WORKSPACE_ALIGNMENT};
    void swap(workspace &other) noexcept { std::swap(memory_, other.memory_); }

    memory memory_;
};

} // namespace gumbel

#endif /* GUMBEL_CXX_VIEWS_HPP */
