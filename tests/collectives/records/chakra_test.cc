// Chakra traces, read back by protobuf's own decoder. read_traces.py reads them by hand.

#include "rankloom/chakra.h"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/records/chakra_trace.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "tests/temp_dir.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

struct Trace {
  chakra::GlobalMetadata metadata;
  std::vector<chakra::Node> nodes;
};

Trace parsed(const std::string& bytes) {
  google::protobuf::io::ArrayInputStream array(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream stream(&array);
  const auto read = [&stream](google::protobuf::MessageLite& message) {
    uint32_t size = 0;
    if (!stream.ReadVarint32(&size)) return false;
    const auto limit = stream.PushLimit(static_cast<int>(size));
    EXPECT_TRUE(message.ParseFromCodedStream(&stream));
    EXPECT_TRUE(stream.ConsumedEntireMessage());
    stream.PopLimit(limit);
    return true;
  };
  Trace trace;
  EXPECT_TRUE(read(trace.metadata));
  for (chakra::Node node; read(node); node.Clear()) trace.nodes.push_back(node);
  return trace;
}

template <typename Message>
const chakra::Attribute& attribute(const Message& message, const std::string& name) {
  for (const chakra::Attribute& one : message.attributes()) {
    if (one.name() == name) return one;
  }
  ADD_FAILURE() << "no attribute " << name;
  static const chakra::Attribute none;
  return none;
}

TEST(ChakraTest, HoldsAllNodesWithTheirParents) {
  const auto record = std::make_shared<CallRecord>(CostModel{.link = links::kNvlink4});
  const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000, .options = {.record = record}});
  std::vector<float> x(1024);
  static constexpr int kSteps = 300;
  for (int i = 0; i < kSteps; ++i) {
    Work first = pg->all_reduce(x);
    Work second = pg->reduce(x, 7);
    record->compute(absl::Milliseconds(1));
    if (i % 3 != 0) first.wait();
    if (i % 2 != 0) second.wait();
  }
  const Trace trace = parsed(traces::chakra_trace(*record));
  EXPECT_EQ(trace.metadata.version(), "0.0.4");
  EXPECT_EQ(attribute(trace.metadata, "rank").int64_value(), 5);
  // A million ranks are not listed.
  EXPECT_THAT(attribute(trace.metadata, "process_group 0 first, stride, size").int64_list().values(),
              ElementsAre(0, 1, 1000000));
  ASSERT_EQ(trace.nodes.size(), 3 * kSteps);
  for (size_t i = 0; i < trace.nodes.size(); ++i) {
    const chakra::Node& node = trace.nodes[i];
    EXPECT_EQ(node.id(), i + 1);
    EXPECT_LE(node.data_dependencies_size(), 4) << "more than what was not waited for";
    if (i > 2) {  // before that there is nothing to wait for
      EXPECT_GT(node.data_dependencies_size(), 0);
    }
    for (const uint64_t before : node.data_dependencies()) EXPECT_LT(before, node.id());
  }
  const chakra::Node& reduce = trace.nodes[1];
  EXPECT_EQ(reduce.name(), "reduce");
  EXPECT_EQ(reduce.type(), chakra::COLLECTIVE);
  EXPECT_EQ(attribute(reduce, "comm_type").int64_value(), chakra::REDUCE);
  EXPECT_EQ(attribute(reduce, "comm_size").int64_value(), 4096);
  EXPECT_EQ(attribute(reduce, "root").int32_value(), 7);
  EXPECT_EQ(reduce.inputs().shapes(), "[[1024]]");
  EXPECT_EQ(reduce.inputs().types(), "[\"Tensor(float32)\"]");
  EXPECT_EQ(trace.nodes[2].type(), chakra::COMPUTE);
  EXPECT_EQ(trace.nodes[2].duration_micros(), 1000);
}

