#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/text/tokenizer/models/unigram-inl.h"

namespace multihead::text {
namespace {

// SentencePiece's price of an unknown character, below the least probable token.
constexpr double kUnknownPenalty = 10;

}  // namespace

UnigramTable::UnigramTable(const std::vector<std::string>& tokens, std::span<const double> scores,
                           int32_t unk, const std::vector<bool>& is_special)
    : token_at_(1, -1), scores_(scores.begin(), scores.end()), ids_(scores.size()), unk_(unk) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < ids_; ++id) {
    if (scores_[id] <= kNeverCut) continue;
    least = std::min(least, scores_[id]);
    if (is_special.empty() || !is_special[id]) add(tokens[id], id);
  }
  unknown_ = (std::isinf(least) ? 0 : least) - kUnknownPenalty;
}

void UnigramTable::add_without_id(std::string_view piece, double score) {
  unknown_ = std::min(unknown_, score - kUnknownPenalty);
  add(piece, scores_.size());
  scores_.push_back(score);
}

void UnigramTable::add(std::string_view piece, size_t number) {
  int32_t node = 0;
  for (const char c : piece) {
    const auto next = static_cast<int32_t>(token_at_.size());
    const auto [child, is_new] =
        children_.insert(PairMap<int32_t>::key(node, static_cast<unsigned char>(c)), next);
    node = child;
    if (is_new) token_at_.push_back(-1);
  }
  if (node != 0) token_at_[static_cast<size_t>(node)] = static_cast<int32_t>(number);
}

void UnigramTable::cut(std::string_view text, FunctionRef<void(std::string_view, int32_t)> use) const {
  struct Best {
    double score = 0;
    int32_t length = 0;  // in bytes, of the piece that ends here; 0: none does
    int32_t id = -1;
  };
  std::vector<Best> best(text.size() + 1);
  for (size_t at = 0; at < text.size();) {
    const auto step = static_cast<size_t>(decode_utf8(text, at).length);
    const auto offer = [&](size_t length, double score, int32_t id) {
      Best& there = best[at + length];
      const double sum = best[at].score + score;
      if (there.length == 0 || sum > there.score) there = {sum, static_cast<int32_t>(length), id};
    };
    bool has_character = false;
    each_match(text, at, [&](size_t length, size_t number) {
      const auto id = static_cast<int32_t>(number);
      offer(length, scores_[number], number >= ids_ ? -2 : id == unk_ ? -1 : id);
      has_character = has_character || length == step;
    });
    if (!has_character) offer(step, unknown_, -1);
    at += step;
  }
  std::vector<size_t> ends;  // from the last piece to the first
  for (size_t end = text.size(); end > 0; end -= static_cast<size_t>(best[end].length)) ends.push_back(end);
  for (size_t i = ends.size(); i-- > 0;) {
    const size_t begin = ends[i] - static_cast<size_t>(best[ends[i]].length);
    const int32_t id = best[ends[i]].id;
    while (id == -1 && i > 0 && best[ends[i - 1]].id == -1) --i;  // a run of unknown ones is one
    use(text.substr(begin, ends[i] - begin), id);
  }
}

}  // namespace multihead::text
