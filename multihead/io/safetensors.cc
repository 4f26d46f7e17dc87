#include "multihead/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <system_error>

#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/json.h"
#include "multihead/io/json.h"
#include "multihead/io/names-inl.h"

namespace multihead::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace fs = std::filesystem;

using Named = std::pair<const std::string, Tensor>;

std::vector<const Named*> sorted_for_writing(const TensorMap& tensors) {
  std::vector<const Named*> order;
  for (const Named& named : tensors) {
    MH_CHECK(named.first != "__metadata__" && is_printable(named.first), ValueError,
             "safetensors: tensor name ", quote(named.first), " cannot be written");
    MH_CHECK(named.second.defined(), ValueError, "safetensors: tensor ", quote(named.first), " is undefined");
    order.push_back(&named);
  }
  std::stable_sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return &file_dtype(a->second.dtype()) < &file_dtype(b->second.dtype());
  });
  return order;
}

Json metadata_json(const Metadata& metadata) {
  Json json = Json::object();
  if (!metadata.contains("format")) json["format"] = "pt";
  for (const auto& [key, value] : metadata) {
    MH_CHECK(is_printable(key) && is_printable(value, "\n\r\t"), ValueError, "safetensors: metadata ",
             quote(key), " = ", quote(value), " cannot be written");
    json[key] = value;
  }
  return json;
}

