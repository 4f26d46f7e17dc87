#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/models/bpe-inl.h"

namespace multihead::text {
namespace {

constexpr uint32_t kNoPlace = std::numeric_limits<uint32_t>::max();

struct PairStats {
  int64_t count = 0;
  std::vector<uint32_t> positions;  // of the left symbol; stale ones are skipped when their turn comes
  bool touched = false;             // gained a position in this round
};

struct Candidate {
  int64_t count;
  uint64_t key;
  // The top of the heap: highest count, then smallest ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : key > other.key;
  }
};

// All distinct pieces as one array of symbols linked inside each piece. A merge visits the places where its
// pair occurs and nothing else, so the whole training costs what the merges shorten, even for one huge piece.
class Learner {
 public:
  Learner(const Pieces& pieces, BpeTraining& training) : training_(training) {
    for (size_t id = 0; id < training.tokens.size(); ++id)
      if (!training.tokens[id].empty()) ids_.emplace(training.tokens[id], static_cast<int32_t>(id));
    lay_out(pieces);
    for (uint32_t i = 0; i < token_.size(); ++i)
      if (next_[i] != kNoPlace) change(i, next_[i], +1);
    queue_touched();
  }

  std::vector<Merge> run() {
    std::vector<Merge> merges;
    const auto start = std::ssize(training_.tokens);
    const int64_t total = training_.vocab_size - start;
    while (std::ssize(training_.tokens) < training_.vocab_size && !heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      PairStats& stats = stats_[*pairs_.find(top.key)];
      if (stats.count != top.count) {  // counts only fall behind the queue's back
        if (stats.count > 0) heap_.push({stats.count, top.key});
        continue;
      }
      if (top.count < std::max<int64_t>(training_.min_frequency, 1)) break;
      if (is_reserved(top.key)) continue;
      merges.push_back(merge(top.key));
      const int64_t done = std::ssize(training_.tokens) - start;
      if (training_.progress && (done % 64 == 0 || done == total)) training_.progress(done, total);
    }
    return merges;
  }

 private:
  void lay_out(const Pieces& pieces) {
    size_t bytes = 0;
    for (std::string_view piece : pieces.text) bytes += piece.size();
    MH_CHECK(bytes < kNoPlace, ValueError, "train_bpe: distinct pieces must hold fewer than ", kNoPlace,
             " bytes in all, got ", bytes);
    token_.reserve(bytes), next_.reserve(bytes), previous_.reserve(bytes), weight_.reserve(bytes);
    std::vector<int32_t> symbols;
    for (size_t p = 0; p < pieces.text.size(); ++p) {
      symbols.clear();
      if (!read_symbols(pieces.text[p], symbols)) continue;
      for (size_t i = 0; i < symbols.size(); ++i) {
        const auto here = static_cast<uint32_t>(token_.size());
        token_.push_back(symbols[i]);
        previous_.push_back(i > 0 ? here - 1 : kNoPlace);
        next_.push_back(i + 1 < symbols.size() ? here + 1 : kNoPlace);
        weight_.push_back(static_cast<uint32_t>(p));
      }
    }
    piece_count_ = pieces.count;
  }

  // False: one of them is no token.
  bool read_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
    for (size_t at = 0; at < piece.size();) {
      const auto size = training_.of_characters ? static_cast<size_t>(decode_utf8(piece, at).length) : 1;
      const std::string_view one = piece.substr(at, size);
      const auto found = ids_.find(at > 0 ? training_.continuing + std::string(one) : std::string(one));
      if (found == ids_.end()) return false;
      symbols.push_back(found->second);
      at += size;
    }
    return true;
  }

  std::string joined(int32_t left, int32_t right) const {
    return training_.tokens[static_cast<size_t>(left)] +
           training_.tokens[static_cast<size_t>(right)].substr(training_.continuing.size());
  }

  void change(uint32_t left, uint32_t right, int sign) {
    const uint64_t key = PairMap<uint32_t>::key(token_[left], token_[right]);
    const auto [index, fresh] = pairs_.insert(key, static_cast<uint32_t>(stats_.size()));
    if (fresh) stats_.emplace_back();
    PairStats& stats = stats_[index];
    stats.count += sign * piece_count_[weight_[left]];
    if (sign < 0) return;
    stats.positions.push_back(left);
    if (!stats.touched) touched_.push_back(key);
    stats.touched = true;
  }

  void queue_touched() {
    for (uint64_t key : touched_) {
      PairStats& stats = stats_[*pairs_.find(key)];
      stats.touched = false;
      if (stats.count > 0) heap_.push({stats.count, key});
    }
    touched_.clear();
  }

  bool is_reserved(uint64_t key) const {
    if (training_.reserved.empty()) return false;
    const std::string bytes =
        joined(static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFFu));
    return std::find(training_.reserved.begin(), training_.reserved.end(), bytes) != training_.reserved.end();
  }

  int32_t token_id(int32_t left, int32_t right) {
    std::string bytes = joined(left, right);
    // Two merges may spell the same bytes; they then share the token.
    const auto [at, fresh] = ids_.try_emplace(bytes, static_cast<int32_t>(training_.tokens.size()));
    if (fresh) training_.tokens.push_back(std::move(bytes));
    return at->second;
  }

  Merge merge(uint64_t key) {
    const auto left = static_cast<int32_t>(key >> 32);
    const auto right = static_cast<int32_t>(key & 0xFFFFFFFFu);
    const int32_t result = token_id(left, right);
    PairStats& stats = stats_[*pairs_.find(key)];
    std::vector<uint32_t> positions = std::move(stats.positions);
    stats = {};
    if (!std::is_sorted(positions.begin(), positions.end())) std::sort(positions.begin(), positions.end());
    for (uint32_t at : positions)
      if (token_[at] == left && next_[at] != kNoPlace && token_[next_[at]] == right) replace(at, result);
    stats_[*pairs_.find(key)].count = 0;  // runs such as "aaa" lowered it while they were merged
    queue_touched();
    return {left, right, result};
  }

  void replace(uint32_t at, int32_t result) {
    const uint32_t gone = next_[at], before = previous_[at], after = next_[gone];
    if (before != kNoPlace) change(before, at, -1);
    if (after != kNoPlace) change(gone, after, -1);
    token_[at] = result;
    token_[gone] = -1;
    next_[at] = after;
    if (after != kNoPlace) {
      previous_[after] = at;
      change(at, after, +1);
    }
    if (before != kNoPlace) change(before, at, +1);
  }

  BpeTraining& training_;
  std::vector<int32_t> token_;
  std::vector<uint32_t> next_, previous_;
  std::vector<uint32_t> weight_;  // index of the piece, whose count weighs the symbol
  std::vector<int64_t> piece_count_;
  PairMap<uint32_t> pairs_;  // into stats_
  std::vector<PairStats> stats_;
  std::vector<uint64_t> touched_;
  std::priority_queue<Candidate> heap_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

Pieces count_pieces(std::span<const std::string_view> texts, std::span<const SplitRule> rules) {
  Pieces pieces;
  std::unordered_map<std::string_view, size_t> index;
  const auto count = [&](std::string_view piece) {
    const auto [at, fresh] = index.try_emplace(piece, pieces.text.size());
    if (fresh) {
      pieces.text.push_back(piece);
      pieces.count.push_back(0);
    }
    ++pieces.count[at->second];
  };
  for (std::string_view text : texts) split_text(text, rules, count);
  return pieces;
}

std::vector<Merge> learn_merges(const Pieces& pieces, BpeTraining& training) {
  return Learner(pieces, training).run();
}

}  // namespace multihead::text
