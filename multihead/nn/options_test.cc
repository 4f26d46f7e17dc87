// No option of attention() is ignored: on every path, a value other than the default changes the results or
// is refused by name.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <variant>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/distributed/local_group.h"
#include "multihead/nn/decode/token_pass.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/inspect/explain.h"
#include "multihead/ops/attention/int8.h"
#include "multihead/ops/attention/ring/ring.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/option_cases.h"
#include "multihead/testing/tensors.h"

namespace multihead::nn {
namespace {

using testing::normal;

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 16, kWidth = kHeads * kDim, kKeys = 40;
constexpr float kOwnDropout = 0.25F;  // of modules, whose calls have no other

// The default of an option and another value, and what it takes to see them differ.
struct Case {
  std::function<void(AttentionOptions&)> other;
  std::function<void(AttentionOptions&)> both = [](AttentionOptions&) {};
};

// The memory that options point to.
struct Extras {
  Rng rng{11};
  AttentionCapture capture;
  Tensor lse;
};

// Sizes of a path.
struct Sizes {
  int64_t queries, keys;
  auto operator<=>(const Sizes&) const = default;
};

// Cases of the options of a score, with their values in testing/option_cases.h.
std::map<std::string, Case> make_score_cases(const Sizes& sizes) {
  const testing::AttentionDims dims{kBatch, kHeads, kKvHeads, sizes.queries, sizes.keys, kDim, kDim};
  std::map<std::string, Case> all;
  for (const testing::OptionCase& c : testing::option_cases()) {
    Rng rng(3);
    const AttentionOptions given = c.options(dims, Dtype::f32, rng);
    std::vector<std::string_view> others;  // what differs, one after the other
    while (const char* name = multihead::detail::other_option(given, others)) {
      others.push_back(name);
      multihead::detail::for_each_option([&](std::string_view option, auto member) {
        if (option == name && !all.count(name)) {
          all[name] = {[=](AttentionOptions& o) { o.*member = given.*member; }};
        }
      });
    }
  }
  all["relative_center"].both = all["relative_bias"].other;
  return all;
}

const std::map<std::string, Case>& score_cases(const Sizes& sizes) {
  static std::map<Sizes, std::map<std::string, Case>> made;
  const auto [found, is_new] = made.try_emplace(sizes);
  if (is_new) found->second = make_score_cases(sizes);
  return found->second;
}

std::map<std::string, Case> cases(const Sizes& sizes, Extras& x) {
  using O = AttentionOptions;
  const auto valid = [](int64_t first) { return lengths(Tensor::of<int64_t>({kBatch}, {first, 1})); };
  const Tensor zeros_and_ones = Tensor::zeros({sizes.keys});
  zeros_and_ones.data<float>()[0] = 1;
  std::map<std::string, Case> all = {
      {"mask", {[=](O& o) { o.mask = valid(1); }}},
      {"scale", {[](O& o) { o.scale = 0.1; }}},
      {"dropout_p", {[](O& o) { o.dropout_p = 0.5F; }, [&](O& o) { o.rng = &x.rng; }}},
      {"rng", {[&](O& o) { o.rng = &x.rng; }, [](O& o) { o.dropout_p = kOwnDropout; }}},
      {"empty_row", {[](O& o) { o.empty_row = EmptyRow::uniform; }, [=](O& o) { o.mask = valid(0); }}},
      {"layout", {[](O& o) { o.layout = Layout::bthd; }}},
      {"capture", {[&](O& o) { o.capture = &x.capture; }}},
      {"lse", {[&](O& o) { o.lse = &x.lse; }}},
      {"allow_binary_bias",
       {[](O& o) { o.allow_binary_bias = true; }, [=](O& o) { o.bias = zeros_and_ones; }}},
  };
  const auto& of_score = score_cases(sizes);
  all.insert(of_score.begin(), of_score.end());
  return all;
}

// A path's results, or the text of its error.
using Outcome = std::variant<std::vector<double>, std::string>;
using Results = std::vector<Tensor>;

struct Path {
  std::string name;
  Sizes sizes;
  std::function<Results(const AttentionOptions&)> run;
};

Outcome run(const Path& path, const std::string& name, bool other) {
  Extras extras;
  AttentionOptions options;
  const Case c = cases(path.sizes, extras).at(name);
  c.both(options);
  if (other) c.other(options);
  std::vector<double> all;
  try {
    Results results = path.run(options);
    for (const Tensor& x : {extras.lse, extras.capture.weights}) results.push_back(x);
    for (const Tensor& x : results) {
      if (!x.defined()) continue;
      for (const double value : x.to_vector<double>()) all.push_back(value);
    }
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return all;
}

using Op = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&)>;

Tensor plain(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return attention(q, k, v, o);
}

Path forward(const std::string& name, int64_t queries, const Op& op, Dtype dtype = Dtype::f32) {
  return {name, {queries, kKeys}, [=](const AttentionOptions& o) -> Results {
            return {op(normal({kBatch, kHeads, queries, kDim}, 1).to(dtype),
                       normal({kBatch, kKvHeads, kKeys, kDim}, 2).to(dtype),
                       normal({kBatch, kKvHeads, kKeys, kDim}, 4).to(dtype), o)};
          }};
}

// Gradients of the inputs of f(leaves).
Results gradients(Results leaves, const std::function<Tensor(const Results&)>& f) {
  for (Tensor& x : leaves) x = x.clone().set_requires_grad();
  Tape tape;
  tape.backward(sum(square(f(leaves))));
  Results all;
  for (const Tensor& x : leaves) all.push_back(x.grad());
  return all;
}

Path backward(const std::string& name, const Op& op) {
  return {name, {kKeys, kKeys}, [=](const AttentionOptions& o) {
            return gradients(
                {normal({kBatch, kHeads, kKeys, kDim}, 1), normal({kBatch, kKvHeads, kKeys, kDim}, 2),
                 normal({kBatch, kKvHeads, kKeys, kDim}, 4)},
                [&](const Results& x) { return op(x[0], x[1], x[2], o); });
          }};
}

Results in_ring(const AttentionOptions& options) {
  constexpr int64_t kLength = 512;
  const SequenceShards shards(kLength, 2, 1);
  Results results(2);
  distributed::run_local_group(2, [&](distributed::Group& group) {
    const auto own = [&](int64_t heads, uint64_t seed) {
      return shards.take(normal({kBatch, heads, kLength, kDim}, seed), 2, group.rank());
    };
    Extras extras;  // of this rank
    if (options.rng != nullptr) extras.rng = *options.rng;
    AttentionOptions o = options;
    if (o.rng != nullptr) o.rng = &extras.rng;
    if (o.lse != nullptr) o.lse = &extras.lse;
    if (o.capture != nullptr) o.capture = &extras.capture;
    const Tensor out = ring_attention(group, shards, own(kHeads, 1), own(kKvHeads, 2), own(kKvHeads, 4), o);
    if (group.rank() != 0) return;
    results[0] = out;
    results[1] = o.lse ? extras.lse : extras.capture.weights;
  });
  return results;
}

// --- modules

AttentionCall call_of(const AttentionOptions& options) {
  AttentionCall call{options};
  if (call.dropout_p == kOwnDropout) call.dropout_p = 0;
  return call;
}

TransformerLayer layer() {
  Rng rng(5);
  TransformerLayer layer({.attention = {.embed_dim = kWidth,
                                        .num_heads = kHeads,
                                        .num_kv_heads = kKvHeads,
                                        .dropout_p = kOwnDropout},
                          .feed_forward = {.embed_dim = kWidth, .hidden_dim = 32},
                          .norm = {},
                          .norm_first = true},
                         rng);
  for (Tensor& x : parameters(layer)) x.set_requires_grad(false);
  return layer;
}

Tensor tokens(int64_t count) { return normal({kBatch, count, kWidth}, 6); }

Results module_forward(const AttentionOptions& o) {
  const Tensor x = tokens(kKeys);
  return {layer().self_attn(x, x, x, call_of(o))};
}

// With the scores open to an edit, which leaves them as they are.
Results edited(const std::string& point, const AttentionOptions& o, bool backward) {
  Points points;
  points.edit("self_attn." + point, [](const std::string&, const Tensor& s) { return s; });
  const PointScope scope(points);
  const multihead::nn::detail::PointPath inside("self_attn");
  const auto f = [&](const Results& x) { return layer().self_attn(x[0], x[0], x[0], call_of(o)); };
  if (backward) return gradients({tokens(kKeys)}, f);
  return {f({tokens(kKeys)})};
}

// One token of every row, with the others in the cache.
template <class F>
Results decoded(const AttentionOptions& o, F f) {
  const std::vector<int64_t> held(kBatch, kKeys - 1), none(kBatch, 0), one(kBatch, 1);
  DecodeState state = make_decode_state(
      {.kv_heads = {kKvHeads}, .batch = kBatch, .head_dim = kDim, .value_head_dim = kDim, .capacity = kKeys});
  append(state.layers[0], normal({kBatch, kKvHeads, kKeys - 1, kDim}, 2),
         normal({kBatch, kKvHeads, kKeys - 1, kDim}, 4), none, held);
  LayerCall call{.attention = call_of(o), .update = {&state.layers[0], held, one}};
  call.rng = o.rng;
  return f(layer(), tokens(1), call);
}

Results by_module(const TransformerLayer& layer, const Tensor& x, const LayerCall& call) {
  return {layer.self_attn.decode(x, call.update, call.attention)};
}

// A pass that declines a call says why, and modules take over.
Results by_pass(const TransformerLayer& layer, const Tensor& x, const LayerCall& call) {
  TokenPass pass(x, call.update.held, call.update.counts);
  const std::string reason = pass.declined(layer, call);
  if (!reason.empty()) throw ValueError("declined: " + reason);
  pass.run(layer, call);
  return {pass.result()};
}

std::vector<Path> paths() {
  const Op composed = [](auto&... x) { return attention_composed(x...); };
  const Op eight_bits = [](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
    return attention_int8(q, to_int8_rows(k), to_int8_rows(v), o);
  };
  const auto packed = [](const Results& x, const AttentionOptions& o) {
    return attention_packed(x[0], {.num_heads = kHeads, .num_kv_heads = kKvHeads}, o);
  };
  const Tensor rows = normal({kBatch, kKeys, (kHeads + 2 * kKvHeads) * kDim}, 8);
  const Tensor bounds = Tensor::of<int64_t>({kBatch + 1}, {0, kKeys, 2 * kKeys});
  return {
      forward("many queries", kKeys, plain),
      forward("few queries", 1, plain),
      forward("bf16, many queries", kKeys, plain, Dtype::bf16),
      forward("bf16, few queries", 1, plain, Dtype::bf16),
      forward("int8 keys", 1, eight_bits),
      forward("composed", kKeys, composed),
      backward("backward", plain),
      backward("backward, composed", composed),
      {"packed", {kKeys, kKeys}, [=](const AttentionOptions& o) -> Results { return {packed({rows}, o)}; }},
      {"packed, backward",
       {kKeys, kKeys},
       [=](const AttentionOptions& o) {
         return gradients({rows}, [&](const Results& x) { return packed(x, o); });
       }},
      {"ragged",
       {kKeys, kKeys},
       [=](const AttentionOptions& o) -> Results {
         const auto make = [](int64_t heads, uint64_t seed) {
           return normal({2 * kKeys, heads, kDim}, seed);
         };
         return {attention_ragged(make(kHeads, 1), make(kKvHeads, 2), make(kKvHeads, 4), bounds, bounds, o)};
       }},
      {"ring", {512, 512}, in_ring},
      {"module", {kKeys, kKeys}, module_forward},
      {"edited scores", {kKeys, kKeys}, [](const AttentionOptions& o) { return edited("scores", o, false); }},
      {"edited pattern",
       {kKeys, kKeys},
       [](const AttentionOptions& o) { return edited("pattern", o, false); }},
      {"edited scores, backward",
       {kKeys, kKeys},
       [](const AttentionOptions& o) { return edited("scores", o, true); }},
      {"decode", {1, kKeys}, [](const AttentionOptions& o) { return decoded(o, by_module); }},
      {"token pass", {1, kKeys}, [](const AttentionOptions& o) { return decoded(o, by_pass); }},
  };
}

TEST(AttentionOptionsTest, EveryOptionActsOrIsRefusedOnEveryPath) {
  std::vector<std::string> names;
  multihead::detail::for_each_option([&](const char* name, auto) { names.emplace_back(name); });
  int acted = 0, refused = 0;
  for (const Path& path : paths()) {
    Extras extras;
    const auto known = cases(path.sizes, extras);
    for (const std::string& name : names) {
      ASSERT_TRUE(known.count(name)) << name << " needs a case";
      const Outcome before = run(path, name, false), after = run(path, name, true);
      const std::string* error = std::get_if<std::string>(&after);
      if (error != nullptr &&
          (error->find(name) != std::string::npos || error->find("declined") == 0 || name == "layout")) {
        ++refused;
        continue;
      }
      EXPECT_EQ(error, nullptr) << path.name << ": " << name << ": " << *error;
      EXPECT_NE(before, after) << path.name << " ignores " << name;
      ++acted;
    }
  }
  EXPECT_GT(acted, 4 * refused);
}

TEST(AttentionOptionsTest, APlanNamesWhatItDoesNotTake) {
  for (const char* name : {"sinks", "bias", "relative_key", "mask", "scale", "lse"}) {
    const Path pass = {
        "token pass", {1, kKeys}, [](const AttentionOptions& o) { return decoded(o, by_pass); }};
    EXPECT_EQ(run(pass, name, true), Outcome(concat("declined: attention with ", name)));
  }
}

TEST(AttentionOptionsTest, EveryScoreOptionIsExplained) {
  const auto text = [](const std::string& name) {
    Extras extras;
    AttentionOptions o;
    cases({kKeys, kKeys}, extras).at(name).other(o);
    const Tensor x = normal({kBatch, kHeads, kKeys, kDim}, 3);
    return explain(x, x, x, o).to_string();
  };
  std::apply(
      [&](const auto&... option) {
        for (const std::string name : {option.first...}) {
          if (name != "relative_center") {
            EXPECT_NE(text(name).find(name == "sinks" ? "sink" : name), std::string::npos) << name;
          }
        }
      },
      multihead::detail::kScoreOptions);
}

constexpr auto kListed = std::tuple_cat(multihead::detail::kScoreOptions, multihead::detail::kCallOptions);

template <class T>
constexpr bool is_type_of_an_option = std::apply(
    [](const auto&... option) {
      return (
          std::is_same_v<T, std::remove_cvref_t<decltype(std::declval<AttentionOptions>().*option.second)>> ||
          ...);
    },
    kListed);

// Any value that an option takes.
struct AnyOption {
  template <class T>
  requires is_type_of_an_option<T>
  operator T() const { return {}; }  // NOLINT(google-explicit-constructor)
};

// As many as AttentionOptions has fields, from its first on to one of a type that no option has.
template <class... Fields>
constexpr size_t count_fields() {
  if constexpr (requires { AttentionOptions{Fields{}..., AnyOption{}}; }) {
    return count_fields<Fields..., AnyOption>();
  } else {
    return sizeof...(Fields);
  }
}

TEST(AttentionOptionsTest, EveryFieldIsInTheLists) {
  EXPECT_EQ(count_fields<>(), std::tuple_size_v<decltype(kListed)>);
}

}  // namespace
}  // namespace multihead::nn
