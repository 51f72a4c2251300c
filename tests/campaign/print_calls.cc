// Acts of a printed rank that are calls on data, and the waits for them: rank_run.cc and call_of.cc once more.

#include <iterator>

#include "absl/strings/str_format.h"
#include "tests/campaign/print_rank.h"

namespace rankloom {

namespace {

constexpr const char* kDTypeNames[] = {"kFloat16",   "kBFloat16",   "kFloat32",      "kFloat64",   "kInt8",
                                       "kUInt8",     "kInt16",      "kInt32",        "kInt64",     "kBool",
                                       "kComplex64", "kComplex128", "kFloat8E4M3FN", "kFloat8E5M2"};
static_assert(std::size(kDTypeNames) == internal::kDTypeCount);

std::string reduce_text(const ReduceOp& op) {
  constexpr const char* kNames[] = {"kSum", "kAvg", "kProduct", "kMin", "kMax", "kBand", "kBor", "kBxor"};
  static_assert(std::size(kNames) + 1 == internal::kReduceOpCount);
  if (op.kind() == ReduceOp::Kind::kPremulSum) return absl::StrFormat("ReduceOp::premul_sum(%.17g)", op.factor());
  return absl::StrCat("ReduceOp::", kNames[static_cast<size_t>(op.kind())]);
}

// Those that are not empty.
std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) absl::StrAppend(&all, all.empty() || text.empty() ? "" : ", ", text);
  return all;
}

}  // namespace

std::string order_text(const ReduceOp::Order& order) {
  constexpr const char* kNames[] = {"kRank", "kReversed", "kRing", "kTree", "kSeeded"};
  return absl::StrCat(
      ".order = ReduceOp::Order{.kind = ReduceOp::Order::Kind::", kNames[static_cast<size_t>(order.kind)],
      ", .seed = ", order.seed, ", .accumulate_in_float = ", order.accumulate_in_float ? "true" : "false", "}");
}

std::string RankPrinter::view(const std::string& view, int act, const JobCall& call, int64_t numel) {
  const std::string dims =
      call.type() == OpType::kAllToAllSingle ? absl::StrCat(", {", numel / call.rows, ", ", call.rows, "}") : "";
  line("const TensorView ", view, " = ", name("t", act), "->add(DType::", kDTypeNames[call.dtype], ", ", numel, dims,
       ");");
  return view;
}

// The member's own of a list, or of equal parts of one tensor of `numel` elements.
std::string RankPrinter::own_view(const std::string& view, const std::vector<std::string>& whole, int64_t part,
                                  int64_t numel, int member) {
  const bool is_part = whole.size() == 1 && numel != part;
  line("const TensorView ", view, " = ", whole[whole.size() > 1 ? static_cast<size_t>(member) : 0],
       is_part ? absl::StrCat(".slice(", member * part, ", ", part, ")") : "", ";");
  return view;
}

RankPrinter::Views RankPrinter::views(const Act& act, const JobCall& call, int part, const Partition& where,
                                      const std::string& prefix) {
  const int member = where.member(me_);
  const CallShape shape = shape_of(call, static_cast<int>(where.of(me_).size()), member);
  const auto input = [&](size_t i) { return absl::StrCat(prefix, "in", i); };
  const auto output = [&](size_t i) { return absl::StrCat(prefix, "out", i); };
  Views views;
  const Within within = within_of(call, shape);
  const auto inputs = [&] {
    for (const int64_t numel : shape.inputs) views.in.push_back(view(input(views.in.size()), act.id, call, numel));
  };
  if (shape.same) {
    inputs();
    views.out = views.in;
  } else if (within == Within::kInputs) {
    inputs();
    views.out.push_back(own_view(output(0), views.in, shape.outputs[0], shape.inputs[0], member));
  } else {
    for (const int64_t numel : shape.outputs) views.out.push_back(view(output(views.out.size()), act.id, call, numel));
    if (within == Within::kOutputs) {
      views.in.push_back(own_view(input(0), views.out, shape.inputs[0], shape.outputs[0], member));
    } else {
      inputs();
    }
  }
  for (size_t i = 0; i < views.in.size(); ++i) {
    const std::string bytes = given(act.id, static_cast<size_t>(part), i);
    const bool keeps = !shape.same && within == Within::kNothing;
    const std::string give = keeps ? absl::StrCat("give(*", name("t", act.id), ", ") : "write(";
    if (!bytes.empty()) views.fills.push_back(absl::StrCat(give, views.in[i], ", \"", bytes, "\");"));
  }
  return views;
}

