// Attention weights as one HTML file: scripts, style and numbers inline, nothing fetched.
#pragma once

#include <string>
#include <vector>

#include "multihead/core/tensor.h"

namespace multihead::cli {

/// One stack's attention of some queries to some keys.
struct AttentionView {
  std::string name;                        ///< "Self-attention"
  std::vector<std::string> queries, keys;  ///< the tokens' texts; bytes that are no UTF-8 are replaced
  std::vector<Tensor> layers;              ///< [1, H, Tq, Tk] f32 each, as AttentionCapture::weights
};

struct AttentionPage {
  std::string title;
  std::vector<AttentionView> views;
};

/// Overview of layers and heads, token-to-token lines, the matrix, CSV. Weights are kept to 1/65535, in
/// base64: 2.7 bytes each. Throws ShapeError if weights and tokens do not fit.
std::string to_html(const AttentionPage& page);

}  // namespace multihead::cli
