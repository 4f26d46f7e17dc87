// A model's attention as one HTML file: scripts, style and data inline, nothing fetched.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/json.h"
#include "multihead/models/surgery/lens.h"

namespace multihead::look {

/// Queries and keys of a view's heads, for its products dimension by dimension.
struct Neurons {
  std::vector<Tensor> queries, keys;  ///< per layer [1, Tq, heads, D], [1, Tk, groups, D] f32
  std::vector<int64_t> groups;  ///< the numbers of the key heads; query head h has the keys of h / group
  int64_t group = 1;
  double scale = 1;  ///< of q · k
};

/// One stack's attention of some queries to some keys: all of its layers and heads, or some.
struct AttentionView {
  std::string name;                        ///< "Self-attention"
  std::vector<std::string> queries, keys;  ///< the tokens' labels, UTF-8
  bool causal = false;                     ///< query i sees keys 0 to i
  std::vector<int64_t> rows = {};          ///< which of the tokens the queries are; empty: all
  std::vector<int64_t> special = {};       ///< queries that stand for no text
  std::vector<int64_t> layers, heads;      ///< their numbers in the model
  int64_t all_layers = 0, all_heads = 0;   ///< how many the model has
  std::vector<Tensor> weights;             ///< per layer [1, heads, Tq, Tk] f32, as AttentionCapture::weights
  std::optional<Neurons> neurons = {};

  /// How many weights a page stores of it.
  int64_t weight_count() const;
  /// Only the keys that a query sees.
  bool stores_half() const { return causal && rows.empty(); }
};

/// A token's label and its probability.
using Prediction = std::pair<std::string, double>;

/// A run of a model on a text, the first view being that of its own tokens.
struct AttentionRun {
  std::string title;  ///< beside another run
  std::vector<AttentionView> views = {};
  std::vector<Prediction> next = {};                            ///< after the last token
  std::vector<std::vector<std::vector<Prediction>>> lens = {};  ///< [layers + 1][T], see models::logit_lens()
  std::string target = {};                                      ///< that attributions and ablation speak of
  double probability = 0;                                       ///< of it
  models::Shares attributions = {};                             ///< see models::integrated_gradients()
  std::vector<std::vector<double>> ablation = {};  ///< [layers][heads], see models::ablate_heads()
  std::vector<std::string> off = {};               ///< heads that were switched off: "0.3"
};

struct AttentionPage {
  std::string title;
  std::vector<AttentionRun> runs;       ///< one, or two side by side
  int bits = 16;                        ///< of √weight: 16 is off by 1.5e-5 of a weight at most, 8 by 0.004
  std::optional<std::string> lab = {};  ///< the text of a page that runs the model again, see `multihead lab`
};

/// The bytes of weights in a page: base64, four characters for three bytes.
double stored_bytes(const std::vector<AttentionView>& views, int bits);

/// Overview of layers and heads, token-to-token lines, the matrix, and what else the runs hold. Throws
/// ShapeError if weights and tokens do not fit.
std::string to_html(const AttentionPage& page);
/// The runs alone, as an answer of the laboratory to its page.
Json to_json(const AttentionPage& page);

}  // namespace multihead::look
