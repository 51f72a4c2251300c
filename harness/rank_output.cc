#include <iostream>
#include <map>
#include <streambuf>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "harness/rank_failures.h"
#include "rankloom/testing.h"
#include "sim/base/library_scope.h"
#include "sim/base/lock_order.h"
#include "sim/base/ranks_text.h"
#include "sim/base/require.h"

namespace rankloom {

using namespace internal;

class RankOutput::Router {
 public:
  explicit Router(World* world) : world_(world), texts_(static_cast<size_t>(world->size())) {}

  // False if the calling thread is no rank of this world.
  bool write(const char* bytes, size_t size) {
    const LibraryScope library;
    const RankContext* const rank = RankContext::current();
    if (rank == nullptr || &rank->world() != world_) return false;
    internal::OrderedMutexLock lock(&mu_);
    texts_[static_cast<size_t>(rank->rank())].append(bytes, size);
    return true;
  }
  std::vector<std::string> texts() const {
    internal::OrderedMutexLock lock(&mu_);
    return texts_;
  }

 private:
  World* const world_;
  mutable internal::OrderedMutex mu_{internal::LockLevel::kTestOutput};
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
};

// Stands in for the buffer of one stream. Has no buffer of its own: a rank's text must not wait in a shared one.
class RankOutput::Stream final : public std::streambuf {
 public:
  Stream(Router* router, std::ostream* stream) : router_(*router), stream_(*stream), before_(stream->rdbuf(this)) {}
  ~Stream() override { stream_.rdbuf(before_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char byte = traits_type::to_char_type(c);
    return router_.write(&byte, 1) ? c : before_->sputc(byte);
  }
  std::streamsize xsputn(const char* bytes, std::streamsize size) override {
    return router_.write(bytes, static_cast<size_t>(size)) ? size : before_->sputn(bytes, size);
  }
  int sync() override { return before_->pubsync(); }

 private:
  Router& router_;
  std::ostream& stream_;
  std::streambuf* const before_;
};

RankOutput::RankOutput(World* world, CodeSite code)
    : router_([&] {
        require(world, {.rank = -1, .group = {}, .op = "RankOutput"}, code, "RankOutput: world");
        return std::make_unique<Router>(world);
      }()) {
  for (std::ostream* const stream : {&std::cout, &std::cerr, &std::clog}) {
    streams_.push_back(std::make_unique<Stream>(router_.get(), stream));
  }
}

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
