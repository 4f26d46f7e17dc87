#include "examples/browser/models.h"

#include <numeric>
#include <string_view>

#include "multihead/nn/points.h"

namespace browser {
namespace {

constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz .,;'-";
constexpr int64_t kContext = 48, kRows = 16, kSide = 8, kPixels = kSide * kSide, kBatch = 64;
constexpr int64_t kLayers = 2, kHeads = 4;

mh::models::LanguageModel new_repeater() {
  mh::models::LanguageModelConfig config;
  config.vocab_size = std::ssize(kCharacters), config.context = kContext;
  config.num_layers = kLayers, config.num_heads = kHeads, config.embed_dim = 64;
  config.positions = mh::models::Positions::rotary, config.block = mh::nn::Block::attention_only;
  config.tie_embeddings = false;
  mh::Rng rng(1);
  return {config, rng};
}

mh::models::ImageEncoder new_digit_reader() {
  mh::Rng rng(1);
  return {{.image_size = kSide,
           .patch_size = 2,
           .channels = 1,
           .num_layers = kLayers,
           .num_heads = kHeads,
           .embed_dim = 48,
           .ffn_dim = 96,
           .pooler = false,
           .head = mh::models::EncoderHead::classification,
           .num_labels = 10},
          rng};
}

std::string label_of(int32_t token) { return std::string(1, kCharacters[static_cast<size_t>(token)]); }

mh::look::NamedTokens tokens_of(const std::string& text) {
  mh::look::NamedTokens tokens{.label_of = label_of};
  for (const char c : text) {
    const size_t at = kCharacters.find(c);
    MH_CHECK(at != std::string_view::npos, ValueError, "the model knows the characters \"", kCharacters,
             "\" alone");
    tokens.ids.push_back(static_cast<int32_t>(at));
    tokens.labels.push_back(label_of(tokens.ids.back()));
  }
  MH_CHECK(std::ssize(text) <= kContext, ValueError, "the text has ", text.size(),
           " characters, the model reads ", kContext);
  return tokens;
}

// Random characters [kRows, kContext + 1], each row a stretch of 6 to 24 that is said again and again.
std::vector<int32_t> repeated(mh::Rng& rng) {
  const mh::RandomStream random = rng.next();
  std::vector<int32_t> out;
  uint64_t drawn = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto begin = static_cast<int64_t>(out.size());
    const auto period = static_cast<int64_t>(6 + random.bits(drawn++) % 19);
    for (int64_t i = 0; i <= kContext; ++i) {
      out.push_back(i < period ? static_cast<int32_t>(random.bits(drawn++) % kCharacters.size())
                               : out[static_cast<size_t>(begin + i - period)]);
    }
  }
  return out;
}

// Their stretches [kRows, kContext] from `first` on.
mh::Tensor columns(const std::vector<int32_t>& rows, int64_t first) {
  return slice(mh::Tensor::of({kRows, kContext + 1}, rows), 1, first, first + kContext);
}

double take_step(mh::optim::AdamW& optimizer, mh::Tape& tape, const mh::Tensor& loss) {
  optimizer.zero_grad();
  tape.backward(loss);
  optimizer.clip_grad_norm(1);
  optimizer.step();
  return loss.item();
}

std::string point_name(int64_t layer, const char* what) {
  return mh::concat("layers.", layer, ".self_attn.", what);
}

mh::look::AttentionView digit_view() {
  mh::look::AttentionView view{.name = "Self-attention", .special = {0}};
  view.keys = {"[class]"};
  for (int64_t row = 1; row <= kSide / 2; ++row)
    for (int64_t column = 1; column <= kSide / 2; ++column) view.keys.push_back(mh::concat(row, ",", column));
  view.queries = view.keys;
  view.layers.resize(kLayers), view.heads.resize(kHeads);
  std::iota(view.layers.begin(), view.layers.end(), 0);
  std::iota(view.heads.begin(), view.heads.end(), 0);
  view.all_layers = kLayers, view.all_heads = kHeads;
  return view;
}

}  // namespace

Repeater::Repeater()
    : model(new_repeater()), rng_(2), optimizer_(mh::nn::named_parameters(model), {.lr = 2e-3}) {}

double Repeater::step() {
  const std::vector<int32_t> rows = repeated(rng_);
  mh::Tape tape;
  return take_step(optimizer_, tape, model.loss(columns(rows, 0), columns(rows, 1)));
}

mh::look::AttentionRun Repeater::look(const std::string& text, const mh::look::Look& changes) const {
  return mh::look::look(model, tokens_of(text), changes);
}

