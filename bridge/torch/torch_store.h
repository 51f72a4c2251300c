#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// One of our stores as c10d's. Waits park the calling rank, so a run under the baton goes on and a rank that waits for a
// key that nobody sets is in the deadlock report.
class TorchStore final : public c10d::Store {
 public:
  explicit TorchStore(std::shared_ptr<rankloom::Store> store) : store_(std::move(store)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<TorchStore>(store_); }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  void queuePush(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> queuePop(const std::string& key, bool block) override;
  int64_t queueLen(const std::string& key) override;
  std::vector<std::string> listKeys() override;

 private:
  template <typename Call>
  auto call(const char* what, const Call& body);

  const std::shared_ptr<rankloom::Store> store_;
};

}  // namespace rankloom::bridge
