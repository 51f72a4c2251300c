#include "rankloom/version.h"

namespace rankloom {

std::string_view version() { return RANKLOOM_VERSION; }

}  // namespace rankloom
