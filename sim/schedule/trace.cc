#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/dist_error.h"
#include "sim/base/fnv.h"
#include "sim/base/text.h"
#include "sim/base/write_file.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr std::string_view kMagic = "RLTRACE1";
constexpr uint64_t kMostNames = 0x10000;  // a step has 16 bits for its operation
constexpr uint64_t kLeastStepBytes = 6;

uint64_t fnv1a(std::string_view bytes) {
  uint64_t hash = kFnvBasis;
  for (const char c : bytes) hash = fnv_step(hash, static_cast<uint8_t>(c));
  return hash;
}

void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void put_text(std::string* out, std::string_view text) {
  put_varint(out, text.size());
  out->append(text);
}

// Signed values that are mostly small and at least -2.
uint64_t shifted(int64_t value) { return static_cast<uint64_t>(value) + 2; }
int64_t unshifted(uint64_t value) { return static_cast<int64_t>(value - 2); }

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) return false;
      const uint8_t byte = static_cast<uint8_t>(bytes_[at_++]);
      *value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool text(std::string* value) {
    uint64_t size = 0;
    if (!varint(&size) || size > bytes_.size() - at_) return false;
    value->assign(bytes_.substr(at_, size));
    at_ += size;
    return true;
  }
  bool at_end() const { return at_ == bytes_.size(); }
  size_t left() const { return bytes_.size() - at_; }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

absl::Status bad_trace(std::string_view why) { return internal::invalid_argument("not a usable trace: ", sv(why)); }

absl::Status check_head(std::string_view bytes) {
  constexpr size_t kVersionAt = kMagic.size() - 1;
  if (bytes.empty()) return bad_trace("it is empty");
  if (bytes.substr(0, kVersionAt) != kMagic.substr(0, std::min(bytes.size(), kVersionAt))) {
    return bad_trace("it does not begin with RLTRACE");
  }
  if (bytes.size() > kVersionAt && bytes[kVersionAt] != kMagic[kVersionAt]) {
    return bad_trace(absl::StrCat("version '", sv(bytes.substr(kVersionAt, 1)), "', this build reads version 1"));
  }
  if (bytes.size() < kMagic.size() + 8) return bad_trace("cut short in its head");
  return absl::OkStatus();
}

}  // namespace

uint16_t Trace::intern(std::string_view name) {
  // A run knows a few dozen operations; the newest are asked for most.
  for (size_t i = names_.size(); i > 0; --i) {
    if (names_[i - 1] == name) return static_cast<uint16_t>(i - 1);
  }
  names_.emplace_back(name);
  return static_cast<uint16_t>(names_.size() - 1);
}

void Trace::set_schedule(std::string text) { schedule_ = std::move(text); }

bool operator==(const Trace& a, const Trace& b) {
  return a.schedule_ == b.schedule_ && a.names_ == b.names_ && a.steps_ == b.steps_ && a.cut_ == b.cut_;
}

void Trace::cut_off() {
  cut_ = true;
  std::vector<Trace::Step>().swap(steps_);
  // Nor what follows.
  if (limit_ > 0) limit_was_ = std::exchange(limit_, 0);
}

std::string Trace::why_cut() const {
  if (!cut_) return "";
  if (limit_was_ == 0) return "no trace was kept: trace_limit is 0";
  return absl::StrCat("no trace was kept: the run made more than ", limit_was_,
                      " choices, want a larger trace_limit (RANKLOOM_TRACE_LIMIT) to replay it");
}

std::string Trace::describe(const Trace::Step& step) const {
  const bool next = step.kind == static_cast<uint8_t>(ChoiceKind::kNextTask);
  return absl::StrCat("rank ", step.rank, " at ", step.what < names_.size() ? names_[step.what] : "?",
                      step.seq >= 0 ? absl::StrCat(" seq ", step.seq) : "", ", ", step.size,
                      next ? " ready, task " : " alternatives, number ", step.value, " chosen");
}

std::string Trace::serialize() const {
  if (cut_) return "";
  std::string out(kMagic);
  put_text(&out, schedule_);
  put_varint(&out, names_.size());
  for (const std::string& name : names_) put_text(&out, name);
  put_varint(&out, steps_.size());
  for (const Trace::Step& step : steps_) {
    put_varint(&out, step.kind);
    put_varint(&out, step.what);
    put_varint(&out, shifted(step.rank));
    put_varint(&out, static_cast<uint64_t>(step.size));
    put_varint(&out, static_cast<uint64_t>(step.value));
    put_varint(&out, shifted(step.seq));
  }
  const uint64_t sum = fnv1a(out);
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(sum >> (8 * i)));
  return out;
}

