#include "multihead/core/error.h"
#include "multihead/text/json-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

using Json = nlohmann::json;

// Builds the document from events, so that depth and duplicate keys are checked as they come.
class Builder : public Json::json_sax_t {
 public:
  Builder(const std::string& name, Json& root) : name_(name), root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool x) override { return put(x); }
  bool number_integer(number_integer_t x) override { return put(x); }
  bool number_unsigned(number_unsigned_t x) override { return put(x); }
  bool number_float(number_float_t x, const string_t&) override { return put(x); }
  bool string(string_t& x) override { return put(std::move(x)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    auto& object = stack_.back()->get_ref<Json::object_t&>();
    const auto [at, fresh] = object.try_emplace(std::move(key));
    MH_CHECK(fresh, FormatError, name_, ": key ", in_quotes(at->first), " occurs twice in one object");
    slot_ = &at->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    throw FormatError(concat(name_, ": not valid JSON near byte ", position, ": ", printable(what)));
  }

 private:
  static constexpr size_t kMaxDepth = 64;

  // The parser's message quotes the input; keep control characters and endless strings out of ours.
  static std::string printable(std::string_view what) {
    std::string out;
    for (char c : what.substr(0, 200)) out += c >= ' ' && c != 0x7F ? c : '?';
    if (what.size() > 200) out += "...";
    return find_invalid_utf8(out) == std::string_view::npos ? out : "invalid string";
  }

  Json* place(Json&& value) {
    if (stack_.empty()) return &(root_ = std::move(value));
    if (!stack_.back()->is_array()) return &(*slot_ = std::move(value));
    stack_.back()->push_back(std::move(value));
    return &stack_.back()->back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    MH_CHECK(stack_.size() < kMaxDepth, FormatError, name_, ": nested deeper than ", kMaxDepth);
    stack_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  const std::string& name_;
  Json& root_;
  std::vector<Json*> stack_;
  Json* slot_ = nullptr;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  MH_CHECK(!text.starts_with("\xEF\xBB\xBF"), FormatError, name,
           ": JSON must not start with a byte order mark");
  Json root;
  Builder builder(name, root);
  MH_CHECK(Json::sax_parse(text.begin(), text.end(), &builder), FormatError, name, ": not valid JSON");
  return root;
}

const char* json_kind(const Json& value) { return value.is_number() ? "number" : value.type_name(); }

}  // namespace multihead::text
