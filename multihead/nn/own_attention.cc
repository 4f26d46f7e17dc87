#include "multihead/nn/own_attention.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/nn/decode/own-inl.h"
#include "multihead/nn/positions.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, MakeAttention> makers;
};

// It outlives every static object: what makes an attention may need an interpreter that has ended by then.
Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

Tensor counted(const CacheUpdate& update, int64_t length) {
  const bool all =
      std::all_of(update.counts.begin(), update.counts.end(), [=](int64_t n) { return n == length; });
  if (all) return {};
  return Tensor::of<int64_t>({std::ssize(update.counts)}, update.counts);
}

// Names what the options say beyond a causal attention; empty: nothing.
std::string beyond_causal(const AttentionCall& call, const CacheUpdate& update) {
  const bool causal_alone = update.cache != nullptr ? call.mask.is_empty() && update.window == 0
                                                    : call.mask.to_string() == causal().to_string();
  if (!causal_alone) return "a mask or window";
  if (call.dropout_p > 0 && call.rng != nullptr) return "dropout of attention weights";
  if (call.scale) return "a scale";
  static constexpr std::string_view kRead[] = {"mask", "dropout_p", "rng"};
  const char* const other = multihead::detail::other_option(call, kRead);
  return other != nullptr ? other : "";
}

MakeAttention maker_of(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  Enumeration known;
  for (const auto& [other, make] : registry().makers) {
    if (other == name) return make;
    known.add(other);
  }
  throw ValueError(
      concat("config: attention ", quote(name),
             " is not known here; define its class (Python: a subclass of multihead.nn.Attention) or "
             "register it (C++: nn::register_attention) before the model is made; known: ",
             known.empty() ? "none" : known.text()));
}

}  // namespace

void register_attention(const std::string& name, MakeAttention make) {
  MH_CHECK(!name.empty() && make, ValueError, "register_attention: give a name and a function");
  const std::lock_guard lock(registry().mutex);
  registry().makers[name] = std::move(make);
}

OwnAttentionCall::OwnAttentionCall(std::string who, const Tensor& x, const AttentionCall& call,
                                   const CacheUpdate& update)
    : who_(std::move(who)),
      options_(call),
      rotary_(call.rotary),
      update_(update),
      unread_(beyond_causal(call, update)) {
  MH_CHECK(!call.cu_seqlens.defined(), ValueError, who_, ": sequences without padding are not supported");
  MH_CHECK(call.capture == nullptr, ValueError, who_, ": its weights cannot be captured");
  MH_CHECK(!call.score_mod && !call.residual.defined(), ValueError, who_,
           ": a call has no score_mod and no residual");
  MH_CHECK(ContextScope::current() == nullptr, ValueError, who_,
           ": a sequence shared by several ranks is not supported");
  if (!is_cached()) {
    positions_ = reshape(Tensor::arange(x.size(1)), {1, x.size(1)});
    return;
  }
  options_.mask = detail::mask_of(update, call.mask);
  positions_ = position_ids(x.size(0), x.size(1), {update.held.begin(), update.held.end()});
  counts_ = counted(update, x.size(1));
}

const AttentionOptions& OwnAttentionCall::options() {
  options_read_ = true;
  return options_;
}

const RotaryTable* OwnAttentionCall::rotary() {
  rotary_read_ = true;
  return rotary_;
}

void OwnAttentionCall::check_read() const {
  MH_CHECK(options_read_ || unread_.empty(), ValueError, who_, ": the call has ", unread_,
           ", but its class reads no call.options");
  MH_CHECK(rotary_read_ || rotary_ == nullptr, ValueError, who_,
           ": the model has rotary positions, but its class reads no call.rotary; set positions to none");
}

OwnCache& OwnAttentionCall::find(const std::string& name, bool grows) {
  std::vector<OwnCache>& all = update_.cache->own;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const OwnCache& cache) { return cache.name == name; });
  MH_CHECK(found != all.end() && found->grows == grows, ValueError, who_, ": its caches() name no ",
           grows ? "growing" : "carried", " tensor ", quote(name));
  return *found;
}

Tensor OwnAttentionCall::grown(const std::string& name, const Tensor& x) {
  if (!is_cached()) return x;
  Tensor& all = find(name, true).values;
  const auto rows = static_cast<int64_t>(update_.held.size());
  MH_CHECK(x.rank() == 4 && x.size(0) == rows && x.size(1) == all.size(1) && x.size(3) == all.size(3),
           ShapeError, who_, ": ", quote(name), " must be [", rows, ", ", all.size(1), ", T, ", all.size(3),
           "], got ", x.shape());
  int64_t longest = 0;
  for (size_t b = 0; b < update_.held.size(); ++b) {
    longest = std::max(longest, update_.held[b] + update_.counts[b]);
  }
  MH_CHECK(longest <= all.size(2), ValueError, who_, ": ", longest, " tokens do not fit a capacity of ",
           all.size(2));
  make_own(all);
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t held = update_.held[static_cast<size_t>(b)], count = update_.counts[static_cast<size_t>(b)];
    const auto part = [b](const Tensor& t, int64_t begin, int64_t end) {
      return slice(slice(t, 0, b, b + 1), 2, begin, end);
    };
    part(all, held, held + count).copy_from(part(x.detach(), 0, count));
    part(all, held + count, longest).fill(0);
  }
  return slice(all, 2, 0, longest).to(x.dtype());  // under autocast another than the cache's
}

Tensor OwnAttentionCall::carried(const std::string& name) {
  return is_cached() ? find(name, false).values : Tensor();
}

void OwnAttentionCall::carry(const std::string& name, const Tensor& x) {
  if (!is_cached()) return;
  Tensor& kept = find(name, false).values;
  MH_CHECK(x.shape() == kept.shape(), ShapeError, who_, ": ", quote(name), " must be ", kept.shape(),
           ", got ", x.shape());
  kept = x.to(kept.dtype()).clone();
}

OwnAttentionPart::OwnAttentionPart(const std::string& name, const MultiHeadAttentionOptions& options,
                                   Rng& rng)
    : name_(name), held_(maker_of(name)(options, rng)) {
  MH_CHECK(held_ != nullptr, ValueError, "config: the function of attention ", quote(name), " made nothing");
}

Tensor OwnAttentionPart::operator()(const Tensor& x, const AttentionCall& call,
                                    const CacheUpdate& update) const {
  std::optional<NoTape> silent;
  if (update.cache != nullptr) silent.emplace();
  const std::string who = concat("attention ", quote(name_));
  OwnAttentionCall own(who, x, call, update);
  Tensor out = (*held_)(x, own);
  own.check_read();
  MH_CHECK(out.defined() && out.shape() == x.shape(), ShapeError, who, ": its result must be ", x.shape(),
           " as its input, got ", out.defined() ? concat(out.shape()) : "none");
  return out;
}

}  // namespace multihead::nn
