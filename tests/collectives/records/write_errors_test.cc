// A file that cannot be written is told of, with its name and the reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "tests/temp_dir.h"

namespace rankloom {

using namespace internal;

namespace {

using ::testing::HasSubstr;

struct Writer {
  const char* name;
  std::string prefix;  // of the error
  std::string suffix;  // of the file
  std::function<void(const std::string& prefix)> write;
};

void PrintTo(const Writer& writer, std::ostream* out) { *out << writer.name; }

std::shared_ptr<CallRecord> small_record() {
  auto record = std::make_shared<CallRecord>();
  const auto pg = make_fake_process_group({.rank = 3, .world_size = 8, .options = {.record = record}});
  pg->barrier().wait();
  return record;
}

void dump(const std::string& prefix, traces::FlightDumpOptions::Format format) {
  World world({.world_size = 1});
  ASSERT_TRUE(world.run([](RankContext& rank) { init_process_group(rank)->barrier().wait(); }).ok());
  traces::dump_flight_records(world, prefix, {.format = format});
}

class WriteErrorsTest : public testing::TestWithParam<Writer> {};
INSTANTIATE_TEST_SUITE_P(
    Writers, WriteErrorsTest,
    testing::Values(Writer{"perfetto", "write_perfetto: ", "",
                           [](const std::string& path) { traces::write_perfetto({small_record()}, path); }},
                    Writer{"run", "write_run: ", "",
                           [](const std::string& path) { traces::write_run({small_record()}, path); }},
                    Writer{"pytorch_trace", "write_pytorch_trace: ", "",
                           [](const std::string& path) { traces::write_pytorch_trace(*small_record(), path); }},
                    Writer{"pickled_records", "dump_flight_records: ", "0",
                           [](const std::string& prefix) { dump(prefix, traces::FlightDumpOptions::Format::kPickle); }},
                    Writer{"json_records", "dump_flight_records: ", "0.json",
                           [](const std::string& prefix) { dump(prefix, traces::FlightDumpOptions::Format::kJson); }}),
    [](const auto& info) { return info.param.name; });

TEST_P(WriteErrorsTest, NamesAFolderThatIsNotThere) {
  const TempDir dir;
  const std::string prefix = dir.file("no/such");
  EXPECT_THAT([&] { GetParam().write(prefix); },
              ThrowsDistError(ErrorKind::kInvalidArgument,
                              HasSubstr(GetParam().prefix + "file \"" + prefix + GetParam().suffix +
                                        "\": cannot be written: No such file or directory")));
}

TEST_P(WriteErrorsTest, NamesAFullDisk) {
  const TempDir dir;
  const std::string path = dir.file("full") + GetParam().suffix;
  std::filesystem::create_symlink("/dev/full", path);
  EXPECT_THAT([&] { GetParam().write(dir.file("full")); },
              ThrowsDistError(
                  ErrorKind::kInvalidArgument,
                  HasSubstr(GetParam().prefix + "file \"" + path + "\": cannot be written: No space left on device")));
}

TEST_P(WriteErrorsTest, WritesWhereItCan) {
  const TempDir dir;
  GetParam().write(dir.file("good"));
  EXPECT_GT(std::filesystem::file_size(dir.file("good") + GetParam().suffix), 10u);
}

}  // namespace
}  // namespace rankloom
