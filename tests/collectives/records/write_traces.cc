// Writes traces of a fake and of a real world into the working folder, for read_traces.py to read:
//   fake.json, real.json, hostile.json (Perfetto), fake.0.pytorch.json ... and, with Chakra, fake.0.et ... real.1.et

#include <memory>
#include <string>
#include <vector>

#include "rankloom/device_mesh.h"
#include "rankloom/fake.h"
#include "rankloom/records.h"
#include "rankloom/world.h"
#ifdef RANKLOOM_CHAKRA
#include "rankloom/chakra.h"
#endif

namespace rankloom {
namespace {

using Records = std::vector<std::shared_ptr<CallRecord>>;

// The numbers that read_traces.py expects are worked out from this by hand.
void program(CallRecord& record, const DeviceMesh& mesh) {
  const auto& tp = mesh.get_group("tp");
  const auto& dp = mesh.get_group("dp");
  record.compute(absl::Microseconds(10), "forward \"1\"");
  Work gather = tp->all_gather_into_tensor(TensorView::meta({8, 4}, DType::kBFloat16),
                                           TensorView::meta({4, 4}, DType::kBFloat16));
  Work reduce = dp->all_reduce(TensorView::meta({1000}, DType::kFloat32));
  gather.wait();
  record.compute(absl::Microseconds(5), "backward");
  reduce.wait();
  if (tp->rank() == 0) tp->send(TensorView::meta({3}, DType::kInt64), 1, 7).wait();
  if (tp->rank() == 1) tp->recv(TensorView::meta({3}, DType::kInt64), 0, 7).wait();
  dp->start_coalescing();
  (void)dp->broadcast(TensorView::meta({}, DType::kFloat64), 1);
  (void)dp->barrier();
  dp->end_coalescing().wait();
  mesh.base()
      ->all_to_all_single(TensorView::meta({6, 2}, DType::kInt8), TensorView::meta({4, 2}, DType::kInt8), {3, 1, 1, 1},
                          {1, 1, 1, 1})
      .wait();
}

Records fake_world() {
  Records records;
  const CostModel model{.link = links::Link{.latency = absl::Microseconds(1), .bytes_per_second = 1e9}};
  for (int rank = 0; rank < 4; ++rank) {
    records.push_back(std::make_shared<CallRecord>(model));
    const auto pg = make_fake_process_group({.rank = rank, .world_size = 4, .options = {.record = records.back()}});
    program(*records.back(), init_device_mesh(pg, {2, 2}, {"dp", "tp"}));
  }
  return records;
}

// Names that are no UTF-8, and times of which no six digits are enough.
Records hostile_world() {
  auto record = std::make_shared<CallRecord>(CostModel{.link = links::Link{.latency = {}, .bytes_per_second = 1e9}});
  const auto pg = make_fake_process_group({.rank = 0, .world_size = 2, .options = {.record = record}});
  record->compute(absl::Nanoseconds(1'234'567'891), "back\\slash \"\xff\n");
  pg->all_reduce(TensorView::meta({3}, DType::kInt8)).wait();
  record->compute(absl::InfiniteDuration(), "forever");
  record->compute(absl::InfiniteDuration(), "and on");
  return {record};
}

Records real_world() {
  World world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(3)});
  const RunReport report = world.run([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(8, static_cast<float>(rank.rank()));
    pg->all_reduce(x).wait();
    rank.sleep_for(absl::Microseconds(20));
    if (rank.rank() == 0) pg->send(x, 1).wait();
    if (rank.rank() == 1) pg->recv(x, 0).wait();
    pg->broadcast(x, 1).wait();
  });
  report.throw_if_failed();
  return CallRecord::of_world(world);
}

void write(const Records& ranks, const std::string& name) {
  traces::write_perfetto(ranks, name + ".json");
  for (const std::shared_ptr<CallRecord>& record : ranks)
    traces::write_pytorch_trace(*record, name + "." + std::to_string(record->global_rank()) + ".pytorch.json");
#ifdef RANKLOOM_CHAKRA
  traces::write_chakra(ranks, name);
  traces::write_chakra(ranks, name + ".lowered", /*lower=*/true);
#endif
}

}  // namespace
}  // namespace rankloom

int main() {
  rankloom::write(rankloom::fake_world(), "fake");
  rankloom::write(rankloom::real_world(), "real");
  rankloom::write(rankloom::hostile_world(), "hostile");
  return 0;
}
