#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/campaign/values.h"

namespace rankloom {

// Memory for tensors of one call, with bytes around each that nobody may write to.
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
  static void read(const TensorView& view, std::string* text) {
    text->append(static_cast<const char*>(view.data()), view.bytes());
  }
  // Bytes around the tensors are as they were.
  bool guards_are_whole() const {
    for (const Block& block : blocks_) {
      for (size_t i = 0; i < block.bytes.size(); ++i) {
        if (i >= block.begin && i < block.begin + block.size) continue;
        if (block.bytes[i] != kUntouched) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 16;
  static constexpr uint8_t kUntouched = 0xC3;
  struct Block {
    size_t begin = 0;
    size_t size = 0;
    std::vector<uint8_t> bytes;  // its memory stays where it is when the list of blocks grows
  };
  std::vector<Block> blocks_;
};

}  // namespace rankloom
