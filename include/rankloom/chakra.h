#pragma once

// Chakra execution traces. Link rankloom-chakra, which needs protobuf.

#include "collectives/records/chakra.h"
