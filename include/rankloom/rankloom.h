#pragma once
// The one header of the library: a world of ranks inside one process, its store, groups and collectives; C++20.
#if __cplusplus < 202002L
#error "rankloom is written in C++20: want -std=c++20 or later"
#endif
#include "rankloom/collective_call.h"
#include "rankloom/device_mesh.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/faults.h"
#include "rankloom/group.h"
#include "rankloom/options.h"
#include "rankloom/process_group.h"
#include "rankloom/random.h"
#include "rankloom/records.h"
#include "rankloom/schedule.h"
#include "rankloom/store.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/tensor.h"
#include "rankloom/version.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
