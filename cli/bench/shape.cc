#include "cli/bench/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/verb.h"

namespace multihead::cli {
namespace {

using train::parse_number;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw UsageError(concat("--shape ", quote(text), ": ", why));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

int64_t size_of(std::string_view whole, std::string_view text) {
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || value > 1 << 24) refuse(whole, "sizes must be whole numbers in [1, 16777216]");
    value = value * 10 + (c - '0');
  }
  if (value < 1 || value > 1 << 24) refuse(whole, "sizes must be whole numbers in [1, 16777216]");
  return value;
}

// "32/8" or "8": the second number defaults to the first.
void pair_of(std::string_view whole, std::string_view text, int64_t& first, int64_t& second) {
  const auto parts = split(text, '/');
  if (parts.size() > 2) refuse(whole, "expected BxHxTxD, such as 1x8x1024x64 or 1x32/8x1/16384x128");
  first = size_of(whole, parts[0]);
  second = parts.size() == 2 ? size_of(whole, parts[1]) : first;
}

void apply_option(BenchShape& s, std::string_view whole, std::string_view option) {
  const size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const bool has_value = equals != std::string_view::npos;
  const std::string_view value = has_value ? option.substr(equals + 1) : "";
  const std::pair<std::string_view, bool*> switches[] = {
      {"causal", &s.causal}, {"lengths", &s.lengths}, {"bias", &s.bias}, {"alibi", &s.alibi},
      {"lambda", &s.lambda}, {"bthd", &s.bthd},       {"bf16", &s.bf16}, {"cold", &s.cold}};
  for (const auto& [known, flag] : switches) {
    if (name == known && !has_value) {
      *flag = true;
      return;
    }
  }
  for (const Direction d : {Direction::forward, Direction::backward, Direction::training}) {
    if (name == direction_name(d) && !has_value) {
      s.direction = d;
      return;
    }
  }
  if (name == "window" && has_value) {
    s.window = size_of(whole, value);
  } else if (name == "dropout" && has_value) {
    s.dropout = parse_number("dropout", value);
    if (!(s.dropout > 0 && s.dropout < 1)) refuse(whole, "dropout must be in (0, 1)");
  } else if (name == "softcap" && has_value) {
    s.softcap = parse_number("softcap", value);
    if (!(s.softcap > 0) || !std::isfinite(s.softcap)) refuse(whole, "softcap must be positive and finite");
  } else {
    refuse(whole, concat("unknown option ", quote(option), ", expected ", bench_shape_options()));
  }
}

void check(const BenchShape& s, std::string_view text) {
  if (s.heads % s.kv_heads != 0) refuse(text, "the number of heads must be a multiple of the key heads'");
  if (s.lengths && s.queries != s.keys) refuse(text, "lengths needs as many queries as keys");
  if (s.cold && s.direction != Direction::forward) refuse(text, "cold is for the forward pass");
  const double elements = static_cast<double>(s.batch) * static_cast<double>(s.dim) *
                          static_cast<double>(std::max(s.heads * s.queries, s.kv_heads * s.keys));
  if (elements > 0x1p29) refuse(text, "a tensor would have more than 2^29 elements");
  if (s.bias &&
      static_cast<double>(s.heads) * static_cast<double>(s.queries) * static_cast<double>(s.keys) > 0x1p29) {
    refuse(text, "the bias would have more than 2^29 elements");
  }
}

// Pairs of one head of one sample with `queries` x `keys`.
double pairs_of(const BenchShape& s, int64_t queries, int64_t keys) {
  if (!s.causal && s.window == 0) return static_cast<double>(queries) * static_cast<double>(keys);
  double pairs = 0;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t seen = std::max<int64_t>(0, i + 1 + keys - queries);
    pairs += static_cast<double>(s.window > 0 ? std::min(seen, s.window) : seen);
  }
  return pairs;
}

// The shapes of each part.
constexpr std::pair<std::string_view, std::string_view> kProtocol[] = {
    {"forward",
     "1x8x1024x32 1x8x1024x64 1x8x1024x128 8x12x128x64 8x12x197x64 1x8x1024x64:causal 1x8x1024x128:causal "
     "4x8x256x64:causal 12x4x64x32:causal"},
    {"options",
     "8x12x512x64:lengths 32x12x128x32:lengths 1x32/8x1024x128:causal 1x8x4096x64:window=512 "
     "1x8x1024x64:causal:dropout=0.1 1x8x1024x64:bias 1x8x1024x64:alibi 1x8x1024x64:causal:alibi "
     "1x8x1024x64:causal:lambda 1x8x1024x64:softcap=30 1x8x1024x64:bf16"},
    {"decode", "1x32/8x1/16384x128:cold 1x32/8x1/16384x128:bf16:cold 8x32/8x1/4096x128:cold 8x12x1/1024x64"},
    {"backward",
     "1x8x1024x64:backward 1x8x1024x128:backward 8x12x128x64:backward 1x8x1024x64:causal:backward "
     "4x8x256x64:causal:backward 12x4x64x32:causal:backward 8x12x512x64:lengths:backward "
     "1x8x1024x64:bias:training 1x8x1024x64:alibi:backward 1x8x1024x64:softcap=30:backward "
     "1x8x1024x64:causal:dropout=0.1:training"}};

}  // namespace

