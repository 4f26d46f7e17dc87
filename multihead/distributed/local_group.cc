#include "multihead/distributed/local_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <tuple>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel-inl.h"

namespace multihead::distributed {
namespace {

// Threads of which one runs at a time; each says when another may.
class Turns {
 public:
  explicit Turns(int threads) : here_(static_cast<size_t>(threads), true) {}

  /// The first thread's turn; or, if there is not a thread for everyone, nobody's.
  void start(bool complete) {
    const std::lock_guard lock(mutex_);
    turn_ = 0, is_given_up_ = !complete;
    changed_.notify_all();
  }
  /// Waits for the first turn. False: there will be none.
  bool begin(int thread) {
    std::unique_lock lock(mutex_);
    wait_for(thread, lock);
    return !is_given_up_;
  }
  void end(int thread) {
    const std::lock_guard lock(mutex_);
    here_[static_cast<size_t>(thread)] = false;
    next();
  }
  /// Nothing to do for this one: the next. Once none has anything to do, with naps, for the CPU may be
  /// another process's.
  void pass(int thread) {
    std::unique_lock lock(mutex_);
    if (++passes_ > 16 * std::ssize(here_)) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
    }
    next();
    wait_for(thread, lock);
  }
  void has_worked() { passes_ = 0; }

 private:
  void wait_for(int thread, std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return turn_ == thread || is_given_up_; });
  }
  void next() {
    const int count = static_cast<int>(here_.size());
    for (int step = 1; step <= count; ++step) {
      const int thread = (turn_ + step) % count;
      if (!here_[static_cast<size_t>(thread)]) continue;
      turn_ = thread;
      break;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> here_;
  int turn_ = -1;
  bool is_given_up_ = false;
  int64_t passes_ = 0;  // without work in between
};

// State shared by the ranks of one host. The thread whose turn it is uses it.
struct Host {
  using Address = std::tuple<int, int, int>;  // from, to, tag

  Host(Group& group, int count) : hosts(group), per_host(count), turns(count) {}
  int of(int rank) const { return rank / per_host; }
  void check() const { MH_CHECK(failed < 0, GroupError, "group: rank ", failed, " has failed"); }

  Group& hosts;
  int per_host;
  Turns turns;
  std::map<Address, std::deque<std::vector<std::byte>>> boxes;  // sent, copied, until it is received
  int failed = -1;
  std::exception_ptr error;
};

// The waiting, in turns.
class Waiting : public Message {
 public:
  Waiting(Host& host, int rank) : host_(host), rank_(rank) {}
  bool test() final {
    if (!done_ && arrived()) done_ = true, host_.turns.has_worked();
    return done_;
  }
  void wait() final {
    while (!test()) host_.turns.pass(rank_ % host_.per_host);
  }

 protected:
  virtual bool arrived() = 0;
  Host& host_;
  int rank_;

 private:
  bool done_ = false;
};

class Sent final : public Message {
 public:
  bool test() override { return true; }
  void wait() override {}
};

class Expected final : public Waiting {
 public:
  Expected(Host& host, const Host::Address& address, std::span<std::byte> data)
      : Waiting(host, std::get<1>(address)), address_(address), data_(data) {}

 private:
  bool arrived() override {
    std::deque<std::vector<std::byte>>& box = host_.boxes[address_];
    if (box.empty()) {
      host_.check();
      return false;
    }
    MH_CHECK(box.front().size() == data_.size(), ValueError, "group: rank ", std::get<1>(address_),
             " expects ", data_.size(), " bytes from rank ", std::get<0>(address_), ", got ",
             box.front().size());
    std::copy(box.front().begin(), box.front().end(), data_.begin());
    box.pop_front();
    return true;
  }

  Host::Address address_;
  std::span<std::byte> data_;
};

// From or to a rank of another host.
class Remote final : public Waiting {
 public:
  Remote(Host& host, int rank, MessagePtr message) : Waiting(host, rank), message_(std::move(message)) {}

 private:
  bool arrived() override {
    const bool done = message_->test();
    if (!done) host_.check();
    return done;
  }

  MessagePtr message_;
};

class HostedGroup final : public Group {
 public:
  HostedGroup(Host& host, int rank, int size) : Group(rank, size), host_(host) {}

 private:
  MessagePtr start_send(int to, std::span<const std::byte> data, int tag) override {
    if (host_.of(to) != host_.hosts.rank()) {
      return remote(host_.hosts.isend(host_.of(to), data, tag_of(rank(), to, tag)));
    }
    host_.boxes[{rank(), to, tag}].emplace_back(data.begin(), data.end());
    host_.turns.has_worked();
    return std::make_unique<Sent>();
  }
  MessagePtr start_recv(int from, std::span<std::byte> data, int tag) override {
    if (host_.of(from) != host_.hosts.rank()) {
      return remote(host_.hosts.irecv(host_.of(from), data, tag_of(from, rank(), tag)));
    }
    return std::make_unique<Expected>(host_, Host::Address{from, rank(), tag}, data);
  }
  MessagePtr remote(MessagePtr message) const {
    return std::make_unique<Remote>(host_, rank(), std::move(message));
  }
  // Between two hosts all pairs of their ranks talk.
  int tag_of(int from, int to, int tag) const {
    const int n = host_.per_host;
    return (tag * n + from % n) * n + to % n;
  }

  Host& host_;
};

// As many as the system gives.
std::vector<std::thread> start_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<size_t>(count));
    for (int n = 0; n < count; ++n) threads.push_back(start_thread()([body, n] { body(n); }));
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  return threads;
}

}  // namespace

void check_hosted(int size, int hosts) {
  constexpr int kMostPerHost = 4;  // for tags below 2^20, which every MPI has
  MH_CHECK(size >= 1, ValueError, "group: size must be positive, got ", size);
  MH_CHECK(size % hosts == 0, ValueError, "group: ", hosts, " processes cannot share ", size,
           " parts evenly");
  MH_CHECK(hosts == 1 || size / hosts <= kMostPerHost, ValueError, "group: ", size,
           " parts need one process or ", (size + kMostPerHost - 1) / kMostPerHost, " at least, got ", hosts);
}

void run_hosted_group(Group& hosts, int size, const std::function<void(Group& group)>& body) {
  check_hosted(size, hosts.size());
  const int count = size / hosts.size();
  if (count == 1) return body(hosts);
  Host host(hosts, count);
  std::vector<std::thread> threads = start_threads(count, [&](int n) {
    const int rank = hosts.rank() * count + n;
    if (!host.turns.begin(n)) return;
    try {
      HostedGroup group(host, rank, size);
      body(group);
    } catch (...) {
      if (host.failed < 0) host.failed = rank, host.error = std::current_exception();
    }
    host.turns.end(n);
  });
  const bool complete = std::ssize(threads) == count;
  host.turns.start(complete);
  for (std::thread& thread : threads) thread.join();
  MH_CHECK(complete, GroupError, "group: only ", threads.size(), " of ", count,
           " ranks could be given a thread (a limit on processes or memory); use fewer ranks");
  if (host.error) std::rethrow_exception(host.error);
}

void run_local_group(int size, const std::function<void(Group& group)>& body) {
  const std::unique_ptr<Group> alone = single();
  run_hosted_group(*alone, size, body);
}

}  // namespace multihead::distributed
