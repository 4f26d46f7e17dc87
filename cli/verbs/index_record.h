// What the vectors of an index were made from: FILE.npy.json beside FILE.npy.
#pragma once

#include <span>
#include <string>

#include "multihead/core/checksum.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/json.h"

namespace multihead::cli {

class IndexRecord {
 public:
  /// `settings`: what else the vectors depend on, by the names of flags.
  IndexRecord(std::span<const std::string> texts, Json settings);

  /// Rows of the index, in f32, in their order.
  void add(const Tensor& vectors);
  /// Throws InputError if another program's file is where the record of the index would be.
  static void check_vacant(const std::string& index);
  /// Before the index itself: one without the record that it should have is taken for another program's.
  void save(const std::string& index) const;
  /// Whether the index has a record. Throws InputError naming what this one differs in.
  bool check(const std::string& index) const;

 private:
  Json json() const;

  Json settings_;
  Checksum texts_, vectors_;
};

}  // namespace multihead::cli
