// Acts of a printed rank that are no calls on data: rank_acts.cc once more.

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "tests/campaign/print_rank.h"
#include "tests/campaign/run_job.h"

namespace rankloom {

std::string hex_text(std::string_view bytes) {
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

std::string literal_text(std::string_view text) {
  return absl::StrCat("\"", absl::CEscape(absl::string_view(text.data(), text.size())), "\"");
}

std::string list_text(const std::vector<std::string>& items) {
  return absl::StrCat("{", absl::StrJoin(items, ", "), "}");
}

std::string list_text(const std::vector<int>& items) { return absl::StrCat("{", absl::StrJoin(items, ", "), "}"); }

RankPrinter::RankPrinter(const Plan& plan, const RankLog& expected, const Given& given, int rank)
    : plan_(plan), job_(plan.job()), expected_(expected), given_(given), me_(rank) {}

std::string RankPrinter::print() {
  groups_[0].push_back("g0");
  line("g0 = init_process_group(rank, options);");
  for (size_t i = 0; i < job_.acts.size(); ++i) {
    if (plan_.where(i) == nullptr) continue;
    const Act& act = job_.acts[i];
    const size_t before = text_.size();
    const bool goes_on = step(act, *plan_.where(i));
    if (text_.size() > before)
      text_.insert(before, absl::StrCat("  // ", act.id, ": ", std::string(act_name(act.type())), "\n"));
    if (!goes_on) return absl::StrCat(head(), text_);
  }
  if (!open_.empty()) line("// What is left.");
  while (!open_.empty()) finish(open_.begin()->first, WaitWay::kWait);
  line("memory.check();");
  return absl::StrCat(head(), text_);
}

// The things that the rank lets go of at its end, however it ends, the last first.
std::string RankPrinter::head() const {
  std::string text = "  Memory memory;\n";
  std::vector<std::string> names;
  for (const auto& [act, groups] : groups_) names.insert(names.end(), groups.begin(), groups.end());
  absl::StrAppend(&text, "  std::shared_ptr<ProcessGroup> ", absl::StrJoin(names, ", "), ";\n");
  names.clear();
  const auto declare_works = [&] {
    if (!names.empty()) absl::StrAppend(&text, "  std::vector<Work> ", absl::StrJoin(names, ", "), ";\n");
    names.clear();
  };
  for (const auto& [act, has_event] : works_) {
    names.push_back(name("w", act));
    if (!has_event) continue;
    declare_works();
    absl::StrAppend(&text, "  Stream::Event ", name("e", act), ";\n");
  }
  declare_works();
  for (int i = 0; i < 2; ++i) {
    if (has_stream_[i]) absl::StrAppend(&text, "  std::optional<SimStream> s", i, ";\n");
  }
  if (draws_)
    absl::StrAppend(&text, "  Prng shadow(own_seed(", job_.seed, ", rank.rank()));  // of the rank's own generator\n");
  return text + "\n";
}

std::string RankPrinter::sight(int act) const {
  const auto late = expected_.late.find(act);
  if (late != expected_.late.end()) return late->second;
  for (const Sight& sight : expected_.seen) {
    if (sight.act == act) return sight.saw;
  }
  return "";
}

void RankPrinter::see(int act, const std::string& have) {
  line("log.see(", act, ", ", have, ", ", literal_text(sight(act)), ");");
}

std::string RankPrinter::given(int act, size_t part, size_t tensor) const {
  const Bytes& bytes = given_.at({me_, act}).at(part).at(tensor);
  return hex_text(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::string RankPrinter::stream(int i) {
  if (!has_stream_[i]) line(name("s", i), ".emplace(rank, \"", name("s", i), "\");");
  has_stream_[i] = true;
  return name("s", i);
}

bool RankPrinter::step(const Act& act, const Partition& where) {
  const bool mine = act.rank == me_;
  const bool member = where.has(me_);
  const int size = member ? static_cast<int>(where.of(me_).size()) : 0;
  switch (act.type()) {
    case ActKind::kCollective:
    case ActKind::kCoalesced:
    case ActKind::kMessage:
    case ActKind::kAnySource:
    case ActKind::kRing:
    case ActKind::kCrossed:
      if (member) call(act, where);
      return true;
    case ActKind::kTwoGroups:
      two_groups(act, where);
      return true;
    case ActKind::kMonitored:
      if (member) monitored(act, where.of(me_));
      return true;
    case ActKind::kNewGroup:
    case ActKind::kSplitGroup:
    case ActKind::kMesh:
    case ActKind::kInitGroup:
      if (member) make_groups(act, where);
      return true;
    case ActKind::kDestroyGroup:
      if (member) line("destroy_process_group(", group(act), ");");
      return true;
    case ActKind::kRefused:
      if (member) refused(act, size, where.member(me_));
      return true;
    case ActKind::kStoreMeeting:
      meet(act);
      return true;
    case ActKind::kSharedCount:
      shared_count(act);
      return true;
    case ActKind::kOtherCall:
      if (member) other_call(act, where.member(me_));
      return true;
    default:
      if (mine) step_of_rank(act, where);
      return !mine || (act.type() != ActKind::kLeave && act.type() != ActKind::kThrow);
  }
}

// Acts of one rank, which is this one.
void RankPrinter::step_of_rank(const Act& act, const Partition& where) {
  const bool member = where.has(me_);
  switch (act.type()) {
    case ActKind::kWait:
      return finish(act.a, static_cast<WaitWay>(act.b));
    case ActKind::kOptions:
      if (member) options(act);
      return;
    case ActKind::kStoreScript:
      return see(act.id, absl::StrCat("run_script(rank, ", act.id, ", ", act.a, ", ", act.seed, ")"));
    case ActKind::kStoreTimeout:
      return see(act.id,
                 absl::StrCat("timeout(rank, ", act.b == 1 ? 0 : 100, ", [&] { rank.store().wait({\"nobody sets ",
                              act.id, "\"}, absl::Microseconds(", act.b == 1 ? 0 : 100, ")); })"));
    case ActKind::kYield:
      return line("rank.yield();");
    case ActKind::kSleep:
      begin();
      line("const absl::Duration before = rank.now();");
      line("rank.sleep_for(absl::Microseconds(", act.a, "));");
      see(act.id, absl::StrCat("slept_text(rank.now() - before, ", act.a, ")"));
      return end();
    case ActKind::kRandom:
      draws_ = true;
      return see(act.id, absl::StrCat("rank.rng().next() == shadow.next() ? ", literal_text(kDrawn),
                                      " : \"numbers of another seed\""));
    case ActKind::kHelper:
      return helper(act);
    case ActKind::kNestedWorld:
      return see(act.id, absl::StrCat("nested_world(", act.seed, ", ", act.a, ")"));
    case ActKind::kThrow:
      return line("throw PlannedError(\"planned in act ", act.id, "\");");
    case ActKind::kAbortWorld:
      return line("rank.world().abort(\"planned\");");
    case ActKind::kAbortGroup:
      if (member) line(group(act), "->abort(\"planned\");");
      return;
    case ActKind::kDropWork:
      return drop(act.a);
    case ActKind::kLeave:
      return line("return;");
    case ActKind::kGroupTimeout:
      if (member && where.of(me_).size() > 1) {
        stands_alone(act, static_cast<int>(where.of(me_).size()), where.member(me_));
      }
      return;
    default:
      no_such("act of one rank", act.kind);
  }
}

void RankPrinter::monitored(const Act& act, const std::vector<int>& members) {
  const std::string call = absl::StrCat(group(act), "->monitored_barrier({}, ", act.a == 1 ? "true" : "false", ");");
  if (!job_.has_whole_barriers()) return line(call);
  line("log.comes(", act.id, ", ", members[0], ", ", members.size(), ", [&] { ", call, " });");
}

void RankPrinter::options(const Act& act) {
  line(group(act), "->set_timeout(absl::Hours(2));");
  line(group(act), "->set_warn_after(absl::InfiniteDuration());");
  see(act.id, absl::StrCat("text_of(", group(act), ")"));
}

void RankPrinter::refused(const Act& act, int size, int member) {
  const std::string n = absl::StrCat(size), one_more = absl::StrCat(size + 1);
  const std::string many = absl::StrCat(2 * size + 1);
  const auto bytes = [](const std::string& dtype) {
    return absl::StrCat("TensorView(bytes, DType::", dtype, ", {1})");
  };
  const std::vector<std::string> calls = {
      absl::StrCat("broadcast(two, ", n, ")"),
      absl::StrCat("send(two, ", n, ")"),
      absl::StrCat("recv(two, ", member, ", -1)"),
      "all_reduce(TensorView(two.data(), DType::kFloat32, {2, -1}))",
      "all_reduce(whole, ReduceOp::kAvg)",
      "all_gather_into_tensor(wrong, two)",
      "new_group({0, 0})",
      "all_reduce(two, ReduceOp::kBxor)",
      absl::StrCat("reduce(", bytes("kFloat8E5M2"), ", 0)"),
      absl::StrCat("all_reduce(", bytes("kBool"), ", ReduceOp::kAvg)"),
      absl::StrCat("all_reduce(", bytes("kComplex64"), ", ReduceOp::kMax)"),
      "all_reduce(whole, ReduceOp::premul_sum(2))",
      absl::StrCat("all_gather(std::vector<TensorView>(", one_more, ", TensorView(two)), two)"),
      absl::StrCat("all_to_all_single(wrong, wrong, std::vector<int64_t>(", n, ", 1), std::vector<int64_t>(", n,
                   ", -1))"),
      absl::StrCat("all_gather_into_tensor(TensorView(wrong.data(), DType::kFloat32, {", 2 * size,
                   "}), TensorView(wrong.data() + 1, DType::kFloat32, {2}))"),
      "split_group(-2)",
  };
  if (calls.size() != kRefusals) no_such("wrong argument", act.a);
  const std::string& call = calls.at(static_cast<size_t>(act.a));
  const auto uses = [&](std::string_view word) { return call.find(word) != std::string::npos; };
  begin();
  if (uses("two")) line("std::vector<float> two = {1, 2};");
  if (uses("whole")) line("std::vector<int32_t> whole = {1};");
  if (uses("wrong")) line("std::vector<float> wrong(", many, ");");
  if (uses("bytes")) line("uint8_t bytes[8] = {};");
  see(act.id, absl::StrCat("refusal(*", group(act), ", [&] { (void)", group(act), "->", call, "; })"));
  end();
}

// Ways to meet in the store: meeting_text() lists them.
void RankPrinter::meet(const Act& act) {
  const bool first = me_ == 0, last = me_ == job_.world_size - 1;
  const std::string key = literal_text(absl::StrCat("meeting ", act.id, "."));
  const auto values = [&](const std::string& before) {
    for (int i = 0; i < 3; ++i) line("store.", before, "(", key, ", \"", act.id, ".", i, "\");");
  };
  if (act.a == 0) return meet_with_all(act);
  begin();
  line("[[maybe_unused]] Store& store = rank.store();");
  const auto all_come = [&](const std::string& where) {
    line("store_barrier(store, ", literal_text(absl::StrCat("meeting ", act.id, ".", where)), ", ", me_, ", ",
         job_.world_size, ");");
  };
  switch (act.a) {
    case 1:
      line("const int64_t sum = store.add(", key, ", 1 << ", me_, ");");
      all_come("");
      see(act.id, absl::StrCat("std::string((sum >> ", me_, " & 1) == 0 ? \"its own is not in the sum \" : \"\") + ",
                               "store.get(", key, ")"));
      break;
    case 2:
      if (first) values("queue_push");
      line("std::string saw;");
      if (last) line("for (int i = 0; i < 3; ++i) saw += store.queue_pop(", key, ") + \",\";");
      see(act.id, "saw");
      break;
    case 3:
      line("const std::string won = store.compare_set(", key, ", \"\", \"", act.id, ".", me_, "\");");
      all_come("");
      see(act.id, absl::StrCat("won == store.get(", key, ") ? \"one wins\" : \"another one won\""));
      break;
    case 4:
      meet_last(act);
      break;
    case 5:
      if (first) {
        values("append");
        line("store.set(", literal_text(absl::StrCat("meeting ", act.id, ". is whole")), ", \"\");");
      }
      line("store.wait({", literal_text(absl::StrCat("meeting ", act.id, ". is whole")), "});");
      see(act.id, absl::StrCat("store.get(", key, ")"));
      break;
    default:
      no_such("way to meet in the store", act.a);
  }
  end();
}

// Each sets a key and reads all.
void RankPrinter::meet_with_all(const Act& act) {
  std::vector<std::string> keys;
  for (int i = 0; i < job_.world_size; ++i) keys.push_back(literal_text(absl::StrCat("meeting ", act.id, ".", i)));
  const std::string& own = keys[static_cast<size_t>(me_)];
  const std::string value = literal_text(absl::StrCat(act.id, ".", me_));
  begin();
  line("Store& store = rank.store();");
  if (act.b == 1) {
    line("store.multi_set({", own, "}, {", value, "});");
  } else {
    line("store.set(", own, ", ", value, ");");
  }
  if (act.c == 1) line("store.wait(", list_text(keys), ");");
  line("std::string saw;");
  line("for (const std::string& got : store.multi_get(", list_text(keys), ")) saw += got + \",\";");
  see(act.id, "saw");
  end();
}

// The last one watches what the first sets.
void RankPrinter::meet_last(const Act& act) {
  const std::string key = absl::StrCat("meeting ", act.id, ".");
  const auto all_come = [&](const std::string& where) {
    line("store_barrier(store, ", literal_text(key + where), ", ", me_, ", ", job_.world_size, ");");
  };
  line("const auto changes = std::make_shared<Watched<std::string>>();");
  if (me_ == job_.world_size - 1) {
    begin(absl::StrCat("store.watch_key(", literal_text(key),
                       ", [changes](std::optional<std::string_view>, std::optional<std::string_view> after)"));
    line("changes->update([&](std::string& all) { all += \"->\" + std::string(after.value_or(\"none\")); });");
    end(");");
  }
  all_come(" before");
  for (int i = 0; me_ == 0 && i < 3; ++i) {
    line("store.set(", literal_text(key), ", ", literal_text(absl::StrCat(act.id, ".", i)), ");");
  }
  all_come(" after");
  see(act.id, "changes->get()");
}

void RankPrinter::shared_count(const Act& act) {
  const int n = job_.world_size;
  begin();
  line("const auto shared = shared_by_all(rank, ", act.id, ");");
  line("int sum = 0;");
  if (act.a == 0) {
    const std::string all_came = absl::StrCat("[&] { return shared->came == ", n, "; }");
    begin();
    line("const MutexLock lock(&shared->mu);");
    line("shared->sum += ", me_ + 1, ";");
    line("if (++shared->came == ", n, ") {");
    line("  shared->changed.notify_all();");
    if (act.b == 1 && !job_.may_fail()) {
      line("} else if (!shared->changed.wait_for(&shared->mu, absl::Hours(1), ", all_came, ")) {");
      line("  throw std::logic_error(\"an hour has passed\");");
    } else {
      line("} else {");
      line("  shared->changed.wait(&shared->mu, ", all_came, ");");
    }
    line("}");
    line("sum = shared->sum;");
    end();
  } else {
    line("shared->watched.update([](int& value) { value += ", me_ + 1, "; });");
    if (act.b == 1) {
      line("shared->latch.arrive_and_wait();");
    } else {
      line("shared->latch.count_down();");
      line("shared->latch.wait();");
    }
    line("sum = shared->watched.get();");
  }
  see(act.id, "absl::StrCat(\"all \", sum)");
  end();
}

void RankPrinter::helper(const Act& act) {
  begin();
  line("const auto latch = std::make_shared<Latch>(1, \"helper\");");
  line("const auto saw = std::make_shared<std::string>();");
  begin("rank.world().spawn_helper([&rank, latch, saw]");
  line("*saw = run_script(rank, ", act.id, ", ", act.a, ", ", act.seed, ");");
  line("latch->count_down();");
  end(");");
  line("latch->wait();");
  see(act.id, "*saw");
  end();
}

void RankPrinter::other_call(const Act& act, int member) {
  const std::string one = absl::StrCat("t", act.id, "_one");
  tensors(act);
  line("const TensorView ", one, " = t", act.id, "->add(DType::kFloat32, 1);");
  line("write(", one, ", \"00000000\");");
  line(group(act),
       act.rank == me_ ? absl::StrCat("->broadcast(", one, ", ", member, ")") : absl::StrCat("->all_reduce(", one, ")"),
       ".wait();");
}

// A call whose time ends, as nobody else comes.
void RankPrinter::stands_alone(const Act& act, int size, int member) {
  const std::string pg = group(act), one = absl::StrCat("t", act.id, "_one"), soon = "absl::Milliseconds(1)";
  const bool gives = act.a == 1 || act.a == 2 || act.a == 4;
  if (gives) {
    tensors(act);
    line("const TensorView ", one, " = t", act.id, "->add(DType::kFloat32, 1);");
  }
  switch (act.a) {
    case 0:
      return line(pg, "->barrier({.timeout = ", soon, "}).wait();");
    case 1:
      return line(pg, "->all_reduce(", one, ").wait(", soon, ");");
    case 2:
      line(pg, "->set_timeout(", soon, ");");
      return line(pg, "->all_gather_into_tensor(t", act.id, "->add(DType::kFloat32, ", size, "), ", one, ").wait();");
    case 3:
      return line(pg, "->monitored_barrier(", soon, ", ", act.c == 1 ? "true" : "false", ");");
    case 4:
      return line(pg, "->recv(", one, ", ", member == 0 ? 1 : 0, ", 9, {.timeout = ", soon, "}).wait();");
    case 5:
      return line("store_barrier(rank.store(), \"alone ", act.id, "\", 0, 2, ", soon, ");");
    default:
      no_such("timeout of a group", act.a);
  }
}

void RankPrinter::make_groups(const Act& act, const Partition& where) {
  const int size = static_cast<int>(where.of(me_).size()), member = where.member(me_);
  const Partition& made = *plan_.made(act.id, 0);
  const std::string made_name = group_name(act.id, 0);
  if (act.type() == ActKind::kInitGroup && !made.has(me_)) return;
  groups_[act.id].push_back(made_name);
  switch (act.type()) {
    case ActKind::kNewGroup: {
      std::vector<int> ranks;
      for (int i = 0; i < size; ++i) {
        if ((act.a >> i & 1) != 0) ranks.push_back(i);
      }
      if (ranks.empty()) ranks = {0};
      if (act.c == 1) std::reverse(ranks.begin(), ranks.end());
      line(made_name, " = ", group(act), "->new_group(", act.b == 1 ? "" : list_text(ranks) + ", ", "options);");
      break;
    }
    case ActKind::kSplitGroup: {
      const bool none = act.b == 1 && member == size - 1;
      const int color = member / std::max(1, act.a), key = act.c == 1 ? -member : 0;
      line(made_name, " = ", group(act), "->split_group(",
           none ? "ProcessGroup::kNoColor" : absl::StrCat("/*color=*/", color), ", /*key=*/", key, ", options);");
      break;
    }
    case ActKind::kMesh:
      return mesh(act, size);
    default:
      if (act.a == 0) {
        line(made_name, " = init_process_group(rank, options);");
        break;
      }
      begin();
      line("GroupOptions some = options;");
      line("some.ranks = ", list_text(made.of(me_)), ";");
      line(made_name, " = init_process_group(rank, some);");
      end();
  }
  see(act.id, absl::StrCat("text_of(", made_name, ")"));
}

void RankPrinter::mesh(const Act& act, int size) {
  const std::string first = group_name(act.id, 0), second = group_name(act.id, 1);
  const int width = std::max(1, act.a);
  groups_[act.id].push_back(second);
  begin();
  line("const DeviceMesh mesh = init_device_mesh(", group(act), ", {", size / width, ", ", width, "}, ",
       act.b == 1 ? "{\"dp\", \"tp\"}" : "{}", ", options);");
  line(second, " = mesh.get_group(1);");
  line(first, " = mesh.get_group(", act.b == 1 ? "\"dp\"" : "0", ");");
  end();
  see(act.id, absl::StrCat("text_of(", first, ") + text_of(", second, ")"));
}

}  // namespace rankloom
