#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/distributed/mpi_group-inl.h"
#include "multihead/distributed/watch-inl.h"

namespace multihead::distributed {
namespace {

constexpr int kChannel = 0;
// MPI counts in int; the pieces of a message keep their order.
constexpr size_t kPiece = size_t{1} << 30;
constexpr std::chrono::microseconds kAwake(200), kNap(50), kLongNap(250);

class MpiMessage final : public Message {
 public:
  MpiMessage(const MpiFunctions& mpi, Watch* watch, int peer) : mpi_(mpi), watch_(watch), peer_(peer) {}
  ~MpiMessage() override {
    for (void* request : requests_) mpi_.cancel(request);
  }

  void add(void* request) {
    MH_CHECK(request != nullptr, GroupError, "group: a message with rank ", peer_, " failed");
    requests_.push_back(request);
  }

  bool test() override {
    if (watch_ != nullptr) watch_->touch();
    while (!requests_.empty()) {
      const int state = mpi_.test(requests_.back());
      if (state == 0) return false;
      requests_.pop_back();
      MH_CHECK(state != -2, ValueError, "group: rank ", peer_,
               " sent another number of bytes than this rank expects");
      if (state < 0) lost();
    }
    return true;
  }

  // Awake for a moment, for most answers come at once; then in naps, for the CPU may be another rank's: short
  // ones, for some MPIs move data only while they are asked.
  void wait() override {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    for (int64_t round = 0; !test(); ++round) {
      if (round % 64 != 63) continue;
      const auto waited = Clock::now() - begin;
      if (waited < kAwake) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 16, kNap, kLongNap));
      }
    }
  }

 private:
  // The watch says more, and to everyone; it needs a moment.
  [[noreturn]] void lost() const {
    if (watch_ != nullptr) std::this_thread::sleep_for(std::chrono::seconds(9));
    throw GroupError(concat("group: the connection to rank ", peer_, " is lost"));
  }

  const MpiFunctions& mpi_;
  Watch* watch_;
  int peer_;
  std::vector<void*> requests_;
};

template <class Byte, class Start>
MessagePtr in_pieces(std::unique_ptr<MpiMessage> message, std::span<Byte> data, Start&& start) {
  size_t begin = 0;
  do {
    const size_t size = std::min(kPiece, data.size() - begin);
    message->add(start(data.data() + begin, static_cast<int>(size)));
    begin += size;
  } while (begin < data.size());
  return message;
}

double seconds_in(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::optional<double> seconds = spelled_number<double>(text);
  MH_CHECK(seconds && *seconds >= 1 && *seconds <= 1e6, ValueError, variable,
           " must be a number of seconds from 1 to 1e6, got ", quote(text));
  return *seconds;
}

}  // namespace

MpiGroup::MpiGroup(const MpiFunctions& functions) : Group(functions.rank, functions.size), mpi_(functions) {
  std::vector<Place> places(static_cast<size_t>(size()));
  places[static_cast<size_t>(rank())] = this_place();
  for (int root = 0; root < size(); ++root) {
    broadcast(root, std::as_writable_bytes(std::span(&places[static_cast<size_t>(root)], 1)));
  }
  // A host program may have started MPI without threads; then only messages find out.
  if (mpi_.any_thread != 0)
    watch_ = std::make_unique<Watch>(mpi_, std::move(places), seconds_in("MULTIHEAD_SILENCE", 7),
                                     seconds_in("MULTIHEAD_STALL", 0));
}

MpiGroup::~MpiGroup() = default;

void MpiGroup::leave() {
  barrier();
  watch_.reset();
  mpi_.finalize();
}

void MpiGroup::abort(int code) { mpi_.abort(code); }

MessagePtr MpiGroup::start_send(int to, std::span<const std::byte> data, int tag) {
  return in_pieces(
      std::make_unique<MpiMessage>(mpi_, watch_.get(), to), data,
      [&](const std::byte* piece, int bytes) { return mpi_.isend(piece, bytes, to, tag, kChannel); });
}

MessagePtr MpiGroup::start_recv(int from, std::span<std::byte> data, int tag) {
  return in_pieces(
      std::make_unique<MpiMessage>(mpi_, watch_.get(), from), data,
      [&](std::byte* piece, int bytes) { return mpi_.irecv(piece, bytes, from, tag, kChannel); });
}

}  // namespace multihead::distributed