absl::StatusOr<Trace> Trace::parse(std::string_view bytes) {
  if (absl::Status head = check_head(bytes); !head.ok()) return head;
  const std::string_view body = bytes.substr(0, bytes.size() - 8);
  uint64_t sum = 0;
  for (int i = 7; i >= 0; --i) sum = sum << 8 | static_cast<uint8_t>(bytes[bytes.size() - 8 + static_cast<size_t>(i)]);
  const bool sum_fits = sum == fnv1a(body);
  // A part that makes no sense is explained only if the bytes are as they were written.
  const auto wrong = [sum_fits](std::string_view why) {
    return bad_trace(sum_fits ? why : "its checksum does not fit, it was damaged");
  };

  Reader reader(body.substr(kMagic.size()));
  Trace trace;
  uint64_t count = 0;
  if (!reader.text(&trace.schedule_) || !reader.varint(&count)) return bad_trace("cut short in its head");
  if (count > reader.left()) return bad_trace("cut short in its names");
  if (count > kMostNames)
    return wrong(absl::StrCat("it names ", count, " operations, of which a trace has at most ", kMostNames));
  for (uint64_t i = 0; i < count; ++i) {
    std::string name;
    if (!reader.text(&name)) return bad_trace("cut short in its names");
    trace.names_.push_back(std::move(name));
  }
  if (!reader.varint(&count)) return bad_trace("cut short in its names");
  if (count > reader.left()) {
    return bad_trace(absl::StrCat("cut short: ", count, " steps do not fit in ", reader.left(), " bytes"));
  }
  trace.steps_.reserve(std::min(count, reader.left() / kLeastStepBytes));  // not what a damaged file claims
  for (uint64_t i = 0; i < count; ++i) {
    // kind, what, rank, size, value, seq
    std::array<uint64_t, 6> numbers;
    static constexpr std::array<uint64_t, 6> kLargest = {0xff,       0xffff,     uint64_t{0x7fffffff} + 2,
                                                         0x7fffffff, 0x7fffffff, std::numeric_limits<uint64_t>::max()};
    for (uint64_t& number : numbers) {
      if (!reader.varint(&number)) return bad_trace(absl::StrCat("cut short at step ", i, " of ", count));
    }
    for (size_t field = 0; field < numbers.size(); ++field) {
      if (numbers[field] > kLargest[field]) {
        return wrong(absl::StrCat("step ", i, " holds the number ", numbers[field], ", which does not fit"));
      }
    }
    if (numbers[1] >= trace.names_.size()) {
      return wrong(absl::StrCat("step ", i, " names operation ", numbers[1], " of ", trace.names_.size()));
    }
    trace.steps_.push_back({.kind = static_cast<uint8_t>(numbers[0]),
                            .what = static_cast<uint16_t>(numbers[1]),
                            .rank = static_cast<int32_t>(unshifted(numbers[2])),
                            .size = static_cast<int32_t>(numbers[3]),
                            .value = static_cast<int32_t>(numbers[4]),
                            .seq = unshifted(numbers[5])});
  }
  if (!reader.at_end()) return wrong(absl::StrCat(reader.left(), " bytes follow its last step"));
  if (!sum_fits) return wrong("");
  return trace;
}

absl::Status Trace::save(const std::string& path) const {
  if (cut_) return internal::invalid_argument(why_cut());
  const absl::Status written = write_file(path, serialize());
  return written.ok() ? written : internal::invalid_argument("trace ", written.message());
}

absl::StatusOr<Trace> Trace::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return internal::invalid_argument("cannot read the trace ", path);
  try {
    std::string bytes(kMagic.size(), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (file.bad()) return internal::invalid_argument("cannot read the trace ", path);  // a folder, say
    bytes.resize(static_cast<size_t>(file.gcount()));
    if (bytes == kMagic)
      bytes.append(std::istreambuf_iterator<char>(file), {});  // of no other file, which may be endless
    return parse(bytes);
  } catch (const std::ios_base::failure&) {  // an error of the disk, say
    return internal::invalid_argument("cannot read the trace ", path);
  }
}

std::string internal::first_difference(const Trace& a, const Trace& b) {
  const size_t common = std::min(a.steps().size(), b.steps().size());
  for (size_t i = 0; i < common; ++i) {
    const std::string left = a.describe(a.steps()[i]);
    const std::string right = b.describe(b.steps()[i]);
    if (left != right) return absl::StrCat("step ", i, ": first run: ", left, "; second run: ", right);
  }
  if (a.steps().size() == b.steps().size()) return "equal";
  const Trace& longer = a.steps().size() > b.steps().size() ? a : b;
  return absl::StrCat("step ", common, ": the ", &longer == &a ? "second" : "first",
                      " run ends, the other goes on: ", longer.describe(longer.steps()[common]));
}

}  // namespace rankloom
