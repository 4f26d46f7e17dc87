#include "multihead/distributed/local_group.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace multihead::distributed {
namespace {

// What is sent waits here, copied, until it is received.
class Mail {
 public:
  using Address = std::tuple<int, int, int>;  // from, to, tag

  void put(const Address& address, std::span<const std::byte> data) {
    const std::lock_guard lock(mutex_);
    boxes_[address].emplace_back(data.begin(), data.end());
    arrived_.notify_all();
  }

  // False: nothing there yet, and not asked to wait.
  bool take(const Address& address, std::span<std::byte> data, bool wait) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<std::byte>>& box = boxes_[address];
    if (wait) arrived_.wait(lock, [&] { return !box.empty() || failed_ >= 0; });
    if (box.empty()) {
      MH_CHECK(failed_ < 0, GroupError, "group: rank ", failed_, " has failed");
      return false;
    }
    MH_CHECK(box.front().size() == data.size(), ValueError, "group: rank ", std::get<1>(address), " expects ",
             data.size(), " bytes from rank ", std::get<0>(address), ", got ", box.front().size());
    std::copy(box.front().begin(), box.front().end(), data.begin());
    box.pop_front();
    return true;
  }

  void fail(int rank, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (failed_ >= 0) return;
    failed_ = rank;
    error_ = std::move(error);
    arrived_.notify_all();
  }

  const std::exception_ptr& error() const { return error_; }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Address, std::deque<std::vector<std::byte>>> boxes_;
  int failed_ = -1;
  std::exception_ptr error_;
};

class Sent final : public Message {
 public:
  bool test() override { return true; }
  void wait() override {}
};

class Expected final : public Message {
 public:
  Expected(Mail& mail, Mail::Address address, std::span<std::byte> data)
      : mail_(mail), address_(address), data_(data) {}
  bool test() override { return done_ = done_ || mail_.take(address_, data_, false); }
  void wait() override { done_ = done_ || mail_.take(address_, data_, true); }

 private:
  Mail& mail_;
  Mail::Address address_;
  std::span<std::byte> data_;
  bool done_ = false;
};

class LocalGroup final : public Group {
 public:
  LocalGroup(Mail& mail, int rank, int size) : Group(rank, size), mail_(mail) {}

 private:
  MessagePtr start_send(int to, std::span<const std::byte> data, int tag) override {
    mail_.put({rank(), to, tag}, data);
    return std::make_unique<Sent>();
  }
  MessagePtr start_recv(int from, std::span<std::byte> data, int tag) override {
    return std::make_unique<Expected>(mail_, Mail::Address{from, rank(), tag}, data);
  }

  Mail& mail_;
};

}  // namespace

void run_local_group(int size, const std::function<void(Group& group)>& body) {
  MH_CHECK(size >= 1, ValueError, "group: size must be positive, got ", size);
  Mail mail;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LocalGroup group(mail, rank, size);
        body(group);
      } catch (...) {
        mail.fail(rank, std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (mail.error()) std::rethrow_exception(mail.error());
}

}  // namespace multihead::distributed
