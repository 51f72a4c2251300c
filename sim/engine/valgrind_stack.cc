#include "sim/engine/valgrind_stack.h"

#if __has_include(<valgrind/valgrind.h>) && !defined(RANKLOOM_NO_VALGRIND_H)

#include <valgrind/valgrind.h>

namespace rankloom::internal {

unsigned add_valgrind_stack(const void* bottom, const void* top) { return VALGRIND_STACK_REGISTER(bottom, top); }
void remove_valgrind_stack(unsigned number) { VALGRIND_STACK_DEREGISTER(number); }

}  // namespace rankloom::internal

#else

#include <cstdio>
#include <cstring>

#include "sim/base/system.h"
#ifdef RANKLOOM_LINUX
#include <link.h>
#endif

namespace rankloom::internal {
namespace {

// Valgrind loads a library of its own into each program.
bool under_valgrind() {
#ifdef RANKLOOM_LINUX
  const auto is_valgrinds = [](dl_phdr_info* info, size_t, void*) {
    return std::strstr(info->dlpi_name, "vgpreload_core") != nullptr ? 1 : 0;
  };
  return dl_iterate_phdr(is_valgrinds, nullptr) != 0;
#else
  return false;
#endif
}

}  // namespace

unsigned add_valgrind_stack(const void* /*bottom*/, const void* /*top*/) {
  [[maybe_unused]] static const bool told = [] {
    if (under_valgrind()) {
      std::fprintf(stderr,
                   "rankloom: ranks as fibers are not supported under Valgrind: this rankloom was built without "
                   "valgrind/valgrind.h; want "
                   "EngineKind::kThreads (RANKLOOM_ENGINE=threads)\n");
    }
    return true;
  }();
  return 0;
}
void remove_valgrind_stack(unsigned /*number*/) {}

}  // namespace rankloom::internal

#endif
