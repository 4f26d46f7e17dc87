#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/serve/lanes-inl.h"

namespace multihead::serve {
namespace {

constexpr int64_t kTokensOfAStep = 1024;

/// "input 0", "document 0": one of a request's inputs or documents.
std::string input_name(std::string_view member, size_t place) {
  return concat(member.substr(0, member.size() - (member.ends_with('s') ? 1 : 0)), " ", place);
}

/// Throws ApiError unless the input fits, or may be cut.
template <class Job>
int64_t fitting_size(const Job& job, size_t input, int64_t size, int64_t limit) {
  if (size > limit && !job.truncates) {
    throw ApiError(400,
                   concat(input_name(job.member, input), " has ", size, " tokens, the model reads ", limit,
                          "; shorten it, or set truncate to cut it"),
                   job.member, "context_length_exceeded");
  }
  return std::min(size, limit);
}

void to_unit_length(std::span<float> row) {
  double sum = 0;
  for (const float x : row) sum += double{x} * x;
  const double length = std::max(std::sqrt(sum), 1e-12);
  for (float& x : row) x = static_cast<float>(x / length);
}

template <class Live>
Usage usage_of(const Live& live) {
  Usage usage;
  for (const int64_t size : live.sizes) usage.prompt_tokens += size;
  return usage;
}

}  // namespace

template <class Job>
void InputLane<Job>::prepare_all() {
  std::erase_if(lives_, [&](Live& live) {
    if (!live.sizes.empty()) return false;
    try {
      as_request([&] { prepare(live); });
      return false;
    } catch (...) {
      fail_with_current_exception(*live.job.reply);
      return true;
    }
  });
}

template <class Job>
std::vector<typename InputLane<Job>::Pick> InputLane<Job>::pick() {
  std::vector<Pick> picks;
  int64_t tokens = 0;
  for (bool more = true; more;) {
    more = false;
    for (Live& live : lives_) {
      if (live.next == live.sizes.size()) continue;
      tokens += live.sizes[live.next];
      if (tokens > kTokensOfAStep && !picks.empty()) return picks;
      picks.push_back({&live, live.next++});
      more = true;
    }
  }
  return picks;
}

template <class Job>
void InputLane<Job>::keep(std::span<const Pick> picks, const Tensor& rows) {
  const int64_t width = rows.size(1);
  for (const Pick& pick : picks) pick.live->rows.resize(pick.live->sizes.size() * static_cast<size_t>(width));
  for (size_t i = 0; i < picks.size(); ++i) {
    Live& live = *picks[i].live;
    live.width = width;
    std::copy_n(rows.data<float>() + static_cast<int64_t>(i) * width, width,
                live.rows.begin() + static_cast<int64_t>(picks[i].input) * width);
    ++live.done;
  }
}

// What cannot be computed fails its request; false: the picks are of several, of which one is to blame.
template <class Job>
bool InputLane<Job>::run(std::span<const Pick> picks) {
  Live& first = *picks[0].live;
  const bool is_of_one = std::ranges::all_of(picks, [&](const Pick& pick) { return pick.live == &first; });
  try {
    const NoTape silent;
    keep(picks, compute(picks));
  } catch (...) {
    if (!is_of_one) return false;
    fail_with_current_exception(*first.job.reply);
    first.has_failed = true;
  }
  return true;
}

template <class Job>
bool InputLane<Job>::step() {
  if (lives_.empty()) return false;
  prepare_all();
  const std::vector<Pick> picks = pick();
  const bool is_done = picks.empty() || run(picks);
  for (size_t i = 0; !is_done && i < picks.size(); ++i) {  // each alone, so that only whose fault it is fails
    if (!picks[i].live->has_failed) run(std::span(picks).subspan(i, 1));
  }
  std::erase_if(lives_, [&](Live& live) {
    if (live.has_failed || live.job.reply->cancelled()) return true;
    if (live.done < live.sizes.size()) return false;
    try {
      const bool is_finite =
          std::all_of(live.rows.begin(), live.rows.end(), [](float x) { return std::isfinite(x); });
      if (!is_finite) throw ApiError(500, "the model computed NaN or Inf");
      finish(live);
    } catch (...) {
      fail_with_current_exception(*live.job.reply);
    }
    return true;
  });
  return true;
}

void TasksLane::add(EmbedJob job) {
  try {
    auto found = lanes_.find(job.task);
    if (found == lanes_.end()) {
      found = lanes_.emplace(job.task, job.task.empty() ? encoder_ : encoder_.for_task(job.task)).first;
    }
    found->second.add(std::move(job));
  } catch (...) {
    fail_with_current_exception(*job.reply);
  }
}

bool TasksLane::step() {
  bool has_worked = false;
  for (auto& [task, lane] : lanes_) has_worked |= lane.step();
  return has_worked;
}

void TasksLane::drop_unwanted(Reply::Clock::time_point now) {
  for (auto& [task, lane] : lanes_) lane.drop_unwanted(now);
}

void EmbedLane::prepare(Live& live) {
  const EmbedJob& job = live.job;
  if (job.dimensions > encoder_.dim()) {
    throw ApiError(400,
                   concat("the task's vectors have ", encoder_.dim(), " dimensions, not ", job.dimensions),
                   "dimensions");
  }
  const auto is_text = [](const auto& input) { return std::holds_alternative<std::string>(input); };
  if (!std::ranges::all_of(job.inputs, is_text) && encoder_.leaves_prompt_out()) {
    throw ApiError(
        400,
        "the model leaves its prompt out of the vectors, and token ids do not tell where it ends; send texts",
        job.member);
  }
  live.ids.resize(job.inputs.size());
  parallel_for(std::ssize(job.inputs), [&](int64_t i, int) {
    const auto& input = job.inputs[static_cast<size_t>(i)];
    const auto* text = std::get_if<std::string>(&input);
    live.ids[static_cast<size_t>(i)] =
        text != nullptr ? encoder_.tokens(*text, 0) : std::get<TokenIds>(input);
  });
  for (size_t i = 0; i < live.ids.size(); ++i) {
    TokenIds& ids = live.ids[i];
    const int64_t size = fitting_size(job, i, std::ssize(ids), encoder_.max_length());
    const auto* text = std::get_if<std::string>(&job.inputs[i]);
    if (std::ssize(ids) > size && text != nullptr)
      ids = encoder_.tokens(*text, size);  // with the template's end
    ids.resize(static_cast<size_t>(size));
    live.sizes.push_back(size);
    for (const int32_t id : ids) {
      if (id < 0 || id >= encoder_.model().vocab_size()) {
        throw ApiError(400,
                       concat("token ", id, " of ", input_name(job.member, i),
                              " is outside the vocabulary of ", encoder_.model().vocab_size()),
                       job.member);
      }
    }
  }
}

Tensor EmbedLane::compute(std::span<const Pick> picks) {
  std::vector<TokenIds> rows;
  for (const Pick& pick : picks) {
    rows.push_back(pick.live->ids[pick.input]);
    if (rows.back().empty()) rows.back().push_back(0);  // the model wants a token
  }
  const Tensor vectors = encoder_.vectors(models::TokenRows::of(rows), encoder_.normalizes()).to(Dtype::f32);
  for (size_t i = 0; i < picks.size(); ++i) {
    if (picks[i].live->sizes[picks[i].input] > 0)
      continue;  // a text without tokens is zeros, as encode() has it
    std::fill_n(vectors.data<float>() + static_cast<int64_t>(i) * vectors.size(1), vectors.size(1), 0.0F);
  }
  return vectors.contiguous();
}

void EmbedLane::finish(Live& live) {
  const EmbedJob& job = live.job;
  const int64_t width = job.dimensions > 0 ? job.dimensions : encoder_.width({});
  const bool is_scaled =
      job.has_unit_length.value_or(job.dimensions > 0) && (width < live.width || !encoder_.normalizes());
  std::vector<float> rows;
  for (size_t i = 0; i < live.sizes.size(); ++i) {
    const auto first = live.rows.begin() + static_cast<int64_t>(i) * live.width;
    rows.insert(rows.end(), first, first + width);
    if (is_scaled) to_unit_length(std::span(rows).last(static_cast<size_t>(width)));
  }
  job.finish(rows, width, usage_of(live));
}

void ScoreLane::prepare(Live& live) {
  const ScoreJob& job = live.job;
  const size_t count = std::max(job.texts.size(), job.pairs.size());
  if (!job.pairs.empty() && !classifier_.reads_pairs())
    throw ApiError(400, "the model reads single texts, not pairs", job.member);
  live.sizes.resize(count);
  parallel_for(static_cast<int64_t>(count), [&](int64_t index, int) {
    const auto i = static_cast<size_t>(index);
    const text::Encoding whole =
        job.pairs.empty() ? classifier_.tokens(job.texts[i], 0) : classifier_.tokens(job.pairs[i], 0);
    live.sizes[i] = std::ssize(whole.ids);
  });
  const int64_t limit = job.pairs.empty() ? classifier_.text_length() : classifier_.max_length();
  for (size_t i = 0; i < count; ++i) {
    if (live.sizes[i] == 0)
      throw ApiError(400, concat(input_name(job.member, i), " has no tokens"), job.member);
    live.sizes[i] = fitting_size(job, i, live.sizes[i], limit);
  }
}

Tensor ScoreLane::compute(std::span<const Pick> picks) {
  std::vector<std::string> texts;
  std::vector<embed::TextPair> pairs;
  std::vector<size_t> places(picks.size());
  for (size_t i = 0; i < picks.size(); ++i) {
    const ScoreJob& job = picks[i].live->job;
    const bool is_pair = !job.pairs.empty();
    places[i] = is_pair ? pairs.size() : texts.size();
    if (is_pair) {
      pairs.push_back(job.pairs[picks[i].input]);
    } else {
      texts.push_back(job.texts[picks[i].input]);
    }
  }
  const int64_t labels = classifier_.num_labels();
  const Tensor of_texts = classifier_.logits(texts), of_pairs = classifier_.logits(pairs);
  Tensor rows = Tensor::empty({std::ssize(picks), labels}, Dtype::f32);
  for (size_t i = 0; i < picks.size(); ++i) {
    const Tensor& from = picks[i].live->job.pairs.empty() ? of_texts : of_pairs;
    std::copy_n(from.data<float>() + static_cast<int64_t>(places[i]) * labels, labels,
                rows.data<float>() + static_cast<int64_t>(i) * labels);
  }
  return rows;
}

void ScoreLane::finish(Live& live) {
  Tensor logits = Tensor::empty({std::ssize(live.sizes), live.width}, Dtype::f32);
  std::copy(live.rows.begin(), live.rows.end(), logits.data<float>());
  live.job.finish(logits, usage_of(live));
}

template class InputLane<EmbedJob>;
template class InputLane<ScoreJob>;

}  // namespace multihead::serve
