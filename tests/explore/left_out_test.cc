// Each place in the library that tells the exhaustive search of an access matters: without it a small program loses an outcome.
// Or there is a reason why none can. A new place fails here until it stands in one of the lists; left_out_campaign finds
// programs for the first. access_places_test.py holds that no function is forgotten.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/explore/access_sites.h"
#include "tests/explore/small_program.h"

namespace rankloom {
namespace {

using Kind = SmallOpKind;

const SearchLimits kLimits = {.unreduced = 1'000, .reduced = 1'000, .seeds = 3};

struct Shown {
  std::string_view place;  // AccessSites::name()
  SmallProgram by;
};

SmallProgram by_ranks(std::vector<std::vector<SmallOp>> ranks) { return {.ranks = std::move(ranks)}; }

std::vector<Shown> shown() {
  // A rank takes its time after another one's wait began, or before.
  const SmallProgram timeout =
      by_ranks({{{.kind = Kind::kStoreTimeout, .c = 1}, {.kind = Kind::kSleep, .c = 2}, {.kind = Kind::kSet}},
                {{.kind = Kind::kGet}}});
  const SmallProgram watched = by_ranks({{{.kind = Kind::kWatchedSet, .b = 1}}, {{.kind = Kind::kWatchedGet}}});
  return {
      // Drawn ones.
      {"write: KeyTable::tell_set < KeyTable::set", draw_program(253)},
      {"read: KeyTable::tell_set < KeyTable::set", draw_program(813)},
      {"commute: KeyTable::tell_set < KeyTable::set", draw_program(551)},
      {"write: KeyTable::tell_presence < KeyTable::tell_set < KeyTable::set", draw_program(151)},
      {"read: KeyTable::find", draw_program(529)},
      {"commute: KeyTable::erase", draw_program(718)},
      {"lower: KeyTable::tell_condition < KeyTable::erase", draw_program(151)},
      {"write: KeyTable::tell_presence < KeyTable::erase", draw_program(75)},
      {"lower: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::erase", draw_program(75)},
      {"read: KeyTable::present", draw_program(47)},
      {"miss: KeyTable::tell_wait < KeyTable::waits_on", draw_program(75)},
      {"write: WorkState::complete", draw_program(837)},
      {"read: KeyTable::pop", draw_program(428)},
      {"commute: Rendezvous::file", draw_program(284)},
      {"commute: Rendezvous::run_later", draw_program(442)},
      {"commute: Latch::count_down", draw_program(938)},
      {"write: KeyTable::watch", draw_program(813)},
      {"read: Work::is_completed", draw_program(164)},
      {"write: Mutex::take", draw_program(1102)},
      {"lower: Mutex::take", draw_program(433)},
      {"read: Latch::try_wait", draw_program(534)},
      {"write: KeyTable::tell_set < KeyTable::append", draw_program(1104)},
      {"commute: Mailbox::record_post", draw_program(188)},
      {"write: Mailbox::record_post", draw_program(1060)},
      {"commute: Mailbox::post", draw_program(416)},
      {"write: CondVar::wait_until", draw_program(1114)},
      {"write: Mutex::release", draw_program(1102)},
      {"read: Latch::count_down", draw_program(938)},
      {"write: CondVar::notify_first", draw_program(1114)},
      {"miss: Mutex::acquire", draw_program(1102)},
      {"read: Mailbox::post", draw_program(347)},
      {"write: Rendezvous::finish", draw_program(847)},
      {"write: KeyTable::push", draw_program(428)},
      {"write: KeyTable::tell_presence < KeyTable::push", draw_program(47)},
      {"write: KeyTable::pop", draw_program(1013)},
      {"lower: KeyTable::tell_condition < KeyTable::pop", draw_program(513)},
      {"write: KeyTable::tell_presence < KeyTable::pop", draw_program(47)},
      {"lower: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::pop", draw_program(47)},
      {"read: KeyTable::queue_len", draw_program(828)},
      {"read: Rendezvous::file", draw_program(441)},
      {"read: KeyTable::sorted_keys", draw_program(551)},
      {"read: KeyTable::tell_wait < KeyTable::gave_up", draw_program(922)},
      {"read: Mutex::try_lock", draw_program(1102)},
      {"read: KeyTable::size", draw_program(718)},
      {"write: DeterministicScheduler::pick", draw_program(72)},
      {"read: Work::release", draw_program(837)},
      {"write: Rendezvous::set_failed", draw_program(442)},
      {"write: Mailbox::finish", draw_program(1233)},
      // Written by hand.
      {"write: World::shared", by_ranks({{{.kind = Kind::kShared}}, {{.kind = Kind::kShared}}})},
      {"read: World::shared", by_ranks({{{.kind = Kind::kShared}}, {{.kind = Kind::kShared}}})},
      {"write: KeyTable::tell_timeout < TableStore::do_set_timeout", timeout},
      {"read: KeyTable::tell_timeout < TableStore::await", timeout},
      {"write: WatchedAccess::WatchedAccess", watched},
      {"read: WatchedAccess::WatchedAccess", watched},
      {"write: KeyTable::erase",
       by_ranks({{{.kind = Kind::kSet}, {.kind = Kind::kDeleteKey}}, {{.kind = Kind::kCompareSet, .b = 2}}})},
      {"read: KeyTable::erase",
       by_ranks({{{.kind = Kind::kSet}, {.kind = Kind::kDeleteKey}}, {{.kind = Kind::kWatchKey}}})},
      {"read: KeyTable::tell_set < KeyTable::append",
       by_ranks({{{.kind = Kind::kSet}, {.kind = Kind::kAppend}}, {{.kind = Kind::kWatchKey}}})},
      {"write: WorkState::then", by_ranks({{{.kind = Kind::kPromiseWork},
                                            {.kind = Kind::kYield},
                                            {.kind = Kind::kThen, .body = {{.kind = Kind::kAppend}}},
                                            {.kind = Kind::kSleep, .c = 1},
                                            {.kind = Kind::kPromiseSetValue},
                                            {.kind = Kind::kSleep, .c = 1},
                                            {.kind = Kind::kGet}},
                                           {{.kind = Kind::kPromiseWork},
                                            {.kind = Kind::kYield},
                                            {.kind = Kind::kThen, .body = {{.kind = Kind::kAppend, .b = 1}}}}})},
      {"read: WorkState::then", by_ranks({{{.kind = Kind::kAllReduce},
                                           {.kind = Kind::kYield},
                                           {.kind = Kind::kThen, .body = {{.kind = Kind::kSetVariable}}},
                                           {.kind = Kind::kReadVariable},
                                           {.kind = Kind::kWait}},
                                          {{.kind = Kind::kAllReduce}, {.kind = Kind::kWait}}})},
      {"read: WorkState::await_until",
       by_ranks({{{.kind = Kind::kAllReduce}, {.kind = Kind::kWaitFor, .c = 1}, {.kind = Kind::kWait}},
                 {{.kind = Kind::kSleep, .c = 1}, {.kind = Kind::kAllReduce}, {.kind = Kind::kWait}}})},
  };
}

struct Reason {
  std::string_view place;
  std::string_view why;
};

// Without them the search tries more orders than there are.
constexpr std::string_view kOrders = "says which orders cannot be";
constexpr std::string_view kOpen = "no program is known that shows it";

const std::vector<Reason> kNotShown = {
    {"raise: KeyTable::tell_condition < KeyTable::tell_set < KeyTable::set", kOrders},
    {"raise: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::tell_set < KeyTable::set", kOrders},
    {"pass: KeyTable::tell_wait < KeyTable::goes_on", kOrders},
    {"signal: WorkState::complete", kOrders},
    {"signal: Rendezvous::file", kOrders},
    {"await: Rendezvous::run", kOrders},
    {"await: WorkState::await_until", kOrders},
    {"await: WorkState::await_from", kOrders},
    {"signal: Latch::count_down", kOrders},
    {"await: Latch::wait", kOrders},
    {"pass: Mutex::acquire", kOrders},
    {"signal: Mailbox::record_post", kOrders},
    {"await: Mailbox::move", kOrders},
    {"raise: Mutex::release", kOrders},
    {"all were: DeterministicScheduler::advance_clock", kOrders},
    {"signal: CondVar::notify_first", kOrders},
    {"await: CondVar::wait_until", kOrders},
    {"raise: KeyTable::tell_condition < KeyTable::push", kOrders},
    {"raise: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::push", kOrders},
    {"write: Rendezvous::fail", "set_failed() tells of the same in the same step"},
    {"read: Mutex::release", "only the text of the error depends on who holds the mutex"},
    {"read: KeyTable::tell_wait < KeyTable::goes_on", kOpen},
    {"read: WorkState::when_done", kOpen},
    {"write: KeyTable::deliver_filed", kOpen},
    {"read: ProcessGroup::agree_on", kOpen},
    {"write: Mailbox::fail", kOpen},
    {"write: Rendezvous::withdraw", kOpen},
    {"write: Mailbox::withdraw", kOpen},
    {"read: Rendezvous::wait_until_ns", kOpen},
    {"read: KeyTable::tell_presence < KeyTable::tell_set < KeyTable::set", kOpen},
    {"read: KeyTable::tell_presence < KeyTable::pop", kOpen},
    {"read: KeyTable::tell_presence < KeyTable::push", kOpen},
    {"read: KeyTable::tell_presence < KeyTable::erase", kOpen},
    {"read: WorkState::complete", kOpen},
    {"read: WorkState::await_from", kOpen},
    {"write: World::add_group", kOpen},
    {"write: World::next_world_group", kOpen},
};

class LeftOutTest : public testing::Test {
 protected:
  // What the reduced searches find without the accesses of `place`; "": with all.
  Comparison compare_without(const SmallProgram& program, std::string_view place,
                             std::set<std::string>* seen = nullptr) {
    SearchLimits limits = kLimits;
    limits.leave_out = [&](const StepRecord::Op& op) {
      const std::string& name = sites_.name(sites_.site(op));
      if (seen != nullptr) seen->insert(name);
      return name == place;
    };
    return compare_searches(program, limits);
  }

