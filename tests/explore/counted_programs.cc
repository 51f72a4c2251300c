#include "tests/explore/counted_programs.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace rankloom {
namespace {

std::string cell(int i) { return absl::StrCat("c", i); }

int read(Store& store, int i) {
  int value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(store.get(cell(i)), &value));
  return value;
}

void write(Store& store, int i, int value) { store.set(cell(i), absl::StrCat(value)); }

}  // namespace

void CountedProgram::clear(Store& store) const {
  for (int i = 0; i < cells; ++i) write(store, i, 0);
}

CountedProgram readers(int n) {
  return {absl::StrCat("readers(", n, ")"), n + 1, 1, [](Store& store, int task) {
            if (task > 0) return absl::StrCat(read(store, 0));
            write(store, 0, 1);
            return std::string();
          }};
}

CountedProgram lastzero(int n) {
  return {absl::StrCat("lastzero(", n, ")"), n + 1, n + 1, [n](Store& store, int task) {
            if (task == 0) {
              int i = n;
              while (read(store, i) != 0) --i;
              return absl::StrCat(i);
            }
            const int before = read(store, task - 1);
            write(store, task, before + 1);
            return absl::StrCat(before);
          }};
}

CountedProgram indexer(int n) {
  return {absl::StrCat("indexer(", n, ")"), n, 128, [](Store& store, int task) {
            std::string places;
            for (int m = 1; m <= 4; ++m) {
              const int w = m * 11 + task;
              int h = (w * 7) % 128;
              while (store.compare_set(cell(h), "0", absl::StrCat(w)) != absl::StrCat(w)) h = (h + 1) % 128;
              absl::StrAppend(&places, h, ",");
            }
            return places;
          }};
}

CountedProgram increments(int n) {
  return {absl::StrCat("ainc(", n, ")"), n, 1, [](Store& store, int) { return absl::StrCat(store.add(cell(0), 1)); }};
}

CountedProgram increments_of_two(int n) {
  return {absl::StrCat("binc(", n, ")"), n, 2, [](Store& store, int) {
            const int64_t first = store.add(cell(0), 1);
            return absl::StrCat(first, ",", store.add(cell(1), 1));
          }};
}

CountedProgram writers(int n) {
  return {absl::StrCat("writers(", n, ")"), n + 2, 1, [](Store& store, int task) {
            if (task == 0) return absl::StrCat(read(store, 0));
            write(store, 0, task);
            return std::string();
          }};
}

}  // namespace rankloom
