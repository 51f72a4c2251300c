#include "sim/base/write_file.h"

#include <gtest/gtest.h>

#include <string>

#include "rankloom/error.h"
#include "tests/temp_dir.h"

namespace rankloom {

using namespace internal;

namespace {

std::string error_of(const std::string& path, std::string_view bytes) {
  const absl::Status status = write_file(path, bytes);
  EXPECT_EQ(error_kind(status), ErrorKind::kInvalidArgument);
  return std::string(status.message());
}

TEST(WriteFileTest, ReplacesWhatTheFileHeld) {
  const TempDir dir;
  const std::string path = dir.file("f");
  const std::string large(3'000'000, 'x');
  ASSERT_TRUE(write_file(path, large).ok());
  EXPECT_EQ(read_file(path), large);
  ASSERT_TRUE(write_file(path, std::string_view("a\0b", 3)).ok());
  EXPECT_EQ(read_file(path), std::string("a\0b", 3));
  ASSERT_TRUE(write_file(path, "").ok());
  EXPECT_EQ(read_file(path), "");
}

TEST(WriteFileTest, NamesTheFileAndTheReason) {
  const TempDir dir;
  EXPECT_EQ(error_of("/dev/full", "x"), "file \"/dev/full\": cannot be written: No space left on device");
  EXPECT_EQ(error_of("no/such/folder/f", ""),
            "file \"no/such/folder/f\": cannot be written: No such file or directory");
  EXPECT_EQ(error_of(dir.file("."), "x"), "file \"" + dir.file(".") + "\": cannot be written: Is a directory");
  // Not the file "f" beside it.
  EXPECT_EQ(error_of(dir.file(std::string_view("f\0g", 3)), "x"),
            "file \"" + dir.file("f\\x00g") + "\": cannot be written: Invalid argument");
  EXPECT_EQ(read_file(dir.file("f")), "");
}

}  // namespace
}  // namespace rankloom
