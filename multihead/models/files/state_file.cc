#include "multihead/models/files/state_file.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/safetensors.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/attention/decode/int8_rows.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/nn/module.h"

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

Shape with_room(const Tensor& x, int64_t capacity) { return {x.size(0), x.size(1), capacity, x.size(3)}; }

// The tokens that rows hold, copied into `result`.
Tensor filled(Tensor result, const Tensor& x, const std::vector<int64_t>& lengths) {
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
    for (const auto& [name, x] :
         {std::pair{key_name(part, i), caches[i].key}, std::pair{value_name(part, i), caches[i].value}}) {
      tensors[name] = filled(Tensor::zeros(with_room(x, room), x.dtype()), x, lengths);
    }
  }
}

// Adds a tensor's name, shape, dtype and every byte. Samples would miss what was trained in some rows only; a
// megabyte at a time, all threads read weights faster than the model does.
void add(Checksum& all, const std::string& name, const Tensor& tensor) {
  constexpr int64_t kPiece = 1 << 20;
  const Tensor x = tensor.contiguous();
  const std::string head = concat(name, " ", x.shape(), " ", x.dtype(), "\n");
  all.update(head.data(), head.size());
  const auto bytes = static_cast<int64_t>(x.bytes());
  std::vector<uint64_t> sums(static_cast<size_t>((bytes + kPiece - 1) / kPiece));
  parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t i, int) {
    Checksum sum;
    const auto count = static_cast<size_t>(std::min(kPiece, bytes - i * kPiece));
    sum.update(static_cast<const char*>(x.raw()) + i * kPiece, count);
    sums[static_cast<size_t>(i)] = sum.value();
  });
  all.update(sums.data(), sums.size() * sizeof(uint64_t));
}

// A model's results depend on its configuration as much as on its weights: another base of the rotation,
// and keys of before are of another model.
std::string fingerprint(const Json& config, const std::vector<nn::NamedTensor>& parameters) {
  Checksum all;
  const std::string head = config.dump() + "\n";
  all.update(head.data(), head.size());
  for (const auto& [name, tensor] : parameters) add(all, name, tensor);
  return checksum_text(all.value());
}

// Modules are handles: a copy shares the weights.
std::string fingerprint_of(const Seq2Seq& model) {
  Seq2Seq handle = model;
  return fingerprint(config_to_json(model.config()), nn::named_parameters(handle));
}

// Packed matrices are no parameters.
std::string fingerprint_of(const LanguageModel& model) {
  LanguageModel handle = model;
  std::vector<nn::NamedTensor> all = nn::named_parameters(handle);
  const auto add_packed = [&](const std::string& name, Tensor&, nn::PackedLinear& packed) {
    if (packed.defined()) all.push_back({concat(name, ' ', kernels::name(packed.dtype())), packed.packed()});
  };
  nn::Visitor visitor = nn::Visitor::of_matrices(add_packed);
  handle.visit(visitor);
  return fingerprint(config_to_json(model.config()), all);
}

// The layout of a model's states.
struct Expected {
  std::vector<int64_t> heads, cross_heads = {};  // of each layer
  int64_t key_dim = 0, value_dim = 0, window = 0;
  int64_t longest = 0;  // tokens that the model takes
  Dtype dtype = Dtype::f32;
  std::string model = {};  // its checksum
};

template <class Layer>
Expected expected_of(const std::vector<Layer>& layers) {
  const nn::MultiHeadAttentionOptions& o = layers.front().self_attn.options();
  std::vector<int64_t> heads;
  for (const Layer& layer : layers) heads.push_back(layer.self_attn.options().num_kv_heads);
  return {.heads = std::move(heads),
          .key_dim = o.head_dim,
          .value_dim = o.value_head_dim,
          .dtype = layers.front().norm1.weight.dtype()};
}

Expected expected_of(const LanguageModel& model) {
  Expected e = expected_of(model.layers);
  e.window = model.config().window, e.longest = model.longest();
  return e;
}

class StateReader {
 public:
  explicit StateReader(const std::string& path) : file_(path) {
    const auto found = file_.metadata().find("state");
    MH_CHECK(found != file_.metadata().end() && found->second == "multihead", FormatError, path,
             ": this is no saved decoding state");
  }

  const std::string& path() const { return file_.path(); }

  Dtype dtype() const {
    const std::string first = key_name("layers", 0);
    MH_CHECK(file_.contains(first) && file_.info(first).dtype, FormatError, file_.path(), ": \"", first,
             "\" is missing");
    return *file_.info(first).dtype;
  }

  bool belongs_to(const std::string& model) const { return noted("model") == model; }
  void check_model(const std::string& expected) const {
    const std::string got = noted("model");
    MH_CHECK(got == expected, FormatError, file_.path(),
             ": the state belongs to another model: the checksum of its configuration and weights is ", got,
             ", that of this model ", expected);
  }
  void check_contents() const {
    Checksum sum;
    for (const std::string& name : file_.names()) add(sum, name, file_.load(name));
    MH_CHECK(checksum_text(sum.value()) == noted("contents"), FormatError, file_.path(),
             ": the state is corrupt: the checksum of its contents is ", checksum_text(sum.value()),
             ", the file says ", noted("contents"));
  }

