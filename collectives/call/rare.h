#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace rankloom::internal {

// A container that is almost always empty: one word then, which costs next to nothing to make, to move and to destroy. Every
// call of a group is made, moved and destroyed once, see docs/decisions/0008-hot-path.md. Reads as a const T.
template <typename T>
class Rare {
 public:
  Rare() = default;
  template <typename U>
  requires(!std::is_same_v<std::remove_cvref_t<U>, Rare> && std::is_convertible_v<U, T>) Rare(U&& value) {  // NOLINT
    *this = std::forward<U>(value);
  }
  Rare(const Rare& other) : value_(other.empty() ? nullptr : std::make_unique<T>(*other.value_)) {}
  Rare(Rare&& other) noexcept = default;
  Rare& operator=(const Rare& other) {
    if (this != &other) *this = Rare(other);
    return *this;
  }
  Rare& operator=(Rare&& other) noexcept = default;
  ~Rare() = default;

  template <typename U>
  requires(!std::is_same_v<std::remove_cvref_t<U>, Rare>) Rare& operator=(U&& value) {
    value_ = std::empty(value) ? nullptr : std::make_unique<T>(std::forward<U>(value));
    return *this;
  }
  Rare& operator=(std::initializer_list<typename T::value_type> values) {
    value_ = values.size() == 0 ? nullptr : std::make_unique<T>(values);
    return *this;
  }

  const T& get() const { return value_ != nullptr ? *value_ : nothing(); }
  T& mutable_get() {
    if (value_ == nullptr) value_ = std::make_unique<T>();
    return *value_;
  }
  operator const T&() const { return get(); }                                  // NOLINT
  operator std::string_view() const requires std::is_same_v<T, std::string> {  // NOLINT
    return value_ != nullptr ? std::string_view(*value_) : std::string_view();
  }

  bool empty() const { return value_ == nullptr || value_->empty(); }
  size_t size() const { return value_ != nullptr ? value_->size() : 0; }
  const auto* data() const { return get().data(); }
  const auto& operator[](size_t i) const { return (*value_)[i]; }
  auto begin() const { return get().begin(); }
  auto end() const { return get().end(); }

  friend bool operator==(const Rare& a, const Rare& b) { return a.get() == b.get(); }

 private:
  static const T& nothing() {
    static const T* const empty = new T();
    return *empty;
  }

  std::unique_ptr<T> value_;
};

}  // namespace rankloom::internal