// The rows, or parts of them, that go to and come from each member; lists of none: all are alike.
std::string RankPrinter::splits_text(const JobCall& call, int size, int member) {
  std::vector<int> received, sent;
  for (int i = 0; call.uneven != 0 && i < size; ++i) {
    received.push_back(static_cast<int>(between(call, i, member)));
    sent.push_back(static_cast<int>(between(call, member, i)));
  }
  return absl::StrCat(list_text(received), ", ", list_text(sent));
}

std::string RankPrinter::call_text(const std::string& group, const JobCall& call, int act, const Partition& where,
                                   const Views& views, Way way) {
  const int size = static_cast<int>(where.of(me_).size());
  // In the order of the fields of CallOptions.
  std::string options =
      joined({call.timed != 0 ? ".timeout = absl::Hours(1)" : "", way == Way::kGivesAway ? ".keep_alive = owner" : "",
              call.order != 0 ? order_text(order_of(call, act)) : "",
              way == Way::kStream || way == Way::kEvent ? ".stream = &*s0" : ""});
  if (!options.empty()) options = absl::StrCat("{", options, "}");
  const auto first = [](const std::vector<std::string>& names) { return names.empty() ? "" : names[0]; };
  const std::string in = first(views.in), out = first(views.out);
  const std::string ins = list_text(views.in), outs = list_text(views.out);
  const std::string reduce = reduce_text(reduce_of(call));
  const std::string root = absl::StrCat(call.root % size);
  const auto made = [&](const std::vector<std::string>& arguments) {
    return absl::StrCat(group, "->", std::string(op_name(call.type())), "(", joined(arguments), ")");
  };
  switch (call.type()) {
    case OpType::kBroadcast:
      return made({out, root, options});
    case OpType::kAllReduce:
      return made({out, reduce, options});
    case OpType::kAllReduceCoalesced:
      return made({outs, reduce, options});
    case OpType::kReduce:
      return made({out, root, reduce, options});
    case OpType::kAllGather:
      return made({outs, in, options});
    case OpType::kAllGatherIntoTensor:
      return made({out, in, options});
    case OpType::kAllGatherIntoTensorCoalesced:
    case OpType::kAllToAll:
      return made({outs, ins, options});
    case OpType::kGather:
      return made({outs, in, root, options});
    case OpType::kScatter:
      return made({out, ins, root, options});
    case OpType::kReduceScatter:
      return made({out, ins, reduce, options});
    case OpType::kReduceScatterTensor:
      return made({out, in, reduce, options});
    case OpType::kReduceScatterTensorCoalesced:
      return made({outs, ins, reduce, options});
    case OpType::kAllToAllSingle:
      return made({out, in, splits_text(call, size, where.member(me_)), options});
    case OpType::kBarrier:
      return made({options.empty() ? "{}" : options, absl::StrCat("\"barrier ", act, "\"")});
    default:
      no_such("collective", call.op);
  }
}

// Writes the inputs: at once, or by a kernel in front of the call.
void RankPrinter::fill(const Act& act, const std::vector<std::string>& fills, bool streamed) {
  if (streamed) begin(absl::StrCat(stream(0), "->launch([=, ", name("t", act.id), " = ", name("t", act.id), "]"));
  for (const std::string& each : fills) line(each);
  if (streamed) end(");");
}

