#pragma once

// The GoogleTest side: multi-rank fixtures and matchers. Link rankloom-testing.

#include "rankloom/rankloom.h"
