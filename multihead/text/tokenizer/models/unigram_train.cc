// Training of unigram models (Kudo 2018): from more pieces than are wanted, expectation maximisation finds
// their probabilities, and those whose loss costs the likelihood of the text least are dropped, again and
// again.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
// Values of SentencePiece's trainer.
constexpr size_t kMostSeeds = 1'000'000;
constexpr double kShrink = 0.75, kExtra = 1.1, kLeastExpected = 0.5;
constexpr int kRoundsBetweenPruning = 2;

struct Piece {
  std::string text;
  double score;  // the logarithm of its probability
  bool is_character;
};

double log_add(double a, double b) {
  const double more = std::max(a, b), less = std::min(a, b);
  return less == kNever ? more : more + std::log1p(std::exp(less - more));
}

double digamma(double x) {
  double result = 0;
  for (; x < 7; ++x) result -= 1 / x;
  const double y = 1 / (x * x);  // the asymptotic series
  return result + std::log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y / 252));
}

class UnigramTrainer {
 public:
  UnigramTrainer(const Pieces& words, size_t wanted, const std::vector<std::string>& special,
                 const UnigramOptions& options)
      : words_(words), wanted_(wanted), special_(special), options_(options) {}

  /// The pieces with their scores, the most probable first.
  std::vector<Piece> run() {
    make_seeds();
    const auto enough = static_cast<size_t>(static_cast<double>(wanted_) * kExtra);
    while (true) {
      for (int round = 0; round < kRoundsBetweenPruning; ++round) fit();
      if (options_.progress) options_.progress(std::ssize(pieces_), static_cast<int64_t>(wanted_));
      if (pieces_.size() <= enough) break;
      const size_t before = pieces_.size();
      prune(std::max(enough, static_cast<size_t>(static_cast<double>(before) * kShrink)));
      if (pieces_.size() == before) break;
    }
    return best();
  }

 private:
  // Single characters, and what occurs at least twice, by how much text it covers. Parts grow by a character
  // a round, and only if both their ends were frequent, so that the rare ones are never counted.
  void make_seeds() {
    std::map<std::string, int64_t> letters;
    std::unordered_map<std::string_view, int64_t> frequent;
    for (size_t w = 0; w < words_.text.size(); ++w) {
      each_part(words_.text[w], 1,
                [&](std::string_view part) { letters[std::string(part)] += words_.count[w]; });
    }
    for (const auto& [text, count] : letters) frequent.emplace(text, count);
    std::vector<std::pair<double, std::string_view>> longer;
    for (size_t length = 2; static_cast<int64_t>(length) <= options_.max_piece_length; ++length) {
      frequent = longer_parts(frequent, length);
      for (const auto& [text, count] : frequent)
        longer.emplace_back(-static_cast<double>(count) * static_cast<double>(length), text);
      if (frequent.empty()) break;
    }
    std::sort(longer.begin(), longer.end());
    longer.resize(std::min(longer.size(), kMostSeeds));
    double sum = 0;
    for (const auto& [text, count] : letters) pieces_.push_back({text, static_cast<double>(count), true});
    for (const auto& [weight, text] : longer) pieces_.push_back({std::string(text), -weight, false});
    for (const Piece& piece : pieces_) sum += piece.score;
    for (Piece& piece : pieces_) piece.score = std::log(piece.score / sum);
  }

  template <class Use>
  static void each_part(std::string_view word, size_t length, Use&& use) {
    std::vector<size_t> ends;
    for (size_t at = 0; at < word.size(); ends.push_back(at))
      at += static_cast<size_t>(decode_utf8(word, at).length);
    for (size_t i = 0; i + length <= ends.size(); ++i) {
      const size_t begin = i > 0 ? ends[i - 1] : 0;
      use(word.substr(begin, ends[i + length - 1] - begin));
    }
  }

  std::unordered_map<std::string_view, int64_t> longer_parts(
      const std::unordered_map<std::string_view, int64_t>& shorter, size_t length) const {
    std::unordered_map<std::string_view, int64_t> counts;
    for (size_t w = 0; w < words_.text.size(); ++w) {
      each_part(words_.text[w], length, [&](std::string_view part) {
        const auto first = static_cast<size_t>(decode_utf8(part, 0).length);
        size_t last = part.size() - 1;
        while ((part[last] & 0xC0) == 0x80) --last;
        if (shorter.contains(part.substr(first)) && shorter.contains(part.substr(0, last)))
          counts[part] += words_.count[w];
      });
    }
    std::erase_if(counts, [](const auto& entry) { return entry.second < 2; });
    return counts;
  }

