// Every option of attention() as one list: what the differential matrix and the gradient checks run over.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/masks/mask_mod.h"

namespace multihead::testing {

struct AttentionDims {
  int64_t batch = 2, heads = 6, kv_heads = 3, queries = 5, keys = 7, dim = 4, value_dim = 3;
};

/// Options for given sizes; `rng` draws the contents of tensors.
struct OptionCase {
  std::string name;
  std::function<AttentionOptions(const AttentionDims&, Dtype, Rng&)> options;
  ScoreMod score_mod = {};
  bool dropout = false;  ///< the caller sets options.rng, to the same seed in each call it compares
};

inline Tensor integers(const Shape& shape, int64_t low, int64_t high, Rng& rng) {
  const Tensor x = Tensor::empty(shape, Dtype::i64);
  const RandomStream stream = rng.next();
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<int64_t>()[i] =
        low + static_cast<int64_t>(stream.bits(static_cast<uint64_t>(i)) %
                                   static_cast<uint64_t>(std::max<int64_t>(high - low, 0) + 1));
  }
  return x;
}

inline Tensor flags(const Shape& shape, double probability, Rng& rng) {
  const Tensor x = Tensor::empty(shape, Dtype::boolean);
  const RandomStream stream = rng.next();
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<bool>()[i] = double{stream.uniform(static_cast<uint64_t>(i))} < probability;
  }
  return x;
}

/// Non-decreasing ids: contiguous documents.
inline Tensor sorted_ids(const Shape& shape, Rng& rng) {
  const Tensor steps = integers(shape, 0, 2, rng);
  const int64_t length = shape.back();
  for (int64_t i = 0; i < steps.numel(); ++i) {
    int64_t* id = steps.data<int64_t>() + i;
    *id = (i % length == 0 ? 0 : id[-1]) + (*id == 2);
  }
  return steps;
}

// Functions of a score for the list below.
struct DistanceMod {
  template <class S>
  S operator()(S score, ScoreIndex at) const {
    return score - S(0.125f * static_cast<float>(at.head + 1)) * S(static_cast<float>(at.query - at.key));
  }
};
struct CurvedMod {
  template <class S>
  S operator()(S score, ScoreIndex at) const {
    using std::tanh;
    return score * score * S(0.25f) + tanh(score) * S(1.0f + 0.1f * static_cast<float>(at.batch));
  }
};

struct SigmoidMod {
  template <class S>
  S operator()(S score, ScoreIndex at) const {
    using fast::sigmoid;
    return sigmoid(score + S(0.1f * static_cast<float>(at.head)));
  }
};

