// Texts to sparse weights and to a vector for each token, and the search among all kinds of vectors.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "multihead/embed/multi_vector_encoder.h"
#include "multihead/embed/sparse_encoder.h"
#include "multihead/embed/vector_index.h"
#include "python/src/models/progress.h"
#include "python/src/models/vectors.h"
#include "python/src/names.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

using embed::MultiVectorEncoder;
using embed::SparseEncoder;
using Ranking = std::vector<std::vector<std::pair<int64_t, float>>>;

Ranking to_ranking(const std::vector<std::vector<embed::Match>>& best) {
  Ranking result;
  for (const auto& list : best) {
    auto& row = result.emplace_back();
    for (const embed::Match& match : list) row.emplace_back(match.row, match.score);
  }
  return result;
}

// What every encoder of texts has.
template <class Encoder>
void bind_texts(nb::class_<Encoder>& c) {
  c.def_static(
      "load",
      [](const Path& folder, const std::string& weights) {
        const nn::WeightDtype dtype = kernels::parse_weight_dtype(weights);
        return unlocked([&] { return Encoder::load(folder, dtype); });
      },
      "folder"_a, "weights"_a = "f32");
  c.def_prop_ro("dim", &Encoder::dim);
  c.def_prop_ro("max_length", &Encoder::max_length);
  c.def_prop_ro("prompts", [](const Encoder& encoder) { return encoder.prompts().texts; });
  c.def_prop_ro("default_prompt_name", [](const Encoder& encoder) { return encoder.prompts().default_name; });
  c.def_prop_ro("similarity_fn_name", [](const Encoder& encoder) { return encoder.prompts().similarity; });
  c.def_prop_ro("tokenizer", &Encoder::tokenizer);
}

void bind_sparse(nb::module_& m) {
  nb::class_<SparseEncoder> c(m, "SparseTextEncoder", "What multihead.SparseEncoder is made of.");
  bind_texts(c);
  c.def(
      "encode",
      [](const SparseEncoder& encoder, const std::vector<std::string>& texts, const std::string& prompt,
         int64_t max_active, int64_t batch_tokens, nb::handle precision, nb::object progress) {
        const embed::EncodeTextOptions options = {.prompt = prompt,
                                                  .batch_tokens = batch_tokens,
                                                  .precision = to_dtype(precision),
                                                  .progress = reporter(progress)};
        const embed::SparseRows rows = unlocked([&] { return encoder.encode(texts, options, max_active); });
        return std::tuple(rows.ends, rows.columns, rows.values);
      },
      "texts"_a, nb::kw_only(), "prompt"_a = "", "max_active"_a = 0, "batch_tokens"_a = 1024,
      "precision"_a = "float32", "progress"_a = nb::none());
  c.def_prop_ro("max_active", &SparseEncoder::max_active);
  c.def_prop_ro("model", &SparseEncoder::encoder, nb::rv_policy::reference_internal);
  m.def(
      "nearest_sparse",
      [](const Tensor& query_ends, const Tensor& query_columns, const Tensor& query_values,
         const Tensor& ends, const Tensor& columns, const Tensor& values, int64_t width, int64_t count,
         const std::string& similarity) {
        const auto by = to_enum<embed::Similarity>(similarity, "similarity");
        return to_ranking(unlocked([&] {
          return embed::nearest(embed::SparseRows{query_ends, query_columns, query_values, width},
                                embed::SparseRows{ends, columns, values, width}, count, by);
        }));
      },
      "query_ends"_a, "query_columns"_a, "query_values"_a, "ends"_a, "columns"_a, "values"_a, "width"_a,
      "count"_a, "similarity"_a = "dot");
}

