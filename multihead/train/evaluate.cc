#include "multihead/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/data/windows.h"

namespace multihead::train {
namespace {

// Counts what tokens stand for, without decoding whole texts.
class Measure {
 public:
  explicit Measure(const text::Tokenizer& tokenizer) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string bytes = tokenizer.decode(std::span(&id, 1), {.continued = true});
      bytes_.push_back(static_cast<int64_t>(bytes.size()));
      characters_.push_back(count_utf8(bytes));
    }
  }

  void add(const text::TokenView& tokens, TextLoss& total) const {
    tokens.each_piece([&](int64_t, std::span<const int32_t> piece) {
      for (const int32_t token : piece) {
        total.bytes += bytes_.at(static_cast<size_t>(token));
        total.characters += characters_.at(static_cast<size_t>(token));
      }
    });
  }

 private:
  std::vector<int64_t> bytes_, characters_;
};

// All but the last `fresh` targets are ignored: earlier windows have predicted them.
void ignore_known(WindowBatch& batch, std::span<const int64_t> begins, int64_t fresh) {
  const int64_t context = batch.targets.size(1);
  for (size_t row = 0; row < begins.size(); ++row) {
    if (begins[row] == 0) continue;  // the first of the text
    std::fill_n(batch.targets.data<int32_t>() + static_cast<int64_t>(row) * context, context - fresh,
                text::kIgnoreTarget);
  }
}

}  // namespace

double TextLoss::perplexity() const { return std::exp(loss()); }
double TextLoss::bits_per_byte() const { return nats / std::numbers::ln2 / static_cast<double>(bytes); }

Json to_json(const TextLoss& l) {
  return Json::object({{"loss", number_or_null(l.loss())},
                       {"perplexity", number_or_null(l.perplexity())},
                       {"nats_per_character", number_or_null(l.nats_per_character())},
                       {"bits_per_byte", number_or_null(l.bits_per_byte())},
                       {"tokens", l.tokens},
                       {"bytes", l.bytes}});
}

TextLoss evaluate(const models::LanguageModel& model, const text::TokenView& tokens,
                  const EvaluateOptions& options, const text::Tokenizer* tokenizer) {
  const int64_t context = options.context > 0 ? options.context : model.config().context;
  MH_CHECK(options.context >= 0 && options.stride >= 0, ValueError,
           "evaluate: context and stride must not be negative, got ", options.context, " and ",
           options.stride);
  MH_CHECK(options.batch > 0 && options.windows >= 0, ValueError,
           "evaluate: batch must be positive and windows not negative, got ", options.batch, " and ",
           options.windows);
  const int64_t last = tokens.size() - 1;
  MH_CHECK(last >= 1, FormatError, "evaluate: the text has ", tokens.size(), " tokens, needs at least 2");
  tokens.each_piece([&](int64_t, std::span<const int32_t> piece) {
    for (const int32_t token : piece) {
      MH_CHECK(token >= 0 && token < model.config().vocab_size, ValueError, "evaluate: token ", token,
               " is outside the model's vocabulary of ", model.config().vocab_size);
    }
  });
  const int64_t stride = options.stride > 0 ? options.stride : context;
  MH_CHECK(stride <= context, ValueError, "evaluate: stride must be in [1, context ", context, "], got ",
           stride);
  const int64_t windows = last < context ? 0 : (last - context) / stride + 1;
  std::vector<int64_t> begins = spread_rows(windows, options.windows);
  for (int64_t& begin : begins) begin *= stride;
  const int64_t count = std::ssize(begins), batches = (count + options.batch - 1) / options.batch;
  // The tokens after the last window: read with as many before them as the others.
  const int64_t done = windows > 0 ? (windows - 1) * stride + context : 0, rest = last - done,
                rest_begin = std::max<int64_t>(windows * stride, 0), rest_length = last - rest_begin;
  const bool takes_rest = rest > 0 && (options.windows == 0 || begins.empty());
  const auto measure = [&](int64_t i, std::span<double> numbers) {
    std::span<const int64_t> rows(&rest_begin, 1);
    if (i < batches) {
      const int64_t first = i * options.batch, rows_here = std::min(count - first, options.batch);
      rows = std::span(begins).subspan(static_cast<size_t>(first), static_cast<size_t>(rows_here));
    }
    WindowBatch batch = gather_windows(tokens, rows, i < batches ? context : rest_length);
    ignore_known(batch, rows, i < batches ? stride : rest);
    const std::span<const int32_t> targets = batch.targets.span<int32_t>();
    numbers[1] = static_cast<double>(
        std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t != text::kIgnoreTarget; }));
    numbers[0] = model.loss(batch.tokens, batch.targets).item() * numbers[1];
  };
  const std::vector<double> numbers =
      measure_batches(options.sharing, batches + (takes_rest ? 1 : 0), 2, measure);
  TextLoss total;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    total.nats += numbers[i], total.tokens += static_cast<int64_t>(numbers[i + 1]);
  }
  if (tokenizer != nullptr) {
    const Measure measure(*tokenizer);
    for (const int64_t begin : begins) {
      const int64_t fresh = begin == 0 ? context : stride;
      measure.add(tokens.sub(begin + 1 + context - fresh, fresh), total);
    }
    if (takes_rest) measure.add(tokens.sub(done + 1, rest), total);
  }
  return total;
}

}  // namespace multihead::train
