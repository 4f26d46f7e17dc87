#include "multihead/generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/generate/beam_rules-inl.h"
#include "multihead/generate/repetition-inl.h"
#include "multihead/kernels/reduce/next_above.h"
#include "multihead/kernels/reduce/softmax.h"

namespace multihead {

using detail::apply_rules, detail::hypotheses_wanted, detail::kNever;

namespace {

void check_tokens(const char* what, const std::vector<int32_t>& tokens, int64_t vocabulary) {
  for (const int32_t token : tokens) {
    MH_CHECK(token >= 0 && token < vocabulary, ValueError, "beam search: token ", token, " of ", what,
             " is outside the vocabulary of ", vocabulary);
  }
}

// A hypothesis that is still growing.
struct Open {
  std::vector<int32_t> tokens;
  double log_probability = 0;
};

struct Sentence {
  size_t index = 0;  // among all sources
  std::vector<Hypothesis>* result = nullptr;
  std::vector<Open> open;
  std::vector<Hypothesis> ended;
  size_t rank = 0;  // of its first free token, among the alternatives
};

struct Extension {
  size_t beam = 0;
  int32_t token = 0;
  double log_probability = 0;
};

bool better(const Extension& a, const Extension& b) {
  if (a.log_probability != b.log_probability) return a.log_probability > b.log_probability;
  return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
}

// Searches the translations of a few sentences.
class Search {
 public:
  Search(const models::PackedSeq2Seq& model, const BeamOptions& options) : model_(model), options_(options) {
    vocabulary_ = model.config().target_vocab_size;
    eos_ = static_cast<int32_t>(model.config().eos_id);
    // The start token takes a position, too.
    max_length_ = std::min(options.max_length, model.config().max_positions - 1);
    beams_ = options.sample ? options.num_hypotheses : options.beam_size;
    wanted_ = hypotheses_wanted(options);
  }

  // Searches a group of the sources; the hypotheses of sources[i] go to results[i].
  void run(const std::vector<std::vector<int32_t>>& sources, std::span<const size_t> group,
           std::vector<std::vector<Hypothesis>>& results) {
    std::vector<std::vector<int32_t>> own;
    for (const size_t i : group) own.push_back(sources[i]);
    state_ = model_.start(own);
    // Beams start alike, so there is one of them at first; samples part at once.
    const auto first = static_cast<size_t>(options_.sample ? beams_ : 1);
    std::vector<int64_t> rows;
    for (size_t i = 0; i < group.size(); ++i) {
      sentences_.push_back({group[i], &results[group[i]], std::vector<Open>(first), {}, 0});
      rows.insert(rows.end(), first, static_cast<int64_t>(i));
    }
    state_.select(rows);
    for (int64_t length = 0; !sentences_.empty(); ++length) {
      if (options_.should_stop && options_.should_stop()) return drop_open();
      const Tensor log_probabilities = step();
      std::vector<std::vector<Extension>> chosen(sentences_.size());
      std::vector<int64_t> begins(sentences_.size());
      int64_t row = 0;
      for (size_t s = 0; s < sentences_.size(); ++s) {
        begins[s] = row;
        row += static_cast<int64_t>(sentences_[s].open.size());
      }
      parallel_for(static_cast<int64_t>(sentences_.size()), [&](int64_t i, int) {
        const auto s = static_cast<size_t>(i);
        chosen[s] = extend(sentences_[s], log_probabilities.data<float>() + begins[s] * vocabulary_, length);
      });
      advance(chosen, begins, length);
    }
    if (!options_.alternatives) return;
    const auto is_missing = [](const Hypothesis& h) { return h.score == kNever; };
    for (const size_t i : group) std::erase_if(results[i], is_missing);
  }

 private:
  // Log-probabilities [rows, V] of the token after every open hypothesis.
  Tensor step() {
    std::vector<int32_t> tokens;
    for (const Sentence& sentence : sentences_) {
      for (const Open& open : sentence.open) {
        tokens.push_back(open.tokens.empty() ? static_cast<int32_t>(model_.config().decoder_start_id)
                                             : open.tokens.back());
      }
    }
    const Tensor logits = model_.step(tokens, state_);
    if (detail::penalizes_logits(options_)) penalize(logits.data<float>());
    kernels::log_softmax(logits.data<float>(), logits.data<float>(), {logits.size(0), vocabulary_});
    return logits;
  }

