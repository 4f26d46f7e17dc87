#include "multihead/models/state_file.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/io/safetensors.h"

namespace multihead::models {
namespace {

using nn::DecodeState;
using nn::KvCache;

// Writing and reading are one list of names.
std::string key_name(const char* part, size_t layer) { return concat(part, ".", layer, ".key"); }
std::string value_name(const char* part, size_t layer) { return concat(part, ".", layer, ".value"); }

// x[b, :, 0 : count, :]
Tensor first_tokens(const Tensor& x, int64_t b, int64_t count) {
  const Shape& s = x.strides();
  return x.as_strided({x.size(1), count, x.size(3)}, {s[1], s[2], s[3]}, b * s[0]);
}

// The tokens that rows hold, in a tensor with room for `capacity`; zeros behind them.
Tensor with_capacity(const Tensor& x, const std::vector<int64_t>& lengths, int64_t capacity) {
  Tensor result = Tensor::zeros({x.size(0), x.size(1), capacity, x.size(3)}, x.dtype());
  for (int64_t b = 0; b < x.size(0); ++b) {
    const int64_t count = lengths[static_cast<size_t>(b)];
    if (count > 0) first_tokens(result, b, count).copy_from(first_tokens(x, b, count));
  }
  return result;
}

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

void put(io::TensorMap& tensors, const char* part, const std::vector<KvCache>& caches,
         const std::vector<int64_t>& lengths) {
  const int64_t room = std::max<int64_t>(longest(lengths), 1);
  for (size_t i = 0; i < caches.size(); ++i) {
    tensors[key_name(part, i)] = with_capacity(caches[i].key, lengths, room);
    tensors[value_name(part, i)] = with_capacity(caches[i].value, lengths, room);
  }
}

// What a model's states look like.
struct Expected {
  size_t layers = 0, cross = 0;
  int64_t heads = 0, key_dim = 0, value_dim = 0;
  Dtype dtype = Dtype::f32;
};

Expected expected_of(const nn::MultiHeadAttention& attention, const Tensor& weight, size_t layers,
                     bool cross) {
  const nn::MultiHeadAttentionOptions& o = attention.options();
  return {layers, cross ? layers : 0, o.num_kv_heads, o.head_dim, o.value_head_dim, weight.dtype()};
}

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path) {
    const auto found = file_.metadata().find("state");
    MH_CHECK(found != file_.metadata().end() && found->second == "multihead", FormatError, path,
             ": this is no saved decoding state");
  }

  std::vector<int64_t> lengths(const std::string& name) const {
    MH_CHECK(file_.contains(name), FormatError, file_.path(), ": \"", name, "\" is missing");
    const Tensor x = file_.load(name);
    MH_CHECK(x.dtype() == Dtype::i64 && x.rank() == 1, FormatError, file_.path(), ": \"", name,
             "\" must be [rows] of i64, got ", x.shape(), " of ", x.dtype());
    const auto values = x.to_vector<int64_t>();
    for (const int64_t value : values) {
      MH_CHECK(value >= 0, FormatError, file_.path(), ": a length of ", value);
    }
    return values;
  }

  std::vector<KvCache> caches(const char* part, size_t count, const Expected& e,
                              const std::vector<int64_t>& lengths, int64_t capacity) const {
    MH_CHECK(!file_.contains(key_name(part, count)), FormatError, another(part), " it has more than ", count,
             " layers");
    std::vector<KvCache> result;
    for (size_t i = 0; i < count; ++i) {
      result.push_back({cache(part, key_name(part, i), e, e.key_dim, lengths, capacity),
                        cache(part, value_name(part, i), e, e.value_dim, lengths, capacity)});
    }
    return result;
  }

 private:
  std::string another(const char* part) const {
    return concat(file_.path(), ": the state belongs to another model: ", part, ":");
  }

  Tensor cache(const char* part, const std::string& name, const Expected& e, int64_t features,
               const std::vector<int64_t>& lengths, int64_t capacity) const {
    MH_CHECK(file_.contains(name), FormatError, another(part), " \"", name, "\" is missing");
    const io::TensorInfo& info = file_.info(name);
    const auto rows = static_cast<int64_t>(lengths.size());
    MH_CHECK(info.shape.size() == 4 && info.shape[1] == e.heads && info.shape[3] == features &&
                 info.dtype == e.dtype,
             FormatError, another(part), " \"", name, "\" is ", info.dtype_name, ", expected ", e.heads,
             " heads of ", features, " ", e.dtype);
    MH_CHECK(info.shape[0] == rows && info.shape[2] >= longest(lengths), FormatError, file_.path(), ": \"",
             name, "\" holds ", info.shape[0], " rows of ", info.shape[2], " tokens, expected ", rows, " of ",
             longest(lengths));
    return with_capacity(file_.load(name), lengths, capacity);
  }

  io::SafetensorsFile file_;
};

DecodeState load(const std::string& path, const Expected& e, int64_t capacity) {
  const Reader reader(path);
  DecodeState state;
  state.lengths = reader.lengths("lengths");
  state.cross_lengths = reader.lengths("cross_lengths");
  const std::vector<int64_t> saved = reader.lengths("capacity");
  MH_CHECK(saved.size() == 1 && saved[0] >= longest(state.lengths) && !state.lengths.empty(), FormatError,
           path, ": the capacity does not fit the lengths");
  state.capacity = capacity == 0 ? saved[0] : capacity;
  MH_CHECK(state.capacity >= longest(state.lengths) && state.capacity > 0, ValueError,
           "load_state: a capacity of ", state.capacity, " for ", longest(state.lengths), " tokens");
  const size_t groups = state.cross_lengths.size();
  MH_CHECK((e.cross > 0) == (groups > 0), FormatError, path, ": the state belongs to another model: it has ",
           groups, " rows of an encoder's output");
  MH_CHECK(groups == 0 || state.lengths.size() % groups == 0, FormatError, path, ": ", state.lengths.size(),
           " rows cannot share ", groups, " sources");
  state.layers = reader.caches("layers", e.layers, e, state.lengths, state.capacity);
  state.cross = reader.caches("cross", e.cross, e, state.cross_lengths,
                              std::max<int64_t>(longest(state.cross_lengths), 1));
  return state;
}

Tensor of(const std::vector<int64_t>& values) {
  return Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values);
}

}  // namespace

void save_state(const std::string& path, const DecodeState& state) {
  io::TensorMap tensors;
  tensors["lengths"] = of(state.lengths);
  tensors["cross_lengths"] = of(state.cross_lengths);
  tensors["capacity"] = of({state.capacity});
  put(tensors, "layers", state.layers, state.lengths);
  put(tensors, "cross", state.cross, state.cross_lengths);
  io::save_safetensors(path, tensors, {{"state", "multihead"}});
}

DecodeState load_state(const std::string& path, const LanguageModel& model, int64_t capacity) {
  const auto& layer = model.layers.front();
  return load(path, expected_of(layer.self_attn, layer.norm1.weight, model.layers.size(), false), capacity);
}

DecodeState load_state(const std::string& path, const Seq2Seq& model, int64_t capacity) {
  const auto& layers = model.transformer.decoder.layers;
  return load(path, expected_of(layers.front().self_attn, layers.front().norm1.weight, layers.size(), true),
              capacity);
}

}  // namespace multihead::models