std::string_view direction_name(Direction direction) {
  return direction == Direction::forward    ? "forward"
         : direction == Direction::backward ? "backward"
                                            : "training";
}

std::string bench_shape_options() {
  return "causal, window=N, lengths, dropout=P, bias, alibi, lambda, softcap=C, bf16, bthd, cold, backward, "
         "training";
}

BenchShape parse_bench_shape(std::string_view text) {
  const auto parts = split(text, ':');
  const auto sizes = split(parts[0], 'x');
  if (sizes.size() != 4) refuse(text, "expected BxHxTxD, such as 1x8x1024x64 or 1x32/8x1/16384x128");
  BenchShape s;
  s.batch = size_of(text, sizes[0]);
  pair_of(text, sizes[1], s.heads, s.kv_heads);
  pair_of(text, sizes[2], s.queries, s.keys);
  s.dim = size_of(text, sizes[3]);
  for (size_t i = 1; i < parts.size(); ++i) apply_option(s, text, parts[i]);
  if (s.window > 0) s.causal = true;
  check(s, text);
  return s;
}

std::string BenchShape::text() const {
  const auto pair = [](int64_t a, int64_t b) {
    return a == b ? std::to_string(a) : fmt::format("{}/{}", a, b);
  };
  std::string out = fmt::format("{}x{}x{}x{}", batch, pair(heads, kv_heads), pair(queries, keys), dim);
  if (window > 0) out += fmt::format(":window={}", window);
  if (causal && window == 0) out += ":causal";
  if (lengths) out += ":lengths";
  if (dropout > 0) out += fmt::format(":dropout={}", dropout);
  if (bias) out += ":bias";
  if (alibi) out += ":alibi";
  if (lambda) out += ":lambda";
  if (softcap > 0) out += fmt::format(":softcap={}", softcap);
  if (bf16) out += ":bf16";
  if (bthd) out += ":bthd";
  if (cold) out += ":cold";
  return out;
}

std::vector<BenchShape> protocol_shapes(std::string_view part) {
  std::vector<BenchShape> shapes;
  for (const auto& [name, texts] : kProtocol) {
    if (part != "all" && part != name) continue;
    for (const std::string_view text : split(texts, ' ')) shapes.push_back(parse_bench_shape(text));
  }
  return shapes;
}

std::vector<int64_t> sample_lengths(const BenchShape& s) {
  std::vector<int64_t> lengths;
  if (!s.lengths) return lengths;
  int64_t step = 5;
  while (std::gcd(step, s.batch) != 1) ++step;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t rank = (b * step + 3) % s.batch;  // each once, in no order that a scheduler might like
    lengths.push_back(std::max<int64_t>(1, s.keys * (2 * rank + 1) / (2 * s.batch)));
  }
  return lengths;
}

double useful_flops(const BenchShape& s) {
  double pairs = 0;
  if (s.lengths) {
    for (const int64_t length : sample_lengths(s)) pairs += pairs_of(s, length, length);
  } else {
    pairs = static_cast<double>(s.batch) * pairs_of(s, s.queries, s.keys);
  }
  const double each = s.direction == Direction::forward ? 4 : s.direction == Direction::backward ? 10 : 14;
  return each * static_cast<double>(s.heads * s.dim) * pairs;
}

double least_bytes(const BenchShape& s) {
  const double rows_q = static_cast<double>(s.batch * s.heads * s.queries),
               rows_k = static_cast<double>(s.batch * s.kv_heads * s.keys);
  // Queries and outputs, keys and values; backward also dO, dQ, dK, dV.
  const double q = s.direction == Direction::forward ? 2 : 4, k = s.direction == Direction::forward ? 2 : 4;
  return (q * rows_q + k * rows_k) * static_cast<double>(s.dim) * (s.bf16 ? 2 : 4);
}

int64_t ring_size(const BenchShape& s) {
  if (!s.cold) return 1;
  const double each = 2.0 * static_cast<double>(s.batch * s.kv_heads * s.keys * s.dim) * (s.bf16 ? 2 : 4);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(5.2e8 / each)), 2, 64);
}

}  // namespace multihead::cli
