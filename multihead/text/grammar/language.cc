#include "multihead/text/grammar/language.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/text/grammar/byte_dfa.h"

namespace multihead::text::grammar {
namespace {

constexpr size_t kMostStates = 20'000;  // some 25 MB
constexpr size_t kMostThreads = 1'000;

size_t mixed(size_t seed, uint64_t value) { return (seed ^ value) * 0x9E3779B97F4A7C15ULL + (seed >> 29); }

template <class List>
size_t hash_of(const List& list) {
  size_t seed = list.size();
  for (const auto value : list) seed = mixed(seed, static_cast<uint64_t>(static_cast<uint32_t>(value)));
  return seed ^ seed >> 32;
}

class RegexLanguage : public Language {
 public:
  explicit RegexLanguage(std::string_view pattern) : dfa_(ByteDfa::regex(pattern)) {}
  void start(Stacks& stacks, Threads& out) const override {
    out.push_back(stacks.id({.x = ByteDfa::kStart}));
  }
  void step(Stacks& stacks, uint32_t thread, uint8_t byte, Threads& out) const override {
    const int32_t to = dfa_.next(stacks.at(thread).x, byte);
    if (to != ByteDfa::kDead) out.push_back(stacks.id({.x = to}));
  }
  bool accepts(const Stacks& stacks, uint32_t thread) const override {
    return dfa_.accepts(stacks.at(thread).x);
  }

 private:
  ByteDfa dfa_;
};

}  // namespace

size_t Stacks::Hash::operator()(const Frame& f) const {
  size_t seed = mixed(uint64_t{f.op} << 32 | uint64_t{f.depth} << 16 | f.small, static_cast<uint32_t>(f.ref));
  seed = mixed(seed, uint64_t{static_cast<uint32_t>(f.x)} << 32 | static_cast<uint32_t>(f.y));
  seed = mixed(seed, f.parent);
  return seed ^ seed >> 32;
}

size_t Stacks::Hash::operator()(const std::vector<int32_t>& list) const { return hash_of(list); }

uint32_t Stacks::id(const Frame& frame) {
  const auto [at, is_new] = frame_ids_.try_emplace(frame, static_cast<uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(frame);
  return at->second;
}

int32_t Stacks::list_id(const std::vector<int32_t>& list) {
  const auto [at, is_new] = list_ids_.try_emplace(list, static_cast<int32_t>(lists_.size()));
  if (is_new) lists_.push_back(&at->first);
  return at->second;
}

LanguagePtr regex_language(std::string_view pattern) { return std::make_shared<RegexLanguage>(pattern); }

size_t Walker::Hash::operator()(const Threads& threads) const { return hash_of(threads); }

Walker::Walker(LanguagePtr language) : language_(std::move(language)) {
  Threads threads;
  language_->start(stacks_, threads);
  start_ = number(std::move(threads));
}

int32_t Walker::number(Threads threads) {
  if (threads.empty()) return kDead;
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  MH_CHECK(threads.size() <= kMostThreads, ValueError, "constraint: a text can be read in more than ",
           kMostThreads, " ways; make the grammar less ambiguous");
  const auto [at, is_new] = numbers_.try_emplace(std::move(threads), static_cast<int32_t>(rows_.size()));
  if (!is_new) return at->second;
  MH_CHECK(rows_.size() < kMostStates, ValueError, "constraint: it needs more than ", kMostStates, " states");
  threads_.push_back(&at->first);
  rows_.push_back(std::make_unique<std::array<int32_t, 256>>());
  rows_.back()->fill(kUnknown);
  uint8_t accepting = 0;
  // A run without end allows all that another way to read on could; shorter ones say it only where they are alone.
  int32_t plain = 0;
  for (const uint32_t thread : at->first) plain = std::max(plain, language_->plain_run(stacks_, thread));
  if (at->first.size() > 1 && plain < kAnyLength) plain = 0;
  for (const uint32_t thread : at->first) {
    accepting |= static_cast<uint8_t>(language_->accepts(stacks_, thread));
  }
  accepting_.push_back(accepting);
  plain_.push_back(plain);
  return at->second;
}

int32_t Walker::compute(int32_t state, uint8_t byte) {
  Threads to;
  for (const uint32_t thread : *threads_[static_cast<size_t>(state)]) {
    language_->step(stacks_, thread, byte, to);
    MH_CHECK(to.size() <= 64 * kMostThreads, ValueError, "constraint: a text can be read in too many ways");
  }
  const int32_t found = number(std::move(to));
  (*rows_[static_cast<size_t>(state)])[byte] = found;
  return found;
}

int32_t Walker::run(std::string_view text, int32_t state) {
  for (const char c : text) {
    if (state == kDead) return kDead;
    state = next(state, static_cast<uint8_t>(c));
  }
  return state;
}

bool Walker::is_last(int32_t state) {
  for (int byte = 0; byte < 256; ++byte) {
    if (next(state, static_cast<uint8_t>(byte)) != kDead) return false;
  }
  return true;
}

int32_t Walker::keep(int32_t state) {
  Walker fresh(language_);
  std::unordered_map<uint32_t, uint32_t> moved = {{0, 0}};  // every language begins by the same level
  Threads threads;
  for (const uint32_t thread : *threads_[static_cast<size_t>(state)]) {
    std::vector<uint32_t> levels;
    for (uint32_t at = thread; !moved.contains(at); at = stacks_.at(at).parent) levels.push_back(at);
    for (; !levels.empty(); levels.pop_back()) {
      Frame frame = stacks_.at(levels.back());
      frame.parent = moved.at(frame.parent);
      language_->move_lists(frame, stacks_, fresh.stacks_);
      moved[levels.back()] = fresh.stacks_.id(frame);
    }
    threads.push_back(moved.at(thread));
  }
  const int32_t kept = fresh.number(std::move(threads));
  *this = std::move(fresh);
  return kept;
}

}  // namespace multihead::text::grammar