void RankPrinter::collective(const Act& act, const Partition& where) {
  const auto way = static_cast<Way>(act.way);
  const std::string tensors_name = name("t", act.id);
  tensors(act);
  const Views views = this->views(act, act.call, 0, where, tensors_name + "_");
  const auto made = [&] { return call_text(group(act), act.call, act.id, where, views, way); };
  const std::string saw = absl::StrCat("bytes_of(", list_text(views.out), ")");
  if (way == Way::kGivesAway) {
    begin();
    line("const auto owner = log.owner(", act.id, ", ", tensors_name, ", ", list_text(views.out), ", \"",
         hex_text(sight(act.id)), "\");");
    fill(act, views.fills, false);
    come(act, act.call, 0, where.of(me_));
    line("(void)", made(), ";");
    return end();
  }
  Open open = {.outputs = saw, .has_result = true};
  open.streamed = way == Way::kStream || way == Way::kEvent;
  fill(act, views.fills, open.streamed);
  works_[act.id] = false;
  come(act, act.call, 0, where.of(me_));
  push(act.id, made());
  if (way == Way::kBlocks || way == Way::kEvent) {
    const std::string seen = name("seen", act.id);
    line("const auto ", seen, " = std::make_shared<std::string>();");
    open.snapshot = absl::StrCat("*", seen);
    if (way == Way::kBlocks) {
      const std::string blocked = stream(1);
      line(name("w", act.id), "[0].block_current_stream(*", blocked, ");");
    } else {
      open.event_way = act.c;
      works_[act.id] = true;
      line(name("e", act.id), " = s0->record();");
      const std::string behind = stream(1);
      line(behind, "->wait_event(", name("e", act.id), ");");
    }
    line("s1->launch([=, ", tensors_name, " = ", tensors_name, "] { *", seen, " = ", saw, "; });");
  }
  keep(act, open);
}

void RankPrinter::two_groups(const Act& act, const Partition& where) {
  const Partition* const partitions[] = {&where, plan_.made(act.a, act.b)};
  const std::string names[] = {group(act), group_name(act.a, act.b)};
  const JobCall* const calls[] = {&act.call, &act.parts[0]};
  if (!partitions[0]->has(me_) && !partitions[1]->has(me_)) return;
  tensors(act);
  Views views[2];
  std::vector<std::string> outs;
  for (int i = 0; i < 2; ++i) {
    if (!partitions[i]->has(me_)) continue;
    views[i] = this->views(act, *calls[i], i, *partitions[i], absl::StrCat("t", act.id, "_", i, "_"));
    outs.insert(outs.end(), views[i].out.begin(), views[i].out.end());
  }
  works_[act.id] = false;
  const int first = (act.seed >> me_ & 1) != 0 ? 1 : 0;
  for (const int i : {first, 1 - first}) {
    if (!partitions[i]->has(me_)) continue;
    fill(act, views[i].fills, false);
    come(act, *calls[i], i, partitions[i]->of(me_));
    const std::string made = call_text(names[i], *calls[i], act.id, *partitions[i], views[i], Way::kPlain);
    if (act.c == 0 || i == first) {
      push(act.id, made);
      continue;
    }
    begin();
    line("const auto made = std::make_shared<Work>();");
    line("const auto latch = std::make_shared<Latch>(1, \"call of a helper\");");
    begin(absl::StrCat("rank.world().spawn_helper([=, ", names[i], " = ", names[i], ", ", name("t", act.id), " = ",
                       name("t", act.id), "]"));
    line("*made = ", made, ";");
    line("latch->count_down();");
    end(");");
    line("latch->wait();");
    push(act.id, "std::move(*made)");
    end();
  }
  keep(act, {.outputs = absl::StrCat("bytes_of(", list_text(outs), ")")});
}

