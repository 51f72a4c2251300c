#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace digits {

// splitmix64. The distributions and the shuffle of the standard library may differ from one implementation to the next;
// these do not, so that a seed means the same run everywhere.
class Random {
 public:
  // `stream` keeps apart what one seed is used for.
  Random(uint64_t seed, uint64_t stream) : state_(seed) { state_ = next() ^ stream; }

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound), up to a bias of bound / 2^64. bound > 0.
  uint64_t below(uint64_t bound) { return next() % bound; }

  // Uniform in [-limit, limit).
  float symmetric(float limit) { return (static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f) * limit; }

  void shuffle(std::span<int> values) {
    for (uint64_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace digits