  // The decoder's input, its start token first: rules count that token, as transformers' do.
  std::vector<int32_t> history_of(const Open& open) const {
    std::vector<int32_t> history = {static_cast<int32_t>(model_.config().decoder_start_id)};
    history.insert(history.end(), open.tokens.begin(), open.tokens.end());
    return history;
  }

  // The tokens of every open hypothesis, in its row.
  void penalize(float* row) const {
    for (const Sentence& sentence : sentences_) {
      for (const Open& open : sentence.open) {
        detail::penalize(options_.repetition_penalty, history_of(open),
                         {row, static_cast<size_t>(vocabulary_)});
        row += vocabulary_;
      }
    }
  }

  // A split sentence has alternatives only when all of its parts are done.
  void drop_open() {
    for (const Sentence& sentence : sentences_) sentence.result->clear();
  }

  // The best continuations of a sentence, whose rows of log-probabilities are at hand to change: the open
  // ones for the next step, and those that end.
  std::vector<Extension> extend(const Sentence& sentence, float* rows, int64_t length) const {
    const auto most = static_cast<size_t>(splits(sentence, length) ? options_.num_hypotheses : 2 * beams_);
    std::vector<Extension> all;
    for (size_t b = 0; b < sentence.open.size(); ++b) {
      const std::span<float> scores(rows + static_cast<int64_t>(b) * vocabulary_,
                                    static_cast<size_t>(vocabulary_));
      // One NaN among the logits makes all of them NaN.
      MH_CHECK(!std::isnan(scores[0]), ValueError, "beam search: the model's output is not finite");
      apply_rules(options_, {history_of(sentence.open[b]), prefix_of(sentence), eos_, length >= max_length_},
                  scores);
      if (options_.sample) {
        all.push_back(draw(sentence, b, scores, length));
      } else {
        best_of(scores, b, sentence.open[b].log_probability, most, all);
      }
    }
    if (options_.sample) return all;
    const size_t kept = std::min(all.size(), most);
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(), better);
    all.resize(kept);
    return all;
  }

  std::span<const int32_t> prefix_of(const Sentence& sentence) const {
    if (options_.prefixes.empty()) return {};
    return options_.prefixes[sentence.index];
  }

  // Whether the next token is the one whose alternatives are requested.
  bool splits(const Sentence& sentence, int64_t length) const {
    return options_.alternatives && static_cast<size_t>(length) == prefix_of(sentence).size();
  }

