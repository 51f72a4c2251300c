#pragma once

// The one header of the library: a world of ranks inside one process, its store, groups and collectives.
// No GoogleTest, no torch. Each folder's public headers are added here as they arrive.

#include "sim/version.h"
