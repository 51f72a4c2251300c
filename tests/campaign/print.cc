#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/store_script.h"

namespace rankloom {

namespace {

constexpr const char* kDTypeNames[] = {"kFloat16",   "kBFloat16",   "kFloat32",      "kFloat64",   "kInt8",
                                       "kUInt8",     "kInt16",      "kInt32",        "kInt64",     "kBool",
                                       "kComplex64", "kComplex128", "kFloat8E4M3FN", "kFloat8E5M2"};
constexpr const char* kReduceNames[] = {"ReduceOp::kSum", "ReduceOp::kAvg",  "ReduceOp::kProduct",
                                        "ReduceOp::kMin", "ReduceOp::kMax",  "ReduceOp::kBand",
                                        "ReduceOp::kBor", "ReduceOp::kBxor", "ReduceOp::premul_sum(0.5)"};
constexpr const char* kOrderNames[] = {"kRank", "kReversed", "kRing", "kTree", "kSeeded"};

std::string hex(std::string_view bytes) {
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}
std::string hex(const Bytes& bytes) {
  return hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}
std::string cpp_literal(std::string_view text) {
  return absl::StrCat("\"", absl::CEscape(absl::string_view(text.data(), text.size())), "\"");
}
std::string dtype_text(const JobCall& call) { return absl::StrCat("DType::", kDTypeNames[call.dtype]); }
std::string list(const std::vector<std::string>& items) { return absl::StrCat("{", absl::StrJoin(items, ", "), "}"); }

// One rank's program.
class Printer {
 public:
  Printer(const Plan& plan, const JobLog& log, const Given& given, int rank)
      : plan_(plan), job_(plan.job()), given_(given), me_(rank) {
    for (const Sight& sight : log[static_cast<size_t>(rank)].seen) sights_[sight.act] = sight.saw;
    for (const auto& [act, saw] : log[static_cast<size_t>(rank)].late) sights_[act] = saw;
  }

  std::string print() {
    line("auto g0_0 = init_process_group(rank, options);");
    for (size_t i = 0; i < job_.acts.size(); ++i) {
      if (plan_.where(i) != nullptr) step(job_.acts[i], *plan_.where(i));
    }
    for (const auto& [act, reads] : std::map(open_)) finish(act, WaitWay::kWait);
    return std::move(text_);
  }

 private:
  template <typename... Parts>
  void line(const Parts&... parts) {
    absl::StrAppend(&text_, "  ", parts..., "\n");
  }
  std::string group(const Act& act) const { return absl::StrCat("g", act.group, "_", act.dim); }
  // The names of the memory of an act's tensors: t9_0_in0, t9_0_out0.
  std::string memories_of(int act) const {
    std::vector<std::string> names;
    for (const std::string& name : memories_) {
      if (name.starts_with(absl::StrCat("t", act, "_"))) names.push_back(name);
    }
    return absl::StrJoin(names, ", ");
  }
  std::string sight(int act) const {
    const auto it = sights_.find(act);
    return it == sights_.end() ? "" : it->second;
  }

  // A tensor's declaration, and its view.
  std::string memory(const std::string& name, const JobCall& call, int64_t numel, const Bytes* values) {
    memories_.push_back(name);
    if (values != nullptr) {
      line("auto ", name, " = std::make_shared<Memory>(\"", hex(*values), "\");");
    } else {
      line("auto ", name, " = std::make_shared<Memory>(size_t{",
           static_cast<size_t>(numel) * dtype_size(call.element()), "});");
    }
    const bool rows = call.type() == OpType::kAllToAllSingle;
    return absl::StrCat(name, "->as(", dtype_text(call), ", {",
                        rows ? absl::StrCat(numel / call.rows, ", ", call.rows) : absl::StrCat(numel), "})");
  }

