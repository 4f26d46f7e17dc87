#include "multihead/text/bleu.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/version.h"

namespace multihead::text {
namespace {

constexpr size_t kWordOrder = 4, kCharacterOrder = 6;
constexpr double kRecallWeight = 4;  // beta², beta = 2

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }

// The ASCII punctuation that always stands alone.
bool is_symbol(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

enum class Space { before, behind };

// Pairs "ab" that match, from left to right and without overlap, become " a b" or "a b ".
template <class Matches>
std::string spaced_pairs(const std::string& text, Space space, Matches matches) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pair = i + 1 < text.size() && matches(text[i], text[i + 1]);
    if (pair && space == Space::before) out += ' ';
    out += text[i];
    if (pair) out += {' ', text[++i]};
    if (pair && space == Space::behind) out += ' ';
  }
  return out;
}

// Bytes of the whitespace character at `at`, as Python's str.split sees it; 0: none.
size_t space_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
  const uint8_t first = byte(0);
  if ((first >= 0x09 && first <= 0x0D) || (first >= 0x1C && first <= 0x20)) return 1;
  if (first == 0xC2 && (byte(1) == 0x85 || byte(1) == 0xA0)) return 2;
  if (first == 0xE1 && byte(1) == 0x9A && byte(2) == 0x80) return 3;
  if (first == 0xE3 && byte(1) == 0x80 && byte(2) == 0x80) return 3;
  if (first != 0xE2) return 0;
  const bool in_80 = byte(1) == 0x80 && ((byte(2) >= 0x80 && byte(2) <= 0x8A) || byte(2) == 0xA8 ||
                                         byte(2) == 0xA9 || byte(2) == 0xAF);
  return in_80 || (byte(1) == 0x81 && byte(2) == 0x9F) ? 3 : 0;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;
  for (size_t at = 0; at < text.size();) {
    const size_t space = space_length(text, at);
    if (space > 0) {
      open = false;
      at += space;
      continue;
    }
    if (!open) words.emplace_back();
    open = true;
    words.back() += text[at++];
  }
  return words;
}

// Characters without spaces; a byte that is no UTF-8 counts as one.
std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> result;
  for (size_t at = 0; at < text.size();) {
    const size_t space = space_length(text, at);
    const size_t length = space > 0 ? space : static_cast<size_t>(decode_utf8(text, at).length);
    if (space == 0) result.emplace_back(text.substr(at, length));
    at += length;
  }
  return result;
}

// Parts of an n-gram are told apart by a byte that is in none of them: words hold no spaces.
using Counts = std::unordered_map<std::string, int64_t>;

Counts count_ngrams(const std::vector<std::string>& units, size_t n) {
  Counts counts;
  for (size_t i = 0; i + n <= units.size(); ++i) {
    std::string key;
    for (size_t k = i; k < i + n; ++k) key.append(units[k]).append(1, ' ');
    ++counts[key];
  }
  return counts;
}

int64_t matches_of(const Counts& a, const Counts& b) {
  int64_t matches = 0;
  for (const auto& [ngram, count] : a) {
    const auto found = b.find(ngram);
    if (found != b.end()) matches += std::min(count, found->second);
  }
  return matches;
}

int64_t ngrams_in(size_t units, size_t n) { return units >= n ? static_cast<int64_t>(units - n + 1) : 0; }

void check_sizes(const char* what, size_t hypotheses, size_t references) {
  MH_CHECK(hypotheses == references && hypotheses > 0, ValueError, what, ": ", hypotheses, " hypotheses and ",
           references, " references; expected the same number, at least one");
}

void finish(BleuScore& s) {
  s.brevity_penalty = 1;
  if (s.hypothesis_words < s.reference_words) {
    s.brevity_penalty =
        s.hypothesis_words == 0
            ? 0
            : std::exp(1 - static_cast<double>(s.reference_words) / static_cast<double>(s.hypothesis_words));
  }
  if (std::all_of(s.correct.begin(), s.correct.end(), [](int64_t count) { return count == 0; })) return;
  double smoothing = 1, logs = 0;
  for (size_t n = 0; n < kWordOrder; ++n) {
    if (s.total[n] == 0) return;  // no hypothesis is that long: the mean is zero
    const auto total = static_cast<double>(s.total[n]);
    if (s.correct[n] == 0) smoothing *= 2;
    s.precisions[n] =
        s.correct[n] == 0 ? 100 / (smoothing * total) : 100 * static_cast<double>(s.correct[n]) / total;
    logs += std::log(s.precisions[n]);
  }
  s.score = s.brevity_penalty * std::exp(logs / static_cast<double>(kWordOrder));
}

}  // namespace

std::vector<std::string> tokenize_13a(std::string_view line) {
  std::string text(line);
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");
  std::string spaced = " ";
  for (const char c : text) {
    spaced += is_symbol(c) ? std::string({' ', c, ' '}) : std::string(1, c);
  }
  spaced += " ";
  spaced = spaced_pairs(spaced, Space::behind, [](char a, char b) { return !is_digit(a) && is_stop(b); });
  spaced = spaced_pairs(spaced, Space::before, [](char a, char b) { return is_stop(a) && !is_digit(b); });
  spaced = spaced_pairs(spaced, Space::behind, [](char a, char b) { return is_digit(a) && b == '-'; });
  return split(spaced);
}

BleuScore bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  check_sizes("bleu", hypotheses.size(), references.size());
  BleuScore s;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    const auto ours = tokenize_13a(hypotheses[i]), theirs = tokenize_13a(references[i]);
    s.hypothesis_words += static_cast<int64_t>(ours.size());
    s.reference_words += static_cast<int64_t>(theirs.size());
    for (size_t n = 1; n <= kWordOrder; ++n) {
      s.correct[n - 1] += matches_of(count_ngrams(ours, n), count_ngrams(theirs, n));
      s.total[n - 1] += ngrams_in(ours.size(), n);
    }
  }
  finish(s);
  return s;
}

double chrf(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  check_sizes("chrf", hypotheses.size(), references.size());
  std::array<int64_t, kCharacterOrder> ours = {}, theirs = {}, matched = {};
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    const auto hypothesis = characters(hypotheses[i]), reference = characters(references[i]);
    for (size_t n = 1; n <= kCharacterOrder; ++n) {
      const int64_t available = ngrams_in(reference.size(), n);
      // A reference too short for an n-gram says nothing about those of the hypothesis.
      if (available > 0) ours[n - 1] += ngrams_in(hypothesis.size(), n);
      theirs[n - 1] += available;
      matched[n - 1] += matches_of(count_ngrams(hypothesis, n), count_ngrams(reference, n));
    }
  }
  double precision = 0, recall = 0;
  int64_t orders = 0;
  for (size_t n = 0; n < kCharacterOrder; ++n) {
    if (ours[n] == 0 || theirs[n] == 0) continue;
    precision += static_cast<double>(matched[n]) / static_cast<double>(ours[n]);
    recall += static_cast<double>(matched[n]) / static_cast<double>(theirs[n]);
    ++orders;
  }
  if (orders == 0 || precision + recall == 0) return 0;
  precision /= static_cast<double>(orders);
  recall /= static_cast<double>(orders);
  return 100 * (1 + kRecallWeight) * precision * recall / (kRecallWeight * precision + recall);
}

std::string bleu_signature() {
  return concat("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:multihead-", version());
}

std::string chrf_signature() {
  return concat("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:multihead-", version());
}

}  // namespace multihead::text
