// Names of objects that are made outside of runs: alike in all processes that search one program.

#include "sim/schedule/step_record.h"

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// The process's history before it makes the objects of its program and begins to search.
struct Past {
  int threads = 0;         // that made an object each
  int objects = 0;         // that the thread of the search made
  bool own_thread = true;  // makes the runs
};

struct Seen {
  std::vector<uint64_t> names;
  std::vector<std::string> uncovered;
  bool older_objects = false;
};

// Two objects of a program that a process makes, as a run of its search knows them. Threads have their numbers from the
// process, so a thread that begins anew stands for a process.
Seen names_in_process(const Past& past, bool among_others,
                      const std::function<void(std::vector<ObjectName>*)>& made_after = nullptr) {
  Seen seen;
  std::thread([&] {
    for (int i = 0; i < past.threads; ++i) std::thread([] { const ObjectName name; }).join();
    for (int i = 0; i < past.objects; ++i) const ObjectName name;
    std::vector<ObjectName> objects(2);
    StepRecord::Origin origin = StepRecord::origin_here();
    origin.among_others = among_others;
    const auto search = [&] {
      StepRecord record;
      record.begin_search(origin);
      if (made_after != nullptr) made_after(&objects);
      record.begin_run(nullptr, 0, /*threads=*/false);
      for (const ObjectName& object : objects) seen.names.push_back(object.in(record));
      seen.uncovered = record.uncovered();
      seen.older_objects = record.older_objects();
    };
    if (past.own_thread) {
      std::thread(search).join();
    } else {
      search();
    }
  }).join();
  return seen;
}

TEST(ObjectNameTest, ObjectsOfTheSearchingThreadAreNamedAlikeInAllProcesses) {
  const Seen first = names_in_process({}, /*among_others=*/true);
  EXPECT_NE(first.names[0], first.names[1]);
  EXPECT_TRUE(first.older_objects);
  EXPECT_THAT(first.uncovered, IsEmpty());
  for (const Past& past : {Past{.threads = 3}, Past{.objects = 5}, Past{.own_thread = false},
                           Past{.threads = 1, .objects = 2, .own_thread = false}}) {
    const Seen other = names_in_process(past, /*among_others=*/true);
    EXPECT_EQ(other.names, first.names);
    EXPECT_THAT(other.uncovered, IsEmpty());
  }
}

TEST(ObjectNameTest, ObjectsForOneRunAreNamedAlikeInAllProcesses) {
  const auto for_the_run = [](std::vector<ObjectName>* objects) { *objects = std::vector<ObjectName>(2); };
  const Seen first = names_in_process({}, true, for_the_run);
  EXPECT_NE(first.names[0], first.names[1]);
  EXPECT_FALSE(first.older_objects);
  const Seen other = names_in_process({.threads = 2, .objects = 3, .own_thread = false}, true, for_the_run);
  EXPECT_EQ(other.names, first.names);
  EXPECT_THAT(other.uncovered, IsEmpty());
}

// The number of such a thread is this process's own.
TEST(ObjectNameTest, ObjectsOfOtherThreadsAreNotCoveredAmongOtherProcesses) {
  const auto of_another_thread = [](std::vector<ObjectName>* objects) {
    std::thread([objects] { *objects = std::vector<ObjectName>(2); }).join();
  };
  for (const bool among_others : {false, true}) {
    const Seen seen = names_in_process({}, among_others, of_another_thread);
    EXPECT_NE(seen.names[0], seen.names[1]);
    if (among_others) {
      EXPECT_THAT(seen.uncovered,
                  ElementsAre("objects that the thread of explore() did not make before the call: each process has its "
                              "own names for them"));
    } else {
      EXPECT_THAT(seen.uncovered, IsEmpty());
    }
  }
}

}  // namespace
}  // namespace rankloom
