// Positional encodings: sinusoidal, learned, rotary and relative.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "multihead/core/text/enum_words.h"
#include "multihead/nn/embedding.h"

namespace multihead::nn {

/// Layout of sines and cosines in the columns. w_k = base^(-2k/embed_dim) for k = 0, 1, …
enum class SinusoidLayout {
  interleaved,  ///< sin, cos, sin, cos … (Vaswani et al. 2017, §3.5); an odd last column is a sine
  halves,       ///< all sines, then all cosines (Marian in Hugging Face)
  /// The same of w_k = base^(-k/(n - 1)) for n = embed_dim / 2 (tensor2tensor, fairseq, M2M100); an odd last
  /// column is zero.
  tensor2tensor,
};
constexpr auto enum_words(SinusoidLayout) {
  return std::to_array<std::string_view>({"interleaved", "halves", "tensor2tensor"});
}

/// Positions [start, start + length) as rows: [length, embed_dim], computed in f64, then f32.
Tensor sinusoidal_positions(int64_t length, int64_t embed_dim, int64_t start = 0,
                            SinusoidLayout layout = SinusoidLayout::interleaved, double base = 10000);

/// x + sinusoids, then dropout. Any embed_dim and length; no parameters.
/// Shapes: x [B, T, embed_dim] -> the same. `starts`: position of the first token, one for all or one per
/// row.
class SinusoidalPositionalEncoding {
 public:
  explicit SinusoidalPositionalEncoding(int64_t embed_dim, double dropout_p = 0,
                                        SinusoidLayout layout = SinusoidLayout::interleaved);
  Tensor operator()(const Tensor& x, const std::vector<int64_t>& starts = {0}, Rng* rng = nullptr) const;
  void visit(Visitor&) {}
  int64_t embed_dim() const { return embed_dim_; }
  double dropout_p() const { return dropout_p_; }
  SinusoidLayout layout() const { return layout_; }

 private:
  int64_t embed_dim_;
  double dropout_p_;
  SinusoidLayout layout_;
};

/// [B, T] position ids: row b counts from starts[b] (or starts[0] if there is only one), up to `limit`; all
/// have `offset` added.
Tensor position_ids(int64_t batch, int64_t length, const std::vector<int64_t>& starts,
                    int64_t limit = std::numeric_limits<int64_t>::max(), int64_t offset = 0);

/// Slopes [num_heads] of attention with linear biases: 2^(-8h/H), and for H not a power of two the odd powers
/// of the next one in between (Press et al. 2022).
Tensor alibi_slopes(int64_t num_heads);

/// T5's distance buckets (Raffel et al. 2020, §2.1): short distances have one each, longer ones share buckets
/// in logarithmic steps up to max_distance, and all beyond share the last.
struct RelativeBuckets {
  int64_t count = 32;
  int64_t max_distance = 128;
  bool bidirectional = true;  ///< half of them for keys after the query; otherwise those share bucket 0
};
/// The bucket of key position - query position = -max_distance … max_distance: i64 [2·max_distance + 1].
/// Throws ValueError (too few buckets or distances).
Tensor relative_buckets(const RelativeBuckets& buckets);

/// A bias of the scores for each head and bucket, for AttentionOptions::relative_bias.
class RelativeBias {
 public:
  RelativeBias() = default;
  RelativeBias(const RelativeBuckets& buckets, int64_t num_heads, Rng& rng);

  /// [num_heads, 2·max_distance + 1]
  Tensor operator()() const;
  void visit(Visitor& visitor) { visitor("weight", weight); }

  Tensor weight;  ///< [buckets, num_heads]

 private:
  Tensor buckets_;
};

}  // namespace multihead::nn