  UnigramTable table() const {
    std::vector<std::string> texts;
    std::vector<double> scores;
    for (const Piece& piece : pieces_) texts.push_back(piece.text), scores.push_back(piece.score);
    return UnigramTable(texts, scores, -1);
  }

  // One round: how often each piece is expected, and from that its probability, with a prior that favours
  // few.
  void fit() {
    const UnigramTable model = table();
    std::vector<double> expected(pieces_.size());
    for (size_t w = 0; w < words_.text.size(); ++w)
      add_expected(model, words_.text[w], static_cast<double>(words_.count[w]), expected);
    std::vector<Piece> kept;
    double sum = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (expected[i] < kLeastExpected && !pieces_[i].is_character) continue;
      kept.push_back(std::move(pieces_[i]));
      kept.back().score = std::max(expected[i], kLeastExpected);
      sum += kept.back().score;
    }
    const double norm = digamma(sum);
    for (Piece& piece : kept) piece.score = digamma(piece.score) - norm;
    pieces_ = std::move(kept);
  }

  // Forwards and backwards over all cuts of a word.
  void add_expected(const UnigramTable& model, std::string_view word, double count,
                    std::vector<double>& expected) {
    const size_t size = word.size();
    before_.assign(size + 1, kNever), behind_.assign(size + 1, kNever);
    before_[0] = behind_[size] = 0;
    for (size_t at = 0; at < size; ++at) {
      if (before_[at] == kNever) continue;
      model.each_match(word, at, [&](size_t length, size_t id) {
        before_[at + length] = log_add(before_[at + length], before_[at] + pieces_[id].score);
      });
    }
    for (size_t at = size; at-- > 0;) {
      if (before_[at] == kNever) continue;
      model.each_match(word, at, [&](size_t length, size_t id) {
        behind_[at] = log_add(behind_[at], pieces_[id].score + behind_[at + length]);
      });
      model.each_match(word, at, [&](size_t length, size_t id) {
        const double share = before_[at] + pieces_[id].score + behind_[at + length] - before_[size];
        expected[id] += count * std::exp(share);
      });
    }
  }

  // The most probable cut; without the text itself as a piece, if asked.
  std::vector<size_t> best_cut(const UnigramTable& model, std::string_view text, bool whole_counts) const {
    struct Best {
      double score = kNever;
      size_t length = 0, id = 0;
    };
    std::vector<Best> best(text.size() + 1);
    best[0].score = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      if (best[at].score == kNever) continue;
      model.each_match(text, at, [&](size_t length, size_t id) {
        if (length == text.size() && !whole_counts) return;
        const double score = best[at].score + pieces_[id].score;
        if (score > best[at + length].score) best[at + length] = {score, length, id};
      });
    }
    std::vector<size_t> ids;
    for (size_t end = text.size(); end > 0 && best[end].length > 0; end -= best[end].length)
      ids.push_back(best[end].id);
    return ids;
  }

  // Keeps `size` pieces: characters, and those whose loss would cost most.
  void prune(size_t size) {
    const UnigramTable model = table();
    std::vector<double> used(pieces_.size());
    double sum = 0;
    for (size_t w = 0; w < words_.text.size(); ++w) {
      for (const size_t id : best_cut(model, words_.text[w], true)) {
        used[id] += static_cast<double>(words_.count[w]);
        sum += static_cast<double>(words_.count[w]);
      }
    }
    std::vector<std::pair<double, size_t>> ranked;  // what it costs, negative
    size_t room = size;
    std::vector<bool> is_kept(pieces_.size());
    for (size_t id = 0; id < pieces_.size(); ++id) {
      if (pieces_[id].is_character) {
        is_kept[id] = true;
        room -= std::min<size_t>(room, 1);
      } else if (used[id] > 0) {
        ranked.emplace_back(-cost(model, id, used, sum), id);
      }
    }
    std::sort(ranked.begin(), ranked.end());
    for (size_t i = 0; i < std::min(room, ranked.size()); ++i) is_kept[ranked[i].second] = true;
    std::vector<Piece> kept;
    for (size_t id = 0; id < pieces_.size(); ++id)
      if (is_kept[id]) kept.push_back(std::move(pieces_[id]));
    pieces_ = std::move(kept);
  }

  // The loss of log-likelihood if the best other cut takes the piece's place everywhere.
  double cost(const UnigramTable& model, size_t id, const std::vector<double>& used, double sum) const {
    const std::vector<size_t> others = best_cut(model, pieces_[id].text, false);
    const double sum_without = std::log(sum + used[id] * (static_cast<double>(others.size()) - 1));
    double now = std::log(used[id]) - std::log(sum);
    for (const size_t other : others) now -= std::log(used[other] + used[id]) - sum_without;
    return used[id] * now;
  }

  // Special tokens come from their own names alone, so that none is a piece, too.
  std::vector<Piece> best() {
    std::erase_if(pieces_, [&](const Piece& piece) {
      return std::ranges::find(special_, piece.text) != special_.end();
    });
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return std::pair(!a.is_character, -a.score) < std::pair(!b.is_character, -b.score);
    });
    pieces_.resize(std::min(pieces_.size(), wanted_));
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return a.score != b.score ? a.score > b.score : a.text < b.text;
    });
    return std::move(pieces_);
  }

  const Pieces& words_;
  const size_t wanted_;
  const std::vector<std::string>& special_;
  const UnigramOptions& options_;
  std::vector<Piece> pieces_;
  std::vector<double> before_, behind_;  // log-likelihoods of what lies before and behind a place
};

