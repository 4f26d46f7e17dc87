#include "cli/attention_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/json.h"

namespace multihead::cli {
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
      const int64_t stored = view.causal ? row % queries + 1 : keys;
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

void replace(std::string& text, std::string_view what, const std::string& by) {
  const size_t at = text.find(what);
  MH_CHECK(at != std::string::npos, ValueError, "attention page: no place for ", what);
  text.replace(at, what.size(), by);
}

}  // namespace

int64_t AttentionView::weight_count() const {
  const auto q = static_cast<int64_t>(queries.size()), k = static_cast<int64_t>(keys.size());
  return static_cast<int64_t>(layers.size() * heads.size()) * (causal ? q * (q + 1) / 2 : q * k);
}

double stored_bytes(const std::vector<AttentionView>& views, int bits) {
  double count = 0;
  for (const AttentionView& view : views) count += static_cast<double>(view.weight_count());
  return count * bits / 8 * 4 / 3;
}

std::string to_html(const AttentionPage& page) {
  Json views = Json::array();
  std::string data;
  for (const AttentionView& view : page.views) {
    data += concat("<script type=\"text/plain\" id=\"w", views.size(), "\">", weights(view, page.bits),
                   "</script>\n");
    views.push_back(Json::object({{"name", view.name},
                                  {"queries", texts_of(view.queries)},
                                  {"keys", texts_of(view.keys)},
                                  {"causal", view.causal},
                                  {"bits", page.bits},
                                  {"layers", std::vector<Json>(view.layers.begin(), view.layers.end())},
                                  {"heads", std::vector<Json>(view.heads.begin(), view.heads.end())},
                                  {"of", std::vector<Json>{view.all_layers, view.all_heads}}}));
  }
  std::string html(kTemplate);
  replace(html, "@DATA@",
          concat("<script type=\"application/json\" id=\"data\">",
                 for_script(Json::object({{"views", views}}).dump()), "</script>\n", data));
  const std::string title = escaped(valid_utf8(page.title), "&<>\"");
  replace(html, "@TITLE@", title);
  replace(html, "@TITLE@", title);
  return html;
}

}  // namespace multihead::cli