inline std::vector<OptionCase> mask_cases() {
  using D = const AttentionDims&;
  const auto mask = [](std::string name, auto make) {
    return OptionCase{std::move(name), [make](D d, Dtype, Rng& rng) {
                        AttentionOptions options;
                        options.mask = make(d, rng);
                        return options;
                      }};
  };
  return {
      mask("none", [](D, Rng&) { return Mask(); }),
      mask("causal", [](D, Rng&) { return causal(); }),
      mask("causal_start", [](D, Rng&) { return causal(Align::start); }),
      mask("causal_offsets", [](D d, Rng& r) { return causal_offset(integers({d.batch}, -2, d.keys, r)); }),
      mask("window", [](D, Rng&) { return window(2, 1); }),
      mask("window_left", [](D, Rng&) { return window(3, -1) & causal(); }),
      mask("two_diagonals", [](D, Rng&) { return causal() & window(2, 3, Align::start); }),
      mask("lengths", [](D d, Rng& r) { return lengths(integers({d.batch}, 0, d.keys, r)); }),
      mask("lengths_zero", [](D d, Rng&) { return lengths(Tensor::zeros({d.batch}, Dtype::i32)); }),
      mask("lengths_per_query",
           [](D d, Rng& r) {
             return lengths(integers({d.batch, d.queries}, 0, d.keys, r));
           }),
      mask("query_lengths",
           [](D d, Rng& r) {
             return query_lengths(integers({d.batch}, 0, d.queries, r)) &
                    lengths(integers({d.batch}, 1, d.keys, r));
           }),
      mask("documents",
           [](D d, Rng& r) {
             return documents(sorted_ids({d.batch, d.queries}, r), sorted_ids({d.keys}, r));
           }),
      mask(
          "documents_scattered",
          [](D d, Rng& r) {
            return documents(integers({d.queries}, 0, 2, r), integers({d.batch, d.keys}, 0, 2, r)) & causal();
          }),
      mask("prefix", [](D d, Rng& r) { return prefix(integers({d.batch}, 0, d.keys, r)); }),
      mask("blocks",
           [](D d, Rng& r) {
             return blocks(flags({d.heads, (d.queries + 1) / 2, (d.keys + 2) / 3}, 0.6, r), 2, 3);
           }),
      mask("keep",
           [](D d, Rng& r) {
             return keep(flags({d.queries, d.keys}, 0.6, r));
           }),
      mask("keep_keys",
           [](D d, Rng& r) {
             return keep(flags({d.batch, 1, 1, d.keys}, 0.6, r)) & causal();
           }),
      mask("drop_and_keep",
           [](D d, Rng& r) {
             return drop(flags({d.batch, d.heads, d.queries, d.keys}, 0.2, r)) &
                    keep(flags({d.queries, 1}, 0.8, r));
           }),
      mask("mask_mod",
           [](D, Rng&) {
             return mask_mod([](ScoreIndex at) { return (at.query + at.key + at.head) % 3 != 0; });
           }),
      mask("mask_mod_classify",
           [](D, Rng&) {
             return mask_mod([](ScoreIndex at) { return at.key <= at.query; },
                             [](const MaskBlock& block) {
                               if (block.key_begin > block.query_end - 1) return BlockClass::empty;
                               return block.key_end - 1 <= block.query_begin ? BlockClass::full
                                                                             : BlockClass::partial;
                             });
           }),
      mask("nothing",
           [](D d, Rng&) {
             return keep(Tensor::zeros({1, d.keys}, Dtype::boolean));
           }),
  };
}