// Types and bytes of the calls of one rank of four, the root among them.
std::vector<std::pair<int64_t, int64_t>> types_and_bytes(int rank, bool lower) {
  const auto record = std::make_shared<CallRecord>();
  const auto pg = make_fake_process_group({.rank = rank, .world_size = 4, .options = {.record = record}});
  std::vector<int32_t> x(10);
  std::vector<int32_t> all(40);
  std::vector<TensorView> parts;
  for (int i = 0; i < 4; ++i) parts.emplace_back(std::span<int32_t>(all).subspan(10 * static_cast<size_t>(i), 10));
  const bool root = rank == 1;
  pg->broadcast(x, 1).wait();
  pg->reduce(x, 1).wait();
  pg->gather(root ? parts : std::vector<TensorView>(), x, 1).wait();
  pg->scatter(x, root ? parts : std::vector<TensorView>(), 1).wait();
  pg->barrier().wait();
  pg->all_reduce(x).wait();
  pg->all_gather_into_tensor(all, x).wait();
  pg->reduce_scatter_tensor(x, all).wait();
  std::vector<int32_t> others(40);
  pg->all_to_all_single(others, all).wait();
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const chakra::Node& node : parsed(traces::chakra_trace(*record, lower)).nodes) {
    result.emplace_back(attribute(node, "comm_type").int64_value(), attribute(node, "comm_size").int64_value());
  }
  return result;
}

TEST(ChakraTest, LetsMessagesPassEachOther) {
  const auto record = std::make_shared<CallRecord>(CostModel{.link = links::kNvlink4});
  const auto pg = make_fake_process_group({.rank = 1, .world_size = 3, .options = {.record = record}});
  std::vector<float> x(8);
  std::vector<Work> works;  // that nobody has waited for
  works.push_back(pg->send(x, 2));
  works.push_back(pg->recv(x, 2));
  works.push_back(pg->all_reduce(x));
  works.push_back(pg->send(x, 0));
  works.push_back(pg->send(x, 2));  // after the first
  works.push_back(pg->recv(x, 2));
  works.push_back(pg->barrier());
  std::vector<std::vector<uint64_t>> dependencies;
  for (const chakra::Node& node : parsed(traces::chakra_trace(*record)).nodes)
    dependencies.emplace_back(node.data_dependencies().begin(), node.data_dependencies().end());
  const std::vector<uint64_t> none;
  EXPECT_THAT(dependencies, ElementsAre(none, none, none, none, ElementsAre(1), ElementsAre(2), ElementsAre(3)));
}

TEST(ChakraTest, LowersWhatSimulatorsDoNotRunToWhatMovesAsManyBytes) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(types_and_bytes(rank, true),
                ElementsAre(Pair(chakra::ALL_GATHER, 10),       // broadcast: a quarter of 40 bytes from each
                            Pair(chakra::REDUCE_SCATTER, 40),   // reduce
                            Pair(chakra::ALL_GATHER, 40),       // gather
                            Pair(chakra::REDUCE_SCATTER, 160),  // scatter: the root's four parts
                            Pair(chakra::ALL_REDUCE, 4),        // barrier
                            Pair(chakra::ALL_REDUCE, 40), Pair(chakra::ALL_GATHER, 40),
                            Pair(chakra::REDUCE_SCATTER, 160), Pair(chakra::ALL_TO_ALL, 160)))
        << rank;
  }
  EXPECT_THAT(
      types_and_bytes(0, false),
      ElementsAre(Pair(chakra::BROADCAST, 40), Pair(chakra::REDUCE, 40), Pair(chakra::GATHER, 40),
                  Pair(chakra::SCATTER, 40), Pair(chakra::BARRIER, 0), Pair(chakra::ALL_REDUCE, 40),
                  Pair(chakra::ALL_GATHER, 40), Pair(chakra::REDUCE_SCATTER, 160), Pair(chakra::ALL_TO_ALL, 160)));
}

TEST(ChakraTest, NamesFilesByRank) {
  const auto record = std::make_shared<CallRecord>();
  const auto pg = make_fake_process_group({.rank = 3, .world_size = 8, .options = {.record = record}});
  pg->barrier().wait();
  const TempDir folder;
  EXPECT_THAT(traces::write_chakra({record}, folder.file("step")), ElementsAre(folder.file("step.3.et")));
  EXPECT_THAT(
      [&] { (void)traces::write_chakra({record}, "no/such/folder/step"); },
      ThrowsDistError(ErrorKind::kInvalidArgument,
                      HasSubstr("write_chakra: file \"no/such/folder/step.3.et\": cannot be written: No such file")));
}

}  // namespace
}  // namespace rankloom
