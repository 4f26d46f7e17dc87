#include "cli/attention_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "cli/model_dir.h"
#include "multihead/core/error.h"
#include "multihead/core/json.h"

namespace multihead::cli {
namespace {

constexpr std::string_view kTemplate =
#include "cli/attention_page.inc"
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

std::string weights(const AttentionView& view) {
  const auto queries = static_cast<int64_t>(view.queries.size()),
             keys = static_cast<int64_t>(view.keys.size());
  std::vector<uint8_t> bytes;
  for (const Tensor& layer : view.layers) {
    const Shape expected = {1, layer.size(1), queries, keys};
    MH_CHECK(layer.shape() == expected && layer.size(1) == view.layers[0].size(1), ShapeError,
             "attention page: weights of ", view.name, " must be [1, H, ", queries, ", ", keys, "], got ",
             layer.shape());
    for (const float w : layer.to_vector<float>()) {
      const auto level =
          static_cast<uint16_t>(std::lround(std::clamp(std::isnan(w) ? 0.0F : w, 0.0F, 1.0F) * 65535));
      bytes.push_back(static_cast<uint8_t>(level & 255)), bytes.push_back(static_cast<uint8_t>(level >> 8));
    }
  }
  std::string out;
  out.reserve(bytes.size() * 4 / 3 + 4);
  append_base64(out, bytes);
  return out;
}

Json tokens(const std::vector<std::string>& texts) {
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

std::string to_html(const AttentionPage& page) {
  Json views = Json::array();
  std::string data;
  for (const AttentionView& view : page.views) {
    MH_CHECK(!view.layers.empty(), ShapeError, "attention page: ", view.name, " has no layers");
    data += concat("<script type=\"text/plain\" id=\"w", views.size(), "\">", weights(view), "</script>\n");
    views.push_back(Json::object({{"name", view.name},
                                  {"queries", tokens(view.queries)},
                                  {"keys", tokens(view.keys)},
                                  {"layers", static_cast<int64_t>(view.layers.size())},
                                  {"heads", view.layers[0].size(1)}}));
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
