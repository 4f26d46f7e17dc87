// The lab of a page without a server: a request in JSON, an answer in JSON. In the browser lab_answer() is called; on
// its own the program reads a request per line and prints the answers.
//
//   {"do": "train", "steps": 10}                    of the repeater: {"loss": …}
//   {"do": "weights"}, {"do": "set", "weights": …}  its weights' bits in hexadecimal
//   {"do": "digits", "lines": "…"}                  a new reader of these digits; "digit_weights": its bits
//   {"do": "train_digits", "steps": 10}             {"loss": …, "accuracy": …}
//   {"do": "text", "text": …, "off": …, "cut": …}   {"runs": …}, see look::answer
//   {"do": "digit", "text": "7", …}                 the same of a test image
//   {"do": "page", "text": …}                       {"html": …}: the page, with the runs of a text
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>

#include "examples/browser/models.h"
#include "multihead/look/laboratory.h"

namespace browser {
namespace {

using mh::Json;

struct Lab {
  Repeater repeater;
  std::optional<DigitReader> reader;
};

std::string bits_of(const std::vector<mh::nn::NamedTensor>& parameters) {
  std::string out;
  std::array<char, 9> digits{};
  for (const auto& [name, tensor] : parameters) {
    for (const float value : tensor.to_vector<float>()) {
      std::snprintf(digits.data(), digits.size(), "%08x", std::bit_cast<uint32_t>(value));
      out += digits.data();
    }
  }
  return out;
}

void set_bits(const std::vector<mh::nn::NamedTensor>& parameters, const std::string& bits) {
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters) count += tensor.numel();
  MH_CHECK(std::ssize(bits) == 8 * count, ValueError, "weights: expected ", 8 * count, " digits, got ",
           bits.size());
  const char* at = bits.data();
  for (const auto& [name, tensor] : parameters) {
    for (int64_t i = 0; i < tensor.numel(); ++i, at += 8) {
      uint32_t value = 0;
      const auto [end, error] = std::from_chars(at, at + 8, value, 16);
      MH_CHECK(error == std::errc() && end == at + 8, ValueError, "weights: expected hexadecimal digits");
      tensor.data<float>()[i] = std::bit_cast<float>(value);
    }
  }
}

DigitReader& reader_of(Lab& lab) {
  MH_CHECK(lab.reader, ValueError, "the digits are missing: send {\"do\": \"digits\", \"lines\": …} first");
  return *lab.reader;
}

template <class Model>
double train(Model& model, const Json& request) {
  double sum = 0;
  const int64_t steps = request.at("steps").as_int();
  MH_CHECK(steps > 0, ValueError, "steps must be at least 1, got ", steps);
  for (int64_t i = 0; i < steps; ++i) sum += model.step();
  return sum / static_cast<double>(steps);
}

int64_t index_in(const std::string& text) {
  int64_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  MH_CHECK(error == std::errc() && end == text.data() + text.size(), ValueError,
           "expected the number of a test image, got ", mh::quote(text));
  return index;
}

Json page(const Lab& lab, const std::string& text) {
  mh::look::AttentionPage page{.title = "multihead in the browser", .runs = {lab.repeater.look(text, {})}};
  page.lab = text;
  return Json::object({{"html", to_html(page)}});
}

using Answer = Json (*)(Lab& lab, const Json& request, const std::string& text);

const std::map<std::string, Answer, std::less<>>& answers() {
  static const std::map<std::string, Answer, std::less<>> table = {
      {"train",
       [](Lab& lab, const Json& request, const std::string&) {
         return Json::object({{"loss", train(lab.repeater, request)}});
       }},
      {"weights",
       [](Lab& lab, const Json&, const std::string&) {
         return Json::object({{"weights", bits_of(mh::nn::named_parameters(lab.repeater.model))}});
       }},
      {"set",
       [](Lab& lab, const Json& request, const std::string&) {
         set_bits(mh::nn::named_parameters(lab.repeater.model), request.at("weights").as_string());
         return Json::object();
       }},
      {"digits",
       [](Lab& lab, const Json& request, const std::string&) {
         lab.reader.emplace(request.at("lines").as_string());
         return Json::object({{"accuracy", lab.reader->accuracy()}});
       }},
      {"digit_weights",
       [](Lab& lab, const Json&, const std::string&) {
         return Json::object({{"weights", bits_of(mh::nn::named_parameters(reader_of(lab).model))}});
       }},
      {"train_digits",
       [](Lab& lab, const Json& request, const std::string&) {
         const double loss = train(reader_of(lab), request);
         return Json::object({{"loss", loss}, {"accuracy", lab.reader->accuracy()}});
       }},
      {"text",
       [](Lab& lab, const Json&, const std::string& text) {
         return mh::look::answer(text, [&](const std::string& said, const mh::look::Look& changes) {
           return lab.repeater.look(said, changes);
         });
       }},
      {"digit",
       [](Lab& lab, const Json&, const std::string& text) {
         return mh::look::answer(text, [&](const std::string& said, const mh::look::Look& changes) {
           return reader_of(lab).look(index_in(said), changes);
         });
       }},
      {"page", [](Lab& lab, const Json& request, const std::string&) {
         return page(lab, request.at("text").as_string());
       }}};
  return table;
}

Json answer(const std::string& text) {
  try {
    static Lab lab;
    const Json request = Json::parse(text, "request");
    const std::string what = request.at("do").as_string();
    const auto found = answers().find(what);
    MH_CHECK(found != answers().end(), ValueError, "nothing known to do is called ", mh::quote(what));
    return found->second(lab, request, text);
  } catch (const std::exception& error) {
    return Json::object({{"error", error.what()}});
  }
}

}  // namespace
}  // namespace browser

/// The answer stays until the next call.
extern "C" const char* lab_answer(const char* request) {
  static std::string answer;
  answer = browser::answer(request).dump();
  return answer.c_str();
}

#ifndef __EMSCRIPTEN__
int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << lab_answer(line.c_str()) << "\n";
}
#endif
