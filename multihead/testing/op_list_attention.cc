// The cases of ops/attention.
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/inspect/captured_score_mod.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/op_list-inl.h"

namespace multihead::testing {
namespace {

using Inputs = std::vector<Tensor>;
using Attention = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&,
                             const ScoreMod&);

// The results of attention besides its output.
void attention_result_cases(List& list, const char* name, Attention op) {
  const auto inputs = [&list] {
    return Inputs{list.normal({2, 4, 5, 3}), list.normal({2, 2, 6, 3}), list.normal({2, 2, 6, 2}),
                  list.normal({4})};
  };
  const Tensor valid = Tensor::of<int64_t>({2, 5}, {6, 1, 0, 2, 4, 0, 3, 5, 6, 1});
  list.many(
      name, "log-sum-exp, some rows of sinks alone",
      [op, valid](const Inputs& x) {
        Tensor lse;
        const Tensor out = op(x[0], x[1], x[2], {.mask = lengths(valid), .sinks = x[3], .lse = &lse}, {});
        return Inputs{out, lse};
      },
      inputs());
  list.one(
      name, "log-sum-exp alone",
      [op](const Inputs& x) {
        Tensor lse;
        op(x[0], x[1], x[2], {.mask = causal(Align::start), .lse = &lse}, {});
        return mul(lse, reshape(x[3], {4, 1}));
      },
      inputs());
  list.many(
      name, "captured weights",
      [op, valid](const Inputs& x) {
        AttentionCapture capture;
        const Tensor out =
            op(x[0], x[1], x[2], {.mask = lengths(valid), .sinks = x[3], .capture = &capture}, {});
        return Inputs{out, capture.weights};
      },
      inputs());
  list.one(
      name, "a score function that reads tensors",
      [op](const Inputs& x) {
        const auto f = [](auto score, ScoreIndex at, const auto& reads) {
          return score * reads[0](at.head) + reads[1](at.batch, at.key) * reads[0](at.row % 4);
        };
        return op(x[0], x[1], x[2], {.mask = causal(), .softcap = 3}, score_mod(f, {x[3], square(x[4])}));
      },
      {list.normal({2, 4, 5, 3}), list.normal({2, 2, 6, 3}), list.normal({2, 2, 6, 2}), list.normal({4}),
       list.normal({2, 6})});
}

void attention_capture_cases(List& list) {
  list.many(
      "attention", "captured summaries",
      [](const Inputs& x) {
        AttentionCapture c{.want_weights = false, .want_key_mass = true, .want_entropy = true, .top_k = 3};
        const Tensor out = attention(x[0], x[1], x[2], {.mask = causal(), .sinks = x[3], .capture = &c});
        return Inputs{out, c.key_mass, c.entropy, c.top_weights};
      },
      {list.normal({2, 4, 5, 3}), list.normal({2, 2, 6, 3}), list.normal({2, 2, 6, 2}), list.normal({4})});
  list.one("attention", "captured scores of some heads and rows",
           [](const Inputs& x) {
             AttentionCapture c{.stage = CaptureStage::scores, .heads = {3, 0}, .query_rows = {-1, 1, 1}};
             attention(x[0], x[1], x[2], {.softcap = 2, .bias = x[3], .relative_key = x[4], .capture = &c});
             return square(c.weights);
           },
           {list.normal({2, 4, 5, 3}), list.normal({2, 2, 6, 3}), list.normal({2, 2, 6, 2}),
            list.normal({5, 6}), list.normal({1, 7, 3})});
  const Tensor cu = Tensor::of<int64_t>({4}, {0, 2, 2, 7});
  list.many("attention_ragged", "log-sum-exp and captured weights after dropout",
            [cu](const Inputs& x) {
              Rng rng(3);
              AttentionCapture c{.stage = CaptureStage::after_dropout, .want_entropy = true};
              Tensor lse;
              const Tensor out = attention_ragged(
                  x[0], x[1], x[2], cu, cu,
                  {.mask = causal(), .dropout_p = 0.3f, .rng = &rng, .capture = &c, .lse = &lse});
              return Inputs{out, c.weights, c.entropy, lse};
            },
            {list.normal({7, 2, 3}), list.normal({7, 2, 3}), list.normal({7, 2, 3})});
  list.many("attention_packed", "log-sum-exp and captured weights",
            [](const Inputs& x) {
              AttentionCapture c;
              Tensor lse;
              const Tensor out = attention_packed(x[0], {.num_heads = 4, .num_kv_heads = 2},
                                                  {.mask = causal(), .capture = &c, .lse = &lse});
              return Inputs{out, c.weights, lse};
            },
            {list.normal({2, 5, 24})});
  list.many(
      "merge_attention", "chunks, a sink in the first",
      [](const Inputs& x) {
        const Tensor valid = Tensor::of<int64_t>({2}, {2, 0});
        const auto part = [&](int64_t begin, int64_t end, AttentionOptions options) {
          AttentionPart p;
          options.lse = &p.lse;
          p.out = attention(x[0], slice(x[1], 2, begin, end), slice(x[2], 2, begin, end), options);
          p.out = cast(p.out, p.lse.dtype());
          return p;
        };
        const AttentionPart all =
            merge_attention(part(0, 3, {.mask = lengths(valid), .sinks = x[3]}), part(3, 7, {}));
        return Inputs{all.out, all.lse};
      },
      {list.normal({2, 2, 5, 3}), list.normal({2, 1, 7, 3}), list.normal({2, 1, 7, 2}), list.normal({2})});
}

// One case each; ops/attention/matrix_test.cc goes through the options.
void attention_cases(List& list) {
  const AttentionOptions causal_rows{.mask = causal()};
  list.one("attention", "causal",
           [o = causal_rows](const Inputs& x) { return attention(x[0], x[1], x[2], o); },
           {list.normal({2, 3, 5, 2}), list.normal({2, 1, 5, 2}), list.normal({2, 1, 5, 3})});
  list.one("attention_composed", "causal",
           [o = causal_rows](const Inputs& x) { return attention_composed(x[0], x[1], x[2], o); },
           {list.normal({2, 3, 5, 2}), list.normal({2, 1, 5, 2}), list.normal({2, 1, 5, 3})});
  list.one("attention_packed", "causal, grouped",
           [o = causal_rows](const Inputs& x) {
             return attention_packed(x[0], {.num_heads = 4, .num_kv_heads = 2}, o);
           },
           {list.normal({2, 5, 24})});
  const Tensor cu = Tensor::of<int64_t>({3}, {0, 2, 7});
  list.one("attention_ragged", "causal",
           [o = causal_rows, cu](const Inputs& x) { return attention_ragged(x[0], x[1], x[2], cu, cu, o); },
           {list.normal({7, 2, 3}), list.normal({7, 2, 3}), list.normal({7, 2, 3})});
  list.one("attention", "relative key and bias of all heads",
           [](const Inputs& x) {
             return attention(x[0], x[1], x[2], {.relative_bias = x[4], .relative_key = x[3]});
           },
           {list.normal({2, 4, 5, 3}), list.normal({2, 2, 6, 3}), list.normal({2, 2, 6, 2}),
            list.normal({1, 7, 3}), list.normal({1, 7})});
  list.one("attention_packed", "relative key, clipped",
           [](const Inputs& x) {
             return attention_packed(x[0], {.num_heads = 2},
                                     {.mask = causal(), .softcap = 2, .relative_key = transpose(x[1], 0, 1)});
           },
           {list.normal({2, 5, 18}), list.normal({4, 2, 3})});
  list.one(
      "attention_ragged", "relative key",
      [cu](const Inputs& x) { return attention_ragged(x[0], x[1], x[2], cu, cu, {.relative_key = x[3]}); },
      {list.normal({7, 2, 3}), list.normal({7, 1, 3}), list.normal({7, 1, 3}), list.normal({2, 6, 3})});
  for (const RotaryLayout layout : {RotaryLayout::halves, RotaryLayout::interleaved}) {
    const RotaryTable table = rotary_table(3, {5}, rotary_frequencies(4), layout);
    list.one("rotary", "partial", [table](const Inputs& x) { return rotary(x[0], table, 1); },
             {list.normal({2, 3, 2, 5})});
  }
}

}  // namespace

void add_attention_cases(List& list) {
  attention_cases(list);
  attention_result_cases(list, "attention", attention);
  attention_result_cases(list, "attention_composed", attention_composed);
  attention_capture_cases(list);
}

}  // namespace multihead::testing
