#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"

namespace rankloom {

// A line of the caller's code, for reports. Public methods take one as their last argument, defaulted to here(), so
// that it names the line of the call. Cheap to copy; the file name has static lifetime unless the caller keeps it
// alive.
struct CodeSite {
  const char* file = "";
  int line = 0;

  // clang 14 has no std::source_location; the builtins give the same in both compilers.
  static constexpr CodeSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Kinds of errors, by which a program that catches DistErrors tells cases apart. docs/errors.md has a section of each.
enum class ErrorKind {
  kInvalidArgument,  // this member's call breaks a rule of its operation
  kMismatch,         // members of a group issued different calls
  kRankFailed,       // another rank threw, failed an assertion, dropped a work or crashed by plan
  kDeadlock,         // no rank could move any more
  kTimeout,          // a deadline passed
  kAborted,          // the world or the group was aborted, or misuse of order (a call after shutdown)
  kStoreError,       // a store could not do what was asked
  kCollectiveError,  // the group refuses (error_on_collective), or a backend failed
};

namespace internal {

// "InvalidArgument", "Mismatch", ...
std::string_view error_kind_name(ErrorKind kind);
// The payload of a status that the library makes: the name of its kind, and after a space whom to blame, where that is
// known (sim/base/blame.h). One payload: absl prints several in any order.
inline constexpr char kKindPayload[] = "rankloom.kind";

}  // namespace internal

// A failure before it is thrown: inside rankloom, in a report's cause, and what a group of one's own returns from
// execute(). The kind travels as a payload of the status, so that it survives copies.
absl::Status make_error(ErrorKind kind, std::string_view text);
// The kind of a failed status. A status made elsewhere is mapped by its code (kDeadlineExceeded: kTimeout, ...).
ErrorKind error_kind(const absl::Status& status);

namespace internal {

// The one owner of an object whose type its sources know. Does what std::unique_ptr does, for a fraction of what that
// costs the compiler: every class of a public header that hides its state has one.
template <typename T>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Owned& operator=(Owned&& other) noexcept {
    T* const taken = other.object_;
    other.object_ = nullptr;
    T* const before = object_;
    object_ = taken;
    delete before;
    return *this;
  }
  ~Owned() {
    static_assert(sizeof(T) > 0, "the type is known where its owner ends");  // NOLINT: incomplete, or not
    delete object_;
  }

  T* get() const { return object_; }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
};

template <typename Signature>
class Callback;

// A callable that was moved in, and is called more than once or never: what public calls take where they keep a
// callback. One word, so that a std::function or absl::AnyInvocable holds it without an allocation. Empty after a null
// pointer or an empty std::function.
template <typename Result, typename... Arguments>
class Callback<Result(Arguments...)> {
 public:
  Callback() = default;
  Callback(std::nullptr_t) {}  // NOLINT: implicit
  template <typename Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, Callback> &&
           std::is_invocable_r_v<Result, std::decay_t<Callable>&, Arguments...>)
      Callback(Callable&& callable) {  // NOLINT: implicit
    if constexpr (requires { callable == nullptr; }) {
      if (callable == nullptr) return;
    }
    held_ = Owned<Held>(new HeldAs<std::decay_t<Callable>>(std::forward<Callable>(callable)));
  }

  Result operator()(Arguments... arguments) { return held_->call(std::forward<Arguments>(arguments)...); }
  explicit operator bool() const { return held_.get() != nullptr; }
  friend bool operator==(const Callback& callback, std::nullptr_t) { return !callback; }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual Result call(Arguments... arguments) = 0;
  };
  template <typename Callable>
  struct HeldAs final : Held {
    template <typename From>
    explicit HeldAs(From&& from) : callable(std::forward<From>(from)) {}  // NOLINT: From is a callable
    Result call(Arguments... arguments) override { return callable(std::forward<Arguments>(arguments)...); }
    Callable callable;
  };

  Owned<Held> held_;
};

// Where a failed call came from. `rank` is the global rank, -1 if unknown; `seq` is -1 where there is none.
struct ErrorOrigin {
  int rank = -1;
  std::string_view group;
  std::string_view op;
  int64_t seq = -1;
};

}  // namespace internal

// The exception of public calls inside a rank program. what() is the whole text and starts with the kind's name:
//
//   try {
//     init_process_group(rank)->all_reduce(x).wait();
//   } catch (const rankloom::DistError& error) {
//     if (error.kind() != rankloom::ErrorKind::kTimeout) throw;
//   }
//
// A rank that lets one go fails with it; the run's report has its text. A program makes none itself: it throws what it
// likes.
// Thread-safety: const methods.
class DistError : public std::exception {
 public:
  DistError(absl::Status status, const internal::ErrorOrigin& origin);

  const char* what() const noexcept override { return what_.c_str(); }
  ErrorKind kind() const { return kind_; }
  const absl::Status& status() const { return status_; }
  int rank() const { return rank_; }                   // global rank, -1 if unknown
  const std::string& group() const { return group_; }  // empty if no group was involved
  const std::string& op() const { return op_; }
  int64_t seq() const { return seq_; }  // sequence number of the call in its group, -1 if it had none

 private:
  absl::Status status_;
  ErrorKind kind_;
  int rank_;
  std::string group_;
  std::string op_;
  int64_t seq_;
  std::string what_;
};

}  // namespace rankloom
