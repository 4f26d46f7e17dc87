#include "multihead/serve/sockets.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <new>
#include <utility>

namespace multihead::serve {
namespace {

template <class T, void (*free)(T*)>
struct Freed {
  void operator()(T* object) const { free(object); }
};
template <class T, void (*free)(T*)>
using Owned = std::unique_ptr<T, Freed<T, free>>;
using OwnedBase = Owned<event_base, event_base_free>;
using OwnedEvent = Owned<event, event_free>;
using OwnedListener = Owned<evconnlistener, evconnlistener_free>;
using OwnedBuffer = Owned<bufferevent, bufferevent_free>;

using Clock = std::chrono::steady_clock;
constexpr size_t kMostUnread = size_t{64} << 10;  // what a client may send ahead
constexpr timeval kTick = {.tv_sec = 0, .tv_usec = 100'000};

class Loop;

// A connection. It outlives its conversation until the client has taken the last bytes.
class Client : public Socket {
 public:
  Client(Loop& loop, bufferevent* buffer) : loop_(loop), buffer_(buffer) {}

  void send(std::string_view bytes) override {
    if (evbuffer_add(bufferevent_get_output(buffer_.get()), bytes.data(), bytes.size()) != 0)
      throw std::bad_alloc();
  }
  void end() override { is_ending_ = true; }

  void begin(std::unique_ptr<Connection> talk) { talk_ = std::move(talk); }
  void read();
  void wake() {
    if (is_ending_) return;
    talk_->wake();
    read();
  }
  void tick();
  void finish() {
    if (!is_ending_) talk_->finish();
    shut_when_sent();
  }
  void break_off() {
    if (!is_ending_) talk_->break_off();
  }
  // After the last bytes only the client's own end is awaited: to close earlier would take them away from a client that
  // is still sending.
  void shut_when_sent() {
    if (!is_ending_ || is_shut_ || evbuffer_get_length(bufferevent_get_output(buffer_.get())) > 0) return;
    ::shutdown(bufferevent_getfd(buffer_.get()), SHUT_WR);
    is_shut_ = true;
    since_ = Clock::now();
  }

  void leave();
  bool has_left_unseen() const;

  bool has_gone = false;

 private:
  Loop& loop_;
  OwnedBuffer buffer_;
  std::unique_ptr<Connection> talk_;
  bool is_ending_ = false, is_shut_ = false;
  Clock::time_point since_;
};

class Loop {
 public:
  explicit Loop(const SocketLoop& asked) : asked_(asked), base_(event_base_new()) {
    if (!base_) throw std::bad_alloc();
  }

  int run() {
    if (const int problem = listen(); problem != 0) return problem;
    const OwnedEvent wake(
        event_new(base_.get(), asked_.wake_descriptor, EV_READ | EV_PERSIST, on_wake, this));
    const OwnedEvent tick(event_new(base_.get(), -1, EV_PERSIST, on_tick, this));
    if (!wake || !tick) throw std::bad_alloc();
    event_add(wake.get(), nullptr);
    event_add(tick.get(), &kTick);
    event_base_dispatch(base_.get());
    clients_.clear();
    listener_.reset();
    if (error_) std::rethrow_exception(error_);
    return 0;
  }

  // Calls of C must not throw.
  template <class F>
  void guarded(F&& call) noexcept {
    try {
      call();
    } catch (...) {
      error_ = std::current_exception();
      event_base_loopbreak(base_.get());
    }
  }

  void drop_gone() {
    clients_.remove_if([](const Client& client) { return client.has_gone; });
    if (listener_ && !is_finishing_ && std::ssize(clients_) < asked_.most)
      evconnlistener_enable(listener_.get());
  }

 private:
  int listen() {
    addrinfo hints = {};
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(asked_.host.c_str(), std::to_string(asked_.port).c_str(), &hints, &found) != 0) return -1;
    const std::unique_ptr<addrinfo, Freed<addrinfo, freeaddrinfo>> addresses(found);
    constexpr unsigned kOptions = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
    listener_.reset(evconnlistener_new_bind(base_.get(), on_client, this, kOptions, 512, found->ai_addr,
                                            static_cast<int>(found->ai_addrlen)));
    if (!listener_) return errno != 0 ? errno : EADDRNOTAVAIL;
    evconnlistener_set_error_cb(listener_.get(), on_listen_error);
    sockaddr_storage own = {};
    socklen_t size = sizeof own;
    getsockname(evconnlistener_get_fd(listener_.get()), reinterpret_cast<sockaddr*>(&own), &size);
    const in_port_t port = own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                                     : reinterpret_cast<const sockaddr_in&>(own).sin_port;
    asked_.on_ready(ntohs(port));
    return 0;
  }

  static Loop& of(void* context) { return *static_cast<Loop*>(context); }

  static void on_client(evconnlistener*, evutil_socket_t descriptor, sockaddr* address, int size,
                        void* context) {
    of(context).guarded([&] { of(context).add(descriptor, address, size); });
  }
  // Out of descriptors: the next tick tries again.
  static void on_listen_error(evconnlistener* listener, void*) { evconnlistener_disable(listener); }

  void add(evutil_socket_t descriptor, const sockaddr* address, int size) {
    const int yes = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    bufferevent* buffer = bufferevent_socket_new(base_.get(), descriptor, BEV_OPT_CLOSE_ON_FREE);
    if (buffer == nullptr) {
      ::close(descriptor);
      return;
    }
    Client& client = clients_.emplace_back(*this, buffer);
    char name[NI_MAXHOST] = "?";
    getnameinfo(address, static_cast<socklen_t>(size), name, sizeof name, nullptr, 0, NI_NUMERICHOST);
    client.begin(asked_.open(client, name));
    bufferevent_setcb(buffer, on_read, on_sent, on_event, &client);
    bufferevent_setwatermark(buffer, EV_READ, 0, kMostUnread);
    const auto seconds = static_cast<time_t>(asked_.patience);
    const timeval patience = {.tv_sec = std::max<time_t>(seconds, 1), .tv_usec = 0};
    bufferevent_set_timeouts(buffer, nullptr, &patience);
    bufferevent_enable(buffer, EV_READ | EV_WRITE);
    if (std::ssize(clients_) >= asked_.most) evconnlistener_disable(listener_.get());
  }

  static void on_read(bufferevent*, void* client) { static_cast<Client*>(client)->read(); }
  static void on_sent(bufferevent*, void* client) { static_cast<Client*>(client)->shut_when_sent(); }
  // Its end, an error, or no byte taken for too long.
  static void on_event(bufferevent*, short, void* client) { static_cast<Client*>(client)->leave(); }

  static void on_wake(evutil_socket_t descriptor, short, void* context) {
    uint64_t count = 0;
    while (::read(descriptor, &count, sizeof count) < 0 && errno == EINTR) {
    }
    of(context).guarded([&] {
      for (Client& client : of(context).clients_) client.wake();
      of(context).drop_gone();
    });
  }

  static void on_tick(evutil_socket_t, short, void* context) {
    of(context).guarded([&] { of(context).tick(); });
  }
  void tick() {
    const SocketLoop::Phase phase = asked_.phase();
    if (phase != SocketLoop::Phase::serve) {
      is_finishing_ = true;
      listener_.reset();
      for (Client& client : clients_) client.finish();
    }
    for (Client& client : clients_) client.tick();
    drop_gone();
    const bool stops = phase == SocketLoop::Phase::stop;
    const bool is_over = phase != SocketLoop::Phase::serve && clients_.empty();
    if (is_over || (stops && std::exchange(is_broken_off_, true))) {
      event_base_loopbreak(base_.get());
      return;
    }
    // Until the next tick the last bytes are on their way.
    if (stops) {
      for (Client& client : clients_) client.break_off();
    }
  }

  const SocketLoop& asked_;
  OwnedBase base_;
  OwnedListener listener_;
  std::list<Client> clients_;
  bool is_finishing_ = false, is_broken_off_ = false;
  std::exception_ptr error_;
};

void Client::read() {
  loop_.guarded([&] {
    evbuffer* input = bufferevent_get_input(buffer_.get());
    while (const size_t size = evbuffer_get_length(input)) {
      const size_t taken =
          is_ending_ ? size
                     : talk_->receive({reinterpret_cast<const char*>(evbuffer_pullup(input, -1)), size});
      if (taken == 0) break;
      evbuffer_drain(input, taken);
    }
    shut_when_sent();
  });
}

void Client::leave() {
  has_gone = true;
  loop_.guarded([&] { loop_.drop_gone(); });
}

// With as much unread as it may send ahead, nothing more is read, not even its end, which the system knows unless more than
// it holds is on its way.
bool Client::has_left_unseen() const {
  if (evbuffer_get_length(bufferevent_get_input(buffer_.get())) < kMostUnread) return false;
  pollfd end = {.fd = bufferevent_getfd(buffer_.get()), .events = POLLRDHUP, .revents = 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Client::tick() {
  constexpr auto kLinger = std::chrono::seconds(2);
  if (has_left_unseen()) {
    has_gone = true;
    return;
  }
  if (!is_ending_) talk_->tick();
  shut_when_sent();
  if (is_shut_ && Clock::now() - since_ > kLinger) has_gone = true;
}

// As many descriptors as the connections need, if the system gives them.
void raise_descriptors(int64_t most) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur =
      std::min<rlim_t>(limit.rlim_max, std::max<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(most) + 64));
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Why descriptors for the loop (4) and a client or two cannot be had: an errno, or 0. libevent ends the program where its
// own are missing.
int try_descriptors(int any) {
  std::array<int, 6> tried = {};
  int problem = 0;
  for (int& descriptor : tried) {
    descriptor = ::dup(any);
    if (descriptor < 0) problem = errno;
  }
  for (const int descriptor : tried) {
    if (descriptor >= 0) ::close(descriptor);
  }
  return problem;
}

}  // namespace
}  // namespace multihead::serve

extern "C" int multihead_run_sockets(const multihead::serve::SocketLoop& loop) {
  multihead::serve::raise_descriptors(loop.most);
  if (const int problem = multihead::serve::try_descriptors(loop.wake_descriptor); problem != 0)
    return problem;
  return multihead::serve::Loop(loop).run();
}
