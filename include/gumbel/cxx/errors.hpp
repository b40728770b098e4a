/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: results and errors of calls, as values or as exceptions.
 *
 * A device is a basic_device with one of two policies. Calls with as_values return a result and
 * throw nothing. Calls with as_exceptions return their value and throw gumbel::exception;
 * as_exceptions exists only if the compiler supports exceptions.
 */
#ifndef GUMBEL_CXX_ERRORS_HPP
#define GUMBEL_CXX_ERRORS_HPP

#include <gumbel/gumbel.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#if defined(__cpp_exceptions)
#include <stdexcept>
#include <string>
#endif

namespace gumbel
{

enum class status : int {
    ok = GUMBEL_OK,
    argument = GUMBEL_ERROR_ARGUMENT,
    workspace = GUMBEL_ERROR_WORKSPACE,
    unsupported = GUMBEL_ERROR_UNSUPPORTED,
    memory = GUMBEL_ERROR_MEMORY,
    device = GUMBEL_ERROR_DEVICE,
};

/* Why a call failed: its status, the argument at fault, for example "sampling.temperature[3]", and
 * one sentence. A default-constructed object means no error. The strings are copied only if there
 * is an error. */
class error
{
  public:
    error() noexcept
    {
        strings_.field[0] = '\0';
        strings_.message[0] = '\0';
    }
    error(const error &other) noexcept : error() { *this = other; }
    error &operator=(const error &other) noexcept
    {
        code_ = other.code_;
        if (code_ != status::ok && this != &other)
            std::memcpy(&strings_, &other.strings_, sizeof strings_);
        return *this;
    }

    status code() const noexcept { return code_; }
    const char *field() const noexcept { return strings_.field; }
    const char *message() const noexcept { return strings_.message; }
    explicit operator bool() const noexcept { return code_ != status::ok; }

    /* For the code that fills the object: the C call's struct and status, or an error found by the
     * wrapper, of which the first is kept. */
    gumbel_error *strings() noexcept { return &strings_; }
    void set(gumbel_status code) noexcept
    {
        code_ = static_cast<status>(code);
        if (code_ != status::ok && strings_.message[0] == '\0')
            std::snprintf(strings_.message, sizeof strings_.message, "%s",
                          gumbel_status_string(code));
    }
    void refuse(const char *field, const char *message, status code = status::argument) noexcept
    {
        if (code_ != status::ok)
            return;
        code_ = code;
        std::snprintf(strings_.field, sizeof strings_.field, "%s", field);
        std::snprintf(strings_.message, sizeof strings_.message, "%s", message);
    }
    void refuse_size(const char *field, std::uint64_t has, std::uint64_t needed) noexcept
    {
        if (code_ != status::ok)
            return;
        refuse(field, "");
        std::snprintf(strings_.message, sizeof strings_.message,
                      "it has %llu elements, %llu are needed", static_cast<unsigned long long>(has),
                      static_cast<unsigned long long>(needed));
    }

  private:
    status code_ = status::ok;
    gumbel_error strings_;
};

/* A value or an error. The value of a failed result is default-constructed. */
template <class T> class [[nodiscard]] result
{
  public:
    result(T value) noexcept : value_(std::move(value)) {}
    result(const class error &failure) noexcept : error_(failure) {}

    bool ok() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return ok(); }
    T &operator*() noexcept { return value_; }
    const T &operator*() const noexcept { return value_; }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }
    const class error &error() const noexcept { return error_; }

  private:
    T value_{};
    class error error_;
};

template <> class [[nodiscard]] result<void>
{
  public:
    result() noexcept = default;
    result(const class error &failure) noexcept : error_(failure) {}

    bool ok() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return ok(); }
    const class error &error() const noexcept { return error_; }

  private:
    class error error_;
};

struct as_values {
    template <class T> using returned = result<T>;
    template <class T> static result<T> give(const error &failure, T &&value) noexcept
    {
        return failure ? result<T>(failure) : result<T>(std::move(value));
    }
    static result<void> give(const error &failure) noexcept { return failure; }
};

#if defined(__cpp_exceptions)
/* what() returns "field: message". */
class exception : public std::runtime_error
{
  public:
    explicit exception(const gumbel::error &failure)
        : std::runtime_error(std::string(failure.field()) + (*failure.field() ? ": " : "") +
                             failure.message()),
          error_(failure)
    {
    }
    const gumbel::error &error() const noexcept { return error_; }
    status code() const noexcept { return error_.code(); }

  private:
    gumbel::error error_;
};

struct as_exceptions {
    template <class T> using returned = T;
    template <class T> static T give(const error &failure, T &&value)
    {
        if (failure)
            throw exception(failure);
        return std::move(value);
    }
    static void give(const error &failure)
    {
        if (failure)
            throw exception(failure);
    }
};
#endif

} // namespace gumbel

#endif /* GUMBEL_CXX_ERRORS_HPP */
