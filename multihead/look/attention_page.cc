#include "multihead/look/attention_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"

namespace multihead::look {
namespace {

constexpr std::string_view kTemplate =
#include "attention_page.inc"
    ;

std::string escaped(const std::string& text, const char* characters) {
  std::string out;
  for (const char c : text) {
    const bool special = std::string_view(characters).find(c) != std::string_view::npos;
    out += special ? concat("&#", static_cast<int>(c), ";") : std::string(1, c);
  }
  return out;
}

// Inside <script>, "</script>" and "<!--" would end or change the element.
std::string for_script(const std::string& json) {
  std::string out;
  for (const char c : json) out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

void append_base64(std::string& out, const std::vector<uint8_t>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (i + k < bytes.size() ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
}

// √weight in whole steps, the lower bytes first: small weights keep their share of the precision.
void append_level(std::vector<uint8_t>& bytes, float weight, int bits) {
  const float most = static_cast<float>((1 << bits) - 1);
  const float clean = std::clamp(std::isnan(weight) ? 0.0F : weight, 0.0F, 1.0F);
  const auto level = static_cast<uint32_t>(std::lround(std::sqrt(clean) * most));
  for (int shift = 0; shift < bits; shift += 8) bytes.push_back(static_cast<uint8_t>(level >> shift & 255));
}

std::string weights(const AttentionView& view, int bits) {
  const auto queries = static_cast<int64_t>(view.queries.size()),
             keys = static_cast<int64_t>(view.keys.size()), heads = static_cast<int64_t>(view.heads.size());
  const Shape expected = {1, heads, queries, keys};
  MH_CHECK(view.weights.size() == view.layers.size() && !view.layers.empty(), ShapeError,
           "attention page: ", view.name, " has ", view.weights.size(), " tensors for ", view.layers.size(),
           " layers");
  std::vector<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(view.weight_count() * bits / 8));
  for (const Tensor& layer : view.weights) {
    MH_CHECK(layer.shape() == expected, ShapeError, "attention page: weights of ", view.name, " must be ",
             expected, ", got ", layer.shape());
    const Tensor rows = layer.contiguous();
    const auto* from = rows.data<float>();
    for (int64_t row = 0; row < heads * queries; ++row) {
      const int64_t stored = view.stores_half() ? row % queries + 1 : keys;
      for (int64_t key = 0; key < stored; ++key) append_level(bytes, from[row * keys + key], bits);
    }
  }
  std::string out;
  out.reserve(bytes.size() * 4 / 3 + 4);
  append_base64(out, bytes);
  return out;
}

Json texts_of(const std::vector<std::string>& texts) {
  Json array = Json::array();
  for (const std::string& text : texts) array.push_back(valid_utf8(text));
  return array;
}

template <class T>
Json list_of(const std::vector<T>& values) {
  return std::vector<Json>(values.begin(), values.end());
}

Json predictions(const std::vector<Prediction>& list) {
  Json array = Json::array();
  for (const auto& [token, probability] : list) {
    array.push_back(std::vector<Json>{valid_utf8(token), std::round(probability * 1e5) / 1e5});
  }
  return array;
}

// 8 bits of x [1, T, heads, D], head after head, and the unit of each.
Json append_vectors(std::vector<uint8_t>& bytes, const Tensor& x) {
  const Tensor rows = x.contiguous();
  const int64_t tokens = rows.size(1), heads = rows.size(2), size = rows.size(3);
  const auto* from = rows.data<float>();
  Json units = Json::array();
  for (int64_t head = 0; head < heads; ++head) {
    const auto each = [&](auto use) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t d = 0; d < size; ++d) use(from[(t * heads + head) * size + d]);
      }
    };
    float most = 0;
    each([&](float value) { most = std::isfinite(value) ? std::max(most, std::abs(value)) : most; });
    const float unit = most > 0 ? most / 127 : 1;
    each([&](float value) {
      const float level = std::isfinite(value) ? std::round(value / unit) : 0;
      bytes.push_back(static_cast<uint8_t>(static_cast<int8_t>(level)));
    });
    units.push_back(unit);
  }
  return units;
}

// Where bytes go: elements of the page, or the text itself.
struct Store {
  bool in_text = false;
  std::string elements = {};

  Json add(const std::string& id, const std::string& base64) {
    if (in_text) return Json::object({{"text", base64}});
    elements += concat("<script type=\"text/plain\" id=\"", id, "\">", base64, "</script>\n");
    return Json::object({{"id", id}});
  }
};

