// Cases that only a FileStore can meet: other processes, their death, full disks and files that are no store.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "fake_store/crc32c.h"
#include "rankloom/random.h"
#include "sim/base/parker.h"
#include "tests/fake_store/store_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// ---- processes: this program again, with --child and what to do

class Child {
 public:
  explicit Child(std::vector<std::string> args) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      args.insert(args.begin(), {"child", "--child"});
      std::vector<char*> argv;
      for (std::string& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      execv("/proc/self/exe", argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill(SIGKILL);
      wait();
    }
    close(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill(int signal) { ::kill(pid_, signal); }
  int wait() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  // One number that the child printed, as four bytes; nullopt at the end.
  std::optional<int32_t> next() {
    int32_t number;
    const ssize_t n = read(out_, &number, sizeof number);
    if (n != sizeof number) return std::nullopt;
    return number;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

void print_number(int32_t number) {
  if (write(STDOUT_FILENO, &number, sizeof number) != sizeof number) _exit(3);
}

// The value that a writer sets in its `i`th step: mostly short, now and then long enough to be killed in the middle.
std::string value_of(int round, int i) {
  uint64_t state = static_cast<uint64_t>(round) << 32 | static_cast<uint32_t>(i);
  const uint64_t random = Prng::splitmix64(state);
  return std::string(i % 6 == 5 ? 500'000 + random % 1'000'000 : random % 200, static_cast<char>('a' + random % 26));
}
std::string key_of(int round, int i) { return "round " + std::to_string(round) + " step " + std::to_string(i); }

int child_main(const std::vector<std::string>& args) {
  const std::string& what = args[0];
  const std::shared_ptr<FileStore> store = FileStore::open(args[1]);
  if (what == "write") {  // until killed: set a key and count it, then say so
    const int round = std::stoi(args[2]);
    for (int i = 0;; ++i) {
      store->set(key_of(round, i), value_of(round, i));
      store->add("count", 1);
      print_number(i);
    }
  }
  if (what == "add") {
    for (int i = 0; i < std::stoi(args[2]); ++i) store->add("n", 1);
    return 0;
  }
  if (what == "answer") {
    store->set("answer", "to " + store->get("question"));
    return 0;
  }
  if (what == "pop") {  // all there is until the word "end"
    for (;;) {
      const std::string value = store->queue_pop("q");
      if (value == "end") return 0;
      print_number(std::stoi(value));
    }
  }
  return 4;
}

class FileStoreTest : public testing::Test {
 protected:
  const TempDir dir_;
  const std::string path_ = dir_.file("store");
};

// ---- the death of writers

TEST_F(FileStoreTest, KillingWritersLosesNothingAcknowledged) {
  constexpr int kRounds = 200;
  constexpr int kRoundsPerFile = 5;
  Prng prng(4711);
  std::shared_ptr<FileStore> store;
  std::vector<int> acknowledged;  // by round of this file
  int64_t steps = 0;
  int torn = 0;
  int acknowledged_in_all = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int in_file = round % kRoundsPerFile;
    if (in_file == 0) {
      std::filesystem::remove(path_);
      store = FileStore::open(path_);
      acknowledged.clear();
      steps = 0;
    }
    int last = -1;
    {
      Child writer({"write", path_, std::to_string(round)});
      // Some steps, then some time: the kill may come at any point of a step.
      const auto least = static_cast<int>(prng.below(12));
      while (last < least) {
        const std::optional<int32_t> number = writer.next();
        ASSERT_TRUE(number.has_value());
        last = *number;
      }
      const int64_t until = monotonic_ns() + static_cast<int64_t>(prng.below(2'000'000));
      while (monotonic_ns() < until) {
      }
      writer.kill(SIGKILL);
      while (const std::optional<int32_t> number = writer.next()) last = *number;
      ASSERT_TRUE(WIFSIGNALED(writer.wait()));
    }
    acknowledged.push_back(last);
    acknowledged_in_all += last + 1;

    const auto size_before = static_cast<int64_t>(std::filesystem::file_size(path_));
    store->set("probe", "");  // a record of 24 + 5 bytes
    if (static_cast<int64_t>(std::filesystem::file_size(path_)) < size_before + 29) ++torn;

    // Once through the object that has seen everything grow, once through one that reads it all.
    std::shared_ptr<FileStore> stores[] = {store, in_file == kRoundsPerFile - 1 ? FileStore::open(path_) : nullptr};
    for (const std::shared_ptr<FileStore>& reader : stores) {
      if (reader == nullptr) continue;
      for (int r = reader == store ? in_file : 0; r <= in_file; ++r) {
        const int that_round = round - in_file + r;
        for (int i = 0; i <= acknowledged[static_cast<size_t>(r)]; ++i) {
          ASSERT_TRUE(reader->check({key_of(that_round, i)})) << "round " << that_round << " step " << i;
          ASSERT_EQ(reader->get(key_of(that_round, i)), value_of(that_round, i));
        }
      }
    }
    const int64_t count = store->add("count", 0);
    ASSERT_GE(count, steps + last + 1);
    ASSERT_LE(count, steps + last + 2);
    steps = count;
  }
  RecordProperty("torn_records", torn);
  std::printf("%d acknowledged, %d torn records\n", acknowledged_in_all, torn);
}

TEST_F(FileStoreTest, ATornRecordIsIgnoredAndCutOffByTheNextWriter) {
  std::vector<size_t> ends;  // of the file after each record
  {
    auto store = FileStore::open(path_);
    EXPECT_EQ(std::filesystem::file_size(path_), 0u);
    for (const char* key : {"a", "b", "c"}) {
      store->set(key, std::string("value of ") + key);
      ends.push_back(std::filesystem::file_size(path_));
    }
  }
  const std::string whole = read_file(path_);
  for (size_t length = 0; length <= whole.size(); ++length) {
    SCOPED_TRACE("cut to " + std::to_string(length));
    write_file(path_, std::string_view(whole).substr(0, length));
    std::vector<std::string> keys;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (length >= ends[i]) keys.push_back(std::string(1, static_cast<char>('a' + i)));
    }
    auto reader = FileStore::open(path_);
    auto writer = FileStore::open(path_);
    EXPECT_EQ(reader->list_keys(), keys);
    EXPECT_EQ(read_file(path_).size(), length);  // reading changes nothing
    writer->set("d", "new");
    keys.push_back("d");
    EXPECT_EQ(reader->list_keys(), keys);
    EXPECT_EQ(FileStore::open(path_)->list_keys(), keys);
    for (const std::string& key : keys) {
      EXPECT_EQ(reader->get(key), key == "d" ? "new" : "value of " + key);
    }
  }
}

// A value is read into its own memory where it is larger than a reader's buffer of 64 KiB.
TEST_F(FileStoreTest, ALargeValueThatIsCutOffIsIgnored) {
  const std::string large(200000, 'x');
  {
    auto store = FileStore::open(path_);
    store->set("a", "value");
    store->set("large", large);
  }
  const std::string whole = read_file(path_);
  for (const size_t length : {whole.size() - 1, whole.size() - 70000, whole.size() - 199000}) {
    SCOPED_TRACE("cut to " + std::to_string(length));
    write_file(path_, std::string_view(whole).substr(0, length));
    auto store = FileStore::open(path_);
    EXPECT_EQ(store->list_keys(), std::vector<std::string>{"a"});
    store->set("large", large);
    EXPECT_EQ(FileStore::open(path_)->get("large"), large);
  }
}

// ---- damage

TEST_F(FileStoreTest, EveryFlippedBitIsFoundAndNothingIsCutOff) {
  {
    auto store = FileStore::open(path_);
    store->set("key", "value");
    store->multi_set({"a", "b"}, {"1", "2"});
    store->queue_push("q", "x");
  }
  const std::string whole = read_file(path_);
  for (size_t at = 0; at < whole.size(); ++at) {
    SCOPED_TRACE("byte " + std::to_string(at));
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    write_file(path_, damaged);
    auto store = FileStore::open(path_);
    for (const DistError& error : {error_of([&] { store->list_keys(); }), error_of([&] { store->set("new", ""); }),
                                   error_of([&] { store->wait({"absent"}, absl::Seconds(100)); })}) {
      EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
      EXPECT_THAT(error.what(), HasSubstr("file \"" + path_ + "\": is "));
      EXPECT_THAT(error.what(), AnyOf(HasSubstr("is no rankloom store"), HasSubstr("is damaged: the record at byte ")));
    }
    EXPECT_EQ(read_file(path_), damaged);
  }
}

TEST_F(FileStoreTest, ADamagedRecordIsNamedWithBothSums) {
  FileStore::open(path_)->set("key", "value");
  std::string bytes = read_file(path_);
  bytes.back() ^= 1;
  write_file(path_, bytes);
  const DistError error = error_of([&] { FileStore::open(path_)->get("key"); });
  EXPECT_THAT(error.what(), StartsWith("StoreError: FileStore get key \"key\": file \"" + path_ +
                                       "\": is damaged: the record at byte 8 has checksum "));
  EXPECT_THAT(error.what(), HasSubstr(", want "));
}

TEST_F(FileStoreTest, GarbageIsNoStore) {
  for (std::string_view garbage : {"x", "hello, world, I am a text file\n", "RLSTORE2 and more", "rlstore1"}) {
    write_file(path_, garbage);
    auto store = FileStore::open(path_);
    const DistError error = error_of([&] { store->set("key", "value"); });
    EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
    EXPECT_THAT(error.what(), HasSubstr("is no rankloom store: starts with \"" + std::string(garbage.substr(0, 8)) +
                                        "\", want \"RLSTORE1\""));
    EXPECT_EQ(read_file(path_), garbage);
  }
  write_file(path_, std::string(100, '\0'));
  EXPECT_THAT(error_of([&] { FileStore::open(path_)->num_keys(); }).what(), HasSubstr("starts with \"\\x00\\x00"));
}

TEST_F(FileStoreTest, ARecordOfAnUnknownKindIsNamed) {
  std::string record;
  const auto put32 = [&](uint32_t value) { record.append(reinterpret_cast<const char*>(&value), 4); };
  put32(7);
  put32(0);
  put32(0);
  put32(0);
  put32(0);  // no key, no value: their sum is 0
  put32(internal::crc32c(record));
  write_file(path_, "RLSTORE1" + record);
  EXPECT_THAT(error_of([&] { FileStore::open(path_)->num_keys(); }).what(),
              HasSubstr("the record at byte 8 has kind 7, want 1 to 6: written by a newer rankloom?"));
}

// With right sums, as no store writes it.
TEST_F(FileStoreTest, AListOfKeysThatDoesNotFitItsLengthIsNamed) {
  const auto put32 = [](std::string* to, uint32_t value) { to->append(reinterpret_cast<const char*>(&value), 4); };
  std::string body, record;
  for (const uint32_t value : {5U, 0U, 0U}) put32(&body, value);  // a key of 5 bytes that is not there
  for (const uint32_t value : {6U, 0U, 12U, 0U, internal::crc32c(body)}) put32(&record, value);
  put32(&record, internal::crc32c(record));
  write_file(path_, "RLSTORE1" + record + body);
  EXPECT_THAT(error_of([&] { FileStore::open(path_)->num_keys(); }).what(),
              HasSubstr("is damaged: the list of keys at byte 8 does not fit its length"));
}

TEST_F(FileStoreTest, AnEmptyFileIsANewStore) {
  write_file(path_, "");
  auto store = FileStore::open(path_);
  EXPECT_EQ(store->num_keys(), 0);
  store->set("a", "1");
  EXPECT_EQ(FileStore::open(path_)->get("a"), "1");
}

TEST_F(FileStoreTest, AFileThatIsCutOrRemovedWhileInUseIsNamed) {
  auto store = FileStore::open(path_);
  store->set("a", "1");
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, size - 1);
  EXPECT_THAT(error_of([&] { store->get("a"); }).what(),
              HasSubstr("have " + std::to_string(size - 1) + " bytes, want at least the " + std::to_string(size) +
                        " read before: it was cut"));
  std::filesystem::remove(path_);
  EXPECT_THAT(error_of([&] { store->set("a", "2"); }).what(), HasSubstr("was removed while in use"));
  EXPECT_THAT(error_of([&] { store->get("a"); }).what(), HasSubstr("was removed while in use"));
}

TEST_F(FileStoreTest, ARemovedFileIsNamedByEachOperation) {
  auto store = FileStore::open(path_);
  store->set("a", "1");
  std::filesystem::remove(path_);
  const std::vector<std::function<void()>> operations = {[&] { store->multi_set({"x"}, {"1"}); },
                                                         [&] { store->delete_key("absent"); },
                                                         [&] { store->compare_set("absent", "e", "d"); },
                                                         [&] { store->add("n", 1); },
                                                         [&] { store->append("a", "x"); },
                                                         [&] { store->queue_push("q", "x"); },
                                                         [&] { (void)store->queue_pop("q", false); },
                                                         [&] { (void)store->multi_get({"a"}); },
                                                         [&] { (void)store->check({"a"}); },
                                                         [&] { (void)store->num_keys(); },
                                                         [&] { (void)store->queue_len("q"); }};
  for (size_t i = 0; i < operations.size(); ++i) {
    const DistError error = error_of(operations[i]);
    EXPECT_EQ(error.kind(), ErrorKind::kStoreError) << i;
    EXPECT_THAT(error.what(), HasSubstr("was removed while in use")) << i;
  }
  EXPECT_THAT(error_of([&] { (void)store->num_keys(); }).what(), HasSubstr("FileStore num_keys: file "));
  EXPECT_THAT(error_of([&] { (void)store->list_keys(); }).what(), HasSubstr("FileStore list_keys: file "));
  EXPECT_THAT(error_of([&] { (void)store->queue_len("q"); }).what(), HasSubstr("FileStore queue_len key \"q\": file "));
}

TEST_F(FileStoreTest, AnErrorOfOpenIsOfNoRankOutsideOfRanks) {
  EXPECT_EQ(error_of([&] { FileStore::open(path_ + "/is no folder"); }).rank(), -1);
  World world({.world_size = 2, .engine = EngineKind::kFibers});
  world
      .run([&](RankContext& rank) {
        EXPECT_EQ(error_of([&] { FileStore::open(path_ + "/is no folder"); }).rank(), rank.rank());
      })
      .throw_if_failed();
}

TEST_F(FileStoreTest, ARemovedFileEndsAWait) {
  auto store = FileStore::open(path_);
  store->set("a", "1");
  std::thread remover([&] { std::filesystem::remove(path_); });
  EXPECT_THAT(error_of([&] { store->get("absent"); }).what(), HasSubstr("was removed while in use"));
  remover.join();
}

// ---- places that cannot hold a store

TEST_F(FileStoreTest, APathThatCannotBeWrittenIsNamed) {
  for (const auto& [path, why] : std::vector<std::pair<std::string, std::string>>{
           {"/sys/kernel/rankloom_store", "cannot be opened to read and write: "},
           {"/proc/rankloom_store", "cannot be opened to read and write: No such file or directory"},
           {path_ + "/in/no/folder", "cannot be opened to read and write: No such file or directory"},
           {std::filesystem::path(path_).parent_path().string(), "cannot be opened to read and write: Is a directory"},
           {"/dev/null", "have a device, want a regular file"},
           {"", "cannot be opened to read and write: No such file or directory"},
           {path_ + std::string("\0x", 2), "has a NUL in its name"}}) {
    const DistError error = error_of([&, path = path] { FileStore::open(path); });
    EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
    EXPECT_EQ(error.rank(), -1);
    EXPECT_THAT(error.what(), StartsWith("StoreError: FileStore open: file \""));
    EXPECT_THAT(error.what(), HasSubstr(why));
  }
  run_world({.world_size = 2}, [](RankContext& rank) {
    EXPECT_EQ(error_of([] { FileStore::open("/dev/null"); }).rank(), rank.rank());
  }).throw_if_failed();
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { FileStore::open(path_); }).what(), HasSubstr("have a pipe, want a regular file"));
}

