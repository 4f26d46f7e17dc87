#include <algorithm>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/models/bpe-inl.h"

namespace multihead::text {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
// Up to this many symbols a scan for the lowest rank is faster than a heap.
constexpr size_t kShort = 32;

}  // namespace

MergeTable::MergeTable(std::vector<Merge> merges) : merges_(std::move(merges)) {
  ranks_.reserve(merges_.size());
  for (size_t i = 0; i < merges_.size(); ++i)
    ranks_.insert(PairMap<uint32_t>::key(merges_[i].left, merges_[i].right), 0).first =
        static_cast<uint32_t>(i);
}

uint32_t MergeTable::rank(int32_t left, int32_t right) const {
  const uint32_t* found = ranks_.find(PairMap<uint32_t>::key(left, right));
  return found ? *found : kNoRank;
}

void MergeTable::apply(std::vector<int32_t>& symbols, size_t begin, std::vector<TokenSpan>* spans) const {
  if (symbols.size() - begin <= kShort) {
    apply_short(symbols, begin, spans);
  } else {
    apply_long(symbols, begin, spans);
  }
}

void MergeTable::apply_short(std::vector<int32_t>& symbols, size_t begin,
                             std::vector<TokenSpan>* spans) const {
  size_t count = symbols.size() - begin;
  if (count < 2) return;
  int32_t* at = symbols.data() + begin;
  TokenSpan* span = spans != nullptr ? spans->data() + begin : nullptr;
  uint32_t ranks[kShort];  // of the pair that starts here
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(at[i], at[i + 1]);
  while (count > 1) {
    const size_t best = std::min_element(ranks, ranks + count - 1) - ranks;
    if (ranks[best] == kNoRank) break;
    at[best] = merges_[ranks[best]].result;
    std::copy(at + best + 2, at + count, at + best + 1);
    if (span != nullptr) {
      span[best].last = span[best + 1].last;
      std::copy(span + best + 2, span + count, span + best + 1);
    }
    if (best + 2 < count) std::copy(ranks + best + 2, ranks + count - 1, ranks + best + 1);
    --count;
    if (best > 0) ranks[best - 1] = rank(at[best - 1], at[best]);
    if (best + 1 < count) ranks[best] = rank(at[best], at[best + 1]);
  }
  symbols.resize(begin + count);
  if (spans != nullptr) spans->resize(begin + count);
}

// A doubly linked list of symbols and a heap of (rank, position); an entry whose pair has changed since is
// dropped when it comes up.
void MergeTable::apply_long(std::vector<int32_t>& symbols, size_t begin,
                            std::vector<TokenSpan>* spans) const {
  const size_t count = symbols.size() - begin;
  MH_CHECK(count < kNone, ValueError, "tokenizer: a piece of text without a break must be shorter than ",
           kNone, " bytes, got ", count);
  int32_t* token = symbols.data() + begin;
  std::vector<uint32_t> next(count), previous(count);
  std::vector<uint64_t> heap;
  const auto push = [&](uint32_t left, uint32_t right) {
    const uint32_t r = rank(token[left], token[right]);
    if (r != kNoRank) heap.push_back(uint64_t{r} << 32 | left);
    return r != kNoRank;
  };
  const auto push_heap = [&](uint32_t left, uint32_t right) {
    if (push(left, right)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;  // kNone for the first
    next[i] = i + 1 < count ? i + 1 : kNone;
    if (next[i] != kNone) push(i, i + 1);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto left = static_cast<uint32_t>(heap.back());
    const auto popped = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (token[left] < 0 || next[left] == kNone) continue;
    const uint32_t right = next[left];
    if (rank(token[left], token[right]) != popped) continue;
    token[left] = merges_[popped].result;
    token[right] = -1;
    if (spans != nullptr) (*spans)[begin + left].last = (*spans)[begin + right].last;
    next[left] = next[right];
    if (next[left] != kNone) {
      previous[next[left]] = left;
      push_heap(left, next[left]);
    }
    if (previous[left] != kNone) push_heap(previous[left], left);
  }
  if (spans != nullptr) {
    size_t kept = begin;
    for (size_t i = begin; i < spans->size(); ++i)
      if (symbols[i] >= 0) (*spans)[kept++] = (*spans)[i];
    spans->resize(kept);
  }
  const auto end = std::remove_if(symbols.begin() + begin, symbols.end(), [](int32_t t) { return t < 0; });
  symbols.erase(end, symbols.end());
}

}  // namespace multihead::text
