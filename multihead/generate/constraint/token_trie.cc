#include "multihead/generate/constraint/token_trie.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead {
namespace {

constexpr size_t kLongestToken = 250;  // in bytes; longer ones, such as rows of signs, are never allowed

// The number of characters if all are whole, stand for themselves in a JSON string and end no line; else 0.
size_t plain_characters(std::string_view bytes) {
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) {
    const Utf8Char c = decode_utf8(bytes, at);
    const bool ends_line = c.code_point == 0x2028 || c.code_point == 0x2029;
    if (c.code_point < 0x20 || c.code_point == '"' || c.code_point == '\\' || ends_line) return 0;
    at += static_cast<size_t>(c.length);
  }
  return count;
}

}  // namespace

void TokenSet::add(const TokenSet& other) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

bool TokenSet::is_empty() const {
  return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
}

void TokenSet::mask(std::span<float> logits) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += 64) {
    const uint64_t word = begin / 64 < words_.size() ? words_[begin / 64] : 0;
    const size_t count = std::min(size_t{64}, logits.size() - begin);
    if (word == 0) {
      std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(begin), count, kNever);
      continue;
    }
    for (uint64_t rest = ~word; rest != 0; rest &= rest - 1) {
      const auto bit = static_cast<size_t>(std::countr_zero(rest));
      if (bit >= count) break;
      logits[begin + bit] = kNever;
    }
  }
}

TokenTrie::TokenTrie(const text::Tokenizer& tokenizer, bool first) {
  MH_CHECK(tokenizer.kind() != text::Tokenizer::Kind::wordpiece &&
               tokenizer.kind() != text::Tokenizer::Kind::words,
           ValueError, "constraint: the tokens of a tokenizer of words are no pieces of the text");
  const auto count = static_cast<size_t>(tokenizer.vocab_size());
  bytes_.resize(count), twin_.assign(count, -1);
  std::vector<int32_t> sorted, rest;
  plain_.assign(kLongestPlain, TokenSet(count));
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(i);
    if (tokenizer.is_special(token)) continue;
    bytes_[i] = tokenizer.decode(std::span(&token, 1), {.continued = !first});
    if (!bytes_[i].empty() && bytes_[i].size() <= kLongestToken) sorted.push_back(token);
  }
  std::sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    const int order = bytes(a).compare(bytes(b));
    return order != 0 ? order < 0 : a < b;
  });
  for (const int32_t token : sorted) {
    const size_t characters = plain_characters(bytes(token));
    if (characters == 0 || characters > kLongestPlain) {
      rest.push_back(token);
      continue;
    }
    for (size_t k = characters; k <= kLongestPlain; ++k) plain_[k - 1].add(token);
  }
  all_ = tree_of(sorted);
  special_ = tree_of(rest);
}

TokenTrie::Tree TokenTrie::tree_of(const std::vector<int32_t>& sorted) {
  Tree tree;
  std::vector<uint32_t> path;  // the nodes that the last token went through
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) tree[path.back()].end = static_cast<uint32_t>(tree.size());
  };
  for (const int32_t token : sorted) {
    const std::string_view own = bytes(token);
    const size_t shared = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), own.begin(), own.end()).first - before.begin());
    close(shared);
    for (size_t depth = shared; depth < own.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(tree.size()));
      tree.push_back({.byte = static_cast<uint8_t>(own[depth]), .depth = static_cast<uint8_t>(depth)});
    }
    int32_t& last = tree[path.back()].token;
    twin_[static_cast<size_t>(token)] = last;
    last = token;
    before = own;
  }
  close(0);
  return tree;
}

void TokenTrie::walk(const Tree& tree, text::grammar::Walker& walker, int32_t state, TokenSet& set) const {
  std::array<int32_t, kLongestToken + 1> states;
  states[0] = state;
  for (size_t i = 0; i < tree.size();) {
    const Node& node = tree[i];
    const int32_t to = walker.next(states[node.depth], node.byte);
    if (to == text::grammar::Walker::kDead) {
      i = node.end;
      continue;
    }
    states[node.depth + size_t{1}] = to;
    for (int32_t token = node.token; token >= 0; token = twin_[static_cast<size_t>(token)]) set.add(token);
    ++i;
  }
}

TokenSet TokenTrie::allowed(text::grammar::Walker& walker, int32_t state) const {
  const int32_t run = walker.plain_run(state);
  if (run == 0) {
    TokenSet set(tokens());
    walk(all_, walker, state, set);
    return set;
  }
  TokenSet set = plain_[std::min(static_cast<size_t>(run), kLongestPlain) - 1];
  walk(special_, walker, state, set);
  return set;
}

namespace {

// The tries of the last tokenizers. They outlive every static object.
struct KeptTries {
  static constexpr size_t kMost = 4;
  struct One {
    uint64_t fingerprint;
    TokenTries tries;
  };
  std::mutex mutex;
  std::deque<One> all;

  static KeptTries& instance() {
    static KeptTries* const kept = [] {
      auto* created = new KeptTries;
      // The child of a fork does not wait for a thread that it does not have.
      pthread_atfork(nullptr, nullptr, [] {
        KeptTries& own = instance();
        if (own.mutex.try_lock()) return own.mutex.unlock();
        std::construct_at(&own);
      });
      return created;
    }();
    return *kept;
  }
};

}  // namespace

TokenTries token_tries(const text::Tokenizer& tokenizer) {
  KeptTries& kept = KeptTries::instance();
  const std::lock_guard lock(kept.mutex);
  const uint64_t fingerprint = tokenizer.fingerprint();
  for (const KeptTries::One& one : kept.all) {
    if (one.fingerprint == fingerprint) return one.tries;
  }
  TokenTries tries = {.rest = std::make_shared<TokenTrie>(tokenizer)};
  // Bytes and characters are the same everywhere.
  const bool differs =
      tokenizer.kind() != text::Tokenizer::Kind::bpe && tokenizer.kind() != text::Tokenizer::Kind::characters;
  tries.first = differs ? std::make_shared<TokenTrie>(tokenizer, true) : tries.rest;
  kept.all.push_front({fingerprint, tries});
  if (kept.all.size() > KeptTries::kMost) kept.all.pop_back();
  return tries;
}

}  // namespace multihead
