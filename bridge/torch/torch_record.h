#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// The groups of one fake world of Python's: their record, and what their outputs hold.
// Thread-safety: all methods; record() only under mu(). That lock is taken with and without the interpreter lock, so
// nothing that wants the latter is done under it.
class TorchRecord {
 public:
  // `scope`: the module that calls, for the calling thread; empty: none. Takes the interpreter lock by itself, and is
  // called without mu().
  TorchRecord(CostModel model, FakeOptions::Outputs outputs, std::function<std::string()> scope)
      : record_(std::make_shared<CallRecord>(std::move(model))), outputs_(outputs), scope_(std::move(scope)) {}

  // A fake group that writes into the record. `ranks`: its global ranks in group order; empty: all of the world.
  // Errors: DistError as of make_fake_process_group(); InvalidArgument if the record is closed.
  std::shared_ptr<ProcessGroup> make_group(int rank, int size, const std::string& name, const std::string& description,
                                           const std::vector<int>& ranks, bool error_on_collective, CodeSite code);

  std::mutex& mu() { return mu_; }
  const std::shared_ptr<CallRecord>& record() { return record_; }
  FakeOptions::Outputs outputs() const { return outputs_; }

  // To be asked before a call, without mu(): the scope, which lives for ever; null: none.
  const char* scope() const;
  // Under mu(): calls from here on are made in `scope`.
  void enter(const char* scope);

  // A call had tensors with data, at this line: told to `on_data` once.
  void met_data(const char* op, CodeSite code);
  void on_data(std::function<void(const char* op, CodeSite code)> told) { on_data_ = std::move(told); }

  // No further calls: those end as `why`.
  void close(std::string why);
  // Why it is closed; empty: it is not.
  std::string closed();

 private:
  std::mutex mu_;
  const std::shared_ptr<CallRecord> record_;
  const FakeOptions::Outputs outputs_;
  const std::function<std::string()> scope_;
  std::function<void(const char* op, CodeSite code)> on_data_;  // const after the first call
  std::atomic<bool> told_of_data_{false};
  std::string closed_;  // guarded by mu_
};

// The extension's FakeRecord, and `links`.
void bind_records(pybind11::module_& module);

}  // namespace rankloom::bridge
