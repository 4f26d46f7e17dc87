// Masks and dropout as data: what one element is, document intervals, block summary of a dense mask.
#include <algorithm>
#include <cmath>

#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"

namespace multihead::kernels {
namespace {

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t extent(int64_t n, int64_t stride) { return stride == 0 ? std::min<int64_t>(n, 1) : n; }

BlockClass class_of(const AttentionProblem& p, const uint8_t* keep, int64_t rows, int64_t columns) {
  const Strides4& s = p.keep_strides;
  rows = extent(rows, s.query);
  columns = extent(columns, s.key);
  bool any = false, all = true;
  for (int64_t i = 0; i < rows && (all || !any); ++i) {
    const uint8_t* row = keep + i * s.query;
    if (s.key == 1) {
      const auto kept = columns - std::count(row, row + columns, 0);
      any = any || kept > 0;
      all = all && kept == columns;
    } else {
      for (int64_t j = 0; j < columns; ++j) {
        any = any || row[j * s.key];
        all = all && row[j * s.key];
      }
    }
  }
  return all ? BlockClass::full : any ? BlockClass::partial : BlockClass::empty;
}

}  // namespace

bool attention_dropout_keep(uint64_t dropout_key, int64_t b, int64_t h, int64_t q, int64_t k, double p) {
  if (p >= 1) return false;
  const auto words = philox({static_cast<uint32_t>(q), static_cast<uint32_t>(k >> 4),
                             static_cast<uint32_t>(h), static_cast<uint32_t>(b)},
                            {static_cast<uint32_t>(dropout_key), static_cast<uint32_t>(dropout_key >> 32)});
  const uint32_t bits = std::rotr(words[(k >> 2) & 3], static_cast<int>(8 * (k & 3)));
  const double threshold = std::min(std::round(p * 0x1p32), 0x1p32 - 1);
  return bits >= static_cast<uint32_t>(threshold);
}

int64_t attention_keep_classes_size(const AttentionProblem& p) {
  const Strides4& s = p.keep_strides;
  return extent(p.batch, s.batch) * extent(p.heads, s.head) * blocks(p.all_queries(), attention_keep_rows) *
         blocks(p.all_keys(), attention_keep_columns);
}

void attention_keep_classes(const AttentionProblem& p, uint8_t* classes) {
  const Strides4& s = p.keep_strides;
  const int64_t queries = p.all_queries(), keys = p.all_keys();
  const int64_t rows = blocks(queries, attention_keep_rows), columns = blocks(keys, attention_keep_columns);
  const int64_t heads = extent(p.heads, s.head);
  parallel_for(extent(p.batch, s.batch) * heads * rows, [&](int64_t index, int) {
    const int64_t row = index % rows, head = index / rows % heads, b = index / rows / heads;
    const int64_t i = row * attention_keep_rows;
    const uint8_t* keep = p.keep + b * s.batch + head * s.head + i * s.query;
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t j = column * attention_keep_columns;
      classes[index * columns + column] =
          static_cast<uint8_t>(class_of(p, keep + j * s.key, std::min(attention_keep_rows, queries - i),
                                        std::min(attention_keep_columns, keys - j)));
    }
  });
}

bool attention_document_intervals(const int64_t* query_ids, int64_t queries, const int64_t* key_ids,
                                  int64_t keys, int64_t* key_begin, int64_t* key_end) {
  int64_t previous_id = 0, begin = 0, end = 0;
  bool found_previous = false;
  for (int64_t i = 0; i < queries; ++i) {
    if (!found_previous || query_ids[i] != previous_id) {
      const int64_t* first = std::find(key_ids, key_ids + keys, query_ids[i]);
      const int64_t* last =
          std::find_if(first, key_ids + keys, [&](int64_t id) { return id != query_ids[i]; });
      if (std::find(last, key_ids + keys, query_ids[i]) != key_ids + keys) return false;
      begin = first - key_ids;
      end = last - key_ids;
      if (first == key_ids + keys) begin = end = 0;
      previous_id = query_ids[i];
      found_previous = true;
    }
    key_begin[i] = begin;
    key_end[i] = end;
  }
  return true;
}

}  // namespace multihead::kernels
