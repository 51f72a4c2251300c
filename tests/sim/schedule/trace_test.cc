#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "rankloom/error.h"
#include "rankloom/random.h"
#include "rankloom/schedule.h"
#include "tests/temp_dir.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

Trace small_trace() {
  Trace trace;
  trace.set_schedule("seeded:7");
  const uint16_t start = trace.intern("start");
  const uint16_t gather = trace.intern("all_gather");
  trace.add({.kind = 0, .what = start, .rank = -1, .size = 3, .value = 2, .seq = -1});
  trace.add({.kind = 0, .what = gather, .rank = 2, .size = 3, .value = 0, .seq = 1});
  trace.add({.kind = 2, .what = gather, .rank = 0, .size = 2, .value = 1, .seq = 300});
  return trace;
}

std::string error_of(std::string_view bytes) {
  const absl::StatusOr<Trace> trace = Trace::parse(bytes);
  if (trace.ok()) return "ok";
  EXPECT_EQ(error_kind(trace.status()), ErrorKind::kInvalidArgument);
  return std::string(trace.status().message());
}

// As serialize() does it, so that what stands before the sum can be made wrong and the sum be right.
std::string with_sum(std::string body) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char c : body) sum = (sum ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  for (int i = 0; i < 8; ++i) body.push_back(static_cast<char>(sum >> (8 * i)));
  return body;
}

std::string without_sum(const Trace& trace) {
  std::string bytes = trace.serialize();
  bytes.resize(bytes.size() - 8);
  return bytes;
}

TEST(TraceTest, ComesBackAsItWasWritten) {
  const Trace trace = small_trace();
  const absl::StatusOr<Trace> again = Trace::parse(trace.serialize());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, trace);
  EXPECT_EQ(again->schedule(), "seeded:7");
}

TEST(TraceTest, OneThatWasCutIsNoneThatWasNot) {
  Trace whole, cut;
  cut.set_limit(0);
  cut.add({.size = 1});
  EXPECT_TRUE(cut.cut());
  EXPECT_TRUE(cut.steps().empty());
  EXPECT_FALSE(whole == cut);
  EXPECT_FALSE(cut == whole);
  EXPECT_TRUE(cut == Trace(cut));
}

TEST(TraceTest, AnEmptyOneComesBack) {
  Trace trace;
  trace.set_schedule("fifo");
  EXPECT_EQ(*Trace::parse(trace.serialize()), trace);
  EXPECT_EQ(*Trace::parse(Trace().serialize()), Trace());
}

TEST(TraceTest, ExtremeNumbersComeBack) {
  Trace trace;
  trace.set_schedule(std::string("a\0b", 3));
  const uint16_t name = trace.intern("x");
  trace.add({.kind = 255,
             .what = name,
             .rank = std::numeric_limits<int32_t>::max(),
             .size = std::numeric_limits<int32_t>::max(),
             .value = std::numeric_limits<int32_t>::max(),
             .seq = std::numeric_limits<int64_t>::max()});
  trace.add({.kind = 0, .what = name, .rank = -2, .size = 0, .value = 0, .seq = -2});
  EXPECT_EQ(*Trace::parse(trace.serialize()), trace);
}

