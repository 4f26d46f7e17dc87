// Causal attention over a long sequence, forward and backward, by one rank or several:
//   ring_attention LENGTH HEADS KV_HEADS HEAD_DIM CHUNKS            mpirun -n 4 ring_attention 65536 2 2 64 4
// prints checksums of the results, which do not depend on the ranks, and per rank the peak of its memory, the
// bytes it sent and the formula of ops/attention/ring/ring.h, and the time.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "multihead/core/checksum.h"
#include "multihead/distributed/world.h"
#include "multihead/multihead.h"

namespace mh = multihead;

namespace {

struct Sizes {
  int64_t length = 65536, heads = 2, kv_heads = 2, dim = 64;
  int chunks = 4;
};

// [1, heads, own rows, dim]; a number depends on its place in the whole alone.
mh::Tensor numbers(const Sizes& s, const mh::SequenceShards& shards, int rank, int64_t heads,
                   uint64_t stream) {
  const mh::RandomStream random{11, stream};
  mh::Tensor x = mh::Tensor::empty({1, heads, shards.rows(rank), s.dim});
  float* to = x.data<float>();
  for (int64_t h = 0; h < heads; ++h) {
    for (const int c : shards.chunks_of(rank)) {
      const auto [begin, end] = shards.chunk(c);
      for (int64_t i = begin * s.dim; i < end * s.dim; i += 4) {
        const auto words = random.block(static_cast<uint64_t>(h * s.length * s.dim + i) / 4);
        for (const uint32_t word : words) *to++ = static_cast<float>(word >> 8) * 0x1p-22f - 2.0f;
      }
    }
  }
  return x;
}

// Checksum of the whole sequence: of the checksums of 256 rows of a head each, by heads, then rows.
uint64_t checksum_of_whole(mh::distributed::Group& group, const mh::SequenceShards& shards,
                           const mh::Tensor& x) {
  const int64_t heads = x.size(1), blocks = (shards.length() + 255) / 256;
  std::vector<uint64_t> sums(static_cast<size_t>(heads * blocks));
  for (int64_t h = 0; h < heads; ++h) {
    for (const int c : shards.chunks_of(group.rank())) {
      const auto [begin, end] = shards.chunk(c);
      for (int64_t row = begin; row < end; row += 256) {
        const int64_t own = shards.own_rows(c).begin + row - begin, count = std::min<int64_t>(256, end - row);
        mh::Checksum sum;
        const int64_t at = h * x.strides()[1] + own * x.strides()[2];
        sum.update(x.data<float>() + at, static_cast<size_t>(count * x.size(3)) * sizeof(float));
        sums[static_cast<size_t>(h * blocks + row / 256)] = sum.value();
      }
    }
  }
  const std::string_view bytes(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint64_t));
  std::vector<uint64_t> all(sums.size());
  for (const std::string& text : group.gather(0, bytes)) {
    const auto* part = reinterpret_cast<const uint64_t*>(text.data());
    for (size_t i = 0; i < all.size(); ++i) all[i] |= part[i];
  }
  return mh::checksum({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(uint64_t)});
}

// Σ rows · others under the causal mask: a chunk of keys goes to all whose last chunk is not before it.
int64_t causal_rows(const mh::SequenceShards& shards, bool keys) {
  int64_t sum = 0;
  for (int c = 0; c < shards.chunks(); ++c) {
    for (int rank = 0; rank < shards.ranks(); ++rank) {
      const std::vector<int> own = shards.chunks_of(rank);
      if (rank == shards.owner(c) || own.empty()) continue;
      if (keys ? own.back() >= c : own.front() <= c) sum += shards.chunk(c).count();
    }
  }
  return sum;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void run(mh::distributed::Group& group, const Sizes& s) {
  const mh::SequenceShards shards(s.length, group.size(), s.chunks);
  const int rank = group.rank();
  mh::Tensor query = numbers(s, shards, rank, s.heads, 1), key = numbers(s, shards, rank, s.kv_heads, 2),
             value = numbers(s, shards, rank, s.kv_heads, 3);
  const mh::Tensor d_out = numbers(s, shards, rank, s.heads, 4);
  for (mh::Tensor* x : {&query, &key, &value}) x->set_requires_grad();
  mh::Tensor lse;
  const double before = peak_mib();
  const int64_t sent = group.bytes_sent();
  const auto start = std::chrono::steady_clock::now();
  mh::Tape tape;
  const mh::Tensor out =
      mh::ring_attention(group, shards, query, key, value, {.mask = mh::causal(), .lse = &lse});
  tape.backward(out, d_out);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const int64_t bytes = group.bytes_sent() - sent;
  const double peak = peak_mib();

  char line[200];
  std::snprintf(line, sizeof line, "rank %d: %.1f MiB peak, %.1f before, %lld bytes sent, %.2f s", rank, peak,
                before, static_cast<long long>(bytes), time.count());
  const std::vector<std::string> lines = group.gather(0, line);
  const std::vector<std::string> counts = group.gather(0, std::to_string(bytes));
  const std::pair<const char*, mh::Tensor> results[] = {
      {"out", out}, {"d_query", query.grad()}, {"d_key", key.grad()}, {"d_value", value.grad()}};
  for (const auto& [name, x] : results) {
    const uint64_t sum = checksum_of_whole(group, shards, x);
    if (rank == 0) std::printf("%-8s %s\n", name, mh::checksum_text(sum).c_str());
  }
  if (rank != 0) return;
  for (const std::string& text : lines) std::puts(text.c_str());
  int64_t total = 0;
  for (const std::string& count : counts) total += std::stoll(count);
  const int64_t keys = causal_rows(shards, true) * s.kv_heads * 2 * s.dim * 4;
  const int64_t queries = causal_rows(shards, false) * s.heads * (2 * s.dim + 2) * 4;
  std::printf("%lld bytes in all, by the formula %lld\n", static_cast<long long>(total),
              static_cast<long long>(2 * keys + queries + 4 * (group.size() - 1)));
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  int64_t* const numbers_given[] = {&s.length, &s.heads, &s.kv_heads, &s.dim};
  for (int i = 1; i < std::min(argc, 5); ++i) *numbers_given[i - 1] = std::atoll(argv[i]);
  if (argc > 5) s.chunks = std::atoi(argv[5]);
  const auto group = mh::distributed::world();
  run(*group, s);
  mh::distributed::leave_world();
  return 0;
}
