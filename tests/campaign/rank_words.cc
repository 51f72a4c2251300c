#include "tests/campaign/rank_words.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/store_script.h"

namespace rankloom {

void check(const Work& work) {
  if (!work.is_success() || work.exception() != nullptr) throw std::logic_error("a work that was waited for failed");
}

void check(const Future& future) {
  if (!future.done()) throw std::logic_error("a future that has a value is not done");
}

void check(SimStream& stream) {
  if (!stream.query()) throw std::logic_error("a stream has more to do after synchronize()");
  if (!stream.status().ok()) throw std::logic_error("a stream has failed, and synchronize() threw nothing");
}

void check(const Stream::Event& event) {
  if (!event.query()) throw std::logic_error("an event that the stream has passed is open");
}

void must_be_done(Work& work) {
  if (!work.is_completed()) throw std::logic_error("a work that was waited for is not done");
  if (!work.is_success()) work.wait();
}

bool waits_for_streams(WaitWay way, const Job& job) {
  switch (way) {
    case WaitWay::kAny:
    case WaitWay::kThen:
      return true;
    case WaitWay::kTimed:
    case WaitWay::kPoll:
      return !job.may_fail();  // else there is no timeout, and no end of polling
    case WaitWay::kWait:
    case WaitWay::kAll:
    case WaitWay::kFuture:
    case WaitWay::kResult:
    case WaitWay::kHelper:
    case WaitWay::kSynchronize:
      return false;
    case WaitWay::kCount:
      break;
  }
  no_such("way to wait", static_cast<int>(way));
}

void check(const Work& work, const absl::Status& told) {
  if (!work.is_completed()) throw std::logic_error("a callback came before its work was done");
  if (told.ok() != work.is_success()) throw std::logic_error("a callback had another status than its work");
}

void wait_for_each(std::vector<Work> works) {
  while (!works.empty()) {
    const size_t done = wait_any(works);
    must_be_done(works.at(done));
    works.erase(works.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

void check_result(Work& work, const std::string& outputs) {
  if (bytes_of(work.result()) != outputs) throw std::logic_error("a work's result() has other tensors than the call");
}

std::string alike(std::string saw, std::initializer_list<std::string> before) {
  const bool is_alike = std::all_of(before.begin(), before.end(), [&](const std::string& one) { return one == saw; });
  return is_alike ? saw : saw + " and other outputs when it had waited";
}

std::string bytes_of(const std::vector<TensorView>& views) {
  std::string bytes;
  for (const TensorView& view : views) Tensors::read(view, &bytes);
  return bytes;
}

std::string by_source(const std::vector<Work>& works, const std::vector<TensorView>& outputs) {
  std::map<int, std::string> from;
  for (size_t i = 0; i < works.size(); ++i) Tensors::read(outputs[i], &from[works[i].source()]);
  std::string saw;
  for (const auto& [source, bytes] : from) absl::StrAppend(&saw, source, ":", bytes);
  return saw;
}

void Arrivals::comes(const Barrier& barrier) {
  const std::lock_guard lock(mu_);
  ++came_[barrier];
}

std::string Arrivals::missing(const Barrier& barrier, int members) const {
  const std::lock_guard lock(mu_);
  const auto it = came_.find(barrier);
  const int came = it == came_.end() ? 0 : it->second;
  return came == members ? "" : absl::StrCat(" and a barrier let it go when ", came, " of ", members, " had come");
}

bool Memory::rests() const {
  return std::all_of(kept_.begin(), kept_.end(), [](const auto& tensors) { return tensors->rests(); });
}

void Memory::check() const {
  if (!rests()) throw std::logic_error("somebody wrote to tensors after their calls were done");
}

Owner::~Owner() {
  std::string saw = read_() + tensors_->harm();
  static std::mutex mu;  // of all ranks: an owner may end on any of their threads
  const std::lock_guard lock(mu);
  log_.late[act_] = std::move(saw);
}

std::string text_of(const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) return "none";
  std::vector<int> ranks;
  for (int i = 0; i < group->size(); ++i) ranks.push_back(group->global_rank(i));
  return group_text(ranks, group->rank());
}

std::string refusal(const ProcessGroup& group, const std::function<void()>& call) {
  const int64_t before = group.sequence_number();
  std::string saw = "went well";
  try {
    call();
  } catch (const DistError& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    saw = kRefused;
  }
  if (group.sequence_number() != before) saw += ", and it took a number";
  return saw;
}

std::string timeout(RankContext& rank, int microseconds, const std::function<void()>& call) {
  const absl::Duration before = rank.now();
  try {
    call();
  } catch (const DistError& error) {
    if (error.kind() != ErrorKind::kTimeout) throw;
    const absl::Duration passed = rank.now() - before;
    return passed >= absl::Microseconds(microseconds) ? kTimedOut : "timed out too early";
  }
  return "went well";
}

std::string slept_text(absl::Duration passed, int microseconds) {
  if (passed >= absl::Microseconds(microseconds)) return kSlept;
  return absl::StrCat("slept for ", absl::FormatDuration(passed), " only");
}

uint64_t own_seed(int seed, int rank) {
  auto state = static_cast<uint64_t>(seed);
  state = Prng::splitmix64(state) ^ static_cast<uint64_t>(rank);
  return Prng::splitmix64(state);
}

std::string run_script(RankContext& rank, int act, int store, int seed) {
  Act script;
  script.a = store;
  script.seed = seed;
  return run_script(rank, script_of(script), act);
}

std::string nested_world(int seed, int gear) {
  const Job job = draw_job(static_cast<uint64_t>(seed), Palette::kNested);
  const Plan plan(job);
  const Schedule seeded = Schedule::seeded(static_cast<uint64_t>(seed));
  const std::array gears = {Gear{EngineKind::kFibers, Schedule::fifo()}, Gear{EngineKind::kFibers, seeded},
                            Gear{EngineKind::kThreads, Schedule::free()}, Gear{EngineKind::kThreads, seeded}};
  const JobRun run = run_job(plan, gears.at(static_cast<size_t>(gear)));
  const std::optional<std::string> wrong = wrong_with(plan, oracle(plan), run);
  return wrong.has_value() ? absl::StrCat(*wrong, "\nin the nested ", to_text(job)) : kNestedWentWell;
}

std::shared_ptr<Shared> shared_by_all(RankContext& rank, int act) {
  const WorldLocal<Shared> local(absl::StrCat("count ", act));
  return local.get(rank.world(), [&] { return std::make_shared<Shared>(rank.world_size()); });
}

}  // namespace rankloom