DigitReader::DigitReader(const std::string& lines)
    : model(new_digit_reader()), rng_(3), optimizer_(mh::nn::named_parameters(model), {.lr = 3e-3}) {
  constexpr size_t kLine = kPixels + 2;
  MH_CHECK(!lines.empty() && lines.size() % kLine == 0, ValueError, "digits: ", lines.size(),
           " bytes are no whole number of lines of ", kLine);
  for (size_t at = 0; at < lines.size(); at += kLine) {
    const char digit = lines[at];
    MH_CHECK(digit >= '0' && digit <= '9' && lines[at + kLine - 1] == '\n', ValueError, "digits: line ",
             at / kLine + 1, " is not a digit and ", kPixels, " letters");
    digits_.push_back(digit - '0');
    for (size_t i = 1; i <= kPixels; ++i) {
      const char shade = lines[at + i];
      MH_CHECK(shade >= 'a' && shade <= 'q', ValueError, "digits: line ", at / kLine + 1,
               ": shades are a to q, got ", mh::quote(std::string(1, shade)));
      pixels_.push_back(static_cast<float>(shade - 'a') / 8 - 1);
    }
  }
  trained_on_ = std::ssize(digits_) - kTests;
  MH_CHECK(trained_on_ >= kBatch, ValueError, "digits: ", digits_.size(), " images, expected ",
           kTests + kBatch, " or more");
}

double DigitReader::step() {
  optimizer_.set_lr(mh::optim::Schedule{.kind = mh::optim::ScheduleKind::cosine,
                                        .lr = 3e-3,
                                        .warmup_steps = 20,
                                        .total_steps = 400,
                                        .final_ratio = 0.1}
                        .at(steps_++));
  const mh::RandomStream random = rng_.next();
  std::vector<float> pixels;
  std::vector<int32_t> digits;
  for (int64_t i = 0; i < kBatch; ++i) {
    const auto image =
        static_cast<int64_t>(random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(trained_on_));
    const auto from = pixels_.begin() + image * kPixels;
    pixels.insert(pixels.end(), from, from + kPixels);
    digits.push_back(digits_[static_cast<size_t>(image)]);
  }
  mh::Tape tape;
  const mh::Tensor logits = model.logits(mh::Tensor::of({kBatch, 1, kSide, kSide}, pixels));
  return take_step(optimizer_, tape, cross_entropy(logits, mh::Tensor::of({kBatch}, digits)));
}

mh::Tensor DigitReader::test_images(int64_t begin, int64_t end) const {
  const auto first = pixels_.begin() + (trained_on_ + begin) * kPixels;
  return mh::Tensor::of({end - begin, 1, kSide, kSide},
                        std::vector<float>(first, first + (end - begin) * kPixels));
}

double DigitReader::accuracy() const {
  const mh::NoTape silent;
  const auto guesses = mh::models::most_probable(model.logits(test_images(0, kTests)), 1);
  int64_t right = 0;
  for (int64_t i = 0; i < kTests; ++i)
    right += guesses[static_cast<size_t>(i)][0].token == digits_[static_cast<size_t>(trained_on_ + i)];
  return static_cast<double>(right) / static_cast<double>(kTests);
}

mh::look::AttentionRun DigitReader::look(int64_t index, const mh::look::Look& changes) const {
  MH_CHECK(index >= 0 && index < kTests, ValueError, "test images are 0 to ", kTests - 1, ", got ", index);
  MH_CHECK(changes.cut.empty(), ValueError, "edges are cut in texts, not in images");
  mh::nn::Points points;
  mh::look::AttentionRun run;
  for (const auto& [layer, head] : changes.off) {
    MH_CHECK(layer >= 0 && layer < kLayers && head >= 0 && head < kHeads, ValueError, "no head ", layer, ".",
             head);
    points.edit(point_name(layer, "z"), [](const std::string&, const mh::Tensor& z) { return zeros_like(z); },
                {.heads = {head}});
    run.off.push_back(mh::concat(layer, ".", head));
  }
  points.keep("layers.*.self_attn.pattern");
  const mh::NoTape silent;
  const mh::nn::PointScope scope(points);
  const auto guesses = mh::models::most_probable(model.logits(test_images(index, index + 1)), 5);
  for (const auto& [digit, probability] : guesses[0]) run.next.emplace_back(mh::concat(digit), probability);
  mh::look::AttentionView view = digit_view();
  for (const int64_t layer : view.layers)
    view.weights.push_back(points.kept().at(point_name(layer, "pattern")));
  run.views.push_back(std::move(view));
  return run;
}

}  // namespace browser
