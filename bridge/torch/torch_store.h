#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// One of our stores as c10d's. Waits park the calling rank, so a run under the baton goes on and a rank that waits for
// a key that nobody sets is in the deadlock report.
class TorchStore : public c10d::Store {
 public:
  explicit TorchStore(std::shared_ptr<rankloom::Store> store) : store_(std::move(store)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return alike(c10::make_intrusive<TorchStore>(store_)); }

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

 protected:
  // With the timeout that this one says it has.
  c10::intrusive_ptr<c10d::Store> alike(c10::intrusive_ptr<c10d::Store> made) const {
    static_cast<TorchStore&>(*made).c10d::Store::setTimeout(timeout_);
    return made;
  }

  const std::shared_ptr<rankloom::Store> store_;

 private:
  template <typename Call>
  auto call(const Call& body);
};

// Handles of one kind, counted.
using Handle = std::shared_ptr<const bool>;

// A store that ranks find by the path of a file.
class TorchFileStore final : public TorchStore {
 public:
  TorchFileStore(std::shared_ptr<rankloom::Store> store, Handle handle, std::string path)
      : TorchStore(std::move(store)), handle_(std::move(handle)), path_(std::move(path)) {}
  c10::intrusive_ptr<c10d::Store> clone() override {
    return alike(c10::make_intrusive<TorchFileStore>(store_, handle_, path_));
  }
  const std::string& path() const { return path_; }

 private:
  const Handle handle_;
  const std::string path_;
};

// A store that ranks find by host and port. `server`: of the one that listens there, null for clients.
class TorchTcpStore final : public TorchStore {
 public:
  TorchTcpStore(std::shared_ptr<rankloom::Store> store, Handle handle, Handle server, std::string host, int port)
      : TorchStore(std::move(store)),
        handle_(std::move(handle)),
        server_(std::move(server)),
        host_(std::move(host)),
        port_(port) {}
  c10::intrusive_ptr<c10d::Store> clone() override {
    return alike(c10::make_intrusive<TorchTcpStore>(store_, handle_, nullptr, host_, port_));
  }
  const std::string& host() const { return host_; }
  int port() const { return port_; }

 private:
  const Handle handle_;
  const Handle server_;
  const std::string host_;
  const int port_;
};

// The state that stores of one name share. Thread-safety: the caller's lock.
class NamedStore {
 public:
  NamedStore() : store_(std::make_shared<HashStore>()), workers_(std::make_shared<HashStore>()) {}

  // Somebody holds one of its stores.
  bool in_use() const { return !handle_.expired(); }
  // Somebody holds one that listens.
  bool has_server() const { return !server_.expired(); }
  // Its content goes with the last that holds one: somebody held one that listens, or as many held it as were to.
  bool had_server() const { return had_server_; }
  // The place where arrivals are counted.
  c10::intrusive_ptr<c10d::Store> workers() const { return c10::make_intrusive<TorchStore>(workers_); }
  // `workers`: so many will hold it; negative: any number.
  c10::intrusive_ptr<c10d::Store> file(const std::string& path, int workers) {
    ++files_;
    had_server_ = had_server_ || (workers >= 0 && files_ >= workers);
    return c10::make_intrusive<TorchFileStore>(store_, held(&handle_), path);
  }
  c10::intrusive_ptr<c10d::Store> tcp(const std::string& host, int port, bool listens) {
    had_server_ = had_server_ || listens;
    return c10::make_intrusive<TorchTcpStore>(store_, held(&handle_), listens ? held(&server_) : nullptr, host, port);
  }

 private:
  static Handle held(std::weak_ptr<const bool>* all) {
    Handle handle = all->lock();
    if (handle == nullptr) *all = handle = std::make_shared<const bool>(true);
    return handle;
  }

  const std::shared_ptr<rankloom::Store> store_;
  const std::shared_ptr<rankloom::Store> workers_;
  bool had_server_ = false;
  int files_ = 0;  // made so far
  std::weak_ptr<const bool> handle_;
  std::weak_ptr<const bool> server_;
};

}  // namespace rankloom::bridge
