#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "rankloom/error.h"

namespace rankloom {
namespace {

using internal::Callback;
using internal::Owned;

TEST(CallbackTest, HoldsWhatCanOnlyBeMoved) {
  auto left = std::make_unique<int>(40);
  Callback<int(int)> add = [left = std::move(left)](int right) mutable { return (*left)++ + right; };
  EXPECT_TRUE(bool(add));
  EXPECT_EQ(add(2), 42);
  Callback<int(int)> moved = std::move(add);
  EXPECT_FALSE(bool(add));  // NOLINT: what is left
  EXPECT_EQ(moved(2), 43);
}

TEST(CallbackTest, PassesWhatCanOnlyBeMovedOn) {
  Callback<std::unique_ptr<int>(std::unique_ptr<int>)> pass = [](std::unique_ptr<int> number) { return number; };
  EXPECT_EQ(*pass(std::make_unique<int>(7)), 7);
}

TEST(CallbackTest, IsEmptyAfterWhatIsEmpty) {
  EXPECT_FALSE(bool(Callback<void()>()));
  EXPECT_FALSE(bool(Callback<void()>(nullptr)));
  EXPECT_FALSE(bool(Callback<void()>(std::function<void()>())));
  EXPECT_FALSE(bool(Callback<void()>(absl::AnyInvocable<void()>())));
  void (*const none)() = nullptr;
  EXPECT_TRUE(Callback<void()>(none) == nullptr);
}

TEST(CallbackTest, TakesOnlyWhatFitsItsSignature) {
  static_assert(std::is_constructible_v<Callback<void(const std::string&)>, void (*)(std::string)>);
  static_assert(!std::is_constructible_v<Callback<void(const std::string&)>, void (*)(int)>);
  static_assert(!std::is_constructible_v<Callback<int()>, void (*)()>);
  static_assert(!std::is_copy_constructible_v<Callback<void()>>);
}

TEST(CallbackTest, IsOneWordInAnAnyInvocable) {
  int calls = 0;
  absl::AnyInvocable<void()> held = Callback<void()>([&calls] { ++calls; });
  held();
  held();
  EXPECT_EQ(calls, 2);
  static_assert(sizeof(Callback<void()>) == sizeof(void*));
  static_assert(std::is_nothrow_move_constructible_v<Callback<void()>>);
}

TEST(OwnedTest, EndsItsObjectOnce) {
  struct Counted {
    explicit Counted(int* ends) : ends(ends) {}
    ~Counted() { ++*ends; }
    int* ends;
  };
  int ends = 0;
  {
    Owned<Counted> first(new Counted(&ends));
    Owned<Counted> second = std::move(first);
    EXPECT_EQ(first.get(), nullptr);  // NOLINT: what is left
    Owned<Counted>& same = second;
    second = std::move(same);
    EXPECT_EQ(ends, 0);
    second = Owned<Counted>(new Counted(&ends));
    EXPECT_EQ(ends, 1);
  }
  EXPECT_EQ(ends, 2);
}

}  // namespace
}  // namespace rankloom
