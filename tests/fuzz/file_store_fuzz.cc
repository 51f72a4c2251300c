// A FileStore over a file of any bytes: it says StoreError and leaves the file alone, or it is a store, which keeps
// what the file had and takes a new key. Neither takes memory out of proportion.

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "fake_store/crc32c.h"
#include "rankloom/error.h"
#include "rankloom/store.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temp_dir.h"

namespace rankloom {

using namespace internal;

namespace {

using fuzz::Input;
using fuzz::wrong;

constexpr size_t kLongFile = 100'000;
// A record has 24 bytes and its key; of a list of keys, 12 and the key. A hash table that grows holds 220 of each.
constexpr int kTimes = 20;
constexpr int64_t kMore = 512 << 10;

template <typename T>
std::string bytes_of(T word) {
  return {reinterpret_cast<const char*>(&word), sizeof word};
}

// Random bytes never have the right sums.
std::string record(uint32_t change, const std::string& key, const std::string& value) {
  std::string header = bytes_of(change) + bytes_of(static_cast<uint32_t>(key.size())) +
                       bytes_of(uint64_t{value.size()}) + bytes_of(crc32c(value, crc32c(key)));
  header += bytes_of(crc32c(header));
  return header + key + value;
}

// The content that records say, read by nobody but this.
struct Model {
  std::map<std::string, std::string> values;
  std::map<std::string, std::deque<std::string>> queues;
  bool is_whole = true;  // no record is of an unknown kind, and no list of keys is damaged

  void apply(uint32_t change, const std::string& key, const std::string& value) {
    switch (change) {
      case 1:
        values[key] = value;
        return;
      case 2:
        values[key] += value;
        return;
      case 3:
        values.erase(key);
        return;
      case 4:
        queues[key].push_back(value);
        return;
      case 5:
        if (!queues[key].empty()) queues[key].pop_front();
        return;
      case 6:
        return set_all(value);
      default:
        is_whole = false;
    }
  }

 private:
  // uint32 key bytes, uint64 value bytes, key, value, once more.
  void set_all(std::string_view list) {
    std::map<std::string, std::string> items;
    while (is_whole && !list.empty()) {
      uint32_t key_bytes = 0;
      uint64_t value_bytes = 0;
      constexpr size_t kHead = sizeof key_bytes + sizeof value_bytes;
      if (list.size() >= kHead) {
        std::memcpy(&key_bytes, list.data(), sizeof key_bytes);
        std::memcpy(&value_bytes, list.data() + sizeof key_bytes, sizeof value_bytes);
      }
      is_whole =
          list.size() >= kHead && list.size() - kHead >= key_bytes && list.size() - kHead - key_bytes >= value_bytes;
      if (!is_whole) return;
      items[std::string(list.substr(kHead, key_bytes))] = list.substr(kHead + key_bytes, value_bytes);
      list.remove_prefix(kHead + key_bytes + value_bytes);
    }
    for (const auto& [key, value] : items) values[key] = value;
  }
};

// A list of (change, key bytes, value bytes, key, value) is given sums and lengths here; a length of 0xff stands for
// the rest of the input as the tail of the file.
std::string with_sums(Input& in, Model* model) {
  std::string file = "RLSTORE1";
  while (!in.empty()) {
    const int change = in.below(256);
    const int key_bytes = in.below(256);
    const int value_bytes = in.below(256);
    if (key_bytes == 0xff) break;
    const std::string key = in.take(static_cast<size_t>(key_bytes));
    const std::string value = in.take(static_cast<size_t>(value_bytes));
    const auto number = static_cast<uint32_t>(change % 16 == 15 ? change : change % 6 + 1);
    file += record(number, key, value);
    model->apply(number, key, value);
  }
  const std::string tail = in.rest();
  constexpr size_t kHeader = 24;  // of which a part is a torn record
  if (tail.size() >= kHeader) model->is_whole = false;
  return file + tail;
}

// Many records of one kind, or one that lists many keys: an input of few bytes that shows whether a reader takes memory
// out of proportion. Keys have three bytes at least, which number them.
std::string long_file(Input& in) {
  constexpr uint32_t kBatch = 6;
  const auto change = static_cast<uint32_t>(in.below(kBatch) + 1);
  const uint32_t keys = in.below(2) == 0 ? 1 : 1 << 24;
  const std::string end_of_key = in.text();
  const std::string value = in.text();
  std::string file, list;
  for (uint32_t i = 0; file.size() + list.size() < kLongFile; ++i) {
    const std::string key = bytes_of(i % keys).substr(0, 3) + end_of_key;
    if (change == kBatch)
      list += bytes_of(static_cast<uint32_t>(key.size())) + bytes_of(uint64_t{value.size()}) + key + value;
    else
      file += record(change, key, value);
  }
  return "RLSTORE1" + file + (list.empty() ? "" : record(kBatch, "", list)) + in.rest();
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

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void check_memory(const std::string& path, const std::string& bytes) {
  write_file(path, bytes);
  const auto read = [&] {
    try {
      (void)FileStore::open(path)->num_keys();
    } catch (const DistError& error) {
      if (error.kind() != ErrorKind::kStoreError) wrong(error.what());
    }
  };
  fuzz::in_little_memory(bytes.size(), read, kTimes, kMore);
}

// The store has what the records say, its queues in order.
void check_content(const std::string& path, const Model& model) {
  const std::optional<std::map<std::string, std::string>> values = contents(path);
  if (!values.has_value()) wrong("a file without damage is refused");
  if (*values != model.values) wrong("the store has other values than its file");
  const std::shared_ptr<FileStore> store = FileStore::open(path);
  for (const auto& [key, queue] : model.queues) {
    if (store->queue_len(key) != static_cast<int64_t>(queue.size()))
      wrong("a queue has another length than in the file");
    for (const std::string& value : queue) {
      if (store->queue_pop(key, /*block=*/false) != value) wrong("a queue has other values than in the file");
    }
  }
}

// `model`: what the records say; null: nobody knows.
void check_file(const std::string& path, const std::string& bytes, const Model* model) {
  check_memory(path, bytes);
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
  if (model == nullptr) return;
  write_file(path, bytes);
  check_content(path, *model);
}

}  // namespace
}  // namespace rankloom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = [] {
    const char* const folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    return std::string(folder) + "/rankloom_fuzz_" + std::to_string(getpid());
  }();
  using namespace rankloom;
  fuzz::Input in(std::string_view(reinterpret_cast<const char*>(data), size));
  const int kind = in.below(256);
  if (kind == 'l') {
    check_memory(path, long_file(in));
  } else {
    Model model;
    const std::string file = kind % 2 == 0 ? in.rest() : with_sums(in, &model);
    check_file(path, file, kind % 2 == 1 && model.is_whole ? &model : nullptr);
  }
  unlink(path.c_str());
  return 0;
}
