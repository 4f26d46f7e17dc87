#include "multihead/look/laboratory.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"

namespace multihead::look {
namespace {

int64_t index_in(const std::string& name, std::string_view digits) {
  const auto number = spelled_number<int64_t>(digits);
  MH_CHECK(number, ValueError, "a head is LAYER.HEAD, two whole numbers, got ", quote(name));
  return *number;
}

std::array<int64_t, 2> head_of(const std::string& name) {
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string_view text = name;
  return {index_in(name, text.substr(0, dot)), index_in(name, text.substr(std::min(dot + 1, text.size())))};
}

}  // namespace

Json answer(const std::string& request, const RunModel& run) {
  const Json asked = Json::parse(request, "request");
  const std::string text = asked.at("text").as_string();
  Look changes;
  for (const Json& name : asked.at("off").items()) changes.off.push_back(head_of(name.as_string()));
  for (const Json& edge : asked.at("cut").items()) {
    changes.cut.push_back(
        {edge.at(0).as_int(), edge.at(1).as_int(), edge.at(2).as_int(), edge.at(3).as_int()});
  }
  AttentionPage page;
  const bool changed = !changes.off.empty() || !changes.cut.empty();
  if (changed) page.runs.push_back(run(text, changes));
  page.runs.push_back(run(text, {}));
  if (changed) {
    page.runs[0].title = "changed";
    page.runs[1].title = "as it is";
  }
  page.bits = bits_for(page.runs);
  return to_json(page);
}

}  // namespace multihead::look
