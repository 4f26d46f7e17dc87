// Many tensors at once, from the file to where they stay. Cold pages are what a load waits for: ranges of a
// few MiB are read by all threads, straight into the parameter where it is stored as it is used, and through
// a buffer that fits a core's cache where it is converted or transposed.
#include <algorithm>
#include <bit>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/safetensors.h"

namespace multihead::io {
namespace {

constexpr int64_t kRange = 4 << 20;     // bytes read straight into place
constexpr int64_t kBuffer = 512 << 10;  // bytes read to be converted

// binary16 as the upper bits of an f32 whose exponent is 112 too small. What had the largest exponent is
// infinite or no number and keeps it.
float widened(uint16_t half) {
  const uint32_t magnitude = uint32_t{half} & 0x7FFF;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7C00 ? 0x7F800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | (uint32_t{half} & 0x8000) << 16);
}

void widen(Dtype dtype, const uint16_t* from, float* to, int64_t count) {
  if (dtype == Dtype::bf16) {
    for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(uint32_t{from[i]} << 16);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = widened(from[i]);
  }
}

bool widens(Dtype stored, Dtype wanted) {
  return wanted == Dtype::f32 && (stored == Dtype::bf16 || stored == Dtype::f16);
}

// rows [rows, columns] row-major -> to, with any strides; a row of `to` that lies in its column is written in
// cache lines.
void scatter(const float* from, int64_t rows, int64_t columns, float* to, const Shape& strides) {
  constexpr int64_t kLine = 16;
  for (int64_t begin = 0; begin < columns; begin += kLine) {
    const int64_t end = std::min(begin + kLine, columns);
    for (int64_t column = begin; column < end; ++column) {
      for (int64_t row = 0; row < rows; ++row) {
        to[row * strides[0] + column * strides[1]] = from[row * columns + column];
      }
    }
  }
}

// A thread's memory for what does not go straight into place.
struct Scratch {
  std::vector<char> stored;
  std::vector<float> floats;
};

// Part of a tensor, as rows of the file; a tensor in one piece is one column of elements.
struct Range {
  size_t tensor;
  int64_t begin, end;
};

}  // namespace

struct SafetensorsFile::Source {
  const FileReader* file = nullptr;
  uint64_t offset = 0;
  Dtype dtype = Dtype::f32;
  Tensor target;
  bool rows = false;  // the target's rows do not follow each other
  int64_t columns() const { return rows ? target.size(1) : 1; }
  int64_t count() const { return rows ? target.size(0) : target.numel(); }

  // Whether read() knows the way from the file to the target.
  bool is_plain() const {
    const bool known = dtype == target.dtype() ? dtype != Dtype::boolean : widens(dtype, target.dtype());
    return known && (target.is_contiguous() || (target.rank() == 2 && target.dtype() == Dtype::f32));
  }
  int64_t step() const {
    const bool straight = dtype == target.dtype() && !rows;
    const auto row_bytes = static_cast<int64_t>(size_of(dtype)) * columns();
    return std::max<int64_t>((straight ? kRange : kBuffer) / row_bytes, 1);
  }
  void read(int64_t begin, int64_t end, Scratch& scratch) const;
};

void SafetensorsFile::Source::read(int64_t begin, int64_t end, Scratch& scratch) const {
  const auto elements = static_cast<size_t>((end - begin) * columns());
  const uint64_t from = offset + static_cast<uint64_t>(begin * columns()) * size_of(dtype);
  auto* to = static_cast<char*>(target.raw()) +
             static_cast<size_t>(begin * (rows ? target.strides()[0] : 1)) * size_of(target.dtype());
  const bool same = dtype == target.dtype();
  if (same && !rows) return file->read(from, to, elements * size_of(dtype));
  scratch.stored.resize(elements * size_of(dtype));
  file->read(from, scratch.stored.data(), scratch.stored.size());
  auto* place = reinterpret_cast<float*>(to);
  const auto* values = reinterpret_cast<const float*>(scratch.stored.data());
  if (!same) {
    if (rows) scratch.floats.resize(elements);
    float* floats = rows ? scratch.floats.data() : place;
    const auto* halves = reinterpret_cast<const uint16_t*>(scratch.stored.data());
    widen(dtype, halves, floats, static_cast<int64_t>(elements));
    values = floats;
  }
  if (rows) scatter(values, end - begin, columns(), place, target.strides());
}

void SafetensorsFile::read_into(const std::vector<std::pair<std::string, Tensor>>& targets) const {
  std::vector<Source> sources;
  for (const auto& [tensor_name, target] : targets) {
    const Entry& found = loadable(tensor_name);
    const Shape shape(std::span<const int64_t>(found.info.shape));
    MH_CHECK(shape == target.shape(), ShapeError, path_, ": tensor ", quote(tensor_name), " has shape ",
             shape, ", expected ", target.shape());
    const Shard& shard = shards_[found.shard];
    sources.push_back({&shard.file, shard.data_begin + found.info.begin, *found.info.dtype, target,
                       !target.is_contiguous()});
  }
  std::vector<Range> ranges;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].is_plain()) {
      targets[i].second.copy_from(load(targets[i].first));
      continue;
    }
    const int64_t count = sources[i].count(), step = sources[i].step();
    for (int64_t at = 0; at < count; at += step) ranges.push_back({i, at, std::min(at + step, count)});
  }
  std::vector<Scratch> scratch(static_cast<size_t>(num_threads()));
  parallel_for(static_cast<int64_t>(ranges.size()), [&](int64_t index, int worker) {
    const Range& range = ranges[static_cast<size_t>(index)];
    sources[range.tensor].read(range.begin, range.end, scratch[static_cast<size_t>(worker)]);
  });
}

bool SafetensorsFile::is_repeated(const std::string& a, const std::string& b) const {
  const Entry &first = loadable(a), &second = loadable(b);
  if (first.info.dtype != second.info.dtype || first.info.shape != second.info.shape) return false;
  const auto bytes = static_cast<int64_t>(first.info.end - first.info.begin);
  const int64_t ranges = (bytes + kBuffer - 1) / kBuffer;
  std::vector<char> same(static_cast<size_t>(ranges));
  parallel_for(ranges, [&](int64_t range, int) {
    const int64_t begin = range * kBuffer;
    std::vector<char> left(static_cast<size_t>(std::min(kBuffer, bytes - begin))), right(left.size());
    const auto read = [&](const Entry& entry, std::vector<char>& to) {
      const Shard& shard = shards_[entry.shard];
      shard.file.read(shard.data_begin + entry.info.begin + static_cast<uint64_t>(begin), to.data(),
                      to.size());
    };
    read(first, left), read(second, right);
    same[static_cast<size_t>(range)] = left == right;
  });
  return std::find(same.begin(), same.end(), 0) == same.end();
}

}  // namespace multihead::io