void RankPrinter::coalesced(const Act& act, const Partition& where) {
  const int size = static_cast<int>(where.of(me_).size()), member = where.member(me_);
  const bool streamed = static_cast<Way>(act.way) == Way::kStream;
  const std::string prefix = absl::StrCat("t", act.id, "_");
  tensors(act);
  std::vector<Views> parts;
  std::vector<std::string> fills, outs;
  for (size_t p = 0; p < act.parts.size(); ++p) {
    parts.push_back(views(act, act.parts[p], static_cast<int>(p), where, absl::StrCat(prefix, p, "_")));
    fills.insert(fills.end(), parts[p].fills.begin(), parts[p].fills.end());
    outs.insert(outs.end(), parts[p].out.begin(), parts[p].out.end());
    if (!streamed) fill(act, parts[p].fills, false);
  }
  const std::string sent = prefix + "sent", received = prefix + "received";
  if (act.a == 1) {
    view(sent, act.id, act.call, act.call.count);
    outs.push_back(view(received, act.id, act.call, act.call.count));
    line("give(*", name("t", act.id), ", ", sent, ", \"", given(act.id, act.parts.size(), 0), "\");");
  }
  if (streamed) fill(act, fills, true);
  begin();
  line(group(act), "->start_coalescing();");
  line("std::vector<Work> parts;");
  const auto part = [&](const std::string& made) { line("parts.push_back(", made, ");"); };
  for (size_t p = 0; p < parts.size(); ++p) {
    come(act, act.parts[p], static_cast<int>(p), where.of(me_));
    part(call_text(group(act), act.parts[p], act.id, where, parts[p], Way::kPlain));
  }
  if (act.a == 1) {
    part(absl::StrCat(group(act), "->send(", sent, ", ", (member + 1) % size, ", ", tag_of(act), ")"));
    part(absl::StrCat(group(act), "->recv(", received, ", ", (member + size - 1) % size, ", ", tag_of(act), ")"));
  }
  if (act.b == 1) line("parts.clear();");
  works_[act.id] = false;
  push(act.id, absl::StrCat(group(act), "->end_coalescing(", streamed ? "{.stream = &*s0}" : "", ")"));
  keep(act, {.outputs = absl::StrCat("bytes_of(", list_text(outs), ")"), .streamed = streamed});
  end();
}

void RankPrinter::message(const Act& act, int size, int member) {
  const int from = act.a % size, to = act.b % size;
  if (member != from && member != to) return;
  const bool streamed = static_cast<Way>(act.way) == Way::kStream;
  const std::string in = absl::StrCat("t", act.id, "_in"), out = absl::StrCat("t", act.id, "_out");
  const std::string last =
      streamed ? absl::StrCat(", ", tag_of(act), ", {.stream = &*") : absl::StrCat(", ", tag_of(act));
  const std::string sends = streamed ? absl::StrCat(last, stream(0), "})") : last + ")";
  const std::string receives = streamed ? absl::StrCat(last, stream(1), "})") : last + ")";
  tensors(act);
  works_[act.id] = false;
  const auto receive = [&] {
    if (member != to) return;
    view(out, act.id, act.call, act.call.count);
    push(act.id, absl::StrCat(group(act), "->recv(", out, ", ", from, receives));
  };
  if (act.c == 1) receive();
  if (member == from) {
    view(in, act.id, act.call, act.call.count);
    fill(act, {absl::StrCat("give(*", name("t", act.id), ", ", in, ", \"", given(act.id, act.parts.size(), 0), "\");")},
         streamed);
    push(act.id, absl::StrCat(group(act), "->send(", in, ", ", to, sends));
  }
  if (act.c != 1) receive();
  keep(act, {.outputs = member == to ? absl::StrCat("bytes_of({", out, "})") : "std::string()", .streamed = streamed});
}

void RankPrinter::any_source(const Act& act, int size, int member) {
  const int to = act.a % size;
  const std::string prefix = absl::StrCat("t", act.id, "_"), works = name("w", act.id);
  tensors(act);
  works_[act.id] = false;
  if (member != to) {
    const std::string in = view(prefix + "in", act.id, act.call, act.call.count);
    line("give(*", name("t", act.id), ", ", in, ", \"", given(act.id, 0, 0), "\");");
    push(act.id, absl::StrCat(group(act), "->send(", in, ", ", to, ", ", tag_of(act), ")"));
    return keep(act, {.outputs = "std::string()"});
  }
  std::vector<std::string> outs;
  for (int i = 1; i < size; ++i) {
    outs.push_back(view(absl::StrCat(prefix, "out", i - 1), act.id, act.call, act.call.count));
    push(act.id, absl::StrCat(group(act), "->recv_any(", outs.back(), ", ", tag_of(act), ")"));
  }
  keep(act, {.outputs = absl::StrCat("by_source(", works, ", ", list_text(outs), ")")});
}

