#pragma once

#include "absl/functional/function_ref.h"
#include "rankloom/rankloom.h"

namespace rankloom {

// Runs `program` once in each process of an MPI job, whose rank it is there: run_world() across processes and machines.
// Every process of the job makes the call, with the same options, and one call at a time.
//
//   int main() {                                              // mpirun -n 4 ./train
//     const RunReport report = run_mpi_world({}, [](RankContext& rank) {
//       auto pg = init_process_group(rank);                   // over MPI, with the same checks and the same bits
//       std::vector<float> x(1024, float(rank.rank()));
//       pg->all_reduce(x).wait();
//       rank.store().set("done", "1");                        // one store for all processes
//     });
//     if (!report.ok()) std::puts(report.text().c_str());     // every process has the whole report
//     return report.ok() ? 0 : 1;
//   }
//
// Options: world_size is the number of processes, or left at 1 for that. A process's rank is the thread that makes this
//   call, and runs freely and in real time: fibers, schedules, poison and late completion are refused.
// `compare_calls`: members' calls are compared before any data move, and those that differ are a Mismatch with a table.
//   Without it each call is held to the rules of its own shapes only, as of a library in production: what differs ends
//   in an error of MPI, or in wrong data. Calls that make groups are always compared.
// Result: how every rank of the job ended, the same in all processes, with the calls of all for write_run() and
//   RANKLOOM_REPORT, whose file process 0 writes; `trace` and `rerun` are empty.
// Records: traces::dump_flight_records() writes the file of the process's own rank, once that has made a call.
// MPI: initialised here with MPI_THREAD_MULTIPLE, and finalized at exit, unless the program has done the first itself.
//   Communicators are the call's own, so the program may use MPI beside it.
// Failure: a rank that throws aborts all with its text. One that has not ended 30 s after an abort ends the whole job
//   by MPI_Abort. When a process dies, the launcher ends the others: mpirun does.
// Errors: InvalidArgument for options that do not fit, for an MPI that was initialised with a lower thread level or is
//   finalized, for processes with another version of the library or another `compare_calls`, and in a rank program. If
//   one process refuses, all do; but one that makes two calls at a time refuses the second one alone. CollectiveError
//   with MPI's words.
// Blocking: until all ranks have ended. While other processes have not made the call, a process says so after
//   `options.stall`, and again after twice that time and so on; after `options.stall_is_fatal`, if set, the job ends.
RunReport run_mpi_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program, bool compare_calls = true,
                        CodeSite code = CodeSite::here());

// The same with `ranks_per_process` ranks in each process: worlds that outgrow one machine, of millions of ranks.
//
//   run_mpi_world({.world_size = 4'000'000}, /*ranks_per_process=*/500'000, program);       // mpirun -n 8 ./train
//
// Ranks: fibers, under fifo, whatever `options.engine` says; process p has those from p * ranks_per_process on, and the
//   last one has fewer if the world cannot be divided. Time is virtual, and the same in all processes. Which message
//   comes first depends on the processes, so that runs do not repeat as those of one process do.
// Calls: a collective meets in its process first, then travels once for all ranks of it. Groups whose members are in
//   one process need no MPI. Results have the bits of one process. Calls are always compared.
// Deadlock: found at once, by counting messages; the report names the ranks of all processes.
// Options: world_size left at 1: ranks_per_process times the number of processes. With ranks_per_process = 1: as above.
// Errors: also InvalidArgument for a world_size that needs more or fewer processes than there are.
RunReport run_mpi_world(WorldOptions options, int ranks_per_process, absl::FunctionRef<void(RankContext&)> program,
                        CodeSite code = CodeSite::here());

struct ExploreOptions;  // rankloom/explore.h
struct ExploreReport;

// explore() by all processes of an MPI job, on as many machines as it has. Every process makes the call, with the same
// options; each run is made by one of them, with all its ranks in that process. `argc`, `argv`: of main(), or null, as
// MPI_Init() takes them.
//
//   int main(int argc, char** argv) {                         // mpirun -n 64 ./search
//     const ExploreReport report = explore(&argc, &argv, {.max_runs = 1'000'000}, program);
//     int process = 0;
//     MPI_Comm_rank(MPI_COMM_WORLD, &process);
//     if (process == 0) std::puts(report.text().c_str());     // every process has the whole report
//     return report.ok() ? 0 : 1;
//   }
//
// Process 0 leads: it deals out seeds and parts of the tree of schedules, takes work back for processes that have none,
//   and searches as well. The first failure ends the search; process 0 alone shrinks it. Its rerun command needs no
//   other process. A run that goes on then may take 30 s more, or the job is ended by MPI_Abort.
// Result: as explore()'s, the same in all processes but for exceptions and what RunReport::write_run() needs.
// Options: processes stays 1. Process 0's budget counts, and its progress function is called, by a thread of its own;
//   where there is none, and stderr is no terminal, it writes a line there every ten seconds.
// MPI: as for run_mpi_world(), on a communicator of the call's own. Processes that do not come: as there, by
//   options.world.
// Failure: when a process dies, the launcher ends the job: mpirun does. All that was found is lost then; to find the
//   run in which a program crashes, use ExploreOptions::processes. A run that calls exit() ends the job, too.
// Errors: as explore()'s, in the report of all processes; also for an MPI that does not fit, for processes of another
//   build, with other options or whose first run differs.
ExploreReport explore(int* argc, char*** argv, const ExploreOptions& options,
                      absl::FunctionRef<void(RankContext&)> program, CodeSite code = CodeSite::here());

}  // namespace rankloom
