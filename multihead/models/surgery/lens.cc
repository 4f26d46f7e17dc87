#include "multihead/models/surgery/lens.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/points.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

namespace multihead::models {
namespace {

void check_one_sequence(const char* who, const Tensor& tokens) {
  MH_CHECK(tokens.rank() == 2 && tokens.size(0) == 1 && tokens.size(1) > 0, ShapeError, who,
           ": tokens must be [1, T], got ", tokens.shape());
}

// log p(target) of each row of features [B, T, E], after the last token.
Tensor log_probability(const LanguageModel& model, const Tensor& features, int32_t target) {
  const int64_t batch = features.size(0), length = features.size(1);
  const Tensor last = reshape(slice(features, 1, length - 1, length), {batch, -1});
  const Tensor labels =
      Tensor::of<int64_t>({batch}, std::vector<int64_t>(static_cast<size_t>(batch), target));
  return scale(cross_entropy(model.logits(last), labels, {.reduction = Reduction::none}), -1);
}

Tensor repeat_rows(const Tensor& x, int64_t times) {
  return concat(std::vector<Tensor>(static_cast<size_t>(times), x), 0);
}

}  // namespace

std::vector<std::vector<Guess>> most_probable(const Tensor& logits, int64_t count) {
  const Tensor p = softmax(logits.to(Dtype::f32), -1).contiguous();
  const int64_t size = p.size(1), most = std::min(count, size);
  std::vector<std::vector<Guess>> result;
  std::vector<int32_t> order(static_cast<size_t>(size));
  for (int64_t r = 0; r < p.size(0); ++r) {
    const float* row = p.data<float>() + r * size;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + most, order.end(),
                      [row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    std::vector<Guess>& guesses = result.emplace_back();
    for (int64_t i = 0; i < most; ++i) {
      const int32_t token = order[static_cast<size_t>(i)];
      guesses.push_back({token, row[token]});
    }
  }
  return result;
}

std::vector<std::vector<std::vector<Guess>>> logit_lens(const LanguageModel& model, const Tensor& tokens,
                                                        int64_t count) {
  check_one_sequence("logit_lens", tokens);
  const NoTape silent;
  nn::Points points;
  points.keep("layers.*.resid_pre");
  Tensor last;
  {
    const nn::PointScope scope(points);
    last = model.features(tokens);
  }
  const int64_t layers = model.config().num_layers, length = tokens.size(1);
  std::vector<std::vector<std::vector<Guess>>> result;
  for (int64_t i = 0; i <= layers; ++i) {
    const Tensor features =
        i == layers ? last
                    : model.features_from(layers, points.kept().at(concat("layers.", i, ".resid_pre")));
    std::vector<std::vector<Guess>>& rows = result.emplace_back();
    constexpr int64_t kRows = 32;  // at a time: logits of a whole text may be gigabytes
    for (int64_t t = 0; t < length; t += kRows) {
      const int64_t end = std::min(length, t + kRows);
      const Tensor part = reshape(slice(features, 1, t, end), {end - t, -1});
      for (auto& guesses : most_probable(model.logits(part), count)) rows.push_back(std::move(guesses));
    }
  }
  return result;
}

std::vector<std::vector<double>> ablate_heads(const LanguageModel& model, const Tensor& tokens,
                                              int32_t target) {
  check_one_sequence("ablate_heads", tokens);
  check_plain_attention(model.config(), "ablate_heads");
  const NoTape silent;
  nn::Points points;
  points.keep("layers.*.resid_pre");
  double whole = 0;
  {
    const nn::PointScope scope(points);
    whole = log_probability(model, model.features(tokens), target).item();
  }
  std::vector<std::vector<double>> result;
  for (int64_t i = 0; i < model.config().num_layers; ++i) {
    const int64_t heads = model.layers[static_cast<size_t>(i)].self_attn.options().num_heads;
    nn::Points ablation;
    ablation.edit(concat("layers.", i, ".self_attn.z"), [heads](const std::string&, const Tensor& z) {
      const Tensor edited = z.clone();  // row h lacks head h
      for (int64_t h = 0; h < heads; ++h) slice(slice(edited, 0, h, h + 1), 2, h, h + 1).fill(0);
      return edited;
    });
    const nn::PointScope scope(ablation);
    const Tensor resid = repeat_rows(points.kept().at(concat("layers.", i, ".resid_pre")), heads);
    const Tensor values = log_probability(model, model.features_from(i, resid), target);
    std::vector<double>& changes = result.emplace_back();
    for (const double value : values.to_vector<double>()) changes.push_back(value - whole);
  }
  return result;
}

bool Shares::add_up() const {
  const double sum = std::accumulate(of_tokens.begin(), of_tokens.end(), 0.0);
  return std::abs(sum - whole) <= std::max(0.1 * std::abs(whole), 0.05);
}

namespace {

Tensor embeddings_of(const LanguageModel& model, const Tensor& tokens) {
  const NoTape silent;
  nn::Points look;
  look.keep("embed");
  const nn::PointScope scope(look);
  model.features(tokens);
  return look.kept().at("embed");
}

Tensor mean_embedding(const LanguageModel& model) {
  const NoTape silent;
  const Tensor& table = model.token_embedding.weight;
  const LanguageModelConfig& c = model.config();
  const double root = c.scale_embeddings ? std::sqrt(static_cast<double>(table.size(1))) : 1;
  return model.embedding_norm(
      scale(sum(table, 0), root * c.embedding_factor / static_cast<double>(table.size(0))));
}

}  // namespace

Shares integrated_gradients(const LanguageModel& model, const Tensor& tokens, int32_t target, int64_t steps) {
  check_one_sequence("integrated_gradients", tokens);
  MH_CHECK(!model.packed_dtype(), ValueError, "integrated_gradients: packed weights have no gradients");
  MH_CHECK(steps > 0, ValueError, "integrated_gradients: steps must be positive, got ", steps);
  constexpr int64_t kBatch = 16;
  const Tensor own = embeddings_of(model, tokens), mean = mean_embedding(model);
  const int64_t length = own.size(1), width = own.size(2);
  Tensor difference, gradient;
  // The embeddings that are so much short of the text's.
  const auto between = [&](const std::vector<double>& rests) {
    const NoTape silent;
    std::vector<Tensor> points;
    for (const double rest : rests) points.push_back(sub(own, scale(difference, rest)));
    return concat(points, 0);
  };
  const auto log_probabilities = [&](const Tensor& path) {
    return log_probability(model, model.features(repeat_rows(tokens, path.size(0))), target);
  };
  const auto with = [](const Tensor& path) {
    nn::Points points;
    points.edit("embed", [path](const std::string&, const Tensor&) { return path; });
    return points;
  };
  Shares shares;
  {
    const NoTape silent;
    difference = sub(own, mean);
    gradient = zeros_like(difference);
    const Tensor ends = between({0, 1});
    nn::Points points = with(ends);
    const nn::PointScope scope(points);
    const std::vector<double> at_ends = log_probabilities(ends).to_vector<double>();
    shares.whole = at_ends[0] - at_ends[1];
  }
  for (int64_t first = 0; first < steps; first += kBatch) {
    std::vector<double> rests;
    for (int64_t i = first; i < std::min(first + kBatch, steps); ++i)
      rests.push_back(1 - (static_cast<double>(i) + 0.5) / static_cast<double>(steps));
    const Tensor path = between(rests);
    // The edit comes first, so that what is watched is the point on the way.
    nn::Points points = with(path);
    points.keep_gradient("embed");
    {
      Tape tape;
      const nn::PointScope scope(points);
      tape.backward(sum(log_probabilities(path)));
    }
    const NoTape silent;
    gradient = add(gradient, sum(points.gradients().at("embed"), 0, true));
  }
  const NoTape silent;
  const Tensor product = mul(difference, scale(gradient, 1 / static_cast<double>(steps)));
  shares.of_tokens = sum(reshape(product, {length, width}), 1).to_vector<double>();
  return shares;
}

}  // namespace multihead::models
