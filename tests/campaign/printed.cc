#include "tests/campaign/printed.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "sim/base/sanitizers.h"
#include "tests/campaign/store_script.h"

namespace rankloom::printed {

// One run of a program, and what is wrong with it; empty: nothing.
class ProgramRun {
 public:
  ProgramRun(const Plan& plan, const WorldOptions& options, const Programs& ranks)
      : plan_(plan), gear_{options.engine, options.schedule}, logs_(ranks.size()) {
    const auto arrivals = std::make_shared<Arrivals>();
    for (Log& log : logs_) log.arrivals_ = arrivals;
    World world(options);
    run_.report = world.run([&](RankContext& rank) {
      const auto r = static_cast<size_t>(rank.rank());
      ranks[r](rank, logs_[r]);
    });
  }

  std::string wrong() {
    JobLog want;
    for (const Log& log : logs_) {
      run_.log.push_back(log.have());
      want.push_back(log.want());
    }
    if (on_run) on_run(plan_, gear_, run_);
    const std::optional<std::string> wrong = wrong_with(plan_, want, run_);
    if (!wrong.has_value()) return "";
    std::string text = absl::StrCat(gear_.text(), ": ", *wrong, "\n");
    for (size_t rank = 0; rank < logs_.size(); ++rank) {
      for (const std::string& line : logs_[rank].differences()) absl::StrAppend(&text, "rank ", rank, ", ", line, "\n");
    }
    return text;
  }

 private:
  const Plan& plan_;
  const Gear gear_;
  std::vector<Log> logs_;
  JobRun run_;
};

namespace {

std::string from_hex(std::string_view hex) { return absl::HexStringToBytes(absl::string_view(hex.data(), hex.size())); }

// Text in quotes, else bytes.
std::string shown(const std::string& saw) {
  const bool is_text =
      std::all_of(saw.begin(), saw.end(), [](char c) { return std::isprint(static_cast<unsigned char>(c)) != 0; });
  return is_text ? absl::StrCat("\"", saw, "\"") : absl::BytesToHexString(saw);
}

int told(const std::string& wrong) {
  if (!wrong.empty()) std::puts(wrong.c_str());
  return wrong.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

// ThreadSanitizer cannot follow fibers.
bool follows_fibers() {
#ifdef RANKLOOM_TSAN
  return false;
#else
  return true;
#endif
}

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(2);
}

}  // namespace

void write(const TensorView& view, std::string_view hex) {
  const std::string bytes = from_hex(hex);
  Tensors::write(view, Bytes(bytes.begin(), bytes.end()));
}

void give(Tensors& tensors, const TensorView& view, std::string_view hex) {
  const std::string bytes = from_hex(hex);
  tensors.give(view, Bytes(bytes.begin(), bytes.end()));
}

void Log::see(int act, std::string have, std::string want) {
  have_.seen.push_back({act, std::move(have)});
  want_.seen.push_back({act, std::move(want)});
}

void Log::comes(Tensors& tensors, int act, int part, int first, int members) {
  const Arrivals::Barrier barrier = {act, part, first};
  arrivals_->comes(barrier);
  tensors.also([arrivals = arrivals_, barrier, members] { return arrivals->missing(barrier, members); });
}

void Log::comes(int act, int first, int members, const std::function<void()>& barrier) {
  const Arrivals::Barrier at = {act, 0, first};
  arrivals_->comes(at);
  barrier();
  const std::string missing = arrivals_->missing(at, members);
  if (!missing.empty()) throw std::logic_error(missing);
}

void Log::see(int act, Tensors& tensors, std::string have, std::string_view hex) {
  have += tensors.harm();
  tensors.retire();
  see(act, std::move(have), from_hex(hex));
}

std::shared_ptr<const void> Log::owner(int act, std::shared_ptr<Tensors> tensors, std::vector<TensorView> outputs,
                                       std::string_view hex) {
  want_.late[act] = from_hex(hex);
  return std::make_shared<Owner>(
      act, std::move(tensors), [outputs = std::move(outputs)] { return bytes_of(outputs); }, &have_);
}

std::vector<std::string> Log::differences() const {
  std::vector<std::string> lines;
  const auto compare = [&](int act, const std::string& have, const std::string& want) {
    if (have != want) lines.push_back(absl::StrCat("act ", act, ": have ", shown(have), ", want ", shown(want)));
  };
  for (size_t i = 0; i < have_.seen.size(); ++i) compare(have_.seen[i].act, have_.seen[i].saw, want_.seen[i].saw);
  for (const auto& [act, saw] : have_.late) compare(act, saw, want_.late.at(act));
  return lines;
}

std::vector<Work> joined(std::initializer_list<std::vector<Work>> works) {
  std::vector<Work> all;
  for (const std::vector<Work>& some : works) all.insert(all.end(), some.begin(), some.end());
  return all;
}

void choose_gear(int argc, char** argv, std::string_view usual, std::string_view usual_engine, WorldOptions* options) {
  const std::string schedule(argc > 1 ? std::string_view(argv[1]) : usual);
  const std::string engine(argc > 2 ? std::string_view(argv[2]) : argc > 1 ? "" : usual_engine);
  const absl::StatusOr<Schedule> parsed = Schedule::parse(schedule);
  if (!parsed.ok()) refuse(parsed.status().ToString());
  if (!engine.empty() && engine != "fibers" && engine != "threads") refuse(engine + ": fibers or threads");
  options->schedule = *parsed;
  const bool fibers = engine.empty() ? parsed->deterministic() && follows_fibers() : engine == "fibers";
  options->engine = fibers ? EngineKind::kFibers : EngineKind::kThreads;
  options->max_steps = parsed->deterministic() ? 1'000'000 : 0;
  options->stack_bytes = 1 << 20;  // programs are long, and compiled without optimization
  options->on_warning = [](const std::string&) {};
}

int run(std::string_view job, const WorldOptions& options, const Programs& ranks) {
  const Job parsed = parse_job(job).value();
  const Plan plan(parsed);
  return told(ProgramRun(plan, options, ranks).wrong());
}

int run_two_worlds(std::string_view job, const WorldOptions& options, const Programs& ranks) {
  const Job parsed = parse_job(job).value();
  const Plan plan(parsed);
  WorldOptions threads = options, fibers = options;
  threads.engine = EngineKind::kThreads;
  fibers.engine = options.schedule.deterministic() && follows_fibers() ? EngineKind::kFibers : EngineKind::kThreads;
  std::optional<ProgramRun> beside;
  std::thread other([&] { beside.emplace(plan, fibers, ranks); });
  ProgramRun run(plan, threads, ranks);
  other.join();
  return told(absl::StrCat(run.wrong(), beside->wrong()));
}

}  // namespace rankloom::printed
