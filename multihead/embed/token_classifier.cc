#include "multihead/embed/token_classifier.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/batches-inl.h"
#include "multihead/embed/classifiers-inl.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/softmax.h"

namespace multihead::embed {
namespace {

using text::Offsets;

void check_head(const models::Encoder& encoder, const std::string& who) {
  MH_CHECK(encoder.config().head == models::EncoderHead::tokens, ValueError, who,
           ": expected a token classification head (...ForTokenClassification), got ",
           word_of(encoder.config().head));
}

int64_t characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += static_cast<size_t>(decode_utf8(text, at).length);
  return count;
}

/// A token, or a word of several.
struct Piece {
  std::vector<float> scores;  // of every label
  Offsets place;
  bool goes_on = false;  // with the word of the piece in front

  size_t best() const {
    return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  }
  float score() const { return scores[best()]; }
};

// WordPiece says which tokens go on with a word: they have a mark that the text has not. For others a word
// begins after a space.
bool goes_on(const text::Tokenizer& tokenizer, int32_t id, std::string_view text, Offsets place) {
  if (tokenizer.unk_id() == id) return false;
  if (tokenizer.kind() == text::Tokenizer::Kind::wordpiece) {
    return characters(tokenizer.token(id)) != characters(text.substr(place.begin, place.end - place.begin));
  }
  return place.begin > 0 && text.substr(place.begin - 1, 2).find(' ') == text.npos;
}

// The word that a token is of, between spaces; a token may begin with some.
Offsets word_around(std::string_view text, Offsets token) {
  const size_t inside = std::min(text.find_first_not_of(' ', token.begin), text.size());
  const size_t before = inside > 0 ? text.rfind(' ', inside - 1) : text.npos;
  return {before == text.npos ? 0 : before + 1, std::min(text.find(' ', inside), text.size())};
}

Piece word_of_pieces(std::span<const Piece> pieces, Aggregation how) {
  Piece word = pieces.front();
  word.place.end = pieces.back().place.end;
  if (how == Aggregation::max) {
    const auto less = [](const Piece& a, const Piece& b) { return a.score() < b.score(); };
    word.scores = std::max_element(pieces.begin(), pieces.end(), less)->scores;
  } else if (how == Aggregation::average) {
    for (const Piece& piece : pieces.subspan(1)) {
      for (size_t i = 0; i < word.scores.size(); ++i) word.scores[i] += piece.scores[i];
    }
    for (float& score : word.scores) score /= static_cast<float>(pieces.size());
  }
  return word;
}

std::vector<Piece> words_of(const std::vector<Piece>& pieces, Aggregation how) {
  std::vector<Piece> words;
  for (size_t first = 0, last = 0; first < pieces.size(); first = last) {
    for (last = first + 1; last < pieces.size() && pieces[last].goes_on;) ++last;
    words.push_back(word_of_pieces(std::span(pieces).subspan(first, last - first), how));
  }
  return words;
}

std::string_view without_mark(std::string_view label) {
  return label.starts_with("B-") || label.starts_with("I-") ? label.substr(2) : label;
}

// transformers' entity_group: what follows the first hyphen.
std::string_view group_of(std::string_view label) { return label.substr(label.find('-') + 1); }

// Neighbours of one label, unless it says that another entity begins.
std::vector<Entity> grouped(const std::vector<Entity>& parts) {
  std::vector<Entity> groups;
  for (size_t first = 0, last = 0; first < parts.size(); first = last) {
    const std::string_view label = without_mark(parts[first].label);
    double sum = parts[first].score;
    for (last = first + 1; last < parts.size() && !parts[last].label.starts_with("B-") &&
                           without_mark(parts[last].label) == label;) {
      sum += parts[last++].score;
    }
    groups.push_back({std::string(group_of(parts[first].label)),
                      static_cast<float>(sum / static_cast<double>(last - first)),
                      {parts[first].place.begin, parts[last - 1].place.end}});
  }
  return groups;
}

void check_ignored(const EntityOptions& options, int64_t labels,
                   const std::function<std::string(int64_t)>& label) {
  Enumeration known;
  std::set<std::string> names = {"O", ""};  // the default, whatever the labels are, and transformers' "none"
  for (int64_t i = 0; i < labels; ++i) {
    const std::string full = label(i);
    const std::string name = options.aggregation == Aggregation::none ? full : std::string(group_of(full));
    if (names.insert(name).second) known.add(name);
  }
  for (const std::string& name : options.ignored) {
    MH_CHECK(names.contains(name), ValueError, "TokenClassifier: ", quote(name),
             ", which is to be ignored, is no label of entities; these are ", known.text());
  }
}

}  // namespace