void RankPrinter::ring(const Act& act, int size, int member) {
  const std::string prefix = absl::StrCat("t", act.id, "_");
  const int shift = act.a % size;
  tensors(act);
  const std::string in = view(prefix + "in", act.id, act.call, act.call.count);
  const std::string out = view(prefix + "out", act.id, act.call, act.call.count);
  line("give(*", name("t", act.id), ", ", in, ", \"", given(act.id, 0, 0), "\");");
  works_[act.id] = false;
  const auto op = [&](const std::string& kind, const std::string& tensor, int peer) {
    return absl::StrCat("{P2POp::Kind::", kind, ", ", tensor, ", ", peer, ", ", group(act), ".get(), ", tag_of(act),
                        "}");
  };
  line(name("w", act.id), " = batch_isend_irecv({", op("kSend", in, (member + shift) % size), ", ",
       op("kRecv", out, (member + size - shift) % size), "});");
  keep(act, {.outputs = absl::StrCat("bytes_of({", out, "})")});
}

void RankPrinter::crossed(const Act& act, int size, int member) {
  const int from = act.a % size, to = act.b % size;
  if (member != from && member != to) return;
  const std::string prefix = absl::StrCat("t", act.id, "_");
  const Crossing crossing = crossing_of(act);
  const auto tag = [&](int i) { return crossing.tags[static_cast<size_t>(i)]; };
  tensors(act);
  works_[act.id] = false;
  for (int i = 0; member == from && i < static_cast<int>(crossing.tags.size()); ++i) {
    const std::string in = view(absl::StrCat(prefix, "in", i), act.id, act.call, act.call.count + i);
    line("give(*", name("t", act.id), ", ", in, ", \"", given(act.id, 0, static_cast<size_t>(i)), "\");");
    push(act.id, absl::StrCat(group(act), "->send(", in, ", ", to, ", ", tag(i), ")"));
  }
  std::vector<std::string> outs;
  for (size_t i = 0; member == to && i < crossing.taken.size(); ++i) {
    const int taken = crossing.taken[i];
    outs.push_back(view(absl::StrCat(prefix, "out", taken), act.id, act.call, act.call.count + taken));
    push(act.id, absl::StrCat(group(act), "->recv(", outs.back(), ", ", from, ", ", tag(taken), ")"));
  }
  keep(act, {.outputs = absl::StrCat("bytes_of(", list_text(outs), ")")});
}

void RankPrinter::call(const Act& act, const Partition& where) {
  const int size = static_cast<int>(where.of(me_).size()), member = where.member(me_);
  switch (act.type()) {
    case ActKind::kMessage:
      return message(act, size, member);
    case ActKind::kAnySource:
      return any_source(act, size, member);
    case ActKind::kRing:
      return ring(act, size, member);
    case ActKind::kCrossed:
      return crossed(act, size, member);
    case ActKind::kCoalesced:
      return coalesced(act, where);
    default:
      return collective(act, where);
  }
}

void RankPrinter::keep(const Act& act, const Open& open) {
  open_[act.id] = open;
  if (static_cast<Way>(act.way) == Way::kAtOnce) finish(act.id, WaitWay::kWait);
}

void RankPrinter::come(const Act& act, const JobCall& call, int part, const std::vector<int>& members) {
  if (call.type() != OpType::kBarrier || !job_.has_whole_barriers()) return;
  line("log.comes(*", name("t", act.id), ", ", act.id, ", ", part, ", ", members[0], ", ", members.size(), ");");
}

void RankPrinter::finish(int act, WaitWay way) {
  const auto it = open_.find(act);
  if (it == open_.end()) return;
  const Open open = it->second;
  const bool streams_first = act % 2 == 1 || (open.streamed && !waits_for_streams(way, job_));
  begin();
  const std::vector<std::string> at_event = streams_first ? finish_streams(act, open) : std::vector<std::string>();
  wait(act, way);
  line("for (Work& work : ", name("w", act), ") must_be_done(work);");
  line("const std::string first = ", open.outputs, ";");
  std::vector<std::string> before = streams_first ? at_event : finish_streams(act, open);
  before.insert(before.begin(), "first");
  begin(absl::StrCat("for (Work& work : ", name("w", act), ")"));
  line("work.wait();");
  line("check(work);");
  end();
  if (open.event_way >= 0) line(name("e", act), " = {};");
  line("log.see(", act, ", *", name("t", act), ", alike(", open.snapshot.empty() ? open.outputs : open.snapshot, ", ",
       list_text(before), "), \"", hex_text(sight(act)), "\");");
  end();
  open_.erase(act);
}

