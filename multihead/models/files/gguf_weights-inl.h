// The weights of a GGUF file, as they are stored or decoded, in a model of any kind. Private to models/.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "multihead/io/gguf.h"
#include "multihead/models/packed_weights-inl.h"
#include "multihead/models/weight_map.h"
#include "multihead/nn/packed_linear.h"

namespace multihead::models::detail {

/// Whether the matrices are used without conversion and take less memory than f32: some are quantised, or all
/// are f16.
bool is_packed(const io::GgufFile& file);

/// Called before a model of so many weights is created. Throws FormatError if the file is too small for them,
/// MemoryError if memory is; `as_stored`: its matrices are not decoded.
void check_gguf_size(const io::GgufFile& file, int64_t weights, bool as_stored);

/// How the tensors of a file differ from a model's parameters.
struct GgufLayout {
  int64_t head_dim = 0;
  /// The heads of a matrix (or bias) whose rows are rotated as pairs; 0: its rows are in our order.
  std::function<int64_t(const std::string& name)> paired_heads = [](const std::string&) { return 0; };
  bool adds_one = false;  ///< to the weights of norms
  /// A parameter's view as the file has it.
  std::function<Tensor(const std::string& name, const Tensor& view)> view =
      [](const std::string&, const Tensor& view) { return view; };
  std::set<std::string> others = {};  ///< tensors that belong to those who load the file
};

class GgufWeights {
 public:
  /// `map` has the file's names.
  GgufWeights(const io::GgufFile& file, WeightMap map, GgufLayout layout);

  /// Fills a model without weights: f32, packed as `packed_as`, or as_stored: blocks that a packed format takes
  /// over as they are, other matrices as q8. What is packed is packed while it is read. Throws FormatError
  /// (tensors that are missing, of another shape, or not the model's), IoError.
  template <class Model>
  void fill(Model& model, bool as_stored, std::optional<nn::WeightDtype> packed_as) const {
    // Held until all is packed: if untouched f32 weights were released one by one, what is decoded next would
    // touch them.
    const std::vector<nn::NamedTensor> parameters = nn::named_parameters(model);
    check(views(parameters));
    if (as_stored) {
      model.pack_weights(stored_dtype(rule_of("layers.0.linear2.weight")),
                         [&](const std::string& name, const Tensor& weight) {
                           return pack_stored(matrix_of(name, weight));
                         });
    } else if (packed_as) {
      model.pack_weights(*packed_as, [&](const std::string& name, const Tensor& weight) {
        return pack(matrix_of(name, weight), dtype_of(name, *packed_as));
      });
    }
    for (const auto& [name, view] : views(nn::named_parameters(model))) view.copy_from(load(name));
  }

 private:
  using Views = std::vector<std::pair<std::string, Tensor>>;

  /// Rows [first, first + out) of the file's.
  struct Matrix {
    const WeightRule& rule;
    int64_t first, out, in;
  };
  const WeightRule& rule_of(const std::string& parameter) const;
  Matrix matrix_of(const std::string& name, const Tensor& weight) const;
  Views views(const std::vector<nn::NamedTensor>& parameters) const;
  void check(const Views& views) const;
  Tensor load(const std::string& name) const;
  Tensor load(const Matrix& matrix) const;
  const BlockFormat* type_of(const WeightRule& rule) const;
  nn::WeightDtype stored_dtype(const WeightRule& rule) const;
  nn::PackedLinear pack(const Matrix& matrix, nn::WeightDtype dtype) const;
  nn::PackedLinear pack_stored(const Matrix& matrix) const;
  void read_rows(const WeightRule& rule, int64_t begin, int64_t count, uint8_t* to) const;
  void read_pairs(const std::string& name, int64_t begin, int64_t count, uint8_t* to) const;

  const io::GgufFile& file_;
  WeightMap map_;
  GgufLayout layout_;
};

/// Between our halves and the file's pairs: [heads, outer, inner, columns] -> [heads, inner, outer, columns].
Tensor exchanged(const Tensor& rows, int64_t heads, int64_t outer);

}  // namespace multihead::models::detail
