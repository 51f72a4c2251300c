#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/campaign/plan.h"
#include "tests/campaign/sights.h"
#include "tests/campaign/values.h"

namespace rankloom {

// The sights that each rank must have, whatever the schedule: computed act by act, without ranks, threads or kernels.
// Of a job that ends badly: what it would see otherwise, of which it sees a beginning.
JobLog oracle(const Plan& plan);
// The inputs of a rank in an act: of each part the tensors; of messages one part with one tensor, of a
// crossing one part with a tensor for each message.
using Given = std::map<std::pair<int, int>, std::vector<std::vector<Bytes>>>;  // [rank, act]
JobLog oracle(const Plan& plan, Given* given);

// The outputs of the member with rank `me`, one tensor after another, from what all members give.
std::string result_of(const JobCall& call, int act, const std::vector<std::vector<Bytes>>& inputs, int me);
// The inputs of a member.
std::vector<Bytes> inputs_of(const JobCall& call, int act, int part, const std::vector<int>& ranks, int member,
                             uint64_t state);
// The bytes of a message: of the call of `act`, a kMessage, kAnySource, kRing, kCrossed or kCoalesced, dtype and count
// count. Message `i` of a crossing has `i` elements more.
Bytes message_bytes(const Act& act, int global_rank, uint64_t state, int i = 0);

}  // namespace rankloom
