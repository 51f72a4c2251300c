#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/campaign/values.h"

namespace rankloom {

// Memory for tensors of one act, with bytes around each that nobody may write to.
class Tensors {
 public:
  // A tensor of `numel` elements, which starts at an element's boundary that differs from tensor to tensor.
  TensorView add(DType dtype, int64_t numel, std::vector<int64_t> dims = {}) {
    const size_t width = dtype_size(dtype);
    Block& block = blocks_.emplace_back();
    block.begin = kGuard + width * (blocks_.size() % 3);
    block.size = static_cast<size_t>(numel) * width;
    block.bytes.assign(block.begin + block.size + kGuard, kUntouched);
    if (dims.empty()) dims = {numel};
    return {block.bytes.data() + block.begin, dtype, Dims(dims.begin(), dims.end())};
  }
  static void write(const TensorView& view, const Bytes& bytes) {
    if (!bytes.empty()) std::memcpy(view.data(), bytes.data(), bytes.size());
  }
  // Writes an input that no call may change. A kernel on a stream may do so while the rank adds others.
  void give(const TensorView& view, const Bytes& bytes) {
    write(view, bytes);
    const std::lock_guard lock(mu_);
    given_.emplace_back(view, bytes);
  }
  static void read(const TensorView& view, std::string* text) {
    text->append(static_cast<const char*>(view.data()), view.bytes());
  }
  // One more thing that harm() looks at: a text, empty if all is well.
  void also(std::function<std::string()> harm) { harms_.push_back(std::move(harm)); }
  // Once the calls are done; empty: nobody wrote to bytes beside a tensor, nor to an input.
  std::string harm() const {
    std::string text;
    if (!guards_are_whole()) text += " and bytes beside a tensor were written";
    for (const auto& [view, bytes] : given_) {
      if (!bytes.empty() && std::memcmp(view.data(), bytes.data(), bytes.size()) != 0)
        text += " and an input was changed";
    }
    for (const std::function<std::string()>& harm : harms_) text += harm();
    return text;
  }
  // From now on nobody has a use for the tensors: all memory is overwritten, as a program may do.
  void retire() {
    retired_ = true;
    for (Block& block : blocks_) std::fill(block.bytes.begin(), block.bytes.end(), kRetired);
  }
  // Nobody has written to tensors that are retired.
  bool rests() const {
    return !retired_ || std::all_of(blocks_.begin(), blocks_.end(), [](const Block& block) {
      return std::all_of(block.bytes.begin(), block.bytes.end(), [](uint8_t byte) { return byte == kRetired; });
    });
  }

 private:
  static constexpr size_t kGuard = 16;
  static constexpr uint8_t kUntouched = 0xC3;
  static constexpr uint8_t kRetired = 0x5A;

  bool guards_are_whole() const {
    for (const Block& block : blocks_) {
      for (size_t i = 0; i < block.bytes.size(); ++i) {
        if (i >= block.begin && i < block.begin + block.size) continue;
        if (block.bytes[i] != kUntouched) return false;
      }
    }
    return true;
  }

  struct Block {
    size_t begin = 0;
    size_t size = 0;
    std::vector<uint8_t> bytes;  // its memory stays where it is when the list of blocks grows
  };
  std::vector<Block> blocks_;
  std::mutex mu_;
  std::vector<std::pair<TensorView, Bytes>> given_;  // under mu_ until all calls are done
  std::vector<std::function<std::string()>> harms_;
  bool retired_ = false;
};

}  // namespace rankloom