std::string json_of_unigram(const std::vector<std::string>& special, const std::string& unk,
                            const std::vector<Piece>& pieces) {
  Json vocab = Json::array(), added = Json::array();
  int64_t unk_id = 0;
  for (const std::string& token : special) {
    const auto id = static_cast<int64_t>(vocab.size());
    if (token == unk) unk_id = id;
    vocab.push_back(std::vector<Json>{token, 0.0});
    added.push_back(json_of_special(id, token));
  }
  for (const Piece& piece : pieces) vocab.push_back(std::vector<Json>{piece.text, piece.score});
  const Json marks = Json::object({{"type", "Metaspace"},
                                   {"replacement", CutStep().mark},
                                   {"prepend_scheme", "always"},
                                   {"split", true}});
  const Json words = Json::object({{"type", "WhitespaceSplit"}});
  return Json::object(
             {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", Json::object({{"type", "NFKC"}})},
              {"pre_tokenizer", Json::object({{"type", "Sequence"},
                                              {"pretokenizers", Json(std::vector<Json>{words, marks})}})},
              {"post_processor", nullptr},
              {"decoder", marks},
              {"model",
               Json::object(
                   {{"type", "Unigram"}, {"unk_id", unk_id}, {"vocab", vocab}, {"byte_fallback", false}})}})
      .dump();
}

}  // namespace

Tokenizer Tokenizer::train_unigram(std::span<const std::string_view> texts, const UnigramOptions& options) {
  const std::vector<std::string> special = all_tokens(options.special);
  MH_CHECK(!options.special.unk.empty(), ValueError, "train_unigram: special.unk must be a token, got none");
  MH_CHECK(options.max_piece_length >= 1 && options.max_piece_length <= 1000, ValueError,
           "train_unigram: max_piece_length must be in [1, 1000], got ", options.max_piece_length);
  const CutStep marks{.kind = CutStep::Kind::marks};
  const SplitRule white = {.kind = SplitRule::Kind::white_space, .behavior = SplitRule::Behavior::removed};
  std::map<std::string, int64_t> counts;  // of words with their marks
  for (const std::string_view text : texts) {
    const std::optional<Rewritten> normal = normalized(Normalizer::nfkc, text);
    split_text(normal ? std::string_view(normal->text) : text, white, [&](std::string_view word) {
      const std::string clean = find_invalid_utf8(word) == std::string_view::npos ? "" : valid_utf8(word);
      ++counts[marks.changed(clean.empty() ? word : clean, true, false).text];
    });
  }
  MH_CHECK(!counts.empty(), ValueError, "train_unigram: text must not be empty");
  Pieces words;
  std::unordered_set<std::string_view> letters;
  for (const auto& [word, count] : counts) {
    words.text.push_back(word), words.count.push_back(count);
    for (size_t at = 0; at < word.size();) {
      const auto length = static_cast<size_t>(decode_utf8(word, at).length);
      letters.insert(std::string_view(word).substr(at, length));
      at += length;
    }
  }
  const size_t least = special.size() + letters.size();
  MH_CHECK(options.vocab_size >= 0 && static_cast<size_t>(options.vocab_size) >= least, ValueError,
           "train_unigram: vocab_size must be at least ", least, " (", special.size(), " special tokens and ",
           letters.size(), " characters), got ", options.vocab_size);
  const size_t wanted = static_cast<size_t>(options.vocab_size) - special.size();
  const std::vector<Piece> pieces = UnigramTrainer(words, wanted, special, options).run();
  Json config = Json::object();
  for (const auto& [key, role] : kRoles)
    if (!(options.special.*role).empty()) config[key] = options.special.*role;
  return from_contents(json_of_unigram(special, options.special.unk, pieces), config.dump());
}

}  // namespace multihead::text
