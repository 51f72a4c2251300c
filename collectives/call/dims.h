#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace rankloom {

// The sizes of a tensor's dimensions. Up to four are held inline, and a copy is then five words without a branch per
// dimension: every call builds and moves a few of these (absl::InlinedVector cost four times the instructions, see
// docs/decisions/0008-hot-path.md).
class Dims {
 public:
  using value_type = int64_t;
  using const_iterator = const int64_t*;

  Dims() : size_(0) {}
  Dims(std::initializer_list<int64_t> sizes) : Dims(sizes.begin(), sizes.end()) {}
  explicit Dims(size_t count, int64_t value) : size_(count) { std::fill_n(allocate(), count, value); }
  template <std::forward_iterator It>
  Dims(It begin, It end) : size_(static_cast<size_t>(std::distance(begin, end))) {
    std::copy(begin, end, allocate());
  }
  // A shape of one dimension.
  static Dims of(int64_t size) {
    Dims dims;
    dims.size_ = 1;
    dims.inline_[0] = size;
    return dims;
  }
  Dims(const Dims& other) : size_(other.size_) {
    if (size_ <= kInline) [[likely]] {
      std::copy_n(other.inline_, kInline, inline_);
    } else {
      std::copy_n(other.heap_, size_, allocate());
    }
  }
  Dims(Dims&& other) noexcept : size_(other.size_) { take(other); }
  Dims& operator=(Dims other) noexcept {
    if (size_ > kInline) delete[] heap_;
    size_ = other.size_;
    take(other);
    return *this;
  }
  ~Dims() {
    if (size_ > kInline) [[unlikely]]
      delete[] heap_;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return size_ <= kInline ? inline_ : heap_; }
  int64_t* data() { return size_ <= kInline ? inline_ : heap_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size_; }
  int64_t operator[](size_t i) const { return data()[i]; }
  int64_t& operator[](size_t i) { return data()[i]; }
  int64_t back() const { return data()[size_ - 1]; }
  void push_back(int64_t size) {
    Dims longer(size_ + 1, size);
    std::copy_n(data(), size_, longer.data());
    *this = std::move(longer);
  }

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  static constexpr size_t kInline = 4;

  int64_t* allocate() {
    if (size_ <= kInline) return inline_;
    heap_ = new int64_t[size_];
    return heap_;
  }
  void take(Dims& other) {
    if (size_ <= kInline) [[likely]] {
      std::copy_n(other.inline_, kInline, inline_);
    } else {
      heap_ = std::exchange(other.heap_, nullptr);
      other.size_ = 0;
    }
  }

  size_t size_;
  union {
    int64_t inline_[kInline] = {};
    int64_t* heap_;
  };
};

}  // namespace rankloom