  // Declares a call's tensors and returns the call's text; what reads its outputs goes to `reads`.
  std::string collective(const Act& act, const JobCall& call, size_t part, const Partition& where,
                         const std::string& options, std::string* reads) {
    const int size = static_cast<int>(where.of(me_).size());
    const int member = where.member(me_);
    const CallShape shape = shape_of(call, size, member);
    const auto& values = given_.at({me_, act.id})[part];
    const std::string name = absl::StrCat("t", act.id, "_", part, "_");
    std::vector<std::string> in, out, read;
    for (size_t i = 0; i < shape.inputs.size(); ++i) {
      in.push_back(memory(absl::StrCat(name, "in", i), call, shape.inputs[i], &values[i]));
      if (shape.same) read.push_back(absl::StrCat(name, "in", i, "->hex()"));
    }
    if (shape.same) out = in;
    for (size_t i = 0; i < shape.outputs.size() && !shape.same; ++i) {
      out.push_back(memory(absl::StrCat(name, "out", i), call, shape.outputs[i], nullptr));
      read.push_back(absl::StrCat(name, "out", i, "->hex()"));
    }
    for (const std::string& each : read) absl::StrAppend(reads, reads->empty() ? "" : " + ", each);
    std::string order;
    if (call.order != 0) {
      order = absl::StrCat(options.empty() ? "" : ", ",
                           ".order = ReduceOp::Order{.kind = ReduceOp::Order::Kind::", kOrderNames[call.order % 8],
                           ", .seed = ", act.id, ", .accumulate_in_float = ", call.order < 8 ? "true" : "false", "}");
    }
    const std::string last = absl::StrCat(", {", options, order, "})");
    const std::string reduce = kReduceNames[call.reduce];
    const std::string root = absl::StrCat(call.root % size);
    const std::string op = absl::StrCat(group(act), "->", std::string(op_name(call.type())), "(");
    switch (call.type()) {
      case OpType::kBroadcast:
        return absl::StrCat(op, out[0], ", ", root, last);
      case OpType::kAllReduce:
        return absl::StrCat(op, out[0], ", ", reduce, last);
      case OpType::kAllReduceCoalesced:
        return absl::StrCat(op, list(out), ", ", reduce, last);
      case OpType::kReduce:
        return absl::StrCat(op, out[0], ", ", root, ", ", reduce, last);
      case OpType::kAllGather:
        return absl::StrCat(op, list(out), ", ", in[0], last);
      case OpType::kAllGatherIntoTensor:
        return absl::StrCat(op, out[0], ", ", in[0], last);
      case OpType::kAllGatherIntoTensorCoalesced:
      case OpType::kAllToAll:
        return absl::StrCat(op, list(out), ", ", list(in), last);
      case OpType::kGather:
        return absl::StrCat(op, list(out), ", ", in[0], ", ", root, last);
      case OpType::kScatter:
        return absl::StrCat(op, out[0], ", ", list(in), ", ", root, last);
      case OpType::kReduceScatter:
        return absl::StrCat(op, out[0], ", ", list(in), ", ", reduce, last);
      case OpType::kReduceScatterTensor:
        return absl::StrCat(op, out[0], ", ", in[0], ", ", reduce, last);
      case OpType::kReduceScatterTensorCoalesced:
        return absl::StrCat(op, list(out), ", ", list(in), ", ", reduce, last);
      case OpType::kAllToAllSingle: {
        std::vector<int64_t> outs, ins;
        for (int i = 0; call.uneven != 0 && i < size; ++i) {
          outs.push_back(between(call, i, member));
          ins.push_back(between(call, member, i));
        }
        return absl::StrCat(op, out[0], ", ", in[0], ", {", absl::StrJoin(outs, ", "), "}, {", absl::StrJoin(ins, ", "),
                            "}", last);
      }
      default:
        return absl::StrCat(group(act), "->barrier({", options, "}, \"barrier ", act.id, "\")");
    }
  }

  void keep(const Act& act, std::string reads) {
    open_[act.id] = std::move(reads);
    if (static_cast<Way>(act.way) == Way::kAtOnce) finish(act.id, WaitWay::kWait);
  }

