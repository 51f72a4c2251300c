#pragma once

// The GoogleTest side: multi-rank fixtures and matchers. Link rankloom-testing.

#include "harness/call_matchers.h"
#include "harness/explore_assertions.h"
#include "harness/matchers.h"
#include "harness/multi_threaded_test_case.h"
#include "harness/rank_output.h"
#include "harness/rank_trace.h"
#include "harness/runs_alike.h"
#include "rankloom/explore.h"
#include "rankloom/rankloom.h"
