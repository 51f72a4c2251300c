#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "collectives/ops/group_request.h"
#include "rankloom/collective_call.h"
#include "rankloom/world.h"

namespace rankloom::internal {

// Bytes of a message between processes of one job: numbers as they lie in memory, since all processes run one program.
class WireWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T> WireWriter& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  WireWriter& text(std::string_view text) {
    number(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what a WireWriter wrote. Beyond the end all is 0 and empty, and ok() is false.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}
  template <typename T>
  requires std::is_trivially_copyable_v<T> T number() {
    T value{};
    const std::string_view bytes = take(sizeof(value));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string text() { return std::string(take(number<uint64_t>())); }
  bool ok() const { return ok_; }

 private:
  std::string_view take(uint64_t bytes) {
    ok_ = ok_ && bytes <= rest_.size();
    if (!ok_) return {};
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// For fields that point to texts of the program: those of another process live here for ever.
const char* kept_text(std::string text);
void write_code(CodeSite code, WireWriter* out);
CodeSite read_code(WireReader* in);

void write_ints(const std::vector<int>& values, WireWriter* out);
std::vector<int> read_ints(WireReader* in);

void write_texts(const std::vector<std::string>& texts, WireWriter* out);
std::vector<std::string> read_texts(WireReader* in);

// A status with its kind, its text and whose doing it was. Bytes that are none read as OK.
void write_status(const absl::Status& status, WireWriter* out);
absl::Status read_status(WireReader* in);

// The end of a rank. Its exception reads as a DistError.
void write_outcome(const RunReport::Outcome& outcome, WireWriter* out);
RunReport::Outcome read_outcome(int rank, WireReader* in);

// A number that two calls share if their rows hold them for the same (OpRow::same), and with high odds only then.
uint64_t likeness_of(const CollectiveCall& call);

// The material of a report on calls that differ: all that members compare, sizes that pairs of members expect of each
// other, the place of the call, and the member's last calls in the group, a line each.
std::string described(const CollectiveCall& call, const std::vector<std::string>& last_calls = {});

// A call of another process, made of its description. Its tensors have shapes and no memory.
struct DescribedCall {
  CollectiveCall call;
  GroupRequest request;
  std::string file;                                        // of call.code
  std::vector<std::unique_ptr<DescribedCall>> parts = {};  // hold what call.parts points to
  std::vector<std::string> last_calls = {};
};
// `parent`: the group of the call. Null if the bytes are no description.
std::unique_ptr<DescribedCall> call_described_by(std::string_view bytes, const Group& parent);

}  // namespace rankloom::internal