TEST(TraceTest, AMillionStepsLoadBackFromAFile) {
  Trace trace;
  trace.set_schedule("seeded:1");
  for (int i = 0; i < 40; ++i) trace.intern("operation " + std::to_string(i));
  Prng prng(1);
  for (int i = 0; i < 1'000'000; ++i) {
    trace.add({.kind = static_cast<uint8_t>(prng.below(4)),
               .what = static_cast<uint16_t>(prng.below(40)),
               .rank = static_cast<int32_t>(prng.below(1000)) - 1,
               .size = static_cast<int32_t>(prng.below(1000)) + 2,
               .value = static_cast<int32_t>(prng.below(1000)),
               .seq = static_cast<int64_t>(prng.below(100'000)) - 1});
  }
  const TempDir dir;
  const std::string path = dir.file("million.trace");
  ASSERT_TRUE(trace.save(path).ok());
  const absl::StatusOr<Trace> again = Trace::load(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(*again == trace);  // EXPECT_EQ would print a million steps
}

TEST(TraceTest, AStepTakesFewBytes) {
  Trace trace;
  const uint16_t name = trace.intern("all_reduce");
  const size_t head = trace.serialize().size();
  for (int i = 0; i < 1000; ++i) trace.add({.what = name, .rank = i % 4, .size = 4, .value = i % 4, .seq = i});
  EXPECT_LT(trace.serialize().size() - head, 8 * 1000u);
}

// The layout is a file format: these bytes must stay readable, and a change of them needs another version.
TEST(TraceTest, VersionOneHasTheseBytes) {
  Trace trace;
  trace.set_schedule("fifo");
  trace.add({.kind = 1, .what = trace.intern("get"), .rank = 3, .size = 200, .value = 5, .seq = -1});
  EXPECT_EQ(without_sum(trace), std::string("RLTRACE1") +
                                    "\x04"
                                    "fifo"
                                    "\x01\x03"
                                    "get"
                                    "\x01" +
                                    std::string("\x01\x00\x05\xc8\x01\x05\x01", 7));
}

TEST(TraceTest, NamesWhatIsNoTrace) {
  EXPECT_EQ(error_of(""), "not a usable trace: it is empty");
  EXPECT_EQ(error_of("hello, world, this is text"), "not a usable trace: it does not begin with RLTRACE");
}

TEST(TraceTest, NamesAnotherVersion) {
  std::string bytes = small_trace().serialize();
  bytes[7] = '2';
  EXPECT_EQ(error_of(bytes), "not a usable trace: version '2', this build reads version 1");
}

TEST(TraceTest, NamesTheStepAtWhichItWasCutShort) {
  const std::string bytes = small_trace().serialize();
  EXPECT_EQ(error_of(bytes.substr(0, bytes.size() - 8)), "not a usable trace: cut short at step 1 of 3");
}

TEST(TraceTest, EveryCutIsNoticed) {
  const std::string bytes = small_trace().serialize();
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_THAT(error_of(bytes.substr(0, size)), StartsWith("not a usable trace: cut short")) << size;
  }
}

TEST(TraceTest, EveryChangedByteIsNoticed) {
  const std::string bytes = small_trace().serialize();
  for (size_t i = 8; i < bytes.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_THAT(error_of(damaged), AnyOf(StartsWith("not a usable trace: cut short"),
                                           "not a usable trace: its checksum does not fit, it was damaged"))
          << i;
    }
  }
}

TEST(TraceTest, NamesBytesBehindItsEnd) {
  EXPECT_EQ(error_of(with_sum(without_sum(small_trace()) + "xyz")), "not a usable trace: 3 bytes follow its last step");
}

TEST(TraceTest, NamesAStepThatMakesNoSense) {
  std::string body = without_sum(small_trace());
  body[body.size() - 6] = 9;  // the last step's operation; its sequence number has two bytes
  EXPECT_EQ(error_of(with_sum(body)), "not a usable trace: step 2 names operation 9 of 2");
  body = without_sum(small_trace());
  const std::string huge = "\xff\xff\xff\xff\x7f";  // 2^35 - 1
  body.replace(body.size() - 4, 1, huge);           // the last step's size
  EXPECT_EQ(error_of(with_sum(body)), "not a usable trace: step 2 holds the number 34359738367, which does not fit");
}

TEST(TraceTest, ACountThatCannotBeTrueAllocatesNothing) {
  std::string body = "RLTRACE1";
  body += std::string("\x00\x00", 2);
  body += "\xff\xff\xff\xff\xff\xff\xff\x7f";
  EXPECT_EQ(error_of(with_sum(body)), "not a usable trace: cut short: 72057594037927935 steps do not fit in 0 bytes");
}

TEST(TraceTest, NamesMoreOperationsThanStepsCanName) {
  // Each empty name is a byte here, and a string in memory.
  std::string body = std::string("RLTRACE1\0", 9) + "\x81\x80\x04" + std::string(65'537, '\0');
  EXPECT_EQ(error_of(with_sum(body + '\0')),
            "not a usable trace: it names 65537 operations, of which a trace has at most 65536");
  body.replace(9, 3, "\x80\x80\x04");
  EXPECT_EQ(error_of(with_sum(body)), "ok");
  EXPECT_EQ(error_of(with_sum(body.substr(0, 60'000))), "not a usable trace: cut short in its names");
}

TEST(TraceTest, AnEndlessFileIsNoTrace) {
  EXPECT_EQ(Trace::load("/dev/zero").status().message(), "not a usable trace: it does not begin with RLTRACE");
  EXPECT_EQ(Trace::load("/dev/null").status().message(), "not a usable trace: it is empty");
}

TEST(TraceTest, FilesThatCannotBeReadOrWrittenAreNamed) {
  EXPECT_EQ(Trace::load("no/such/file").status().message(), "cannot read the trace no/such/file");
  EXPECT_EQ(small_trace().save("no/such/folder/t").message(),
            "trace file \"no/such/folder/t\": cannot be written: No such file or directory");
  EXPECT_EQ(small_trace().save("/dev/full").message(),
            "trace file \"/dev/full\": cannot be written: No space left on device");
}

TEST(TraceTest, OneThatWouldBeTooLongIsCutAndSaysSo) {
  Trace whole = small_trace();
  Trace cut;
  cut.set_schedule(whole.schedule());
  cut.set_limit(whole.steps().size());
  for (const std::string& name : whole.names()) cut.intern(name);
  for (const Trace::Step& step : whole.steps()) cut.add(step);
  EXPECT_FALSE(cut.cut());
  EXPECT_EQ(cut.why_cut(), "");
  EXPECT_EQ(cut, whole);  // whatever might have been

  for (int i = 0; i < 3; ++i) {
    cut.add(whole.steps()[0]);
    EXPECT_TRUE(cut.cut());
    EXPECT_TRUE(cut.empty());
    EXPECT_EQ(cut.limit(), whole.steps().size());
  }
  const std::string why = "no trace was kept: the run made more than " + std::to_string(whole.steps().size()) +
                          " choices, want a larger trace_limit (RANKLOOM_TRACE_LIMIT) to replay it";
  EXPECT_EQ(cut.why_cut(), why);
  EXPECT_EQ(cut.serialize(), "");
  const TempDir dir;
  EXPECT_EQ(cut.save(dir.file("t")).message(), why);
  EXPECT_FALSE(std::filesystem::exists(dir.file("t")));

  Trace none;
  none.set_limit(0);
  EXPECT_FALSE(none.cut());  // nothing is missing yet
  none.add({});
  EXPECT_EQ(none.why_cut(), "no trace was kept: trace_limit is 0");
}

TEST(TraceTest, DescribesAStep) {
  const Trace trace = small_trace();
  EXPECT_EQ(trace.describe(trace.steps()[0]), "rank -1 at start, 3 ready, task 2 chosen");
  EXPECT_EQ(trace.describe(trace.steps()[1]), "rank 2 at all_gather seq 1, 3 ready, task 0 chosen");
  EXPECT_EQ(trace.describe(trace.steps()[2]), "rank 0 at all_gather seq 300, 2 alternatives, number 1 chosen");
}

TEST(TraceTest, TheFirstDifferenceIsDescribedOnBothSides) {
  const Trace a = small_trace();
  EXPECT_EQ(first_difference(a, a), "equal");
  Trace b = small_trace();
  b = Trace();
  b.add(a.steps()[0]);
  b.intern("start");
  EXPECT_EQ(first_difference(a, b),
            "step 1: the second run ends, the other goes on: rank 2 at all_gather seq 1, 3 ready, task 0 chosen");
  EXPECT_EQ(first_difference(b, a),
            "step 1: the first run ends, the other goes on: rank 2 at all_gather seq 1, 3 ready, task 0 chosen");
  Trace::Step other = a.steps()[1];
  other.value = 1;
  b.intern("all_gather");
  b.add(other);
  EXPECT_EQ(
      first_difference(a, b),
      "step 1: first run: rank 2 at all_gather seq 1, 3 ready, task 0 chosen; second run: rank 2 at all_gather seq 1, "
      "3 ready, task 1 chosen");
}

TEST(TraceTest, InternsEachNameOnce) {
  Trace trace;
  EXPECT_EQ(trace.intern("a"), 0);
  EXPECT_EQ(trace.intern("b"), 1);
  EXPECT_EQ(trace.intern("a"), 0);
  EXPECT_THAT(trace.names(), testing::ElementsAre("a", "b"));
}

TEST(TraceTest, AFolderIsNoTrace) { EXPECT_EQ(Trace::load("/").status().message(), "cannot read the trace /"); }

TEST(TraceTest, AStepOfAnOperationThatTheTraceDoesNotNameIsStillDescribed) {
  Trace trace;
  trace.intern("yield");
  EXPECT_EQ(trace.describe({.kind = 0, .what = 7, .rank = 1, .size = 2, .value = 1, .seq = -1}),
            "rank 1 at ?, 2 ready, task 1 chosen");
}

}  // namespace
}  // namespace rankloom