  void finish(int act, WaitWay way) {
    const auto it = open_.find(act);
    if (it == open_.end()) return;
    const std::string works = absl::StrCat("w", act);
    if (streamed_.count(act) != 0) line("s0.synchronize();");
    if (blocked_.count(act) != 0) line("s1.synchronize();");
    switch (way) {
      case WaitWay::kPoll:
        line("for (Work& work : ", works, ") { while (!work.is_completed()) rank.yield(); }");
        break;
      case WaitWay::kFuture:
        line("for (Work& work : ", works, ") (void)work.get_future().value();");
        break;
      case WaitWay::kResult:
        line("for (Work& work : ", works, ") (void)work.result();");
        break;
      case WaitWay::kThen:
        line("for (Work& work : ", works, ") {");
        line("  auto latch = std::make_shared<Latch>(1);");
        line("  work.then([latch](const absl::Status&) { latch->count_down(); });");
        line("  latch->wait();");
        line("}");
        break;
      case WaitWay::kHelper:
        line("for (Work& work : ", works, ") {");
        line("  auto latch = std::make_shared<Latch>(1);");
        // The rank may leave by an exception while the helper waits: the work goes before the pair's memory.
        line("  rank.world().spawn_helper([latch, held = std::pair(std::vector<std::shared_ptr<Memory>>{",
             memories_of(act), "}, work)]() mutable { held.second.wait(); latch->count_down(); });");
        line("  latch->wait();");
        line("}");
        break;
      default:
        break;
    }
    line("for (Work& work : ", works, ") work.wait();");
    if (!it->second.empty()) line("expect(", act, ", ", it->second, ", \"", hex(sight(act)), "\");");
    open_.erase(it);
  }

  void call(const Act& act, const Partition& where) {
    const int n = static_cast<int>(where.of(me_).size());
    const int member = where.member(me_);
    const std::string works = absl::StrCat("w", act.id);
    const auto input = [&] {
      const Bytes& bytes = given_.at({me_, act.id}).back()[0];
      return memory(absl::StrCat("t", act.id, "_in"), act.call, act.call.count, &bytes);
    };
    const auto output = [&](int i) {
      return memory(absl::StrCat("t", act.id, "_out", i), act.call, act.call.count, nullptr);
    };
    const auto reads_output = [&] { return absl::StrCat("t", act.id, "_out0->hex()"); };
    switch (act.type()) {
      case ActKind::kMessage: {
        const int from = act.a % n, to = act.b % n;
        if (member != from && member != to) return;
        line("std::vector<Work> ", works, ";");
        const auto receive = [&] {
          if (member == to)
            line(works, ".push_back(", group(act), "->recv(", output(0), ", ", from, ", ", act.id, "));");
        };
        if (act.c == 1) receive();
        if (member == from) line(works, ".push_back(", group(act), "->send(", input(), ", ", to, ", ", act.id, "));");
        if (act.c != 1) receive();
        return keep(act, member == to ? reads_output() : "");
      }
      case ActKind::kAnySource: {
        line("std::vector<Work> ", works, ";");
        const int to = act.a % n;
        if (member != to) {
          line(works, ".push_back(", group(act), "->send(", input(), ", ", to, ", ", act.id, "));");
          return keep(act, "");
        }
        for (int i = 1; i < n; ++i)
          line(works, ".push_back(", group(act), "->recv_any(", output(i), ", ", act.id, "));");
        line("// Each comes from another member: ", cpp_literal(sight(act.id)));
        return keep(act, "");
      }
      case ActKind::kRing: {
        const std::string in = input(), out = output(0);
        const int shift = act.a % n;
        line("std::vector<Work> ", works, " = batch_isend_irecv({{P2POp::Kind::kSend, ", in, ", ", (member + shift) % n,
             ", ", group(act), ".get(), ", act.id, "}, {P2POp::Kind::kRecv, ", out, ", ", (member + n - shift) % n,
             ", ", group(act), ".get(), ", act.id, "}});");
        return keep(act, reads_output());
      }
      case ActKind::kCoalesced: {
        std::string reads;
        std::vector<std::string> calls;
        for (size_t p = 0; p < act.parts.size(); ++p)
          calls.push_back(collective(act, act.parts[p], p, where, "", &reads));
        if (act.a == 1) {
          calls.push_back(absl::StrCat(group(act), "->send(", input(), ", ", (member + 1) % n, ", ", act.id, ")"));
          calls.push_back(
              absl::StrCat(group(act), "->recv(", output(0), ", ", (member + n - 1) % n, ", ", act.id, ")"));
          absl::StrAppend(&reads, reads.empty() ? "" : " + ", reads_output());
        }
        line("std::vector<Work> parts", act.id, ";");
        line(group(act), "->start_coalescing();");
        for (const std::string& each : calls) line("parts", act.id, ".push_back(", each, ");");
        if (act.b == 1) line("parts", act.id, ".clear();");
        line("std::vector<Work> ", works, " = {", group(act), "->end_coalescing()};");
        return keep(act, reads);
      }
      default:
        break;
    }
    std::string reads;
    const auto way = static_cast<Way>(act.way);
    const std::string owner = absl::StrCat("owner", act.id);
    const std::string options = way == Way::kStream      ? ".stream = &s0"
                                : way == Way::kGivesAway ? absl::StrCat(".keep_alive = ", owner)
                                                         : "";
    const std::string made = collective(act, act.call, 0, where, options, &reads);
    if (way == Way::kGivesAway) {
      line("auto ", owner, " = std::make_shared<std::vector<std::shared_ptr<Memory>>>();");
      line("(void)", made, ";");
      line(owner, " = nullptr;  // sees ", cpp_literal(hex(sight(act.id))), " when it ends");
      return;
    }
    if (way == Way::kStream) {
      line("s0.launch([&] { rank.yield(); });");
      streamed_[act.id] = true;
    }
    line("std::vector<Work> ", works, " = {", made, "};");
    if (way == Way::kBlocks) {
      line(works, "[0].block_current_stream(s1);");
      blocked_[act.id] = true;
    }
    keep(act, reads);
  }

