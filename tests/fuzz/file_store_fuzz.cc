// A FileStore over a file of any bytes: it says StoreError and leaves the file alone, or it is a store, which keeps
// what the file had and takes a new key.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "fake_store/crc32c.h"
#include "rankloom/error.h"
#include "rankloom/store.h"

namespace rankloom {

using namespace internal;

namespace {

[[noreturn]] void wrong(const char* what) {
  std::fprintf(stderr, "file_store_fuzz: %s\n", what);
  std::abort();
}

std::string take(std::string_view* in, size_t n) {
  const std::string part(in->substr(0, n));
  in->remove_prefix(part.size());
  return part;
}

// Random bytes never have the right sums. So half of the inputs are a list of (change, key bytes, value bytes, key,
// value) that is given sums and lengths here; a length of 0xff stands for the rest of the input as the tail of the
// file.
std::string with_sums(std::string_view input) {
  std::string file = "RLSTORE1";
  while (input.size() >= 3) {
    const auto change = static_cast<uint8_t>(input[0]);
    const auto key_bytes = static_cast<uint8_t>(input[1]);
    const auto value_bytes = static_cast<uint8_t>(input[2]);
    input.remove_prefix(3);
    if (key_bytes == 0xff) break;
    const std::string key = take(&input, key_bytes);
    const std::string value = take(&input, value_bytes);
    std::string header;
    const auto put32 = [&](uint32_t word) { header.append(reinterpret_cast<const char*>(&word), 4); };
    put32(change % 16 == 15 ? change : change % 6 + 1);
    put32(static_cast<uint32_t>(key.size()));
    put32(static_cast<uint32_t>(value.size()));
    put32(0);
    put32(internal::crc32c(value, internal::crc32c(key)));
    put32(internal::crc32c(header));
    file += header + key + value;
  }
  return file.append(input);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// The content of a store at `path`; nullopt: the store says StoreError.
std::optional<std::map<std::string, std::string>> contents(const std::string& path) {
  const std::shared_ptr<FileStore> store = FileStore::open(path);
  std::map<std::string, std::string> values;
  try {
    for (const std::string& key : store->list_keys()) values[key] = store->get(key);
    if (store->num_keys() != static_cast<int64_t>(values.size())) wrong("num_keys and list_keys differ");
  } catch (const DistError& error) {
    if (error.kind() != ErrorKind::kStoreError) wrong(error.what());
    return std::nullopt;
  }
  return values;
}

void check_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::optional<std::map<std::string, std::string>> values = contents(path);
  bool refused = false;
  try {
    FileStore::open(path)->set("new key", "new value");
  } catch (const DistError& error) {
    if (error.kind() != ErrorKind::kStoreError) wrong(error.what());
    refused = true;
  }
  if (refused != !values.has_value()) wrong("a file that can be read cannot be written, or the other way round");
  if (refused) {
    if (read_file(path) != bytes) wrong("a damaged file was changed");
    return;
  }
  (*values)["new key"] = "new value";
  if (contents(path) != values) wrong("a write changed what the store had");
}

}  // namespace
}  // namespace rankloom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = [] {
    const char* const folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    return std::string(folder) + "/rankloom_fuzz_" + std::to_string(getpid());
  }();
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  rankloom::check_file(path, data[0] % 2 == 0 ? std::string(input) : rankloom::with_sums(input));
  unlink(path.c_str());
  return 0;
}
