// Sentences per second at beam 4, 30 tokens each: 4+4 layers of 256, 8,000 words, random weights.
//
//   generate_bench --benchmark_filter=Translate        f32 and int8
//   generate_bench --benchmark_filter=Translate/       f32
#include <benchmark/benchmark.h>

#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/generate/beam_search.h"

namespace multihead {
namespace {

constexpr int64_t kTokens = 30;

models::Seq2Seq model() {
  models::Seq2SeqConfig c;
  c.source_vocab_size = 8000, c.encoder_layers = c.decoder_layers = 4, c.num_heads = 8, c.embed_dim = 256;
  c.activation = Activation::relu, c.pad_id = 0, c.eos_id = 1;
  Rng rng(0);
  return {c, rng};
}

std::vector<std::vector<int32_t>> sentences(size_t count) {
  std::vector<std::vector<int32_t>> result;
  for (uint64_t i = 0; i < count; ++i) {
    const RandomStream stream{5, i};
    const uint64_t length = 8 + stream.bits(0) % 33;
    result.emplace_back();
    for (uint64_t t = 1; t <= length; ++t)
      result.back().push_back(2 + static_cast<int32_t>(stream.bits(t) % 7998));
    result.back().push_back(1);
  }
  return result;
}

// Arguments: sentences per batch, threads.
void run(benchmark::State& state, const models::PackedSeq2Seq& translator) {
  const auto batch = static_cast<size_t>(state.range(0));
  set_num_threads(static_cast<int>(state.range(1)));
  const auto sources = sentences(64);
  size_t next = 0;
  for (auto _ : state) {
    const std::vector<std::vector<int32_t>> part(sources.begin() + static_cast<std::ptrdiff_t>(next),
                                                 sources.begin() + static_cast<std::ptrdiff_t>(next + batch));
    benchmark::DoNotOptimize(
        beam_search(translator, part, {.beam_size = 4, .min_length = kTokens, .max_length = kTokens}));
    next = (next + batch) % sources.size();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(batch));
}

void Translate(benchmark::State& state) {
  static const models::PackedSeq2Seq translator(model());
  run(state, translator);
}

void TranslateInt8(benchmark::State& state) {
  static const models::PackedSeq2Seq translator(model(), models::WeightDtype::int8);
  run(state, translator);
}

void arguments(benchmark::internal::Benchmark* bench) {
  bench->Args({32, 2})
      ->Args({1, 2})
      ->Args({32, 1})
      ->Args({1, 1})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}
BENCHMARK(Translate)->Apply(arguments);
BENCHMARK(TranslateInt8)->Apply(arguments);

}  // namespace
}  // namespace multihead