std::string header_text(const std::vector<const Named*>& order, const Metadata& metadata) {
  Json header = Json::object({{"__metadata__", metadata_json(metadata)}});
  size_t offset = 0;
  for (const Named* named : order) {
    const Tensor& tensor = named->second;
    const Shape& shape = tensor.shape();
    const size_t begin = offset;
    offset += tensor.bytes();
    header[named->first] = Json::object({{"dtype", file_dtype(tensor.dtype()).name},
                                         {"shape", std::vector<Json>(shape.begin(), shape.end())},
                                         {"data_offsets", std::vector<Json>{begin, offset}}});
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

// A bool that is neither 0 nor 1 is undefined behaviour to whoever reads it.
void check_bools(const std::string& where, const std::string& tensor_name, const Tensor& tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
  for (int64_t i = 0; i < tensor.numel(); ++i)
    MH_CHECK(bytes[i] <= 1, FormatError, where, ": tensor ", quote(tensor_name), " is BOOL, its element ", i,
             " is ", int{bytes[i]});
}

// Shards lie beside their index. In the Hugging Face cache a snapshot's files are links into its blobs.
std::string resolve_shard(const fs::path& index, const std::string& shard_name) {
  MH_CHECK(is_plain_file_name(shard_name), FormatError, index.string(), ": shard ", quote(shard_name),
           " is not a plain file name");
  const fs::path path = index.parent_path() / shard_name;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  MH_CHECK(!error, IoError, index.string(), ": shard ", quote(shard_name), ": ", error.message());
  const fs::path parent = index.parent_path();
  const fs::path folder = fs::canonical(parent.empty() ? fs::path(".") : parent, error);
  const bool in_cache = folder.parent_path().filename() == "snapshots" &&
                        real.parent_path() == folder.parent_path().parent_path() / "blobs";
  MH_CHECK(real.parent_path() == folder || in_cache, FormatError, index.string(), ": shard ",
           quote(shard_name), " is a link to a file outside its folder");
  return path.string();
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, const SafetensorsLimits& limits) : path_(path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    path_ = (fs::path(path) / "model.safetensors").string();
    const std::string index = path_ + ".index.json";
    if (!fs::exists(path_, ignored) && fs::exists(index, ignored)) path_ = index;
  }
  if (path_.ends_with(".json")) {
    open_index(path_, limits);
  } else {
    add_shard(path_, limits);
  }
}

void SafetensorsFile::add_shard(const std::string& path, const SafetensorsLimits& limits) {
  FileReader file(path);
  MH_CHECK(file.size() >= 8, FormatError, path, ": ", file.size(),
           " bytes are too few for a safetensors file");
  uint64_t header_bytes = 0;
  file.read(0, &header_bytes, 8);
  MH_CHECK(header_bytes <= limits.header_bytes, FormatError, path, ": header of ", header_bytes,
           " bytes, the limit is ", limits.header_bytes);
  MH_CHECK(header_bytes <= file.size() - 8, FormatError, path, ": header of ", header_bytes,
           " bytes, the file has ", file.size() - 8, " after its length");
  std::string text(static_cast<size_t>(header_bytes), '\0');
  file.read(8, text.data(), text.size());
  SafetensorsHeader header = parse_safetensors_header(text, file.size() - 8 - header_bytes, path);
  if (shards_.empty()) metadata_ = std::move(header.metadata);
  for (auto& [tensor_name, info] : header.tensors) {
    const bool added = entries_.emplace(tensor_name, Entry{std::move(info), shards_.size()}).second;
    MH_CHECK(added, FormatError, path, ": tensor ", quote(tensor_name), " is in another shard too");
  }
  shards_.push_back({std::move(file), 8 + header_bytes});
}

void SafetensorsFile::open_index(const std::string& path, const SafetensorsLimits& limits) {
  const Json index = load_json(path);
  const Json* map = index.find("weight_map");
  MH_CHECK(map != nullptr && map->is_object(), FormatError, path, ": no object \"weight_map\"");
  std::map<std::string, size_t> shard_of;
  for (const JsonMember& member : map->members()) {
    MH_CHECK(member.value.is_string(), FormatError, path, ": shard of ", quote(member.key),
             " must be a string, got ", name(member.value.kind()));
    shard_of.emplace(member.value.as_string(), 0);
  }
  for (auto& [shard_name, number] : shard_of) {
    number = shards_.size();
    add_shard(resolve_shard(path, shard_name), limits);
  }
  for (const JsonMember& member : map->members()) {
    const auto it = entries_.find(std::string(member.key));
    MH_CHECK(it != entries_.end() && it->second.shard == shard_of.at(member.value.as_string()), FormatError,
             path, ": tensor ", quote(member.key), " is not in shard ", quote(member.value.as_string()));
  }
  for (const auto& [tensor_name, entry] : entries_)
    MH_CHECK(map->contains(tensor_name), FormatError, path, ": tensor ", quote(tensor_name), " of shard ",
             quote(shards_[entry.shard].file.path(), 400), " is not listed");
  const Json* metadata = index.find("metadata");
  const Json* total = metadata == nullptr ? nullptr : metadata->find("total_size");
  MH_CHECK(total == nullptr || total->is_number(), FormatError, path, ": \"total_size\" must be a number");
  MH_CHECK(total == nullptr || total->as_double() == static_cast<double>(data_bytes()), FormatError, path,
           ": total_size is ", *total, ", the shards hold ", data_bytes(), " bytes");
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  for (const auto& [tensor_name, entry] : entries_) result.push_back(tensor_name);
  return result;
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& tensor_name) const {
  const auto it = entries_.find(tensor_name);
  MH_CHECK(it != entries_.end(), ValueError, path_, ": no tensor ", quote(tensor_name));
  return it->second;
}

const TensorInfo& SafetensorsFile::info(const std::string& tensor_name) const {
  return entry(tensor_name).info;
}

const SafetensorsFile::Entry& SafetensorsFile::loadable(const std::string& tensor_name) const {
  const Entry& found = entry(tensor_name);
  const std::string& where = shards_[found.shard].file.path();
  MH_CHECK(found.info.dtype.has_value(), FormatError, where, ": tensor ", quote(tensor_name), " has dtype ",
           quote(found.info.dtype_name), ", which is not supported");
  MH_CHECK(found.info.shape.size() <= Shape::kMaxRank, FormatError, where, ": tensor ", quote(tensor_name),
           " has ", found.info.shape.size(), " axes, at most ", Shape::kMaxRank, " are supported");
  return found;
}

Tensor SafetensorsFile::load(const std::string& tensor_name) const {
  const auto& [info, number] = loadable(tensor_name);
  const Shard& shard = shards_[number];
  Tensor tensor = Tensor::empty(Shape(std::span<const int64_t>(info.shape)), *info.dtype);
  shard.file.read(shard.data_begin + info.begin, tensor.raw(), tensor.bytes());
  if (*info.dtype == Dtype::boolean) check_bools(shard.file.path(), tensor_name, tensor);
  return tensor;
}

TensorMap SafetensorsFile::load_all() const {
  check_memory(static_cast<double>(data_bytes()), concat(path_, ": loading its tensors"));
  TensorMap tensors;
  for (const auto& [tensor_name, entry] : entries_) tensors.emplace(tensor_name, load(tensor_name));
  return tensors;
}

uint64_t SafetensorsFile::data_bytes() const {
  uint64_t total = 0;
  for (const Shard& shard : shards_) total += shard.file.size() - shard.data_begin;
  return total;
}

TensorMap load_safetensors(const std::string& path) { return SafetensorsFile(path).load_all(); }

void write_safetensors(FileWriter& file, const TensorMap& tensors, const Metadata& metadata) {
  const std::vector<const Named*> order = sorted_for_writing(tensors);
  const std::string header = header_text(order, metadata);
  const uint64_t header_bytes = header.size();
  MH_CHECK(header_bytes <= SafetensorsLimits().header_bytes, ValueError, "safetensors: header of ",
           header_bytes, " bytes, readers refuse more than ", SafetensorsLimits().header_bytes);
  file.write(&header_bytes, sizeof header_bytes);
  file.write(header);
  for (const Named* named : order) {
    const Tensor rows = named->second.contiguous();
    file.write(rows.raw(), rows.bytes());
  }
}

void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata) {
  write_file_atomically(path, [&](FileWriter& file) { write_safetensors(file, tensors, metadata); });
}

}  // namespace multihead::io
