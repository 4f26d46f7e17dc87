#include "multihead/look/look.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/generate/beam_search.h"
#include "multihead/models/surgery/lens.h"
#include "multihead/nn/points.h"
#include "multihead/ops/shape.h"
#include "multihead/text/corpus/token_labels.h"

namespace multihead::look {
namespace {

using Ids = std::vector<int32_t>;
using Numbers = std::vector<int64_t>;
using models::LanguageModel;

Tensor as_row(const Ids& ids) { return Tensor::of({1, static_cast<int64_t>(ids.size())}, ids); }

Numbers all_of(int64_t count) {
  Numbers numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// One stack to be looked at: what to capture, and the view that it becomes.
struct Stack {
  AttentionView view;
  std::vector<AttentionCapture> captures;  // one per layer of the model

  Stack(std::string name, int64_t layer_count, const Numbers& layers, int64_t head_count,
        const Numbers& heads) {
    view.name = std::move(name);
    view.all_layers = layer_count, view.all_heads = head_count;
    std::copy_if(layers.begin(), layers.end(), std::back_inserter(view.layers),
                 [&](int64_t layer) { return layer < layer_count; });
    view.heads = heads;
    captures.resize(static_cast<size_t>(layer_count));
    for (AttentionCapture& capture : captures) capture.want_weights = false;
    for (const int64_t layer : view.layers) {
      AttentionCapture& capture = captures[static_cast<size_t>(layer)];
      capture.want_weights = true;
      capture.heads = heads;
    }
  }

  // A stack may have none of the chosen layers.
  void add_to(std::vector<AttentionView>& views) {
    if (view.layers.empty()) return;
    for (const int64_t layer : view.layers) {
      view.weights.push_back(std::move(captures[static_cast<size_t>(layer)].weights));
    }
    views.push_back(std::move(view));
  }
};

// Layers of one page have heads of one numbering.
void refuse_pruned(bool pruned) {
  MH_CHECK(!pruned, ValueError,
           "look: this model's layers have different numbers of heads, which the page cannot show");
}

// Labels of the queries that are shown.
std::vector<std::string> some_of(const std::vector<std::string>& labels, const Numbers& rows) {
  if (rows.empty()) return labels;
  std::vector<std::string> some;
  for (const int64_t row : rows) some.push_back(labels[static_cast<size_t>(row)]);
  return some;
}

void check_numbers(const char* what, const Numbers& numbers, int64_t count) {
  for (const int64_t n : numbers) {
    MH_CHECK(n >= 0 && n < count, ValueError, "look: ", what, " must be in [0, ", count - 1, "], got ", n);
  }
}

Numbers chosen(const char* what, const Numbers& numbers, int64_t count) {
  check_numbers(what, numbers, count);
  return numbers.empty() ? all_of(count) : numbers;
}

using LabelOf = std::function<std::string(int32_t)>;

LabelOf labels_by(const text::Tokenizer& tokenizer) {
  return [&tokenizer](int32_t token) {
    return text::token_labels(tokenizer, std::vector<int32_t>{token}).front();
  };
}

std::vector<Prediction> labelled(const LabelOf& label_of, const std::vector<models::Guess>& guesses) {
  std::vector<Prediction> list;
  for (const models::Guess& guess : guesses) list.emplace_back(label_of(guess.token), guess.probability);
  return list;
}

// Of integrated gradients: more if the shares do not add up after few.
constexpr int64_t kSteps[] = {16, 64};

void measure(AttentionRun& run, const LanguageModel& model, const LabelOf& label_of, const Ids& ids) {
  const Tensor tokens = as_row(ids);
  const auto guesses = models::logit_lens(model, tokens, 5);
  for (const auto& layer : guesses) {
    auto& rows = run.lens.emplace_back();
    for (const auto& list : layer) rows.push_back(labelled(label_of, list));
  }
  const models::Guess& best = guesses.back().back().front();
  run.target = label_of(best.token), run.probability = best.probability;
  if (!model.packed_dtype()) {  // packed weights have no gradients
    for (const int64_t steps : kSteps) {
      run.attributions = models::integrated_gradients(model, tokens, best.token, steps);
      if (run.attributions.add_up()) break;
    }
  }
  run.ablation = models::ablate_heads(model, tokens, best.token);
}

// Bounds the queries and keys that the page keeps: they are a convenience beside the weights.
constexpr int64_t kMostVectors = int64_t{6} << 20;

struct VectorPoints {
  const char *query, *key;
};
std::string point_name(int64_t layer, const char* point) {
  return concat("layers.", layer, ".self_attn.", point);
}

// None if they were too many.
std::optional<Neurons> plan_neurons(const AttentionView& view, int64_t group, int64_t head_dim,
                                    int64_t scale_dim) {
  Neurons n;
  n.group = group;
  n.scale = 1 / std::sqrt(static_cast<double>(scale_dim));
  std::set<int64_t> groups;
  for (const int64_t head : view.heads) groups.insert(head / n.group);
  n.groups.assign(groups.begin(), groups.end());
  const int64_t vectors = std::ssize(view.layers) * (std::ssize(view.heads) + std::ssize(n.groups));
  if (vectors * head_dim * std::ssize(view.keys) > kMostVectors) return std::nullopt;
  return n;
}

void keep_vectors(nn::Points& points, const AttentionView& view, const VectorPoints& vectors) {
  for (const int64_t layer : view.layers) {
    points.keep(point_name(layer, vectors.query), {.heads = view.heads, .rows = view.rows});
    points.keep(point_name(layer, vectors.key), {.heads = view.neurons->groups});
  }
}

void take_vectors(AttentionView& view, const nn::Points& points, const VectorPoints& vectors) {
  for (const int64_t layer : view.layers) {
    view.neurons->queries.push_back(points.kept().at(point_name(layer, vectors.query)).to(Dtype::f32));
    view.neurons->keys.push_back(points.kept().at(point_name(layer, vectors.key)).to(Dtype::f32));
  }
}

void change(nn::Points& points, const Look& look, const models::LanguageModelConfig& c, int64_t length) {
  const auto check_head = [&](int64_t layer, int64_t head) {
    MH_CHECK(layer >= 0 && layer < c.num_layers && head >= 0 && head < c.num_heads, ValueError, "no head ",
             layer, ".", head, ": layers are 0 to ", c.num_layers - 1, ", heads 0 to ", c.num_heads - 1);
  };
  for (const auto& [layer, head] : look.off) {
    check_head(layer, head);
    points.edit(point_name(layer, "z"), [](const std::string&, const Tensor& z) { return zeros_like(z); },
                {.heads = {head}});
  }
  std::map<int64_t, Tensor> dropped;
  for (const auto& [layer, head, query, key] : look.cut) {
    check_head(layer, head);
    MH_CHECK(key >= 0 && key < query && query < length, ValueError, "the edge from token ", query, " to ",
             key, " cannot be cut: 0 <= key < query < ", length);
    Tensor& flags = dropped[layer];
    if (!flags.defined()) flags = Tensor::zeros({1, c.num_heads, length, length}, Dtype::boolean);
    flags.data<bool>()[(head * length + query) * length + key] = true;
  }
  for (const auto& [layer, flags] : dropped)
    points.exclude(concat("layers.", layer, ".self_attn"), drop(flags));
}

constexpr double kMiB = 1 << 20, kLimit = 96 * kMiB;

}  // namespace

double cost_of_measures(const models::LanguageModelConfig& c, int64_t tokens) {
  const auto length = static_cast<double>(tokens);
  const auto head = 2 * static_cast<double>(c.vocab_size * c.embed_dim);
  const double all = 2 * static_cast<double>(models::matrix_weights(c)), layers = all - head;
  constexpr double kForwardAndBackward = 3;
  return length * (static_cast<double>(c.num_layers + 1) * head +                   // the logit lens
                   static_cast<double>(c.num_layers * c.num_heads) * layers / 2 +   // ablation
                   static_cast<double>(kSteps[0]) * kForwardAndBackward * layers);  // attributions
}

AttentionRun look(const LanguageModel& model, const text::Tokenizer& tokenizer, const std::string& text,
                  const Look& changes) {
  const Ids ids = tokenizer.encode(text);
  return look(model, NamedTokens{ids, text::token_labels(tokenizer, ids), labels_by(tokenizer)}, changes);
}

AttentionRun look(const LanguageModel& model, const NamedTokens& tokens, const Look& look) {
  const Ids& ids = tokens.ids;
  MH_CHECK(!ids.empty(), ValueError, "look: the text is empty");
  const models::LanguageModelConfig& config = model.config();
  refuse_pruned(!config.pruned_heads.empty());
  const Numbers layers = chosen("layers", look.layers, config.num_layers),
                heads = chosen("heads", look.heads, config.num_heads);
  Stack stack("Self-attention", config.num_layers, layers, config.num_heads, heads);
  MH_CHECK(config.causal, ValueError, "look: a model whose tokens see later ones is not supported");
  stack.view.causal = true;
  stack.view.keys = tokens.labels;
  check_numbers("tokens", look.rows, std::ssize(ids));
  stack.view.rows = look.rows;
  stack.view.queries = some_of(stack.view.keys, look.rows);
  for (AttentionCapture& capture : stack.captures) {
    if (capture.want_weights) capture.query_rows = look.rows;
  }
  AttentionRun run;
  run.views = {stack.view};
  bits_for({run});
  const bool rotary = config.positions == models::Positions::rotary;
  const VectorPoints vectors = rotary ? VectorPoints{"rot_q", "rot_k"} : VectorPoints{"q", "k"};
  if (look.measures && (rotary || !config.qk_norm) && config.unrotated_every == 0) {
    stack.view.neurons = plan_neurons(stack.view, config.num_heads / config.num_kv_heads, config.head_dim,
                                      config.scale_dim > 0 ? config.scale_dim : config.head_dim);
    if (stack.view.neurons && config.attention_scale > 0) stack.view.neurons->scale = config.attention_scale;
  }
  nn::Points points;
  change(points, look, config, std::ssize(ids));
  if (stack.view.neurons) keep_vectors(points, stack.view, vectors);
  const NoTape silent;
  {
    const nn::PointScope scope(points);
    const Tensor features = model.features(as_row(ids), {.capture = &stack.captures});
    const Tensor last = slice(features, 1, std::ssize(ids) - 1, std::ssize(ids));
    run.next =
        labelled(tokens.label_of, models::most_probable(reshape(model.logits(last), {1, -1}), 5).front());
  }
  if (stack.view.neurons) take_vectors(stack.view, points, vectors);
  run.views.clear();
  stack.add_to(run.views);
  for (const auto& [layer, head] : look.off) run.off.push_back(concat(layer, ".", head));
  if (look.measures && look.off.empty() && look.cut.empty()) measure(run, model, tokens.label_of, ids);
  return run;
}

AttentionRun look(const models::Encoder& model, const text::Tokenizer& tokenizer, const std::string& text,
                  const Look& look) {
  const models::EncoderConfig& config = model.config();
  MH_CHECK(look.off.empty() && look.cut.empty(), ValueError, "look: changes are for language models");
  const Ids ids = tokenizer.encode(text, {.parse_special = true, .add_template = true});
  MH_CHECK(!text.empty(), ValueError, "look: the text is empty");
  AttentionView view{
      .name = "Self-attention", .all_layers = config.num_layers, .all_heads = config.num_heads};
  view.layers = chosen("layers", look.layers, config.num_layers);
  view.heads = chosen("heads", look.heads, config.num_heads);
  check_numbers("tokens", look.rows, std::ssize(ids));
  view.rows = look.rows;
  view.keys = text::token_labels(tokenizer, ids);
  view.queries = some_of(view.keys, look.rows);
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    if (tokenizer.is_special(ids[static_cast<size_t>(i)])) view.special.push_back(i);
  }
  AttentionRun run;
  run.views = {view};
  bits_for({run});
  const int64_t head_dim = config.embed_dim / config.num_heads;
  if (look.measures) view.neurons = plan_neurons(view, 1, head_dim, head_dim);
  nn::Points points;
  for (const int64_t layer : view.layers)
    points.keep(point_name(layer, "pattern"), {.heads = view.heads, .rows = view.rows});
  if (view.neurons) keep_vectors(points, view, {"q", "k"});
  const models::TokenRows rows = models::TokenRows::of(std::vector<Ids>{ids});
  const NoTape silent;
  {
    const nn::PointScope scope(points);
    model.features(rows);
  }
  for (const int64_t layer : view.layers)
    view.weights.push_back(points.kept().at(point_name(layer, "pattern")));
  if (view.neurons) take_vectors(view, points, {"q", "k"});
  run.views = {std::move(view)};
  if (look.measures && config.head == models::EncoderHead::masked_lm) {
    auto& there = run.lens.emplace_back();
    for (const auto& guesses : models::most_probable(model.logits(rows), 5))
      there.push_back(labelled(labels_by(tokenizer), guesses));
  }
  return run;
}

AttentionRun look(const models::Seq2Seq& model, const text::Tokenizer& source_tokenizer,
                  const text::Tokenizer& tokenizer, const std::string& source_text,
                  const std::string& target_text, const Look& look) {
  const models::Seq2SeqConfig& config = model.config();
  MH_CHECK(look.rows.empty(), ValueError, "look: rows are for language models and encoders");
  refuse_pruned(!config.encoder_pruned_heads.empty() || !config.decoder_pruned_heads.empty() ||
                !config.cross_pruned_heads.empty());
  const auto eos = static_cast<int32_t>(config.eos_id), start = static_cast<int32_t>(config.decoder_start_id);
  const Ids source = source_tokenizer.encode(source_text, {.end = eos});
  std::vector<std::string> source_labels = text::token_labels(source_tokenizer, source);
  if (source.back() == eos) source_labels.back() = "<end>";
  const int64_t deepest = std::max(config.encoder_layers, config.decoder_layers);
  const Numbers layers = chosen("layers", look.layers, deepest),
                heads = chosen("heads", look.heads, config.num_heads);
  Stack cross("Cross-attention: target to source", config.decoder_layers, layers, config.num_heads, heads);
  Stack encoder("Encoder: source to source", config.encoder_layers, layers, config.num_heads, heads);
  Stack decoder("Decoder: target to target", config.decoder_layers, layers, config.num_heads, heads);
  decoder.view.causal = true;

  Ids target = target_text.empty() ? beam_search(model, {source})[0][0].tokens
                                   : tokenizer.encode(target_text, {.add_template = false});
  std::vector<std::string> target_labels = text::token_labels(tokenizer, target);
  target.insert(target.begin(), start), target_labels.insert(target_labels.begin(), "<start>");
  cross.view.queries = decoder.view.queries = decoder.view.keys = target_labels;
  cross.view.keys = encoder.view.queries = encoder.view.keys = source_labels;
  AttentionRun run;
  run.views = {cross.view, encoder.view, decoder.view};
  bits_for({run});

  const models::TokenBatch batch{as_row(source), {static_cast<int64_t>(source.size())}};
  model.encode(batch, nullptr, &encoder.captures);
  nn::DecodeState state = model.start(batch, static_cast<int64_t>(target.size()));
  model.step(as_row(target), state, {.capture = &decoder.captures, .cross_capture = &cross.captures});
  run.views.clear();
  for (Stack* stack : {&cross, &encoder, &decoder}) stack->add_to(run.views);
  return run;
}

int bits_for(const std::vector<AttentionRun>& runs) {
  std::vector<AttentionView> views;
  for (const AttentionRun& run : runs) views.insert(views.end(), run.views.begin(), run.views.end());
  for (const int bits : {16, 8}) {
    if (stored_bytes(views, bits) <= kLimit) return bits;
  }
  const AttentionView& largest = *std::max_element(
      views.begin(), views.end(),
      [](const AttentionView& a, const AttentionView& b) { return a.weight_count() < b.weight_count(); });
  throw ValueError(
      concat(largest.layers.size(), " layers of ", largest.heads.size(), " heads on ", largest.queries.size(),
             " x ", largest.keys.size(), " tokens would make a page of ",
             std::llround(stored_bytes(views, 8) / kMiB), " MiB, more than ", std::llround(kLimit / kMiB),
             ", even with 8 bits per weight; choose some layers and heads, or give a shorter text"));
}

}  // namespace multihead::look
