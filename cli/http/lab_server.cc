#include "cli/http/lab_server.h"

#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace multihead::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Threads that serve a connection each; as many as the system gives, one at least.
class Workers : public httplib::TaskQueue {
 public:
  explicit Workers(size_t most) {
    threads_.reserve(most);
    try {
      while (threads_.size() < most) threads_.emplace_back([this] { work(); });
    } catch (const std::exception&) {  // a limit on processes or memory
      if (threads_.empty()) throw;
    }
  }
  ~Workers() override { shutdown(); }

  void enqueue(std::function<void()> job) override {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return has_ended_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool has_ended_ = false;
  std::vector<std::thread> threads_;
};

/// The open connections to a port of this process. The library does not say which they are.
class Connections {
 public:
  /// Ends those that have neither sent their request nor taken their answer in time.
  void end_slow(int port, const std::set<int>& computing) {
    constexpr auto kPatience = std::chrono::seconds(10);
    const Clock::time_point now = Clock::now();
    std::map<ino_t, Clock::time_point> seen;
    each(port, [&](int descriptor, ino_t inode, int peer) {
      const auto before = since_.find(inode);
      const bool is_new = before == since_.end() || computing.contains(peer);
      const Clock::time_point since = is_new ? now : before->second;
      seen[inode] = since;
      if (now - since > kPatience) ::shutdown(descriptor, SHUT_RDWR);
    });
    since_ = std::move(seen);
  }
  static void end_all(int port) {
    each(port, [](int descriptor, ino_t, int) { ::shutdown(descriptor, SHUT_RDWR); });
  }

 private:
  template <class F>
  static void each(int port, F&& call) {
    constexpr int kMostDescriptors = 1024;
    for (int descriptor = 3; descriptor < kMostDescriptors; ++descriptor) {
      sockaddr_in here = {}, there = {};
      struct stat status = {};
      if (name_of(descriptor, ::getsockname, here) && name_of(descriptor, ::getpeername, there) &&
          ntohs(here.sin_port) == port && ::fstat(descriptor, &status) == 0) {
        call(descriptor, status.st_ino, int{ntohs(there.sin_port)});
      }
    }
  }
  static bool name_of(int descriptor, int (*call)(int, sockaddr*, socklen_t*), sockaddr_in& name) {
    socklen_t size = sizeof name;
    return call(descriptor, reinterpret_cast<sockaddr*>(&name), &size) == 0 && name.sin_family == AF_INET;
  }

  std::map<ino_t, Clock::time_point> since_;
};

/// A page on loopback that other pages in the browser cannot use.
class Server {
 public:
  explicit Server(const LabRequests& requests) {
    // A client that is slow takes one of them; the model computes for one at a time, which has all threads.
    server_.new_task_queue = [] { return new Workers(8); };
    server_.set_payload_max_length(1 << 20);
    // Not a port that another server listens on, which the library's own options allow.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_keep_alive_timeout(1);
    server_.Get("/", [this, &requests](const httplib::Request& request, httplib::Response& response) {
      if (!is_ours(request, response)) return;
      const Computing computing(*this, request);
      response.set_content(requests.page(), "text/html; charset=utf-8");
    });
    server_.Post("/run", [this, &requests](const httplib::Request& request, httplib::Response& response) {
      if (!is_ours(request, response)) return;
      // Another site's page may send text, not JSON, without asking for permission.
      if (!request.get_header_value("Content-Type").starts_with("application/json")) {
        response.status = 415;
        return;
      }
      const Computing computing(*this, request);
      auto [status, answer] = requests.run(request.body);
      response.status = status;
      response.set_content(answer, "application/json");
    });
  }

  // The port that was bound; 0: none.
  int bind(int64_t port) {
    if (port == 0) return port_ = std::max(0, server_.bind_to_any_port("127.0.0.1"));
    return port_ = server_.bind_to_port("127.0.0.1", static_cast<int>(port)) ? static_cast<int>(port) : 0;
  }

  void run_until(const std::function<bool()>& should_stop) {
    std::atomic<bool> ended = false;
    std::exception_ptr error;
    std::thread thread([&] {
      try {
        server_.listen_after_bind();
      } catch (...) {
        error = std::current_exception();
      }
      ended = true;
    });
    Connections connections;
    while (!ended && !should_stop()) {
      connections.end_slow(port_, computing());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    while (!ended) {
      server_.stop();
      Connections::end_all(port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    thread.join();
    if (error) std::rethrow_exception(error);
  }

 private:
  // While it lives, its request waits for the model or has it.
  class Computing {
   public:
    Computing(Server& server, const httplib::Request& request) : server_(server), peer_(request.remote_port) {
      note(true);
      model_ = std::unique_lock(server_.model_);
    }
    ~Computing() { note(false); }
    Computing(const Computing&) = delete;
    Computing& operator=(const Computing&) = delete;

   private:
    void note(bool begins) {
      const std::lock_guard lock(server_.mutex_);
      if (begins) {
        server_.computing_.insert(peer_);
      } else {
        server_.computing_.erase(peer_);
      }
    }
    Server& server_;
    int peer_;
    std::unique_lock<std::mutex> model_;
  };

  std::set<int> computing() {
    const std::lock_guard lock(mutex_);
    return computing_;
  }

  // A name that points here would let its pages read ours (DNS rebinding).
  bool is_ours(const httplib::Request& request, httplib::Response& response) const {
    const std::string host = request.get_header_value("Host");
    if (host == "127.0.0.1:" + std::to_string(port_) || host == "localhost:" + std::to_string(port_))
      return true;
    response.status = 403;
    return false;
  }

  httplib::Server server_;
  int port_ = 0;
  std::mutex model_, mutex_;
  std::set<int> computing_;  // ports of clients
};

}  // namespace
}  // namespace multihead::cli

extern "C" bool multihead_serve_lab(int64_t port, const multihead::cli::LabRequests& requests) {
  multihead::cli::Server server(requests);
  const int bound = server.bind(port);
  if (bound == 0) return false;
  requests.on_ready(bound);
  server.run_until(requests.should_stop);
  return true;
}