// No file of this process may grow beyond `bytes` while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    before_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit less{.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &less);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    signal(SIGXFSZ, before_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit limit_;
  sighandler_t before_;
};

TEST_F(FileStoreTest, AFullDiskFailsTheOperationAndKeepsTheRest) {
  auto store = FileStore::open(path_);
  auto other = FileStore::open(path_);
  std::vector<std::string> keys;
  std::string text;
  uintmax_t size = 0;
  {
    FileSizeLimit limit(100'000);
    for (int i = 0; text.empty(); ++i) {
      const std::string key = "key" + std::to_string(1000 + i);
      try {
        store->set(key, std::string(3000, 'x'));
        keys.push_back(key);
        size = std::filesystem::file_size(path_);
      } catch (const DistError& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
        text = error.what();
      }
    }
    EXPECT_EQ(keys.size(), 32u);
    // Small ones still fit, and each operation that does not fails alike and changes nothing.
    const std::string large(10'000, 'y');
    EXPECT_THAT(error_of([&] { store->append(keys[0], large); }).what(), HasSubstr("cannot be written"));
    EXPECT_THAT(error_of([&] { store->compare_set("new", "", large); }).what(), HasSubstr("cannot be written"));
    EXPECT_THAT(error_of([&] {
                  store->multi_set({"new", keys[0]}, {"", large});
                }).what(),
                HasSubstr("cannot be written"));
    EXPECT_THAT(error_of([&] { store->queue_push("q", large); }).what(), HasSubstr("cannot be written"));
    EXPECT_EQ(std::filesystem::file_size(path_), size);
    EXPECT_EQ(store->list_keys(), keys);
    EXPECT_EQ(store->queue_len("q"), 0);
  }
  EXPECT_THAT(
      text, HasSubstr("FileStore set key \"key1032\": file \"" + path_ + "\": cannot be written, 3031 bytes at byte "));
  EXPECT_THAT(text, HasSubstr("File too large"));
  EXPECT_EQ(other->list_keys(), keys);
  store->set("later", "fits");
  keys.push_back("later");
  EXPECT_EQ(FileStore::open(path_)->list_keys(), keys);
  EXPECT_EQ(other->get(keys[0]), std::string(3000, 'x'));
}

// ---- other processes

TEST_F(FileStoreTest, AddsOfSeveralProcessesAreAllCounted) {
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(std::make_unique<Child>(std::vector<std::string>{"add", path_, "250"}));
  auto store = FileStore::open(path_);
  for (int i = 0; i < 250; ++i) store->add("n", 1);
  for (const std::unique_ptr<Child>& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(store->get("n"), "1250");
}

TEST_F(FileStoreTest, ProcessesShareAQueue) {
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) children.push_back(std::make_unique<Child>(std::vector<std::string>{"pop", path_}));
  auto store = FileStore::open(path_);
  for (int i = 0; i < 100; ++i) store->queue_push("q", std::to_string(i));
  for (int i = 0; i < 3; ++i) store->queue_push("q", "end");
  std::vector<int> times(100);
  for (const std::unique_ptr<Child>& child : children) {
    EXPECT_EQ(child->wait(), 0);
    while (const std::optional<int32_t> number = child->next()) ++times[static_cast<size_t>(*number)];
  }
  EXPECT_EQ(times, std::vector<int>(100, 1));
}

class FileStoreGearTest : public FileStoreTest, public testing::WithParamInterface<Gear> {};
INSTANTIATE_TEST_SUITE_P(Gears, FileStoreGearTest,
                         testing::Values(Gear::kThreads, Gear::kWorldFree, Gear::kWorldBaton, Gear::kWorldFibers),
                         [](const auto& gear) { return name_of(gear.param); });

TEST_P(FileStoreGearTest, ARankWaitsForAnotherProcess) {
  Child child({"answer", path_});
  run_on(StoreKind::kFile, GetParam(), 2, path_, 5, [](int rank, Store& store) {
    if (rank == 0) {
      EXPECT_EQ(store.get("answer"), "to everything");
    } else {
      store.set("question", "everything");
    }
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_P(FileStoreGearTest, AWaitForOtherProcessesEndsByRealTime) {
  run_on(StoreKind::kFile, GetParam(), 2, path_, 5, [](int rank, Store& store) {
    if (rank == 1) return;
    const int64_t before = monotonic_ns();
    const DistError error = error_of([&] { store.wait({"absent"}, absl::Milliseconds(50)); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("FileStore wait: timed out after 50ms: missing key \"absent\""));
    EXPECT_GE(monotonic_ns() - before, 50'000'000);
  });
}

// A wait sees the changes of others, too, and is not the end of its operation: what a watch of them does may end the
// wait.
TEST_P(FileStoreGearTest, AWatchIsToldWhileItsRankWaits) {
  std::thread others([&] {
    auto store = FileStore::open(path_);
    store->wait({"watching"});
    store->set("a", "1");
    store->wait({"went on"});
    store->multi_set({"a", "done"}, {"2", ""});
  });
  std::vector<std::string> seen;
  run_on(StoreKind::kFile, GetParam(), 2, path_, 5, [&](int rank, Store& store) {
    if (rank == 1) return;
    store.watch_key("a", [&](std::optional<std::string_view>, std::optional<std::string_view> after) {
      seen.emplace_back(after.value_or("-"));
      store.set("go", "");
    });
    store.set("watching", "");
    store.get("go");
    EXPECT_THAT(seen, ElementsAre("1"));
    store.set("went on", "");
    store.get("done");
    EXPECT_THAT(seen, ElementsAre("1", "2"));
  });
  others.join();
}

TEST_F(FileStoreTest, AWatchThatThrowsInAWaitEndsTheWait) {
  auto store = FileStore::open(path_);
  store->watch_key("a", [](auto, auto) { throw std::runtime_error("from the watch"); });
  std::thread other([&] {
    auto store = FileStore::open(path_);
    store->wait({"waits"});
    store->set("a", "1");
  });
  store->set("waits", "");
  EXPECT_THROW(store->get("never"), std::runtime_error);
  other.join();
  store->set("b", "2");
  EXPECT_EQ(store->get("b"), "2");
}

TEST_F(FileStoreTest, AWatchThatIsAlwaysCalledLeavesAWaitItsTimeout) {
  auto store = FileStore::open(path_);
  int calls = 0;
  store->watch_key("a", [&](auto, auto) {
    ++calls;
    absl::SleepFor(absl::Milliseconds(2));
  });
  std::atomic<bool> over = false, begun = false;
  std::thread other([&] {
    auto store = FileStore::open(path_);
    for (; !over; absl::SleepFor(absl::Milliseconds(1))) {
      store->add("a", 1);
      begun = true;
    }
  });
  while (!begun) std::this_thread::yield();
  EXPECT_EQ(error_of([&] { store->wait({"never"}, absl::Milliseconds(100)); }).kind(), ErrorKind::kTimeout);
  over = true;
  other.join();
  EXPECT_GT(calls, 0);
}

TEST_F(FileStoreTest, AWaitThatGivesUpBehindAWatchHasLookedOnceMore) {
  auto store = FileStore::open(path_);
  const absl::Time begin = absl::Now();
  store->watch_key("a", [&](auto, auto) {
    auto other = FileStore::open(path_);
    while (absl::Now() < begin + absl::Milliseconds(60)) other->get("a");
    other->set("k", "there");
  });
  FileStore::open(path_)->set("a", "1");
  store->wait({"k"}, absl::Milliseconds(20));
  EXPECT_EQ(store->get("k"), "there");
}

TEST_F(FileStoreTest, AHookOfAWorldWaitsForOtherProcessesAsLongAsForAStall) {
  std::string error;
  {
    WorldOptions options;
    options.stall = absl::Milliseconds(50);
    World world(options);
    auto store = FileStore::open(path_, {.scheduler = &world.scheduler()});
    world.at_end([&] { error = error_of([&] { (void)store->get("never"); }).what(); });
    (void)world.run([](RankContext&) {});
  }
  EXPECT_THAT(error,
              HasSubstr("Aborted: FileStore get key \"never\": the world has ended: no rank is left that could end "));
  EXPECT_THAT(error, HasSubstr("and nobody else has in 50ms"));
}

TEST_F(FileStoreTest, AStoreThatIsNotSharedWaitsInTheWorldsTime) {
  World world({.world_size = 2, .engine = EngineKind::kFibers});
  auto store = FileStore::open(path_, {.scheduler = &world.scheduler(), .shared = false});
  store->set_timeout(absl::InfiniteDuration());
  const int64_t before = monotonic_ns();
  const RunReport report = world.run([&](RankContext& rank) {
    if (rank.rank() == 0) {
      EXPECT_EQ(error_of([&] { store->wait({"absent"}, absl::Hours(10)); }).kind(), ErrorKind::kTimeout);
      EXPECT_EQ(rank.now(), absl::Hours(10));
    }
    store->get("never");
  });
  EXPECT_LT(monotonic_ns() - before, 60'000'000'000);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kDeadlock);
  EXPECT_THAT(report.text(), HasSubstr("store get key \"never\""));
}

TEST_F(FileStoreTest, ParentAndChildOfAForkMayBothGoOn) {
  auto store = FileStore::open(path_);
  store->set("before", "1");
  EXPECT_EQ(error_of([&] { store->wait({"absent"}, absl::Milliseconds(1)); }).kind(), ErrorKind::kTimeout);
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 200; ++i) store->add("n", 1);
    store->get("from parent");
    const bool good = store->get("before") == "1";
    store.reset();
    _exit(good ? 0 : 1);
  }
  for (int i = 0; i < 200; ++i) store->add("n", 1);
  store->set("from parent", "");
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(store->get("n"), "400");
}

TEST_F(FileStoreTest, AFileThatWasReplacedIsNoneOfAForkedChild) {
  auto store = FileStore::open(path_);
  store->set("a", "1");
  const std::string other = path_ + ".other";
  std::filesystem::copy_file(path_, other);
  FileStore::open(other)->set("more", "than the first has");
  const pid_t child = fork();
  if (child == 0) {
    std::filesystem::rename(other, path_);
    bool named = false;
    try {
      store->set("b", "2");
    } catch (const DistError& error) {
      named = std::string_view(error.what()).find("was replaced before this process, made by fork, used it") !=
              std::string_view::npos;
    }
    _exit(named ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FileStoreTest, AFileThatWasRemovedIsNotMadeAgainByAForkedChild) {
  auto store = FileStore::open(path_);
  store->set("a", "1");
  const pid_t child = fork();
  if (child == 0) {
    std::filesystem::remove(path_);
    bool named = false;
    try {
      store->set("b", "2");
    } catch (const DistError& error) {
      named = std::string_view(error.what()).find("was removed before this process, made by fork, used it") !=
              std::string_view::npos;
    }
    _exit(named && !std::filesystem::exists(path_) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FileStoreTest, AWatchSeesTheChangesOfOthersAtTheNextUse) {
  auto store = FileStore::open(path_);
  auto other = FileStore::open(path_);
  other->set("a", "before");
  std::vector<std::string> seen;
  store->watch_key("a", [&](std::optional<std::string_view>, std::optional<std::string_view> after) {
    seen.emplace_back(after.value_or("-"));
  });
  other->set("a", "1");
  other->delete_key("a");
  EXPECT_THAT(seen, IsEmpty());
  store->set("b", "");
  EXPECT_THAT(seen, ElementsAre("1", "-"));
}

TEST_F(FileStoreTest, ValuesOutliveTheStore) {
  {
    auto store = FileStore::open(path_);
    store->add("n", 41);
    store->append("log", "one ");
    store->append("log", "two");
    store->set("gone", "");
    store->delete_key("gone");
    store->queue_push("q", "first");
    store->queue_push("q", "second");
    store->queue_pop("q");
    store->multi_set({"x", ""}, {"", "y"});
  }
  auto store = FileStore::open(path_);
  EXPECT_EQ(store->add("n", 1), 42);
  EXPECT_EQ(store->get("log"), "one two");
  EXPECT_THAT(store->list_keys(), ElementsAre("", "log", "n", "x"));
  EXPECT_EQ(store->queue_pop("q", false), "second");
  EXPECT_EQ(store->queue_len("q"), 0);
}

TEST(Crc32cTest, GivesThePublishedSums) {
  // RFC 3720, B.4, and the check value of the CRC catalogue.
  EXPECT_EQ(internal::crc32c(""), 0u);
  EXPECT_EQ(internal::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(internal::crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(internal::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<char>(i));
  EXPECT_EQ(internal::crc32c(rising), 0x46dd794eu);
  for (size_t cut = 0; cut <= rising.size(); ++cut) {
    EXPECT_EQ(internal::crc32c(std::string_view(rising).substr(cut),
                               internal::crc32c(std::string_view(rising).substr(0, cut))),
              0x46dd794eu);
  }
}

// Time that ranks waited for another process before does not count for what they begin to wait for afterwards.
TEST_F(FileStoreTest, ATimeoutBesideAWaitTakesItsWholeRealTime) {
  const auto store = FileStore::open(path_);
  std::thread other([&] {
    const auto same = FileStore::open(path_);
    absl::SleepFor(absl::Seconds(1));
    same->set("a", "");
    absl::SleepFor(absl::Milliseconds(100));
    same->set("b", "");
  });
  run_world({.world_size = 2, .engine = EngineKind::kFibers}, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      store->get("a");
      rank.store().set("go", "");
      store->get("b");
      rank.store().set("end", "");
    } else {
      rank.store().get("go");
      rank.store().wait({"end"}, absl::Milliseconds(900));
    }
  }).throw_if_failed();
  other.join();
}

// A default timeout keeps nothing alive, but passes in its turn: at its own time.
TEST_F(FileStoreTest, ADefaultTimeoutBesideAWaitPassesAtItsTime) {
  const auto store = FileStore::open(path_);
  store->set_timeout(absl::Seconds(100));
  run_world({.world_size = 3, .engine = EngineKind::kFibers, .timeout = absl::Milliseconds(100)},
            [&](RankContext& rank) {
              if (rank.rank() == 0) return (void)store->get("k");
              if (rank.rank() == 1) {
                EXPECT_EQ(error_of([&] { rank.store().get("never"); }).kind(), ErrorKind::kTimeout);
                EXPECT_EQ(rank.now(), absl::Milliseconds(100));
                rank.sleep_for(absl::Milliseconds(200));
                return rank.store().set("end", "");
              }
              rank.store().wait({"end"}, absl::Seconds(1));
              EXPECT_EQ(rank.now(), absl::Milliseconds(300));
              store->set("k", "");
            })
      .throw_if_failed();
}

// Nor do ranks that poll keep those that sleep from waking.
TEST_F(FileStoreTest, TimePassesBesideAWaitWhileARankPolls) {
  for (const bool acts : {false, true}) {
    const std::string key = acts ? "k" : "l";
    const auto store = FileStore::open(path_);
    store->set_timeout(absl::Seconds(100));
    const absl::Time begun = absl::Now();
    run_world({.world_size = 3, .engine = EngineKind::kFibers}, [&](RankContext& rank) {
      if (rank.rank() == 0) return (void)store->get(key);
      if (rank.rank() == 1) {
        while (!rank.store().check({"end"})) {
          if (acts) rank.store().set("polled", "");
        }
        return;
      }
      rank.sleep_for(absl::Milliseconds(10));
      rank.store().set("end", "");
      store->set(key, "");
    }).throw_if_failed();
    EXPECT_LT(absl::Now() - begun, absl::Seconds(50));
  }
}

// A waiter whose world gives its turn to another rank does not keep others from what is in the file.
TEST_F(FileStoreTest, AWaiterWithoutATurnKeepsNobodyFromReading) {
  const auto store = FileStore::open(path_);
  store->set_timeout(absl::Seconds(100));
  const absl::Time begun = absl::Now();
  run_world({.world_size = 2, .engine = EngineKind::kFibers}, [&](RankContext& rank) {
    if (rank.rank() == 1) return (void)store->get("end");  // the first that waits
    rank.sleep_for(absl::Milliseconds(1));                 // passes as real time does
    std::string got;
    std::thread waits([&] { got = store->get("b"); });
    std::thread sets([&] {
      absl::SleepFor(absl::Milliseconds(200));
      FileStore::open(path_)->set("b", "1");
    });
    sets.join();
    waits.join();
    EXPECT_EQ(got, "1");
    store->set("end", "");
  }).throw_if_failed();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(50));
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "--child") return rankloom::child_main({argv + 2, argv + argc});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