TokenClassifier TokenClassifier::load(const std::string& folder, nn::WeightDtype weights) {
  models::Encoder encoder = models::load_encoder(folder, weights, true);
  check_head(encoder, folder);
  const int64_t length = detail::read_max_length(folder, encoder.config().context);
  return {std::move(encoder), text::Tokenizer::load(models::tokenizer_folder(folder)), length};
}

TokenClassifier::TokenClassifier(models::Encoder encoder, text::Tokenizer tokenizer, int64_t max_length)
    : encoder_(std::move(encoder)),
      tokenizer_(std::move(tokenizer)),
      max_length_(detail::length_limit("TokenClassifier", max_length, encoder_.config().context)) {
  check_head(encoder_, "TokenClassifier");
}

std::string TokenClassifier::label(int64_t index) const {
  return detail::label_name(encoder_.config().labels, index);
}

namespace {

/// A part of a text as the model reads it, with the template's tokens.
struct Window {
  size_t text = 0;
  text::Encoding encoding = {};
};

// `frame`: tokens of a window that are the template's.
void check_stride(int64_t stride, size_t limit, size_t frame) {
  const auto room = static_cast<int64_t>(limit) - static_cast<int64_t>(frame);
  MH_CHECK(stride < room, ValueError, "TokenClassifier: stride must be less than the ", room,
           " tokens of a window, got ", stride);
}

// Windows of at most `limit` tokens, `stride` in common; one if they all fit.
void add_windows(size_t text, const text::Encoding& whole, size_t limit, size_t stride,
                 std::vector<Window>& windows) {
  const auto is_own = [](int32_t id) { return id >= 0; };
  const auto& sequences = whole.sequence_ids;
  const auto first =
      static_cast<size_t>(std::find_if(sequences.begin(), sequences.end(), is_own) - sequences.begin());
  const auto last =
      static_cast<size_t>(sequences.rend() - std::find_if(sequences.rbegin(), sequences.rend(), is_own));
  if (whole.ids.size() <= limit || last <= first) return windows.push_back({text, whole});
  const size_t frame = whole.ids.size() - (last - first);
  check_stride(static_cast<int64_t>(stride), limit, frame);
  const size_t size = limit - frame;
  for (size_t begin = first;; begin += size - stride) {
    const size_t end = std::min(begin + size, last);
    Window& window = windows.emplace_back();
    window.text = text;
    const auto add = [&](size_t from, size_t to) {
      for (size_t t = from; t < to; ++t) {
        window.encoding.ids.push_back(whole.ids[t]);
        window.encoding.offsets.push_back(whole.offsets[t]);
        window.encoding.sequence_ids.push_back(whole.sequence_ids[t]);
      }
    };
    add(0, first), add(begin, end), add(last, whole.ids.size());
    if (end == last) return;
  }
}

// As transformers joins what overlapping windows found. Lengths are in characters.
std::vector<Entity> without_overlaps(std::vector<Entity> all, std::string_view text) {
  const auto is_before = [](const Entity& a, const Entity& b) { return a.place.begin < b.place.begin; };
  std::stable_sort(all.begin(), all.end(), is_before);
  std::vector<Entity> kept;
  for (Entity& entity : all) {
    const bool overlaps = !kept.empty() && entity.place.begin < kept.back().place.end;
    if (!overlaps) {
      kept.push_back(std::move(entity));
      continue;
    }
    const auto rank = [&](const Entity& e) {
      const std::string_view own = text.substr(e.place.begin, e.place.end - e.place.begin);
      return std::pair(count_utf8(own), e.score);
    };
    if (rank(entity) > rank(kept.back())) kept.back() = std::move(entity);
  }
  return kept;
}

}  // namespace