inline std::vector<OptionCase> option_cases() {
  using D = const AttentionDims&;
  std::vector<OptionCase> cases = {
      {"bias_matrix",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.bias = randn({d.queries, d.keys}, r, t)};
       }},
      {"bias_heads",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal(), .bias = randn({d.heads, 1, d.keys}, r, t)};
       }},
      {"bias_full_infinite",
       [](D d, Dtype t, Rng& r) {
         const Tensor bias = randn({d.batch, d.heads, d.queries, d.keys}, r, t);
         const std::vector<bool> out = [&] {
           std::vector<bool> v;
           for (const double x : bias.to_vector<double>()) v.push_back(x < -0.5);
           return v;
         }();
         for (size_t i = 0; i < out.size(); ++i) {
           if (!out[i]) continue;
           bias.as_strided({1}, {1}, static_cast<int64_t>(i)).fill(-std::numeric_limits<double>::infinity());
         }
         return AttentionOptions{.bias = bias};
       }},
      {"alibi",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal(), .alibi_slopes = rand({d.heads}, r, t)};
       }},
      {"alibi_samples",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.alibi_slopes = rand({d.batch, d.heads}, r, t)};
       }},
      {"relative",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal(), .relative_bias = randn({d.heads, 5}, r, t)};
       }},
      {"relative_shared",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.relative_bias = randn({1, 2 * d.keys}, r, t), .relative_center = d.keys};
       }},
      {"relative_key",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.relative_key = randn({d.heads, 2 * d.keys, d.dim}, r, t)};
       }},
      {"relative_key_clipped",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal(), .relative_key = randn({1, 3, d.dim}, r, t)};
       }},
      {"relative_value",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.relative_value = randn({d.heads, 2 * d.keys, d.value_dim}, r, t)};
       }},
      {"relative_value_clipped",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal(),
                                 .relative_key = randn({1, 5, d.dim}, r, t),
                                 .relative_value = randn({1, 3, d.value_dim}, r, t)};
       }},
      {"sinks",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = lengths(integers({d.batch, d.queries}, 0, d.keys, r)),
                                 .sinks = randn({d.heads}, r, t)};
       }},
      {"sinks_dropout",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{
             .mask = causal(), .softcap = 2.0f, .sinks = randn({d.heads}, r, t), .dropout_p = 0.3f};
       },
       {},
       true},
      {"softcap", [](D, Dtype, Rng&) { return AttentionOptions{.mask = causal(), .softcap = 0.75f}; }},
      {"scale_zero", [](D, Dtype, Rng&) { return AttentionOptions{.scale = 0.0f}; }},
      {"scale_negative", [](D, Dtype, Rng&) { return AttentionOptions{.scale = -0.5f}; }},
      {"uniform",
       [](D d, Dtype, Rng& r) {
         return AttentionOptions{.mask = lengths(integers({d.batch, d.queries}, 0, 1, r)),
                                 .empty_row = EmptyRow::uniform};
       }},
      {"dropout",
       [](D, Dtype, Rng&) { return AttentionOptions{.mask = causal(), .dropout_p = 0.3f}; },
       {},
       true},
      {"dropout_all", [](D, Dtype, Rng&) { return AttentionOptions{.dropout_p = 1.0f}; }, {}, true},
      {"score_mod", [](D, Dtype, Rng&) { return AttentionOptions{.mask = causal()}; },
       score_mod(DistanceMod())},
      {"score_mod_curved", [](D, Dtype, Rng&) { return AttentionOptions{}; }, score_mod(CurvedMod())},
      {"weights_sum",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal() & keep(flags({d.heads, 1, d.keys}, 0.8, r)),
                                 .softcap = 1.5f,
                                 .bias = randn({d.heads, d.queries, 1}, r, t),
                                 .relative_bias = randn({d.heads, 3}, r, t),
                                 .normalise = Normalise::sum};
       },
       score_mod(SigmoidMod())},
      {"weights_abs",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = lengths(integers({d.batch}, 0, d.keys, r)),
                                 .alibi_slopes = rand({d.heads}, r, t),
                                 .relative_key = randn({d.heads, 4, d.dim}, r, t),
                                 .relative_value = randn({d.heads, 5, d.value_dim}, r, t),
                                 .dropout_p = 0.25f,
                                 .normalise = Normalise::abs_sum};
       },
       score_mod(CurvedMod()), true},
      {"weights_none",
       [](D, Dtype, Rng&) { return AttentionOptions{.mask = window(2, 1), .normalise = Normalise::none}; },
       score_mod(CurvedMod())},
      {"weights_scores",
       [](D, Dtype, Rng&) { return AttentionOptions{.softcap = 0.7f, .normalise = Normalise::none}; }},
      {"everything",
       [](D d, Dtype t, Rng& r) {
         return AttentionOptions{.mask = causal() & lengths(integers({d.batch}, 1, d.keys, r)) &
                                         keep(flags({d.heads, 1, d.keys}, 0.8, r)),
                                 .scale = 0.7f,
                                 .softcap = 1.5f,
                                 .bias = randn({d.heads, d.queries, 1}, r, t),
                                 .alibi_slopes = rand({d.heads}, r, t),
                                 .relative_bias = randn({d.heads, 3}, r, t),
                                 .relative_key = randn({d.heads, 4, d.dim}, r, t),
                                 .relative_value = randn({1, 7, d.value_dim}, r, t),
                                 .sinks = randn({d.heads}, r, t),
                                 .dropout_p = 0.25f};
       },
       score_mod(CurvedMod()), true},
  };
  return cases;
}

inline std::vector<OptionCase> attention_cases() {
  std::vector<OptionCase> all = mask_cases();
  for (OptionCase& c : option_cases()) all.push_back(std::move(c));
  return all;
}

}  // namespace multihead::testing
