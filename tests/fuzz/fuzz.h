#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"

// The common part of the fuzz targets. Thread-safety: none; a target has one thread.
namespace rankloom::fuzz {

// Ends the process, which is how a target says that it has found something.
[[noreturn]] void wrong(std::string_view what);

// A job, a text or a file made of bytes: each is taken from the front.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  // In [0, bound), bound <= 256; 0 where the input has ended.
  int below(int bound);
  // Eight bytes, fewer at the end.
  uint64_t word();
  // At most so many bytes.
  std::string take(size_t bytes);
  // A byte with the length, and so many bytes.
  std::string text() { return take(static_cast<size_t>(below(256))); }
  std::string rest() { return take(bytes_.size()); }

 private:
  std::string_view bytes_;
};

// A text of a head, a part that is repeated until the text has some 400,000 bytes, and a tail: an input of few bytes
// that shows whether a reader takes memory out of proportion.
std::string repeated(Input& in);

// Runs `action`, which reads `bytes` bytes of input: more than so many times as much at a time, and `more`, are wrong.
void in_little_memory(size_t bytes, absl::FunctionRef<void()> action, int times = 10, int64_t more = 4 << 20);

// The result of `read`, which reads `input`, in little memory.
template <typename Read>
auto read_in_little_memory(std::string_view input, Read read) {
  std::optional<decltype(read(input))> result;
  in_little_memory(input.size(), [&] { result.emplace(read(input)); });
  return *std::move(result);
}

}  // namespace rankloom::fuzz
