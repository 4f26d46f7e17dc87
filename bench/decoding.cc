// One token after the other by language models of random weights: tokens a second by kernel calls alone
// (nn/decode/token_pass.h) and through the modules, and the rate at which that reads weights, beside the rate at
// which the same threads read memory. All three take turns; medians.
//   decoding_bench [SHAPE [DTYPES [THREADS [ROWS]]]]    smol, gpt2, 1b or a GGUF file; f32,bf16,int8,q8,q4;
//   2; 1
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/language_model.h"

namespace multihead {
namespace {

models::LanguageModelConfig shape(const std::string& name) {
  models::LanguageModelConfig c;
  c.context = 1024;
  c.positions = models::Positions::rotary, c.norm = nn::NormKind::rms, c.gated = true;
  c.activation = Activation::silu, c.attention_bias = c.out_bias = c.ffn_bias = false;
  if (name == "smol") {
    c.num_layers = 30, c.embed_dim = 576, c.num_heads = 9, c.num_kv_heads = 3, c.ffn_dim = 1536;
    c.vocab_size = 49152;
  } else if (name == "1b") {
    c.num_layers = 16, c.embed_dim = 2048, c.num_heads = 32, c.num_kv_heads = 8, c.ffn_dim = 8192;
    c.vocab_size = 32000;
  } else {
    c = {};
    c.context = 1024, c.num_layers = 12, c.embed_dim = 768, c.num_heads = 12, c.vocab_size = 50257;
  }
  return c;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

// Bytes a second of a loop that only reads, each thread its own part.
double read_rate(const std::vector<uint64_t>& words) {
  const int64_t threads = num_threads(), count = std::ssize(words);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  const double begin = seconds();
  parallel_for(threads, [&](int64_t task, int) {
    uint64_t sum[16] = {};
    for (int64_t i = count * task / threads; i + 16 <= count * (task + 1) / threads; i += 16) {
      for (int64_t j = 0; j < 16; ++j) sum[j] += words[static_cast<size_t>(i + j)];
    }
    for (const uint64_t x : sum) sums[static_cast<size_t>(task) * 8] += x;
  });
  const double rate = static_cast<double>(count * 8) / (seconds() - begin);
  return sums[0] == 42 ? 0 : rate;
}

class Decoder {
 public:
  Decoder(const std::string& name, nn::WeightDtype dtype, int64_t rows) : rows_(rows) {
    Rng rng(1);
    const bool file = models::is_gguf(name);  // its weights stay as they are
    model_ = file ? models::load_gguf(name) : models::LanguageModel(shape(name), rng);
    for (Tensor& parameter : nn::parameters(model_)) parameter.set_requires_grad(false);
    if (!file) model_.pack_weights(dtype);
  }

  // Steps a second, each of one token in every row.
  double rate(bool by_modules) {
    constexpr int64_t kPrompt = 8, kSteps = 32;
    nn::DecodeState state = model_.make_state(rows_, kPrompt + kSteps + 1);
    Tensor token = Tensor::zeros({rows_, kPrompt}, Dtype::i64);
    model_(token, {.state = &state});
    token = Tensor::zeros({rows_, 1}, Dtype::i64);
    std::optional<Tape> tape;
    if (by_modules) tape.emplace();
    model_(token, {.state = &state});
    const double begin = seconds();
    for (int64_t i = 0; i < kSteps; ++i) model_(token, {.state = &state});
    return kSteps / (seconds() - begin);
  }
  double bytes() { return static_cast<double>(model_.weight_bytes()); }

 private:
  models::LanguageModel model_;
  int64_t rows_;
};

void measure(const std::string& name, const std::string& dtype, int64_t rows) {
  Decoder decoder(name, kernels::parse_weight_dtype(dtype), rows);
  const std::vector<uint64_t> words(size_t{32} << 20, 1);
  std::vector<double> plan, modules, read, share, gain;
  for (int round = 0; round < 7; ++round) {
    read.push_back(read_rate(words));
    plan.push_back(decoder.rate(false));
    modules.push_back(decoder.rate(true));
    read.push_back(read_rate(words));
    share.push_back(plan.back() * decoder.bytes() / (read.back() + read[read.size() - 2]) * 2);
    gain.push_back(plan.back() / modules.back());
  }
  std::printf(
      "%-5s %-5s rows %-3d %7.1f MB  plan %7.1f  modules %7.1f steps/s (%.2f)  read %5.1f GB/s  share %.2f\n",
      name.c_str(), dtype.c_str(), static_cast<int>(rows), decoder.bytes() / 1e6, median(plan),
      median(modules), median(gain), median(read) / 1e9, median(share));
  std::fflush(stdout);
}

}  // namespace
}  // namespace multihead

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* standard) {
    return std::string(argc > i ? argv[i] : standard);
  };
  multihead::set_num_threads(std::stoi(argument(3, "2")));
  std::istringstream dtypes(argument(2, "f32,bf16,int8,q8,q4"));
  for (std::string dtype; std::getline(dtypes, dtype, ',');) {
    multihead::measure(argument(1, "smol"), dtype, std::stoi(argument(4, "1")));
  }
}