// The names of texts: outputs at an event.
std::vector<std::string> RankPrinter::finish_streams(int act, const Open& open) {
  const std::string event = name("e", act);
  std::vector<std::string> saw;
  if (open.event_way == 0) line(event, ".synchronize();");
  // A loop that asks for what nobody completes has no end in the free gear.
  const bool polls = open.event_way == 1 && !job_.may_fail();
  if (polls) line("while (!", event, ".query()) rank.yield();");
  if (open.event_way == 0 || polls) {
    line("const std::string at_event = ", open.outputs, ";");
    saw = {"at_event"};
  }
  for (int i = 0; i < 2; ++i) {
    if (i == 0 ? !open.streamed : !open.streamed && open.snapshot.empty()) continue;
    if (!has_stream_[i]) continue;
    line(name("s", i), "->synchronize();");
    line("check(*", name("s", i), ");");
  }
  if (open.event_way >= 0) line("check(", event, ");");
  return saw;
}

void RankPrinter::wait(int act, WaitWay way) {
  const std::string works = name("w", act);
  if (way == WaitWay::kAll) {
    std::vector<std::string> all, waited_for;
    for (const auto& [other, open] : open_) all.push_back(name("w", other));
    for (const auto& [other, open] : open_) {
      if (!open.streamed) waited_for.push_back(name("w", other));
    }
    line("std::vector<Work> all = joined(", list_text(all), ");");
    line("wait_all(all);");
    if (!waited_for.empty()) line("for (Work& work : joined(", list_text(waited_for), ")) must_be_done(work);");
    return;
  }
  if (way == WaitWay::kAny) return line("wait_for_each(", works, ");");
  begin(absl::StrCat("for (Work& work : ", works, ")"));
  wait_for_one(act, way);
  end();
}

void RankPrinter::wait_for_one(int act, WaitWay way) {
  switch (way) {
    case WaitWay::kTimed:
      return line(job_.may_fail() ? "work.wait();" : "work.wait(absl::Hours(1));");
    case WaitWay::kPoll:
      if (!job_.may_fail()) return line("while (!work.is_completed()) rank.yield();");
      line("for (int i = 0; i < ", kPolls, " && !work.is_completed(); ++i) rank.yield();");
      return line("work.wait();");
    case WaitWay::kFuture:
      line("Future future = work.get_future();");
      line("(void)future.value();");
      return line("check(future);");
    case WaitWay::kResult:
      line("(void)work.result();");
      if (open_.at(act).has_result) line("check_result(work, ", open_.at(act).outputs, ");");
      return;
    case WaitWay::kThen:
      line("const auto latch = std::make_shared<Latch>(1, \"callback\");");
      line("const auto told = std::make_shared<absl::Status>();");
      begin("work.then([latch, told](const absl::Status& status)");
      line("*told = status;");
      line("latch->count_down();");
      end(");");
      line("latch->wait();");
      return line("check(work, *told);");
    case WaitWay::kHelper:
      line("const auto latch = std::make_shared<Latch>(1, \"helper\");");
      begin(absl::StrCat("rank.world().spawn_helper([latch, held = Held{", name("t", act), ", work}]() mutable"));
      line("held.work.wait();");
      line("latch->count_down();");
      end(");");
      return line("latch->wait();");
    case WaitWay::kSynchronize:
      return line("work.synchronize();");
    case WaitWay::kWait:
      return line("work.wait();");
    case WaitWay::kAll:
    case WaitWay::kAny:
    case WaitWay::kCount:
      no_such("way to wait for one work", static_cast<int>(way));
  }
}

void RankPrinter::drop(int act) {
  const auto it = open_.find(act);
  if (it == open_.end()) return;
  if (it->second.event_way >= 0) line(name("e", act), " = {};");
  line(name("w", act), ".clear();");
  open_.erase(it);
}

}  // namespace rankloom
