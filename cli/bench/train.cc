// multihead bench train: the speed of a whole training step.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "cli/bench/timing.h"
#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/models/language_model.h"
#include "multihead/nn/module.h"
#include "multihead/optim/adam.h"
#include "multihead/train/run.h"

namespace multihead::cli {
namespace {

// CPU time of all threads; other programs on the machine do not count.
double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class BenchTrain : public Verb {
 public:
  BenchTrain()
      : Verb("bench train", "measure speed and memory of training steps on random tokens",
             {{"multihead bench train --layers 4 --heads 4 --width 128 --context 64 --batch 12 --json",
               "the demo's size"},
              {"multihead bench train --layers 6 --heads 16 --width 256 --context 512 --batch 16 --dropout "
               "0.1",
               "the labml tutorial's size"}}) {}

  void declare(Flags& flags) override {
    config_.vocab_size = 96;
    config_.context = 64;
    config_.activation = Activation::gelu;
    flags.integer("layers", config_.num_layers, "Transformer layers");
    flags.integer("heads", config_.num_heads, "attention heads");
    flags.integer("width", config_.embed_dim, "embedding dimension");
    flags.integer("ff", config_.ffn_dim, "hidden size of the feed-forward networks (0: 4 x width)");
    flags.integer("context", config_.context, "tokens per sequence");
    flags.integer("vocab-size", config_.vocab_size, "vocabulary size");
    flags.integer("batch", batch_, "sequences per step", {.least = 1});
    flags.number("dropout", dropout_, "of attention weights and sub-layer outputs");
    flags.choice("positions", positions_, word_list<models::Positions>(), "positions");
    flags.choice("precision", precision_, word_list<train::Precision>(), "of products and attention");
    flags.number("seconds", seconds_, "how long to measure", {.least = 0, .most = 3600, .open = true});
    flags.integer("seed", seed_, "seed of weights and tokens");
  }

  int run(const CommonOptions& common) override {
    config_.dropout_p = config_.attention_dropout_p = dropout_;
    config_.positions = *value_of<models::Positions>(positions_);
    config_ = models::resolved(config_);
    train::check_training_memory({}, models::matrix_weights(config_));
    measure();
    report(common);
    return kDone;
  }

 private:
  void measure() {
    Rng rng(static_cast<uint64_t>(seed_));
    models::LanguageModel model(config_, rng);
    optim::AdamW optimizer(nn::named_parameters(model), {.beta2 = 0.99, .weight_decay = 0.1});
    parameters_ = nn::parameter_count(model);
    int64_t step_number = 0;
    auto step = [&] {
      const auto [tokens, targets] = random_batch(step_number++);
      optimizer.zero_grad();
      Tape tape;
      const Autocast autocast(dtype_of_products(*value_of<train::Precision>(precision_)));
      tape.backward(model.loss(tokens, targets, {.rng = &rng}));
      optimizer.clip_grad_norm(1);
      optimizer.step();
    };
    for (int i = 0; i < 3; ++i) step();
    allocations_ = memory_stats().system_allocations;
    const double end = wall_seconds() + seconds_;
    while (wall_seconds() < end || times_.size() < 3) {
      const double before = peak_gflops(), begin = wall_seconds(), cpu = cpu_seconds();
      step();
      times_.push_back(wall_seconds() - begin);
      cpu_times_.push_back(cpu_seconds() - cpu);
      peaks_.push_back((before + peak_gflops()) / 2);
      ratios_.push_back(flops() / times_.back() / 1e9 / peaks_.back());
    }
    allocations_ = memory_stats().system_allocations - allocations_;
  }

  std::pair<Tensor, Tensor> random_batch(int64_t step) const {
    const RandomStream stream{static_cast<uint64_t>(seed_),
                              (uint64_t{1} << 62) + static_cast<uint64_t>(step)};
    Tensor tokens = Tensor::empty({batch_, config_.context}, Dtype::i32);
    Tensor targets = Tensor::empty({batch_, config_.context}, Dtype::i32);
    const auto vocabulary = static_cast<uint32_t>(config_.vocab_size);
    const auto ids = tokens.span<int32_t>(), next = targets.span<int32_t>();
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(stream.bits(i) % vocabulary);
    for (size_t i = 0; i < next.size(); ++i) next[i] = ids[(i + 1) % ids.size()];
    return {tokens, targets};
  }

  // 6 per weight of a matrix and token, and half a square of attention: forward 2, backward 4.
  double flops() const {
    const auto L = static_cast<double>(config_.num_layers), D = static_cast<double>(config_.embed_dim),
               T = static_cast<double>(config_.context), F = static_cast<double>(config_.ffn_dim),
               V = static_cast<double>(config_.vocab_size), B = static_cast<double>(batch_);
    return 6 * (L * (4 * D * D + 2 * D * F) + V * D) * B * T + 6 * L * T * T * D * B;
  }

  void report(const CommonOptions& common) const {
    const double time = median_of(times_), share = median_of(ratios_), peak = median_of(peaks_);
    const double tokens = static_cast<double>(batch_ * config_.context) / time;
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    const MemoryStats memory = memory_stats();
    if (common.json) {
      put_json(Json::object(
          {{"tokens_per_second", tokens},
           {"step_seconds", time},
           {"step_seconds_min", *std::min_element(times_.begin(), times_.end())},
           {"gflops", flops() / time / 1e9},
           {"peak_gflops", peak},
           {"share_of_peak", share},
           {"step_cpu_seconds", median_of(cpu_times_)},
           {"share_of_peak_per_cpu_second", flops() / median_of(cpu_times_) / 1e9 / (peak / num_threads())},
           {"steps", times_.size()},
           {"threads", num_threads()},
           {"precision", precision_},
           {"isa", kernels::isa_name(kernels::current_isa())},
           {"float32_matmul_precision", kernels::precision_name(kernels::float32_matmul_precision())},
           {"tiles", kernels::has_tiles()},
           {"cpu", kernels::cpu_name()},
           {"parameters", parameters_},
           {"peak_memory_bytes", int64_t{usage.ru_maxrss} * 1024},
           {"peak_tensor_bytes", memory.peak_bytes},
           {"system_allocations", allocations_}}));
      return;
    }
    fmt::print("{:.0f} tokens/s, {:.2f} ms per step (median of {}), {} threads\n", tokens, time * 1e3,
               times_.size(), num_threads());
    fmt::print(
        "{:.1f} GFLOP/s, {:.2f} of the {:.0f} that the FMA units reach ({}, {}{})\n", flops() / time / 1e9,
        share, peak, kernels::isa_name(kernels::current_isa()), kernels::cpu_name(),
        kernels::has_tiles() ? fmt::format(", AMX tiles, float32_matmul_precision {}",
                                           kernels::precision_name(kernels::float32_matmul_precision()))
                             : "");
    fmt::print("peak memory {:.1f} MB, of which tensors {:.1f} MB; {} parameters\n",
               static_cast<double>(usage.ru_maxrss) / 1024,
               static_cast<double>(memory.peak_bytes) / 1048576.0, parameters_);
  }

  models::LanguageModelConfig config_;
  std::string positions_ = "learned", precision_ = "f32";
  int64_t batch_ = 12, seed_ = 0, parameters_ = 0, allocations_ = 0;
  double dropout_ = 0, seconds_ = 10;
  std::vector<double> times_, cpu_times_, peaks_, ratios_;
};

}  // namespace

std::unique_ptr<Verb> make_bench_train() { return std::make_unique<BenchTrain>(); }

}  // namespace multihead::cli