  AccessSites sites_;
};

TEST_F(LeftOutTest, EachPlaceThatMattersIsShown) {
  for (const auto& [place, program] : shown()) {
    SCOPED_TRACE(place);
    std::set<std::string> seen;
    const Comparison with = compare_without(program, "", &seen);
    EXPECT_EQ(with.flaw, Flaw::kNone) << to_text(program) << with.text;
    EXPECT_THAT(seen, testing::Contains(place)) << to_text(program);
    EXPECT_NE(compare_without(program, place).flaw, Flaw::kNone) << to_text(program);
  }
}

TEST_F(LeftOutTest, EachPlaceIsKnown) {
  std::set<std::string> known;
  for (const Shown& each : shown()) known.emplace(each.place);
  for (const Reason& each : kNotShown) EXPECT_TRUE(known.emplace(each.place).second) << each.place << " stands twice";
  const auto look = [&](const SmallProgram& program) {
    const SearchLimits limits = {.reduced = 30, .shuffles = 0, .leave_out = [&](const StepRecord::Op& op) {
                                   const int site = sites_.site(op);
                                   if (!known.insert(sites_.name(site)).second) return false;
                                   ADD_FAILURE() << sites_.name(site) << ": want it in a list above; told of in\n"
                                                 << to_text(program);
                                   return false;
                                 }};
    Searches searches;
    search_reduced([&](const Schedule& schedule) { return run_program(program, schedule); }, limits, &searches);
  };
  for (const Shown& each : shown()) look(each.by);
  for (uint64_t seed = 1; seed <= 500; ++seed) look(draw_program(seed));
}

// The reason that is given by the kind of what is told is that kind's.
TEST_F(LeftOutTest, OrdersAreTheReasonOfKindsThatTellOfOrders) {
  for (const auto& [place, why] : kNotShown) {
    const std::string_view what = place.substr(0, place.find(':'));
    const bool orders = what == "signal" || what == "await" || what == "raise" || what == "pass" || what == "all were";
    EXPECT_EQ(why == kOrders, orders) << place;
  }
}

}  // namespace
}  // namespace rankloom
