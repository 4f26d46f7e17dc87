// Attention weights as one HTML file: scripts, style and numbers inline, nothing fetched.
#pragma once

#include <string>
#include <vector>

#include "multihead/core/tensor.h"

namespace multihead::cli {

/// One stack's attention of some queries to some keys: all of its layers and heads, or some.
struct AttentionView {
  std::string name;                        ///< "Self-attention"
  std::vector<std::string> queries, keys;  ///< the tokens' labels, UTF-8
  bool causal = false;                     ///< query i sees keys 0 to i; the rest is not stored
  std::vector<int64_t> layers, heads;      ///< their numbers in the model
  int64_t all_layers = 0, all_heads = 0;   ///< how many the model has
  std::vector<Tensor> weights;             ///< per layer [1, heads, Tq, Tk] f32, as AttentionCapture::weights

  /// How many weights a page stores of it.
  int64_t weight_count() const;
};

struct AttentionPage {
  std::string title;
  std::vector<AttentionView> views;
  int bits = 16;  ///< of √weight: 16 is off by 1.5e-5 of a weight at most, 8 by 0.004
};

/// The bytes of weights in a page: base64, four characters for three bytes.
double stored_bytes(const std::vector<AttentionView>& views, int bits);

/// Overview of layers and heads, token-to-token lines, the matrix, CSV. Throws ShapeError if weights and
/// tokens do not fit.
std::string to_html(const AttentionPage& page);

}  // namespace multihead::cli
