#pragma once

// The one header of the library: a world of ranks inside one process, its store, groups and collectives.
// No GoogleTest, no torch.

#include "collectives/fake_process_group.h"
#include "collectives/fault_group.h"
#include "collectives/process_group.h"
#include "collectives/reduce_op.h"
#include "collectives/tensor.h"
#include "collectives/threaded_process_group.h"
#include "collectives/work.h"
#include "fake_store/fake_store.h"
#include "fake_store/fault_store.h"
#include "fake_store/file_store.h"
#include "fake_store/hash_store.h"
#include "fake_store/prefix_store.h"
#include "fake_store/store.h"
#include "sim/dist_error.h"
#include "sim/fault_plan.h"
#include "sim/schedule.h"
#include "sim/trace.h"
#include "sim/version.h"
#include "world/run_options.h"
#include "world/world.h"