void bind_multi_vector(nb::module_& m) {
  nb::class_<MultiVectorEncoder> c(m, "MultiVectorTextEncoder",
                                   "What multihead.MultiVectorEncoder is made of.");
  bind_texts(c);
  c.def(
      "encode",
      [](const MultiVectorEncoder& encoder, const std::vector<std::string>& texts, const std::string& task,
         const std::optional<std::string>& prompt, std::optional<bool> normalize, int64_t batch_tokens,
         nb::handle precision, nb::object progress) {
        const embed::EncodeTextOptions options = {.prompt = prompt,
                                                  .normalize = normalize,
                                                  .batch_tokens = batch_tokens,
                                                  .precision = to_dtype(precision),
                                                  .progress = reporter(progress)};
        const auto what = to_enum<embed::TextTask>(task, "task");
        const embed::MultiVectors vectors = unlocked([&] { return encoder.encode(texts, what, options); });
        return std::pair(vectors.vectors, vectors.ends);
      },
      "texts"_a, nb::kw_only(), "task"_a = "none", "prompt"_a = nb::none(), "normalize"_a = nb::none(),
      "batch_tokens"_a = 1024, "precision"_a = "float32", "progress"_a = nb::none());
  c.def_prop_ro("model", [](nb::handle self) {
    const auto part = [&](const auto& model) {
      return nb::cast(&model, nb::rv_policy::reference_internal, self);
    };
    return std::visit(part, nb::cast<const MultiVectorEncoder&>(self).model().any());
  });
  m.def(
      "nearest_multi_vector",
      [](const Tensor& queries, const Tensor& query_ends, const Tensor& vectors, const Tensor& ends,
         int64_t count) {
        return to_ranking(unlocked([&] {
          return embed::nearest(embed::MultiVectors{queries, query_ends}, embed::MultiVectors{vectors, ends},
                                count);
        }));
      },
      "queries"_a, "query_ends"_a, "vectors"_a, "ends"_a, "count"_a);
}

void bind_search(nb::module_& m) {
  m.def(
      "nearest_dense",
      [](const Tensor& queries, const Tensor& corpus, int64_t count, const std::string& similarity) {
        const auto by = to_enum<embed::Similarity>(similarity, "similarity");
        return to_ranking(unlocked([&] { return embed::nearest(queries, corpus, count, by); }));
      },
      "queries"_a, "corpus"_a, "count"_a, "similarity"_a = "dot");
  using embed::VectorIndex;
  nb::class_<VectorIndex>(
      m, "VectorIndex",
      "Vectors in a byte for each number, to search more of them than fit as f32. kind 'int8' compares "
      "bytes,\n"
      "'binary' signs; the best are ordered by the similarity of the query and the bytes.")
      .def(
          "__init__",
          [](VectorIndex* self, nb::handle vectors, const std::string& kind) {
            const Tensor x = to_tensor(vectors, {"VectorIndex", "vectors"});
            const auto how = to_enum<embed::IndexKind>(kind, "kind");
            new (self) VectorIndex(unlocked([&] { return VectorIndex(x, how); }));
          },
          "vectors"_a, "kind"_a = "int8")
      .def(
          "nearest",
          [](const VectorIndex& index, nb::handle queries, int64_t count, int64_t rescored,
             const std::string& similarity) {
            const Tensor q = to_tensor(queries, {"VectorIndex.nearest", "queries"});
            const auto by = to_enum<embed::Similarity>(similarity, "similarity");
            return to_ranking(unlocked([&] { return index.nearest(q, count, by, rescored); }));
          },
          "queries"_a, "count"_a = 10, nb::kw_only(), "rescored"_a = 4, "similarity"_a = "dot",
          "For each query [q, dim] the (row, score) of the nearest rows, nearest first; of `rescored` times "
          "as many "
          "the\nscores are computed. similarity: 'dot', 'cosine' or the distance 'euclidean', negated.")
      .def("__len__", &VectorIndex::size)
      .def_prop_ro("dim", &VectorIndex::dim)
      .def_prop_ro("kind", [](const VectorIndex& index) { return std::string(word_of(index.kind())); });
}

}  // namespace

void bind_vectors(nb::module_& m) {
  bind_sparse(m);
  bind_multi_vector(m);
  bind_search(m);
}

}  // namespace multihead::python