  std::vector<int64_t> lengths(const std::string& name) const {
    MH_CHECK(file_.contains(name), FormatError, file_.path(), ": \"", name, "\" is missing");
    const Tensor x = file_.load(name);
    MH_CHECK(x.dtype() == Dtype::i64 && x.rank() == 1, FormatError, file_.path(), ": \"", name,
             "\" must be [rows] of i64, got ", x.shape(), " of ", x.dtype());
    const auto values = x.to_vector<int64_t>();
    for (const int64_t value : values) {  // sums of lengths stay numbers
      MH_CHECK(value >= 0 && value <= int64_t{1} << 48, FormatError, file_.path(), ": a length of ", value);
    }
    return values;
  }

  std::vector<KvCache> caches(const char* part, const std::vector<int64_t>& heads, const Expected& e,
                              const std::vector<int64_t>& lengths, int64_t capacity) const {
    const size_t count = heads.size();
    MH_CHECK(!file_.contains(key_name(part, count)), FormatError, another(part), " it has more than ", count,
             " layers");
    std::vector<KvCache> result;
    for (size_t i = 0; i < count; ++i) {
      result.push_back(
          {cache(part, key_name(part, i), e.dtype, {heads[i], e.key_dim}, lengths, capacity),
           cache(part, value_name(part, i), e.dtype, {heads[i], e.value_dim}, lengths, capacity)});
    }
    return result;
  }

 private:
  std::string noted(const char* checksum) const {
    const auto found = file_.metadata().find(checksum);
    return found == file_.metadata().end() ? "unknown" : found->second;
  }

  std::string another(const char* part) const {
    return concat(file_.path(), ": the state belongs to another model: ", part, ":");
  }

  Tensor cache(const char* part, const std::string& name, Dtype dtype, std::array<int64_t, 2> heads_of,
               const std::vector<int64_t>& lengths, int64_t capacity) const {
    const auto [heads, features] = heads_of;
    MH_CHECK(file_.contains(name), FormatError, another(part), " \"", name, "\" is missing");
    const io::TensorInfo& info = file_.info(name);
    const auto rows = static_cast<int64_t>(lengths.size());
    const bool int8 = info.dtype == nn::kInt8Cache && dtype != Dtype::f64 && features % 4 == 0;
    const bool dtype_fits = int8 || info.dtype == dtype || (dtype == Dtype::f32 && info.dtype == Dtype::bf16);
    const int64_t numbers = int8 ? kernels::int8_row_words(features) : features;
    MH_CHECK(info.shape.size() == 4 && info.shape[1] == heads && info.shape[3] == numbers && dtype_fits,
             FormatError, another(part), " \"", name, "\" is ", info.dtype_name, ", expected ", heads,
             " heads of ", features, " ", dtype);
    MH_CHECK(info.shape[0] == rows && info.shape[2] >= longest(lengths), FormatError, file_.path(), ": \"",
             name, "\" holds ", info.shape[0], " rows of ", info.shape[2], " tokens, expected ", rows, " of ",
             longest(lengths));
    // Room that no token takes is not touched: it costs no memory until generation reaches it.
    const Tensor x = file_.load(name);
    return filled(Tensor::empty(with_room(x, capacity), x.dtype()), x, lengths);
  }

  io::SafetensorsFile file_;
};

int64_t only(const StateReader& reader, const char* name) {
  const std::vector<int64_t> values = reader.lengths(name);
  MH_CHECK(values.size() == 1, FormatError, reader.path(), ": \"", name, "\" has ", values.size(),
           " values, expected one");
  return values[0];
}

// Lengths, dropped tokens, window and capacity.
DecodeState load_sizes(const StateReader& reader, const Expected& e, int64_t capacity) {
  DecodeState state;
  state.lengths = reader.lengths("lengths");
  state.starts = reader.lengths("starts");
  state.window = only(reader, "window");
  MH_CHECK(state.window == 0 || state.window == e.window, FormatError, reader.path(),
           ": the state belongs to another model: a ring for a window of ", state.window,
           ", the model's window is ", e.window);
  bool fits = !state.lengths.empty() && state.starts.size() == state.lengths.size();
  for (size_t b = 0; fits && b < state.lengths.size(); ++b) {
    const int64_t start = state.starts[b], unseen = state.lengths[b] - state.window + 1;
    fits = start == 0 || (state.window > 0 && start % kernels::attention_key_block == 0 && start <= unseen);
  }
  MH_CHECK(fits, FormatError, reader.path(), ": the dropped tokens do not fit the lengths");
  const int64_t saved = only(reader, "capacity");
  const int64_t held = longest(state.held());
  const int64_t least = state.window > 0 ? nn::ring_capacity(state.window, 1) : 1;
  MH_CHECK(saved >= std::max(held, least), FormatError, reader.path(),
           ": the capacity does not fit the lengths");
  MH_CHECK(capacity > 0 || saved <= std::max(e.longest, least), FormatError, reader.path(),
           ": a capacity of ", saved, " tokens, the model takes ", e.longest, " at most");
  state.capacity = capacity == 0 ? saved : capacity;
  MH_CHECK(state.capacity >= held && state.capacity > 0, ValueError, "load_state: a capacity of ",
           state.capacity, " for ", held, " tokens");
  MH_CHECK(state.capacity >= least, ValueError, "load_state: a capacity of ", state.capacity,
           ", a ring for a window of ", state.window, " needs at least ", least);
  return state;
}