  void make_groups(const Act& act) {
    const std::string name = absl::StrCat("g", act.id, "_0");
    const Partition& made = *plan_.made(act.id, 0);
    const std::string parent = absl::StrCat(group(act), "->");
    switch (act.type()) {
      case ActKind::kNewGroup: {
        std::vector<int> ranks;
        for (int i = 0; i < job_.world_size; ++i) {
          if ((act.a >> i & 1) != 0) ranks.push_back(i);
        }
        line("auto ", name, " = ", parent, "new_group(",
             act.b == 1 ? "" : absl::StrCat("chosen(*", group(act), ", {", absl::StrJoin(ranks, ", "), "}), "),
             "options);");
        return;
      }
      case ActKind::kSplitGroup: {
        const std::string me = absl::StrCat(group(act), "->rank()");
        const std::string color = absl::StrCat(me, " / ", std::max(1, act.a));
        line("auto ", name, " = ", parent, "split_group(",
             act.b == 1 ? absl::StrCat(me, " == ", group(act), "->size() - 1 ? ProcessGroup::kNoColor : ", color)
                        : color,
             ", ", act.c == 1 ? absl::StrCat("-", me) : "0", ", options);");
        return;
      }
      case ActKind::kMesh:
        line("auto mesh", act.id, " = init_device_mesh(", group(act), ", {", group(act), "->size() / ",
             std::max(1, act.a), ", ", std::max(1, act.a), "}, {}, options);");
        line("auto ", name, " = mesh", act.id, ".get_group(0);");
        line("auto g", act.id, "_1 = mesh", act.id, ".get_group(1);");
        return;
      default:
        if (!made.has(me_)) return;
        line("GroupOptions options", act.id, " = options;");
        if (act.a != 0) line("options", act.id, ".ranks = {", absl::StrJoin(made.of(me_), ", "), "};");
        line("auto ", name, " = init_process_group(rank, options", act.id, ");");
    }
  }

