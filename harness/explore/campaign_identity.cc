#include "harness/explore/campaign_identity.h"

#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rankloom/version.h"
#include "sim/base/fnv.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#ifdef RANKLOOM_LINUX
#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#else
#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#endif

namespace rankloom::internal {
namespace {

uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = kFnvBasis;
  for (const char c : bytes) hash = fnv_step(hash, static_cast<unsigned char>(c));
  return hash;
}

#ifdef RANKLOOM_LINUX

std::string build_id(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object.dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the loader's
    const char* note = reinterpret_cast<const char*>(object.dlpi_addr + header.p_vaddr);
    const char* const end = note + header.p_memsz;
    while (end - note >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
      ElfW(Nhdr) facts;
      std::memcpy(&facts, note, sizeof(facts));
      const char* const name = note + sizeof(facts);
      const char* const content = name + ((facts.n_namesz + 3u) & ~3u);
      if (facts.n_type == NT_GNU_BUILD_ID && facts.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
        return std::string(content, facts.n_descsz);
      note = content + ((facts.n_descsz + 3u) & ~3u);
    }
  }
  return "";
}

// The program and rankloom's own libraries: the system's may differ between machines.
int add_object(dl_phdr_info* object, size_t, void* all) {
  const bool program = object->dlpi_name == nullptr || object->dlpi_name[0] == '\0';
  if (!program && std::strstr(object->dlpi_name, "rankloom") == nullptr) return 0;
  std::string id = build_id(*object);
  if (id.empty()) {
    struct stat file = {};
    if (stat(program ? program_file().c_str() : object->dlpi_name, &file) == 0)
      id = absl::StrCat(file.st_size, " ", file.st_mtim.tv_sec, " ", file.st_mtim.tv_nsec);
  }
  absl::StrAppend(static_cast<std::string*>(all), id, ";");
  return 0;
}

std::string objects_text() {
  std::string objects;
  dl_iterate_phdr(&add_object, &objects);
  return objects;
}

#else

// The program, and the file that has this code: another one where rankloom is a shared library.
std::string objects_text() {
  std::string objects;
  Dl_info own = {};
  const bool found = dladdr(reinterpret_cast<const void*>(&program_identity), &own) != 0 && own.dli_fname != nullptr;
  for (const std::string& path : {program_file(), std::string(found ? own.dli_fname : "")}) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    const auto time = std::filesystem::last_write_time(path, error);
    if (!error) absl::StrAppend(&objects, bytes, " ", time.time_since_epoch().count());
    objects += ';';
  }
  return objects;
}

#endif

}  // namespace

std::string program_identity() {
  return absl::StrCat("rankloom ", sv(version()), " ", absl::Hex(hash_of(objects_text())));
}

CampaignIdentity campaign_identity(const ExploreOptions& options, const Baseline& baseline) {
  const WorldOptions& world = baseline.world();
  std::vector<std::string> strategies;
  for (const Strategy& strategy : options.strategies) strategies.push_back(strategy.name());
  const ExploreOptions::Checks& checks = options.checks;
  const uint64_t checked = hash_of(absl::StrCat(checks.results, checks.groups, checks.store_keys, checks.store_values,
                                                checks.leaks, checks.keys_left));
  return {.program = program_identity(),
          .options = absl::StrCat("world_size ", world.world_size, ", seed ", *world.seed, ", first_seed ",
                                  options.first_seed, ", max_steps ", world.max_steps, ", faults \"",
                                  world.faults.text(), options.vary_faults ? "\"" : "\" in each run", ", strategies ",
                                  absl::StrJoin(strategies, " "), ", checks ", absl::Hex(checked)),
          .first_run = absl::StrCat(absl::Hex(hash_of(baseline.first_trace())))};
}

}  // namespace rankloom::internal
