#include "multihead/train/progress.h"

#include <cmath>
#include <cstdio>
#include <ostream>

namespace multihead::train {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char buffer[160];
  std::snprintf(buffer, sizeof(buffer), pattern, args...);
  return buffer;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(std::lround(std::min(std::max(seconds, 0.0), 1e12)));
  if (s < 60) return format("%llds", s);
  if (s < 3600) return format("%lldm%02llds", s / 60, s % 60);
  return format("%lldh%02lldm", s / 3600, s / 60 % 60);
}

std::string count_text(double count) {
  if (count < 1000) return format("%.0f", count);
  if (count < 1e6) return format("%.1fk", count / 1e3);
  return count < 1e9 ? format("%.1fM", count / 1e6) : format("%.1fG", count / 1e9);
}

ProgressPrinter::ProgressPrinter(std::ostream& out, const ProgressOptions& options)
    : out_(out), options_(options) {}

void ProgressPrinter::on_job(const JobReport& r) {
  if (options_.quiet) return;
  line(format("%d ranks of %d %s, %lld shards a step; weights, gradients and optimizer take %sB a rank",
              r.ranks, r.threads, r.threads == 1 ? "thread" : "threads", (long long)r.shards,
              count_text(r.bytes).c_str()));
}

void ProgressPrinter::on_start(int64_t step, int64_t steps) {
  steps_ = steps;
  if (step > 0 && !options_.quiet) {
    line(format("resumed at step %lld of %lld", (long long)step, (long long)steps));
  }
}

void ProgressPrinter::on_step(const StepReport& r) {
  if (options_.quiet) return;
  const bool last = r.step == r.steps;
  if (!options_.terminal && !last && r.seconds - last_line_ < options_.seconds_per_line) return;
  last_line_ = r.seconds;
  const std::string text =
      format("step %lld/%lld  loss %.4f  lr %.2e  %s tokens/s  %s left", (long long)r.step,
             (long long)r.steps, r.loss, r.learning_rate, count_text(r.tokens_per_second).c_str(),
             duration_text(r.seconds_left).c_str());
  if (!options_.terminal) return line(text);
  out_ << '\r' << text << "\x1b[K" << std::flush;
  pending_ = true;
}

void ProgressPrinter::on_evaluation(const EvalReport& r) {
  if (options_.quiet) return;
  std::string text =
      format("step %lld/%lld  validation loss %.4f", (long long)r.step, (long long)steps_, r.loss);
  for (const auto& [name, value] : r.metrics) text += format("  %s %.4f", name.c_str(), value);
  if (r.metrics.empty()) text += format("  perplexity %.2f", r.perplexity());
  line(text + (r.is_best ? "  (best)" : ""));
}

void ProgressPrinter::on_warning(const std::string& message) { line("warning: " + printable(message)); }

void ProgressPrinter::on_note(const std::string& message) {
  if (!options_.quiet) line(printable(message));
}

void ProgressPrinter::line(const std::string& text) {
  if (pending_) out_ << "\r\x1b[K";
  pending_ = false;
  out_ << text << '\n' << std::flush;
}

}  // namespace multihead::train