Json neurons(const Neurons& n, const std::string& id, Store& store) {
  std::vector<uint8_t> bytes;
  Json q = Json::array(), k = Json::array();
  for (size_t layer = 0; layer < n.queries.size(); ++layer) {
    q.push_back(append_vectors(bytes, n.queries[layer]));
    k.push_back(append_vectors(bytes, n.keys[layer]));
  }
  std::string text;
  append_base64(text, bytes);
  Json json = store.add(id, text);
  json["size"] = n.queries.front().size(3);
  json["groups"] = list_of(n.groups);
  json["group"] = n.group;
  json["scale"] = n.scale;
  json["q"] = q, json["k"] = k;
  return json;
}

Json view_to_json(const AttentionView& view, int bits, const std::string& number, Store& store) {
  Json json = Json::object({{"name", view.name},
                            {"queries", texts_of(view.queries)},
                            {"keys", texts_of(view.keys)},
                            {"causal", view.causal},
                            {"half", view.stores_half()},
                            {"rows", list_of(view.rows)},
                            {"special", list_of(view.special)},
                            {"bits", bits},
                            {"layers", list_of(view.layers)},
                            {"heads", list_of(view.heads)},
                            {"of", std::vector<Json>{view.all_layers, view.all_heads}},
                            {"weights", store.add("w" + number, weights(view, bits))}});
  if (view.neurons) json["neurons"] = neurons(*view.neurons, "n" + number, store);
  return json;
}

Json run_to_json(const AttentionRun& run, int bits, size_t index, Store& store) {
  Json views = Json::array();
  for (const AttentionView& view : run.views) {
    views.push_back(view_to_json(view, bits, concat(index, "-", views.size()), store));
  }
  Json json = Json::object({{"title", valid_utf8(run.title)}, {"views", views}, {"off", texts_of(run.off)}});
  if (!run.next.empty()) json["next"] = predictions(run.next);
  if (!run.lens.empty()) {
    Json lens = Json::array();
    for (const auto& layer : run.lens) {
      Json tokens = Json::array();
      for (const auto& list : layer) tokens.push_back(predictions(list));
      lens.push_back(tokens);
    }
    json["lens"] = lens;
  }
  const std::string target = valid_utf8(run.target);
  if (!run.attributions.of_tokens.empty()) {
    json["attributions"] = Json::object({{"target", target},
                                         {"probability", run.probability},
                                         {"values", list_of(run.attributions.of_tokens)},
                                         {"whole", run.attributions.whole},
                                         {"addUp", run.attributions.add_up()}});
  }
  if (!run.ablation.empty()) {
    Json change = Json::array();
    for (const auto& layer : run.ablation) change.push_back(list_of(layer));
    json["ablation"] = Json::object({{"target", target}, {"change", change}});
  }
  return json;
}

Json page_to_json(const AttentionPage& page, Store& store) {
  Json runs = Json::array();
  for (const AttentionRun& run : page.runs) runs.push_back(run_to_json(run, page.bits, runs.size(), store));
  return Json::object({{"runs", runs}});
}

// Every occurrence. What replaces it may hold the word itself.
void replace(std::string& text, std::string_view what, const std::string& by) {
  size_t at = text.find(what);
  MH_CHECK(at != std::string::npos, ValueError, "attention page: no place for ", what);
  for (; at != std::string::npos; at = text.find(what, at + by.size())) text.replace(at, what.size(), by);
}

}  // namespace

int64_t AttentionView::weight_count() const {
  const auto q = static_cast<int64_t>(queries.size()), k = static_cast<int64_t>(keys.size());
  return static_cast<int64_t>(layers.size() * heads.size()) * (stores_half() ? q * (q + 1) / 2 : q * k);
}

double stored_bytes(const std::vector<AttentionView>& views, int bits) {
  double count = 0;
  for (const AttentionView& view : views) count += static_cast<double>(view.weight_count());
  return count * bits / 8 * 4 / 3;
}

Json to_json(const AttentionPage& page) {
  Store store{.in_text = true};
  return page_to_json(page, store);
}

std::string to_html(const AttentionPage& page) {
  Store store;
  Json data = page_to_json(page, store);
  if (page.lab) data["lab"] = Json::object({{"text", valid_utf8(*page.lab)}});
  std::string html(kTemplate);
  replace(html, "@CONNECT@", page.lab ? "'self'" : "'none'");
  replace(html, "@TITLE@", escaped(valid_utf8(page.title), "&<>\""));
  replace(html, "@DATA@",
          concat("<script type=\"application/json\" id=\"data\">", for_script(data.dump()), "</script>\n",
                 store.elements));
  return html;
}

}  // namespace multihead::look