  // A search needs 2·beams candidates per beam: at most `beams` of them can end.
  void best_of(std::span<const float> scores, size_t beam, double before, size_t kept,
               std::vector<Extension>& all) const {
    // The worst of them is at the front of a heap; of equal ones the smaller token stays.
    using Candidate = std::pair<float, int32_t>;
    const auto worst_first = [](const Candidate& a, const Candidate& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    std::vector<Candidate> heap;
    heap.reserve(kept);
    float worst = kNever;  // until the heap is full, everything that is possible at all gets in
    const auto next = [&](int64_t from) {
      return static_cast<size_t>(kernels::next_above(scores.data(), from, vocabulary_, worst));
    };
    for (size_t t = next(0); t < scores.size(); t = next(static_cast<int64_t>(t) + 1)) {
      if (heap.size() == kept) {
        std::pop_heap(heap.begin(), heap.end(), worst_first);
        heap.pop_back();
      }
      heap.emplace_back(scores[t], static_cast<int32_t>(t));
      std::push_heap(heap.begin(), heap.end(), worst_first);
      if (heap.size() == kept) worst = heap.front().first;
    }
    for (const auto& [score, token] : heap) all.push_back({beam, token, before + static_cast<double>(score)});
  }

  Extension draw(const Sentence& sentence, size_t beam, std::span<const float> scores, int64_t length) const {
    const RandomStream stream{options_.seed, sentence.index * static_cast<uint64_t>(beams_) + beam};
    const int32_t token =
        multihead::sample(scores, {}, options_.sampling, stream.uniform(static_cast<uint64_t>(length)));
    return {beam, token,
            sentence.open[beam].log_probability + static_cast<double>(scores[static_cast<size_t>(token)])};
  }

  double normalized(double log_probability, size_t length) const {
    return log_probability /
           std::pow(static_cast<double>(std::max<size_t>(length, 1)), options_.length_penalty);
  }

  // Ends hypotheses, drops sentences that are done and moves the state to the survivors.
  void advance(const std::vector<std::vector<Extension>>& chosen, const std::vector<int64_t>& begins,
               int64_t length) {
    std::vector<int64_t> rows;
    std::vector<Sentence> alive;
    for (size_t s = 0; s < sentences_.size(); ++s) {
      Sentence& sentence = sentences_[s];
      if (splits(sentence, length)) {
        const size_t parts = split(sentence, chosen[s], alive);
        rows.insert(rows.end(), parts, begins[s]);  // there is one hypothesis up to the end of the prefix
        continue;
      }
      std::vector<Open> next;
      std::vector<int64_t> from;
      for (size_t rank = 0; rank < chosen[s].size(); ++rank) {
        const Extension& e = chosen[s][rank];
        if (e.token == eos_) {
          // Beyond the beam only open candidates are of use.
          if (rank < static_cast<size_t>(beams_)) end(sentence, e);
          continue;
        }
        if (next.size() == static_cast<size_t>(beams_)) continue;
        next.push_back({sentence.open[e.beam].tokens, e.log_probability});
        next.back().tokens.push_back(e.token);
        from.push_back(begins[s] + static_cast<int64_t>(e.beam));
      }
      if (is_done(sentence, next, length)) {
        finish(sentence);
        continue;
      }
      sentence.open = std::move(next);
      rows.insert(rows.end(), from.begin(), from.end());
      alive.push_back(std::move(sentence));
    }
    sentences_ = std::move(alive);
    if (!sentences_.empty()) state_.select(rows);
  }

  // Every token starts a sentence of its own, which keeps the token's rank among the results. Returns how
  // many are open.
  size_t split(const Sentence& sentence, const std::vector<Extension>& tokens, std::vector<Sentence>& parts) {
    const size_t before = parts.size();
    sentence.result->assign(tokens.size(), {{}, kNever, kNever});
    for (const Extension& e : tokens) {
      Sentence part = sentence;
      part.rank = static_cast<size_t>(&e - tokens.data());
      if (e.token == eos_) {
        end(part, e);
        finish(part);
        continue;
      }
      part.open[0].tokens.push_back(e.token);
      part.open[0].log_probability = e.log_probability;
      parts.push_back(std::move(part));
    }
    return parts.size() - before;
  }

  void end(Sentence& sentence, const Extension& e) {
    const std::vector<int32_t>& tokens = sentence.open[e.beam].tokens;
    sentence.ended.push_back({tokens, normalized(e.log_probability, tokens.size() + 1), e.log_probability});
    std::stable_sort(sentence.ended.begin(), sentence.ended.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    if (sentence.ended.size() > wanted_) sentence.ended.resize(wanted_);
  }

  bool is_done(const Sentence& sentence, const std::vector<Open>& next, int64_t length) const {
    if (next.empty() || length >= max_length_) return true;
    if (sentence.ended.size() < wanted_) return false;
    if (options_.sample || options_.stop_early) return true;
    double best_open = next.front().log_probability;
    for (const Open& open : next) best_open = std::max(best_open, open.log_probability);
    return sentence.ended.back().score >= normalized(best_open, static_cast<size_t>(length) + 1);
  }

  void finish(Sentence& sentence) {
    if (options_.alternatives) {
      if (!sentence.ended.empty()) (*sentence.result)[sentence.rank] = std::move(sentence.ended.front());
      return;
    }
    if (sentence.ended.size() > static_cast<size_t>(options_.num_hypotheses)) {
      sentence.ended.resize(static_cast<size_t>(options_.num_hypotheses));
    }
    *sentence.result = std::move(sentence.ended);
  }

  const models::PackedSeq2Seq& model_;
  const BeamOptions& options_;
  int64_t vocabulary_ = 0, max_length_ = 0, beams_ = 0;
  size_t wanted_ = 0;
  int32_t eos_ = 0;
  models::PackedState state_;
  std::vector<Sentence> sentences_;
};

constexpr size_t kRowsPerThread = 8;   // below, threads do better to share the weights of a step
constexpr size_t kRowsPerSearch = 64;  // more would not fit the second-level cache

size_t rows_per_sentence(const BeamOptions& o) {
  return static_cast<size_t>((o.sample ? 1 : o.beam_size) *
                             (o.sample || o.alternatives ? o.num_hypotheses : 1));
}

// Sentences of about the same length in groups of about the same size, or one group of few.
std::vector<std::vector<size_t>> groups_of(const std::vector<std::vector<int32_t>>& sources, size_t beams) {
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sources[a].size() > sources[b].size(); });
  const auto threads = static_cast<size_t>(num_threads());
  const size_t rows = sources.size() * beams;
  size_t groups = (rows + kRowsPerSearch - 1) / kRowsPerSearch;
  if (rows >= threads * kRowsPerThread) groups = (groups + threads - 1) / threads * threads;
  groups = std::min(groups, sources.size());
  std::vector<std::vector<size_t>> result(groups);
  for (size_t g = 0; g < groups; ++g) {
    const auto at = [&](size_t i) {
      return order.begin() + static_cast<std::ptrdiff_t>(sources.size() * i / groups);
    };
    result[g].assign(at(g), at(g + 1));
  }
  return result;
}

}  // namespace