std::vector<Entity> TokenClassifier::entities_of(const text::Encoding& encoding, const std::string& text,
                                                 const float* scores, const EntityOptions& options) const {
  const int64_t labels = encoder_.config().num_labels;
  std::vector<Piece> pieces;
  for (size_t t = 0; t < encoding.ids.size(); ++t, scores += labels) {
    if (encoding.sequence_ids[t] < 0) continue;  // the template's
    const bool at_spaces = options.words_end_at_spaces;
    const Offsets token = encoding.offsets[t], place = at_spaces ? word_around(text, token) : token;
    const bool continues = at_spaces ? !pieces.empty() && pieces.back().place == place
                                     : goes_on(tokenizer_, encoding.ids[t], text, token);
    pieces.push_back({{scores, scores + labels}, place, continues});
  }
  if (options.aggregation > Aggregation::simple) pieces = words_of(pieces, options.aggregation);
  std::vector<Entity> all;
  for (const Piece& piece : pieces) {
    all.push_back({label(static_cast<int64_t>(piece.best())), piece.score(), piece.place});
  }
  if (options.aggregation != Aggregation::none) all = grouped(all);
  std::erase_if(all, [&](const Entity& entity) {
    return std::find(options.ignored.begin(), options.ignored.end(), entity.label) != options.ignored.end();
  });
  return all;
}

std::vector<std::vector<Entity>> TokenClassifier::entities(std::span<const std::string> texts,
                                                           const EntityOptions& options) const {
  const int64_t labels = encoder_.config().num_labels;
  const auto limit = static_cast<size_t>(
      options.max_length == 0
          ? max_length_
          : detail::length_limit("TokenClassifier", options.max_length, encoder_.config().context));
  MH_CHECK(options.stride >= 0, ValueError, "TokenClassifier: stride must not be negative, got ",
           options.stride);
  MH_CHECK(options.stride == 0 || options.aggregation != Aggregation::none, ValueError,
           "TokenClassifier: a stride needs an aggregation, which tells tokens of two windows apart");
  if (options.stride > 0) check_stride(options.stride, limit, tokenizer_.encode("").size());
  check_ignored(options, labels, [&](int64_t i) { return label(i); });
  const NoTape silent;
  const size_t most = options.stride > 0 ? 0 : limit;
  std::vector<std::vector<Window>> parts(texts.size());
  parallel_for(std::ssize(texts), [&](int64_t index, int) {
    const auto i = static_cast<size_t>(index);
    add_windows(i, tokenizer_.encoding(texts[i], {.parse_special = true, .max_length = most}), limit,
                static_cast<size_t>(options.stride), parts[i]);
  });
  std::vector<Window> windows;
  for (std::vector<Window>& part : parts) std::move(part.begin(), part.end(), std::back_inserter(windows));
  std::vector<std::vector<Entity>> found(texts.size());
  each_batch(
      std::ssize(windows), options.batch_tokens, options.progress,
      [&](int64_t i) { return text::Encoding{windows[static_cast<size_t>(i)].encoding.ids}; },
      [&](const models::TokenRows& rows, int64_t first) {
        const Tensor scores = softmax(encoder_.logits(rows));
        const std::span all(scores.data<float>(), static_cast<size_t>(scores.numel()));
        MH_CHECK(std::ranges::none_of(all, [](float score) { return std::isnan(score); }), ValueError,
                 "TokenClassifier: a score is NaN: the weights hold NaN or Inf, or are too large for f32");
        for (int64_t s = 0; s < rows.sequences(); ++s) {
          const Window& window = windows[static_cast<size_t>(first + s)];
          const float* own = scores.data<float>() + rows.cu_seqlens.data<int64_t>()[s] * labels;
          for (Entity& one : entities_of(window.encoding, texts[window.text], own, options))
            found[window.text].push_back(std::move(one));
        }
      });
  if (options.stride > 0) {
    for (size_t i = 0; i < texts.size(); ++i) found[i] = without_overlaps(std::move(found[i]), texts[i]);
  }
  return found;
}

}  // namespace multihead::embed
