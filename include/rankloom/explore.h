#pragma once

// explore(): a program under many schedules, or all. Needs no GoogleTest. Link rankloom.

#include "harness/explore/explore.h"
#include "rankloom/rankloom.h"
