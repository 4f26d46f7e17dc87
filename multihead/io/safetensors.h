// Named tensors in the safetensors format, one file or sharded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/core/tensor/tensor.h"

namespace multihead::io {

using TensorMap = std::map<std::string, Tensor>;
using Metadata = std::map<std::string, std::string>;

/// A tensor's entry in the header.
struct TensorInfo {
  std::string dtype_name;      ///< as in the file: "F32", "BF16", …
  std::optional<Dtype> dtype;  ///< none: an unsupported type; listed, but not loaded
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  ///< byte range in the data section
  int64_t numel() const;
};

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  Metadata metadata;
};

struct SafetensorsLimits {
  uint64_t header_bytes = 100'000'000;
};

/// Checks a header (the JSON text) against the number of data bytes that follow it: ranges tile the data
/// without gap or overlap, sizes match shapes, names are unique. `where` starts every message. Throws
/// FormatError.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& where);

/// A checkpoint open for reading; load() loads.
class SafetensorsFile {
 public:
  /// `path`: a .safetensors file, a …safetensors.index.json, or a folder with model.safetensors or
  /// model.safetensors.index.json. Shards must be regular files beside their index; a snapshot in the
  /// Hugging Face cache may link to its blobs.
  /// Throws    IoError, FormatError
  explicit SafetensorsFile(const std::string& path, const SafetensorsLimits& limits = {});

  const std::string& path() const { return path_; }
  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// Throws ValueError for an unknown name.
  const TensorInfo& info(const std::string& name) const;
  /// A copy in fresh memory. Throws ValueError (unknown name), FormatError (an unsupported dtype or rank, a
  /// bool other than 0 and 1), IoError.
  Tensor load(const std::string& name) const;
  /// Into existing tensors of the same shapes, converted if the dtypes differ; on all threads, and without a copy
  /// if the dtypes match, also into a transposed view of a matrix. After an error the targets are unspecified.
  /// Also throws ShapeError.
  void read_into(const std::vector<std::pair<std::string, Tensor>>& targets) const;
  /// Whether two tensors have the same dtype, shape and bytes. Throws as load().
  bool is_repeated(const std::string& a, const std::string& b) const;
  /// Also throws MemoryError if they exceed the available memory.
  TensorMap load_all() const;
  /// Metadata of the first shard.
  const Metadata& metadata() const { return metadata_; }
  uint64_t data_bytes() const;

 private:
  struct Shard {
    FileReader file;
    uint64_t data_begin = 0;
  };
  struct Entry {
    TensorInfo info;
    size_t shard = 0;
  };
  void add_shard(const std::string& path, const SafetensorsLimits& limits);
  void open_index(const std::string& path, const SafetensorsLimits& limits);
  const Entry& entry(const std::string& name) const;
  // The entry of a supported tensor.
  const Entry& loadable(const std::string& name) const;
  struct Source;

  std::string path_;
  std::vector<Shard> shards_;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

/// Everything in a file, an index or a folder.
TensorMap load_safetensors(const std::string& path);

/// Writes atomically. Sorted by dtype, then name, header padded to 8 bytes: the same tensors give the same
/// bytes as the reference implementation. `metadata` gets format = "pt" unless it has one.
/// Throws    ValueError (undefined tensor; name or metadata with control characters or not UTF-8), IoError
void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata = {});
/// Into a file of an atomic folder.
void write_safetensors(FileWriter& file, const TensorMap& tensors, const Metadata& metadata = {});

}  // namespace multihead::io
