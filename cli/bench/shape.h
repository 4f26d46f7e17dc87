// The cases that `bench attention` measures: a shape, its options and a direction, as text and as numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace multihead::cli {

enum class Direction { forward, backward, training };  // training: forward and backward together

struct BenchShape {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, dim = 1;
  bool causal = false, lengths = false, bias = false, alibi = false, lambda = false;
  bool bthd = false, bf16 = false, cold = false;
  int64_t window = 0;  ///< the last so many keys; 0: all
  double dropout = 0, softcap = 0;
  Direction direction = Direction::forward;

  /// "1x32/8x1/16384x128:bf16:cold"
  std::string text() const;
};

/// BxHxTxD with H as H/Hkv and T as Tq/Tk where they differ, then :option …. Throws UsageError.
BenchShape parse_bench_shape(std::string_view text);
/// The options of parse_bench_shape, for --help and messages.
std::string bench_shape_options();

/// The named part of the protocol: "all", "forward", "options", "decode", "backward".
std::vector<BenchShape> protocol_shapes(std::string_view part);

std::string_view direction_name(Direction direction);
/// Valid lengths with `lengths`: spread evenly over 1…T, in mixed order. Empty otherwise.
std::vector<int64_t> sample_lengths(const BenchShape& shape);
/// Useful floating-point operations of one call: 4 per pair that may meet and element of a head, 10 backward.
double useful_flops(const BenchShape& shape);
/// Every operand and result once.
double least_bytes(const BenchShape& shape);
/// Key and value tensors that calls take in turn, so that none finds them in a cache.
int64_t ring_size(const BenchShape& shape);

}  // namespace multihead::cli