DecodeState load(const std::string& path, const Expected& e, int64_t capacity) {
  const StateReader reader(path);
  DecodeState state = load_sizes(reader, e, capacity);
  const int64_t heads = std::accumulate(e.heads.begin(), e.heads.end(), int64_t{0});
  const double numbers =
      static_cast<double>(heads * (e.key_dim + e.value_dim)) * static_cast<double>(state.lengths.size());
  check_memory(numbers * static_cast<double>(state.capacity) * static_cast<double>(size_of(e.dtype)),
               concat(path, ": a state of ", state.lengths.size(), " rows of ", state.capacity, " tokens"),
               "give load_state a smaller capacity");
  state.cross_lengths = reader.lengths("cross_lengths");
  const size_t groups = state.cross_lengths.size();
  MH_CHECK(e.cross_heads.empty() == (groups == 0), FormatError, path,
           ": the state belongs to another model: it has ", groups, " rows of an encoder's output");
  MH_CHECK(groups == 0 || state.lengths.size() % groups == 0, FormatError, path, ": ", state.lengths.size(),
           " rows cannot share ", groups, " sources");
  state.layers = reader.caches("layers", e.heads, e, state.held(), state.capacity);
  state.cross = reader.caches("cross", e.cross_heads, e, state.cross_lengths,
                              std::max<int64_t>(longest(state.cross_lengths), 1));
  reader.check_model(e.model);
  reader.check_contents();
  return state;
}

Tensor of(const std::vector<int64_t>& values) {
  return Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values);
}

void save(const std::string& path, const DecodeState& state, const std::string& model,
          io::TensorMap tensors = {}) {
  const Busy busy(state.in_use, "save_state");
  for (const KvCache& cache : state.layers) {
    MH_CHECK(cache.own.empty(), ValueError,
             "save_state: the state of an own attention (config.attention) cannot be saved");
  }
  tensors["lengths"] = of(state.lengths);
  tensors["starts"] = of(state.starts);
  tensors["window"] = of({state.window});
  tensors["cross_lengths"] = of(state.cross_lengths);
  tensors["capacity"] = of({state.capacity});
  put(tensors, "layers", state.layers, state.held());
  put(tensors, "cross", state.cross, state.cross_lengths);
  Checksum contents;
  for (const auto& [name, tensor] : tensors) add(contents, name, tensor);
  io::save_safetensors(
      path, tensors,
      {{"state", "multihead"}, {"model", model}, {"contents", checksum_text(contents.value())}});
}

}  // namespace

void save_state(const std::string& path, const DecodeState& state, const LanguageModel& model) {
  save(path, state, fingerprint_of(model));
}

void save_state(const std::string& path, const DecodeState& state, const Seq2Seq& model) {
  save(path, state, fingerprint_of(model));
}

std::string model_checksum(const LanguageModel& model) { return fingerprint_of(model); }

void save_prompt(const std::string& path, const std::vector<int32_t>& tokens, const DecodeState& state,
                 const std::string& checksum) {
  save(path, state, checksum, {{"tokens", of({tokens.begin(), tokens.end()})}});
}

std::optional<SavedPrompt> saved_prompt(const std::string& path, const std::string& checksum) {
  const StateReader reader(path);
  if (!reader.belongs_to(checksum)) return std::nullopt;
  const std::vector<int64_t> tokens = reader.lengths("tokens");
  MH_CHECK(only(reader, "lengths") == std::ssize(tokens), FormatError, path,
           ": the tokens are not those of the state");
  return SavedPrompt{{tokens.begin(), tokens.end()}, reader.dtype()};
}

DecodeState load_prompt(const std::string& path, const LanguageModel& model, const std::string& checksum) {
  Expected e = expected_of(model);
  e.model = checksum;
  return load(path, e, 0);
}

DecodeState load_state(const std::string& path, const LanguageModel& model, int64_t capacity) {
  Expected e = expected_of(model);
  e.model = fingerprint_of(model);
  return load(path, e, capacity);
}

DecodeState load_state(const std::string& path, const Seq2Seq& model, int64_t capacity) {
  Expected e = expected_of(model.transformer.decoder.layers);
  e.model = fingerprint_of(model);
  e.longest = model.config().max_positions;
  for (const nn::TransformerLayer& layer : model.transformer.decoder.layers) {
    e.cross_heads.push_back(layer.multihead_attn.options().num_kv_heads);
  }
  return load(path, e, capacity);
}

}  // namespace multihead::models
