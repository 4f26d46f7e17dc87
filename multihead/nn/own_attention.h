// Attention that you write, in the layers of a language model: your class with its own weights, which the model
// trains, saves and loads, and with tensors of its own that cached decoding keeps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "multihead/nn/attention.h"

namespace multihead::nn {

/// The inputs of a call besides x, and the tensors kept for later tokens. Options of the call that the attention
/// does not read are refused, lest they be ignored in silence.
class OwnAttentionCall {
 public:
  /// Mask (causal, with the cached keys counted), dropout and terms of the scores, for attention().
  const AttentionOptions& options();
  /// Null: the model has no rotary positions.
  const RotaryTable* rotary();
  const Tensor& positions() const { return positions_; }  ///< of the new tokens, i64 [B or 1, T]
  const Tensor& counts() const { return counts_; }        ///< new tokens per row, i64 [B]; undefined: all T

  bool is_cached() const { return update_.cache != nullptr; }
  /// x [B, heads, T, dim] joined to the former tokens' under this name, [B, heads, tokens, dim]; x itself without
  /// a cache. Past a row's tokens it is 0. Throws ValueError unless caches() has it, ShapeError.
  Tensor grown(const std::string& name, const Tensor& x);
  /// The tensor that carry() kept last; 0 at first, undefined without a cache.
  Tensor carried(const std::string& name);
  void carry(const std::string& name, const Tensor& x);

  /// Internal to OwnAttentionPart.
  OwnAttentionCall(std::string who, const Tensor& x, const AttentionCall& call, const CacheUpdate& update);
  void check_read() const;

 private:
  OwnCache& find(const std::string& name, bool grows);

  std::string who_;
  AttentionOptions options_;
  const RotaryTable* rotary_;
  Tensor positions_, counts_;
  CacheUpdate update_;
  std::string unread_;  // what a mask that is not read would pass over
  bool options_read_ = false, rotary_read_ = false;
};

/// Copies share weights, as those of every module do.
class OwnAttention {
 public:
  OwnAttention() = default;
  virtual ~OwnAttention() = default;
  /// x [B, T, embed_dim], normed in a pre-norm layer -> the same shape.
  virtual Tensor operator()(const Tensor& x, OwnAttentionCall& call) const = 0;
  virtual void visit(Visitor& visitor) = 0;
  virtual std::shared_ptr<OwnAttention> clone() const = 0;
  /// The tensors that grown() and carry() keep.
  virtual std::vector<OwnCacheSpec> caches() const { return {}; }

 protected:
  OwnAttention(const OwnAttention&) = default;
  OwnAttention& operator=(const OwnAttention&) = default;
};

using MakeAttention =
    std::function<std::shared_ptr<OwnAttention>(const MultiHeadAttentionOptions& options, Rng& rng)>;
/// Makes models with config.attention == name possible. The last one registered under a name counts. Threads may
/// call both.
void register_attention(const std::string& name, MakeAttention make);
/// A module that holds one, or nothing.
class OwnAttentionPart {
 public:
  OwnAttentionPart() = default;
  OwnAttentionPart(const std::string& name, std::shared_ptr<OwnAttention> attention)
      : name_(name), held_(std::move(attention)) {}
  /// Throws ValueError unless an attention of that name is registered.
  OwnAttentionPart(const std::string& name, const MultiHeadAttentionOptions& options, Rng& rng);
  OwnAttentionPart(const OwnAttentionPart& other)
      : name_(other.name_), held_(other.held_ ? other.held_->clone() : nullptr) {}
  OwnAttentionPart& operator=(const OwnAttentionPart& other) { return *this = OwnAttentionPart(other); }
  OwnAttentionPart(OwnAttentionPart&&) = default;
  OwnAttentionPart& operator=(OwnAttentionPart&&) = default;
  ~OwnAttentionPart() = default;

  bool defined() const { return held_ != nullptr; }
  Tensor operator()(const Tensor& x, const AttentionCall& call, const CacheUpdate& update) const;
  std::vector<OwnCacheSpec> caches() const { return held_ ? held_->caches() : std::vector<OwnCacheSpec>(); }
  void visit(Visitor& visitor) {
    if (held_) held_->visit(visitor);
  }

 private:
  std::string name_;
  std::shared_ptr<OwnAttention> held_;
};

}  // namespace multihead::nn
