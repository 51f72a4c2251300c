#include <algorithm>
#include <iostream>
#include <map>
#include <streambuf>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "rankloom/testing.h"
#include "sim/base/library_scope.h"
#include "sim/base/lock_order.h"
#include "sim/base/ranks_text.h"
#include "sim/base/require.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

// The texts that the ranks of one world write.
class RankOutput::Router {
 public:
  explicit Router(World& world);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  std::vector<std::string> texts() const;
  // False if the calling thread is no rank of a world whose output is kept. Of several for one world the last counts.
  static bool write(const char* bytes, size_t size);

 private:
  class Stream;
  struct All;

  const uint64_t world_;            // its serial number: another world may lie where that one did
  std::vector<std::string> texts_;  // guarded by All::mu
};

// Stands in for the buffer of one stream. Has no buffer of its own: a rank's text must not wait in a shared one.
class RankOutput::Router::Stream final : public std::streambuf {
 public:
  explicit Stream(std::ostream* stream) : stream_(*stream), before_(stream->rdbuf(this)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool is_in_place() const { return stream_.rdbuf() == this; }
  bool is_of(const std::ostream* stream) const { return stream == &stream_; }
  void put_back() { stream_.rdbuf(before_); }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char byte = traits_type::to_char_type(c);
    return write(&byte, 1) ? c : before_->sputc(byte);
  }
  std::streamsize xsputn(const char* bytes, std::streamsize size) override {
    return write(bytes, static_cast<size_t>(size)) ? size : before_->sputn(bytes, size);
  }
  int sync() override { return before_->pubsync(); }

 private:
  std::ostream& stream_;
  std::streambuf* const before_;
};

// All routers share the streams of the process, so that the order in which they end does not matter.
struct RankOutput::Router::All {
  OrderedMutex mu{LockLevel::kTestOutput};
  std::vector<Router*> routers ABSL_GUARDED_BY(mu);
  // In place while there are routers. A stream that somebody gave another buffer meanwhile, which may write to this
  // one, keeps it.
  std::vector<std::unique_ptr<Stream>> streams ABSL_GUARDED_BY(mu);

  static All& instance() {
    static All* const all = new All;
    return *all;
  }

  void put_in_place() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (std::ostream* const stream : {&std::cout, &std::cerr, &std::clog}) {
      const auto is_there = [stream](const auto& known) { return known->is_of(stream) && known->is_in_place(); };
      if (std::none_of(streams.begin(), streams.end(), is_there)) streams.push_back(std::make_unique<Stream>(stream));
    }
  }
  void put_back() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::erase_if(streams, [](const auto& known) {
      if (!known->is_in_place()) return false;
      known->put_back();
      return true;
    });
  }
};

RankOutput::Router::Router(World& world)
    : world_(world.scheduler().serial()), texts_(static_cast<size_t>(world.size())) {
  All& all = All::instance();
  OrderedMutexLock lock(&all.mu);
  all.routers.push_back(this);
  all.put_in_place();
}

RankOutput::Router::~Router() {
  All& all = All::instance();
  OrderedMutexLock lock(&all.mu);
  std::erase(all.routers, this);
  if (all.routers.empty()) all.put_back();
}

std::vector<std::string> RankOutput::Router::texts() const {
  All& all = All::instance();
  OrderedMutexLock lock(&all.mu);
  return texts_;
}

bool RankOutput::Router::write(const char* bytes, size_t size) {
  const LibraryScope library;
  RankContext* const rank = RankContext::current();
  if (rank == nullptr) return false;
  const uint64_t world = state_of(rank->world()).scheduler().serial();
  All& all = All::instance();
  OrderedMutexLock lock(&all.mu);
  const auto router = std::find_if(all.routers.rbegin(), all.routers.rend(),
                                   [world](const Router* known) { return known->world_ == world; });
  if (router == all.routers.rend()) return false;
  (*router)->texts_[static_cast<size_t>(rank->rank())].append(bytes, size);
  return true;
}

RankOutput::RankOutput(World* world, CodeSite code)
    : router_([&] {
        require(world, {.rank = -1, .group = {}, .op = "RankOutput"}, code, "RankOutput: world");
        return std::make_unique<Router>(*world);
      }()) {}

RankOutput::~RankOutput() = default;

std::vector<std::string> RankOutput::texts() const { return router_->texts(); }

void RankOutput::print(const std::vector<std::string>& texts, std::ostream& out) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < texts.size(); ++rank) ranks_of[texts[rank]].push_back(static_cast<int>(rank));
  for (const std::string& text : texts) {
    const auto ranks = ranks_of.find(text);
    if (text.empty() || ranks == ranks_of.end()) continue;  // nothing, or printed with an earlier rank
    absl::string_view lines = text;
    if (lines.back() == '\n') lines.remove_suffix(1);
    for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
      out << internal::ranks_text(ranks->second) << " | " << line << "\n";
    }
    ranks_of.erase(ranks);
  }
  out.flush();
}

}  // namespace rankloom
