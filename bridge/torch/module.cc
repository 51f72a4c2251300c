// The extension module rankloom.torch._ext: what rankloom/torch/*.py is built on. Its face is _ext.pyi.

#include <ATen/ThreadLocalState.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bridge/torch/compat.h"
#include "bridge/torch/cuda_device.h"
#include "bridge/torch/device_streams.h"
#include "bridge/torch/explore.h"
#include "bridge/torch/job.h"
#include "bridge/torch/python_frames.h"
#include "bridge/torch/report_dict.h"
#include "bridge/torch/torch_backend.h"
#include "bridge/torch/torch_future.h"
#include "bridge/torch/torch_record.h"
#include "bridge/torch/torch_store.h"
#include "bridge/torch/torch_work.h"
#include "rankloom/fake.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"
#include "world/run_options.h"

PYBIND11_DECLARE_HOLDER_TYPE(T, rankloom::bridge::WorkHolder<T>, true)

namespace rankloom::bridge {

using namespace internal;

namespace {

using Milliseconds = std::chrono::milliseconds;

void check(const absl::Status& status) {
  if (!status.ok()) throw py::value_error(std::string(status.message()));
}

// The options that the program asks for.
WorldOptions world_options(int world_size, const std::optional<std::string>& schedule, std::optional<uint64_t> seed,
                           std::optional<double> timeout, std::optional<bool> poison,
                           std::optional<bool> late_completion, const std::string& faults = "", bool keep_run = false) {
  if (seed.has_value() && schedule.has_value())
    throw py::value_error(absl::StrCat("seed is ", *seed, " and schedule is \"", *schedule,
                                       "\": want one of them, since a schedule that has a seed names it"));
  WorldOptions options{.world_size = world_size, .keep_run = keep_run};
  if (seed.has_value()) options.schedule = Schedule::seeded(*seed);
  if (schedule.has_value()) {
    absl::StatusOr<Schedule> parsed = Schedule::parse(*schedule);
    check(parsed.status());
    options.schedule = *std::move(parsed);
  }
  absl::StatusOr<FaultPlan> plan = FaultPlan::parse(faults);
  check(plan.status());
  options.faults = *std::move(plan);
  if (timeout.has_value()) options.timeout = absl::Seconds(*timeout);
  options.poison = poison;
  options.late_completion = late_completion;
  return options;
}

// The same, with what the environment asks for of the `number`-th run.
WorldOptions options_of_run(WorldOptions options, int number) {
  check(apply_environment_to_run(number, &options));
  // Torch's default generator is the process's: only where one rank runs at a time does each have its own.
  if (options.schedule.kind() == Schedule::Kind::kUnset) options.schedule = Schedule::fifo();
  refuse_fibers(options);
  return options;
}

// Ranks that share nothing but a store of c10d's meet here: the first one makes the job and tells the others its
// number.
std::mutex meeting_mu;
std::map<int64_t, std::pair<std::shared_ptr<Job>, int>>& meetings() {  // job, ranks that have not come
  static auto* const value = new std::map<int64_t, std::pair<std::shared_ptr<Job>, int>>;
  return *value;
}

std::shared_ptr<Job> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
                          const WorldOptions& options) {
  const GilRelease no_gil;
  // A store may serve several jobs one after the other.
  const int64_t round = store->add(absl::StrCat("rankloom/rounds/", rank), 1);
  const std::string key = absl::StrCat("rankloom/job/", round);
  if (store->add(key + "/came", 1) == 1) {
    const int number = ++runs_begun();
    std::shared_ptr<Job> job = Job::make(options_of_run(options, number), number);
    {
      const std::lock_guard<std::mutex> lock(meeting_mu);
      meetings()[job->id()] = {job, size};
    }
    store->set(key, absl::StrCat(getpid(), " ", job->id()));
  } else {
    store->wait({key}, timeout);
  }
  const std::string text = store->get_to_str(key);
  const size_t space = text.find(' ');
  TORCH_CHECK(space != std::string::npos && text.substr(0, space) == std::to_string(getpid()), "rank ", rank,
              ": the first rank is in process ", text.substr(0, space), ", want all ranks in one process (", getpid(),
              ")");
  std::shared_ptr<Job> job;
  {
    const std::lock_guard<std::mutex> lock(meeting_mu);
    const auto it = meetings().find(std::stoll(text.substr(space + 1)));
    TORCH_CHECK(it != meetings().end(), "rank ", rank,
                ": the job is over, want a store that is used by one job at a time");
    job = it->second.first;
    TORCH_CHECK(job->world().size() == size, "rank ", rank, ": world_size is ", size, ", the first rank's is ",
                job->world().size());
    if (--it->second.second == 0) meetings().erase(it);
  }
  if (job->deterministic()) {
    // attach() waits for all ranks, without a timeout. So they come together here first.
    if (store->add(key + "/here", 1) == size) store->set(key + "/all", "1");
    store->wait({key + "/all"}, timeout);
  }
  return job;
}

// The job's ranks of a default group of some of them: each tells its own.
std::vector<int> meet(c10d::Store& store, int rank, int size, int mine) {
  TORCH_CHECK(rank >= 0 && rank < size, "init_process_group: rank ", rank, ", want one of 0-", size - 1, " of ", size);
  // A store may serve several groups, one after the other.
  const int64_t round = store.add(absl::StrCat("rankloom/", size, "/", rank), 1);
  const auto key = [&](int of) { return absl::StrCat("rankloom/group ", round, " of ", size, " ranks: rank ", of); };
  const std::string number = absl::StrCat(mine);
  store.set(key(rank), std::vector<uint8_t>(number.begin(), number.end()));
  std::vector<int> ranks;
  for (int of = 0; of < size; ++of) {
    const std::vector<uint8_t> told = store.get(key(of));
    int found = -1;
    TORCH_CHECK(absl::SimpleAtoi(std::string(told.begin(), told.end()), &found), "init_process_group: ", key(of),
                " is no number");
    ranks.push_back(found);
  }
  TORCH_CHECK(ranks[static_cast<size_t>(rank)] == mine, "init_process_group: ranks ", mine, " and ",
              ranks[static_cast<size_t>(rank)], " of the job both want to be rank ", rank, " of ", size);
  return ranks;
}

// Ranks that want to meet in a file of their own each would wait for each other for ever, though all are in one job.
// A rank that gave up a round stays one of it: its next try finds the same, and the others need not wait for it.
void meet_in_file(c10d::Store& store, int rank, int size) {
  c10d::Store* below = &store;
  while (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(below)) below = prefixed->getUnderlyingStore().get();
  const auto* const file = dynamic_cast<TorchFileStore*>(below);
  if (file == nullptr) return;
  // The end of a long path: reports show no more of a key.
  constexpr size_t kShown = 20;
  const std::string& path = file->path();
  const std::string name = path.size() <= kShown ? path : "..." + path.substr(path.size() - kShown);
  // A file may serve several groups, one after the other.
  const std::string rounds = absl::StrCat("rankloom/rounds of ", size, " ranks: rank ", rank);
  const int64_t round = store.add(rounds, 0);
  const std::string of_round = round == 0 ? "" : absl::StrCat(", round ", round + 1);
  const std::string all = absl::StrCat("rankloom/", size, " ranks in ", name, of_round);
  const auto key = [&](int of) {
    return absl::StrCat("rankloom/round ", round + 1, " of ", size, " ranks: rank ", of);
  };
  store.set(key(rank), std::vector<uint8_t>());
  std::vector<std::string> keys;
  for (int of = 0; of < size; ++of) keys.push_back(key(of));
  if (store.check(keys)) store.set(all, std::vector<uint8_t>());
  store.wait({all});
  store.add(rounds, 1);
}

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               Milliseconds timeout, const std::string& name,
                                               const std::string& group_name, const std::vector<int64_t>& ranks) {
  int mine = -1;
  std::shared_ptr<Job> job = Job::current(&mine);
  const bool is_world = ranks.empty() || job == nullptr;
  bool owns_rank = false;
  if (job == nullptr) {
    WorldOptions options = world_options(size, std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    options.timeout = absl::FromChrono(timeout);
    WorldOptions refused = options;  // what makes no sense is, on every rank
    check(apply_environment(&refused));
    refuse_fibers(refused);
    job = join(store, rank, size, timeout, options);
    job->attach(rank);
    mine = rank;
    owns_rank = true;
  }
  const GilRelease no_gil;
  std::vector<int> global;
  if (!is_world) {
    global = job->ranks_of(mine, ranks);
  } else {
    global.resize(static_cast<size_t>(size));
    std::iota(global.begin(), global.end(), 0);
    TORCH_CHECK(job->world().size() != size || mine == rank, "init_process_group: rank ", rank, " of ", size,
                ", but this thread is rank ", mine, " of ", size);
    if (job->world().size() != size) global = meet(*store, rank, size, mine);
    meet_in_file(*store, rank, size);
    job->set_default_ranks(mine, global);
  }
  try {
    const std::shared_ptr<ProcessGroup> group = job->make_group(mine, group_name, std::move(global));
    group->set_timeout(absl::FromChrono(timeout), python_site());
    auto options = c10::make_intrusive<c10d::Backend::Options>(name, timeout);
    options->group_name = group_name;
    options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    return c10::make_intrusive<TorchBackend>(job, group, name, std::move(options), owns_rank);
  } catch (const DistError& error) {
    throw_to_torch(error, job.get(), python_site());
  }
}

c10::intrusive_ptr<c10d::Backend> make_fake_backend(int rank, int size, const std::string& name,
                                                    bool error_on_collective, Milliseconds timeout,
                                                    const std::shared_ptr<TorchRecord>& record,
                                                    const std::string& group_name, const std::string& description,
                                                    const std::vector<int>& ranks) {
  auto options = c10::make_intrusive<c10d::FakeProcessGroup::Options>();
  options->error_on_collective = error_on_collective;
  options->timeout = timeout;
  try {
    const CodeSite code = python_site();
    std::shared_ptr<ProcessGroup> group;
    if (record != nullptr) {
      group = record->make_group(rank, size, group_name, description, ranks, error_on_collective, code);
    } else {
      group = make_fake_process_group(
          {.rank = rank, .world_size = size, .options = {.error_on_collective = error_on_collective}}, code);
    }
    return c10::make_intrusive<TorchBackend>(nullptr, group, name, std::move(options), false, record);
  } catch (const DistError& error) {
    throw_to_torch(error, nullptr, python_site());
  }
}

// The job of the calling thread, a rank's or a helper's, if it lets one rank run at a time; else null.
std::shared_ptr<Job> scheduled(int* rank) {
  std::shared_ptr<Job> job = Job::acting(rank);
  return job != nullptr && job->deterministic() ? job : nullptr;
}

void bind_futures(py::module_& m) {
  py::class_<FutureGate, std::shared_ptr<FutureGate>>(m, "FutureGate")
      .def(py::init([] {
        int rank = -1;
        std::shared_ptr<Job> job = scheduled(&rank);
        if (job == nullptr) throw std::runtime_error("FutureGate: this thread acts for no rank under a schedule");
        return std::make_shared<FutureGate>(std::move(job), rank);
      }))
      .def("open", &FutureGate::open)
      .def("wait", &FutureGate::wait);
  // The calling thread's modes of torch: gradients, autocast, dispatch.
  py::class_<at::ThreadLocalState>(m, "ThreadState")
      .def(py::init<>())
      .def("restore", [](const at::ThreadLocalState& state) { at::ThreadLocalState::setThreadLocalState(state); });
  m.def("scheduled", [] {
    int rank = -1;
    return scheduled(&rank) != nullptr;
  });
  m.def(
      "futures_come_later", [](bool later) { return std::exchange(futures_come_later(), later); }, py::arg("later"));
  m.def(
      "futures_are_awaited", [](bool awaited) { return std::exchange(futures_are_awaited(), awaited); },
      py::arg("awaited"));
  m.def(
      "calls_come_at_once", [](bool at_once) { return std::exchange(calls_come_at_once(), at_once); },
      py::arg("at_once"));
  m.def(
      "settle",
      [](const c10::intrusive_ptr<c10d::Work>& work) {
        if (auto* const ours = dynamic_cast<TorchWork*>(work.get()); ours != nullptr) ours->settle();
      },
      py::arg("work"));
  m.def(
      "let_pass",
      [](const c10::intrusive_ptr<c10d::Work>& work) {
        if (const auto* const ours = dynamic_cast<const TorchWork*>(work.get()); ours != nullptr) ours->let_pass();
      },
      py::arg("work"));
  m.def(
      "look_at_futures",
      [](const c10::intrusive_ptr<c10d::Work>& work) {
        if (auto* const ours = dynamic_cast<TorchWork*>(work.get()); ours != nullptr) ours->look_at_futures();
      },
      py::arg("work"));
  m.def("poll", [] {
    int rank = -1;
    const std::shared_ptr<Job> job = scheduled(&rank);
    if (job == nullptr) return;
    const GilRelease no_gil;
    job->world().scheduler().poll(Site{.what = "future", .code = python_site()});
    job->after_point(rank);
  });
}

// The choice of how calls of CUDA tensors are carried out.
void bind_devices(py::module_& m) {
  set_use_device(use_gpu(), prepare_gpu());
  m.attr("has_cuda") = use_gpu() != nullptr;
  // Another driver in CUDA's place, by a capsule with a std::shared_ptr<DeviceDriver>: tests play one.
  m.def(
      "set_device_driver",
      [](const py::capsule& capsule) {
        const auto driver = *capsule.get_pointer<std::shared_ptr<DeviceDriver>>();
        set_use_device([driver](RankContext& rank, int) { use_device(state_of(rank).world(), driver); });
      },
      py::arg("driver"));
}

PYBIND11_MODULE(_ext, m) {
  py::module_::import("torch.distributed");  // the types that we return
  m.attr("torch_version") = absl::StrCat(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);

  py::class_<Job, std::shared_ptr<Job>>(m, "Job")
      .def(py::init([](int world_size, std::optional<std::string> schedule, std::optional<uint64_t> seed,
                       std::optional<double> timeout, std::optional<bool> poison, std::optional<bool> late_completion,
                       bool swap_random, const std::string& faults, bool keep_run) {
             try {
               WorldOptions options =
                   world_options(world_size, schedule, seed, timeout, poison, late_completion, faults, keep_run);
               const int number = ++runs_begun();
               return Job::make(options_of_run(std::move(options), number), number, swap_random);
             } catch (const DistError& error) {
               throw py::value_error(error.what());
             }
           }),
           py::arg("world_size"), py::arg("schedule") = py::none(), py::arg("seed") = py::none(),
           py::arg("timeout") = py::none(), py::arg("poison") = py::none(), py::arg("late_completion") = py::none(),
           py::arg("swap_random") = false, py::arg("faults") = "", py::arg("keep_run") = false)
      .def_property_readonly("id", &Job::id)
      .def_property_readonly("number", &Job::number)
      .def_property_readonly("world_size", [](Job& job) { return job.world().size(); })
      .def_property_readonly("deterministic", &Job::deterministic)
      .def_property_readonly("aborted", [](Job& job) { return job.world().scheduler().aborted(); })
      .def_property_readonly("abort_cause",
                             [](Job& job) { return std::string(job.world().scheduler().abort_cause().message()); })
      .def("store",
           [](Job& job) { return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<TorchStore>(job.store())); })
      .def("running", &Job::running)
      .def("describe", &Job::describe)
      .def("calls", &Job::calls, py::arg("rank"))
      .def("give_up", &Job::give_up, py::arg("rank"))
      .def("attach", &Job::attach, py::arg("rank"))
      .def("fail", &Job::fail, py::arg("rank"), py::arg("text"))
      .def("skip", &Job::skip, py::arg("reason"))
      .def(
          "abort",
          [](Job& job, const std::string& reason) {
            const GilRelease no_gil;
            job.world().scheduler().abort(make_error(ErrorKind::kAborted, reason));
          },
          py::arg("reason"))
      .def("report", [](Job& job) { return report_dict(job.report()); });

  py::class_<RunFile>(m, "RunFile")
      .def(
          "bytes",
          [](const RunFile& file, const std::string& rerun, const std::vector<std::string>& notes) {
            return py::bytes(file.bytes(rerun, notes));
          },
          py::arg("rerun"), py::arg("notes"));

  py::class_<Asked>(m, "Asked")
      .def(py::init<>())
      .def_readwrite("number", &Asked::number)
      .def_readwrite("ranks", &Asked::ranks)
      .def_readwrite("timeout", &Asked::timeout)
      .def_readwrite("faults", &Asked::faults)
      .def_readwrite("strategies", &Asked::strategies)
      .def_readwrite("runs", &Asked::runs)
      .def_readwrite("seconds", &Asked::seconds)
      .def_readwrite("first_seed", &Asked::first_seed)
      .def_readwrite("min_ranks", &Asked::min_ranks)
      .def_readwrite("shrink_runs", &Asked::shrink_runs)
      .def_readwrite("max_steps", &Asked::max_steps)
      .def_readwrite("vary_faults", &Asked::vary_faults)
      .def_readwrite("swap_random", &Asked::swap_random)
      .def_readwrite("leaks", &Asked::leaks)
      .def_readwrite("groups", &Asked::groups)
      .def_readwrite("store_keys", &Asked::store_keys)
      .def_readwrite("store_values", &Asked::store_values);
  m.def("next_run", [] { return ++runs_begun(); });
  m.def("runs_begun", [] { return runs_begun().load(); });
  m.def(
      "set_runs_begun", [](int runs) { runs_begun().store(runs); }, py::arg("runs"));
  m.def("explore", &explore, py::arg("asked"), py::arg("ranks"), py::arg("progress"));
  m.def(
      "observe",
      [](const std::string& name, const std::string& text, const py::bytes& bytes) {
        observe(name, text, static_cast<std::string_view>(bytes));
      },
      py::arg("name"), py::arg("text"), py::arg("bytes"));
  m.def(
      "uncovered",
      [](const std::string& what) {
        int rank = -1;
        const std::shared_ptr<Job> job = Job::current(&rank);
        StepRecord* const record = job != nullptr ? job->world().scheduler().record() : nullptr;
        if (record != nullptr) record->uncovered(what);
      },
      py::arg("what"));
  m.def(
      "tensor_bytes",
      [](const at::Tensor& tensor) {
        const at::Tensor flat = tensor.detach().cpu().contiguous();
        if (flat.nbytes() > 0 && flat.const_data_ptr() == nullptr)
          throw py::type_error("observe: a tensor has no memory of its own, want one with data");
        return py::bytes(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
      },
      py::arg("tensor"));

  bind_devices(m);
  bind_records(m);
  m.def("current", []() -> std::optional<std::pair<std::shared_ptr<Job>, int>> {
    int rank = -1;
    std::shared_ptr<Job> job = Job::current(&rank);
    if (job == nullptr) return std::nullopt;
    return std::pair<std::shared_ptr<Job>, int>(std::move(job), rank);
  });
  m.def("acts_for", &Job::acts_for);
  bind_futures(m);
  m.def(
      "detach", [](const std::string& failure) { Job::detach(failure); }, py::arg("failure") = "");
  m.def("yield_now", [] {
    int rank = -1;
    const std::shared_ptr<Job> job = Job::current(&rank);
    if (job == nullptr) return;
    const GilRelease no_gil;
    job->world().scheduler().point(Site{.what = "yield", .code = python_site()});
    job->after_point(rank);
  });
  m.def("last_report", []() -> py::object {
    const std::optional<JobReport> report = last_report();
    return report.has_value() ? py::object(report_dict(*report)) : py::none();
  });
  m.def("make_backend", &make_backend, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("name"), py::arg("group_name"), py::arg("ranks"));
  m.def("make_fake_backend", &make_fake_backend, py::arg("rank"), py::arg("size"), py::arg("name"),
        py::arg("error_on_collective"), py::arg("timeout"), py::arg("record") = nullptr, py::arg("group_name") = "0",
        py::arg("description") = "default_pg", py::arg("ranks") = std::vector<int>());
  m.def(
      "make_checker",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) -> c10::intrusive_ptr<c10d::Backend> {
        auto* const ours = dynamic_cast<TorchBackend*>(backend.get());
        return ours != nullptr ? ours->checker() : nullptr;
      },
      py::arg("backend"));
  py::class_<TorchStore, c10d::Store, c10::intrusive_ptr<TorchStore>>(m, "Store");
  py::class_<TorchFileStore, TorchStore, c10::intrusive_ptr<TorchFileStore>>(m, "FileStore")
      .def_property_readonly("path", &TorchFileStore::path);
  py::class_<TorchTcpStore, TorchStore, c10::intrusive_ptr<TorchTcpStore>>(m, "TCPStore")
      .def_property_readonly("host", &TorchTcpStore::host)
      .def_property_readonly("port", &TorchTcpStore::port)
      .def_property_readonly("libuvBackend", [](const TorchTcpStore&) { return true; });
  py::class_<NamedStore>(m, "NamedStore")
      .def(py::init<>())
      .def_property_readonly("in_use", &NamedStore::in_use)
      .def_property_readonly("has_server", &NamedStore::has_server)
      .def_property_readonly("had_server", &NamedStore::had_server)
      .def_property_readonly("workers", &NamedStore::workers)
      .def("file", &NamedStore::file, py::arg("path"), py::arg("workers"))
      .def("tcp", &NamedStore::tcp, py::arg("host"), py::arg("port"), py::arg("listens"));
  m.def("make_hash_store",
        [] { return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<TorchStore>(std::make_shared<HashStore>())); });
  m.def("make_fake_store",
        [] { return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<TorchStore>(std::make_shared<FakeStore>())); });

  // Known to Python by its own type: no lookup for each call goes through the bases, and wait() lets go of the
  // interpreter lock only where it waits. c10d's takes a timeout of Python's even if none is given.
  py::class_<TorchWork, c10d::Work, WorkHolder<TorchWork>>(m, "Work")
      .def("wait", [](TorchWork& self) { return self.wait(); })
      .def(
          "wait", [](TorchWork& self, Milliseconds timeout) { return self.wait(timeout); }, py::arg("timeout"));

  // As ProcessGroupGloo has them: programs make devices through a group's backend. Ours needs none.
  py::class_<TorchBackend, c10d::Backend, c10::intrusive_ptr<TorchBackend>> backend(m, "Backend");
  backend.def("_set_default_timeout", &TorchBackend::setTimeout, py::arg("timeout"));
  backend.def_property_readonly("options", &TorchBackend::getBackendOptions);
  for (const char* name : {"create_device", "create_default_device"}) {
    backend.def_static(name, [name](const py::args& args, const py::kwargs& kwargs) {
      return py::module_::import("torch.distributed").attr("ProcessGroupGloo").attr(name)(*args, **kwargs);
    });
  }
  m.def("set_library_folders", &set_library_folders);
  m.def("python_site", [] {
    const CodeSite site = python_site();
    return std::pair<std::string, int>(site.file, site.line);
  });
  m.def("set_hooks", [](py::function stacks, py::function swap_random) {
    // Kept for ever: threads may end after the interpreter.
    auto* const keep_stacks = new py::function(std::move(stacks));
    auto* const keep_swap = new py::function(std::move(swap_random));
    python_hooks().stacks = [keep_stacks](const std::vector<std::pair<int, uint64_t>>& threads) -> std::string {
      const py::gil_scoped_acquire gil;
      try {
        return (*keep_stacks)(threads).cast<std::string>();
      } catch (const std::exception& error) {
        return absl::StrCat("(no stacks: ", error.what(), ")");
      }
    };
    python_hooks().swap_random = [keep_swap](int64_t job, int from, int to) {
      const py::gil_scoped_acquire gil;
      (*keep_swap)(job, from, to);
    };
  });
}

}  // namespace
}  // namespace rankloom::bridge