std::vector<std::vector<Hypothesis>> beam_search(const models::PackedSeq2Seq& model,
                                                 const std::vector<std::vector<int32_t>>& sources,
                                                 const BeamOptions& given) {
  BeamOptions options = given;
  const models::Seq2SeqConfig& config = model.config();
  detail::check_beam_options(options, sources.size());
  for (const auto& source : sources) {
    MH_CHECK(!source.empty(), ValueError, "beam search: a source is empty; give at least the end token");
    MH_CHECK(static_cast<int64_t>(source.size()) <= config.max_positions, ValueError,
             "beam search: source of ", source.size(),
             " tokens, the model has max_positions = ", config.max_positions);
    check_tokens("a source", source, config.source_vocab_size);
  }
  for (const auto& tokens : options.suppress) check_tokens("suppress", tokens, config.target_vocab_size);
  for (const auto& tokens : options.prefixes) check_tokens("a prefix", tokens, config.target_vocab_size);
  if (sources.empty()) return {};
  if (options.first_token) {
    check_tokens("first_token", {*options.first_token}, config.target_vocab_size);
    options.prefixes.resize(sources.size());
    for (auto& prefix : options.prefixes) prefix.insert(prefix.begin(), *options.first_token);
  }
  const int64_t room = config.max_positions - 1;  // the start token takes one
  MH_CHECK(options.min_length <= room, ValueError, "beam search: min_length ", options.min_length,
           " exceeds the ", room, " tokens that the model's max_positions leave");
  for (const auto& prefix : options.prefixes) {
    MH_CHECK(std::ssize(prefix) <= room, ValueError, "beam search: a prefix of ", prefix.size(),
             " tokens exceeds the ", room, " that the model's max_positions leave");
    MH_CHECK(std::ssize(prefix) <= options.max_length, ValueError, "beam search: a prefix of ", prefix.size(),
             " tokens exceeds max_length ", options.max_length);
  }
  const auto groups = groups_of(sources, rows_per_sentence(options));
  std::vector<std::vector<Hypothesis>> results(sources.size());
  parallel_for(static_cast<int64_t>(groups.size()), [&](int64_t i, int) {
    if (options.should_stop && options.should_stop()) return;
    Search(model, options).run(sources, groups[static_cast<size_t>(i)], results);
  });
  return results;
}

}  // namespace multihead