  void step(const Act& act, const Partition& where) {
    const bool mine = act.rank == me_;
    const bool member = where.has(me_);
    const std::string seen = absl::StrCat("expect(", act.id, ", ");
    switch (act.type()) {
      case ActKind::kCollective:
      case ActKind::kCoalesced:
      case ActKind::kMessage:
      case ActKind::kAnySource:
      case ActKind::kRing:
        if (member) call(act, where);
        return;
      case ActKind::kWait:
        if (mine) finish(act.a, static_cast<WaitWay>(act.b));
        return;
      case ActKind::kMonitored:
        if (member) line(group(act), "->monitored_barrier({}, ", act.a == 1 ? "true" : "false", ");");
        return;
      case ActKind::kNewGroup:
      case ActKind::kSplitGroup:
      case ActKind::kMesh:
      case ActKind::kInitGroup:
        if (member) make_groups(act);
        return;
      case ActKind::kDestroyGroup:
        if (member) line("destroy_process_group(", group(act), ");");
        return;
      case ActKind::kYield:
        if (mine) line("rank.yield();");
        return;
      case ActKind::kSleep:
        if (mine) line("rank.sleep_for(absl::Microseconds(", act.a, "));");
        return;
      case ActKind::kThrow:
        if (mine) line("throw std::runtime_error(\"planned\");");
        return;
      case ActKind::kAbortWorld:
        if (mine) line("rank.world().abort(\"planned\");");
        return;
      case ActKind::kAbortGroup:
        if (mine && member) line(group(act), "->abort(\"planned\");");
        return;
      case ActKind::kDropWork:
        if (mine && open_.erase(act.a) > 0) line("w", act.a, ".clear();");
        return;
      case ActKind::kLeave:
        if (mine) line("return;");
        return;
      case ActKind::kGroupTimeout:
        if (mine && member && where.of(me_).size() > 1) {
          line(group(act), "->barrier({.timeout = absl::Milliseconds(1)}).wait();");
        }
        return;
      case ActKind::kOtherCall:
        if (!member) return;
        line("std::vector<float> other", act.id, " = {0};");
        line(group(act), mine ? absl::StrCat("->broadcast(other", act.id, ", ", where.member(me_), ").wait();")
                              : absl::StrCat("->all_reduce(other", act.id, ").wait();"));
        return;
      case ActKind::kStoreScript:
        if (mine)
          line(seen, "run_script(rank, ", act.id, ", ", act.a, ", ", act.seed, "), ", cpp_literal(sight(act.id)), ");");
        return;
      default:  // acts whose code is that of the campaign
        if (act.type() == ActKind::kStoreMeeting || act.type() == ActKind::kSharedCount || mine ||
            act.type() == ActKind::kRefused) {
          line("// ", std::string(act_name(act.type())), " ", act.id, ": rank_acts.cc; it sees ",
               cpp_literal(sight(act.id)));
        }
    }
  }

  const Plan& plan_;
  const Job& job_;
  const Given& given_;
  const int me_;
  std::map<int, std::string> sights_;
  std::map<int, std::string> open_;  // by act: what reads its outputs
  std::vector<std::string> memories_;
  std::map<int, bool> streamed_, blocked_;
  std::string text_;
};

}  // namespace

std::string to_cpp(const Job& job) {
  const Plan plan(job);
  Given given;
  const JobLog log = oracle(plan, &given);
  std::string text = "// A job of tests/campaign:\n";
  absl::StrAppend(&text, "//   ", absl::StrReplaceAll(to_text(job), {{"\n", "\n//   "}}), "\n");
  absl::StrAppend(&text, "#include \"tests/campaign/printed.h\"\n\nnamespace {\n\n",
                  "using namespace rankloom;\nusing namespace rankloom::printed;\n\n",
                  "const GroupOptions options = {.eager_bytes = ", job.eager_bytes,
                  ", .rooted = static_cast<GroupOptions::Rooted>(", job.rooted, ")};\n");
  for (int rank = 0; rank < job.world_size; ++rank) {
    absl::StrAppend(&text, "\nvoid rank_", rank, "(RankContext& rank) {\n",
                    "  [[maybe_unused]] SimStream s0(rank, \"s0\"), s1(rank, \"s1\");\n",
                    Printer(plan, log, given, rank).print(), "}\n");
  }
  absl::StrAppend(&text, "\n}  // namespace\n\nint main(int argc, char** argv) {\n",
                  "  // As RANKLOOM_SCHEDULE has it: \"seeded:7\", \"fifo\", \"free\".\n",
                  "  Schedule schedule = Schedule::parse(argc > 1 ? argv[1] : \"seeded:", job.seed, "\").value();\n",
                  "  WorldOptions world = {.world_size = ", job.world_size,
                  ", .engine = schedule.deterministic() ? EngineKind::kFibers : EngineKind::kThreads};\n",
                  "  world.schedule = std::move(schedule);\n  world.seed = ", job.seed, ";\n");
  if (!job.faults.empty()) {
    absl::StrAppend(&text, "  world.faults = FaultPlan::parse(", cpp_literal(FaultPlan(job.faults).text()),
                    ").value();\n");
  }
  absl::StrAppend(&text, "  void (*const ranks[])(RankContext&) = {");
  for (int rank = 0; rank < job.world_size; ++rank) absl::StrAppend(&text, rank == 0 ? "" : ", ", "rank_", rank);
  absl::StrAppend(
      &text, "};\n  return end(run_world(std::move(world), [&](RankContext& rank) { ranks[rank.rank()](rank); }), ",
      job.may_fail() ? "true" : "false", ");\n}\n");
  return text;
}

}  // namespace rankloom
