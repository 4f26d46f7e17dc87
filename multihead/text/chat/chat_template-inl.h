// A chat template after parsing, and the values it computes with. Private to text/.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/chat/chat_template.h"

namespace multihead::text {

struct TemplateNode;
struct TemplateList;
struct TemplateDict;
struct TemplateNamespace;

/// The digits of an integer beyond int64, which is written and not computed with.
struct TemplateDigits {
  std::string text;
};

/// Undefined (monostate), none (nullptr), a truth, a number, a string, a list, a dictionary, namespace(), a macro or a
/// large integer.
struct TemplateValue {
  using Text = std::shared_ptr<const std::string>;
  using List = std::shared_ptr<const TemplateList>;
  using Dict = std::shared_ptr<const TemplateDict>;
  using Variant =
      std::variant<std::monostate, std::nullptr_t, bool, int64_t, double, Text, List, Dict,
                   TemplateNamespace*, const TemplateNode*, std::shared_ptr<const TemplateDigits>>;
  Variant is;

  TemplateValue() = default;
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, TemplateValue> && std::constructible_from<Variant, T>)
      TemplateValue(T&& value)
      : is(std::forward<T>(value)) {}
  TemplateValue(std::string text) : is(std::make_shared<const std::string>(std::move(text))) {}

  template <class T>
  const T* as() const {
    return std::get_if<T>(&is);
  }
  const std::string* text() const { return as<Text>() ? as<Text>()->get() : nullptr; }
  const std::string* digits() const {
    const auto* digits = as<std::shared_ptr<const TemplateDigits>>();
    return digits != nullptr ? &(*digits)->text : nullptr;
  }
  const TemplateList* list() const { return as<List>() ? as<List>()->get() : nullptr; }
  /// The list, if it is an iterator.
  const TemplateList* iterator() const;
  const TemplateDict* dict() const { return as<Dict>() ? as<Dict>()->get() : nullptr; }
  bool undefined() const { return is.index() == 0; }
  bool none() const { return is.index() == 1; }
  bool truth() const;
  const char* kind() const;
};

/// `iterator`: what Jinja's filters yield, once; `view`: keys(), values() and items() of a dictionary. Both are no
/// sequences: they have no items by number and no text.
enum class TemplateListKind { list, tuple, range, view, iterator };
// What values hold cannot change, so only nesting needs a bound: their destructors recurse.
struct TemplateList {
  std::vector<TemplateValue> items;
  int depth = 1;
  TemplateListKind kind = TemplateListKind::list;
  // Of an iterator, which all share that name it: how many items were taken, and whether a loop that goes through it,
  // or was left, makes that unknown.
  mutable size_t taken = 0;
  mutable bool is_unsettled = false;
  /// Lists and tuples have a text and can be joined to others.
  bool is_plain() const { return kind <= TemplateListKind::tuple; }
  bool is_sequence() const { return kind <= TemplateListKind::range; }
  bool is_iterator() const { return kind == TemplateListKind::iterator; }
};
/// Keys are strings, or integers, which are written as a zero byte and their digits.
struct TemplateDict {
  std::vector<std::pair<std::string, TemplateValue>> members;
  int depth = 1;
  const TemplateValue* find(const std::string& key) const;
};
// Mutable values, owned by the rendering: namespaces may hold each other.
struct TemplateNamespace {
  std::map<std::string, TemplateValue> members;
};

struct TemplateNode {
  enum class Kind : uint8_t {
    // expressions
    literal,
    name,
    list,
    tuple,
    dict,
    attribute,
    index,
    slice,
    call,
    filter,
    test,
    negate,
    plus,
    logical_not,
    binary,
    logical_and,
    logical_or,
    conditional,
    captured,  // what a filter or a set block has around it
    // statements
    text,
    output,
    branch,
    loop,
    set,
    set_attribute,
    set_block,
    filter_block,
    macro,
    scope,
    leave,
    next
  };
  Kind kind;
  int line;
  std::string text = {};                 // a name, an operator, the text itself
  TemplateValue value = {};              // of a literal
  std::vector<TemplateNode*> args = {};  // null where one is left out: parts of a slice, a condition
  std::vector<std::pair<std::string, TemplateNode*>> named = {};  // keywords, parameters
  std::vector<TemplateNode*> body = {}, otherwise = {};
  std::vector<std::string> targets = {};  // of a loop, or of several that are set
};

/// The nodes lie in one place, so that taking them down does not recurse.
struct ChatTemplate::Program {
  std::string name;
  std::deque<TemplateNode> nodes;
  std::vector<TemplateNode*> body;
  template <class... Parts>
  [[noreturn]] void fail(int line, const Parts&... parts) const {
    throw FormatError(concat(name, ", line ", line, ": ", parts...));
  }
};

struct TemplateToken {
  enum class Kind : uint8_t {
    text,
    name,
    string,
    integer,
    number,
    symbol,
    begin_output,
    end_output,
    begin_block,
    end_block,
    end
  };
  Kind kind;
  std::string text;
  int line;
};

/// As a member's name in a dictionary, and back. Nothing: no key can be of this kind.
std::optional<std::string> template_key(const TemplateValue& value);
TemplateValue template_key_value(const std::string& key);

/// White space within `text` as Python sees it.
bool is_python_space(int32_t code_point);
std::string_view strip_front(std::string_view text, const std::string* characters = nullptr);
std::string_view strip_back(std::string_view text, const std::string* characters = nullptr);

/// Throws FormatError.
std::vector<TemplateToken> template_tokens(std::string_view source, const ChatTemplate::Program& program);
void parse_template(const std::vector<TemplateToken>& tokens, ChatTemplate::Program& program);

/// The budget that a rendering has left.
class TemplateBudget {
 public:
  TemplateBudget(const ChatTemplate::Program& of, size_t units) : program(of), left_(units) {}
  void spend(size_t units, int line) {
    if (units > left_) program.fail(line, "takes too much time or memory");
    left_ -= units;
  }
  /// As a string, like Python's.
  std::string text(const TemplateValue& value, int line);
  /// As it stands in a list that is printed.
  std::string repr(const TemplateValue& value, int line);
  bool equal(const TemplateValue& a, const TemplateValue& b, int line);
  /// Fails for an iterator of which it is not known what is left.
  void check_settled(const TemplateList& list, int line) const;
  bool contains(const TemplateValue& in, const TemplateValue& what, int line);
  /// The items that a loop over the value sees, of an iterator those that are left, which are taken.
  std::vector<TemplateValue> items(const TemplateValue& value, int line);
  TemplateValue list(std::vector<TemplateValue> items, int line,
                     TemplateListKind kind = TemplateListKind::list);
  /// Where `needle` begins in the text from `at` on, or npos; linear.
  size_t find(std::string_view text, std::string_view needle, size_t at, int line);
  TemplateValue of(const Json& json, int line);
  TemplateValue dict(const std::vector<std::pair<std::string, TemplateValue>>& members, int line);
  TemplateValue string(std::string text, int line) {
    spend(64 + text.size(), line);
    return text;
  }

  const ChatTemplate::Program& program;

 private:
  size_t left_;
};

using TemplateArgs = std::vector<TemplateValue>;
using TemplateKeywords = std::vector<std::pair<std::string, TemplateValue>>;
/// A number as Python prints it.
std::string template_number(double value);

struct TemplateCall {
  const std::string& name;
  TemplateValue on;
  TemplateArgs args;
  TemplateKeywords named;
  int line;
};

/// Messages as transformers gives them to templates: members that are null are missing, thoughts have all their names.
Json messages_as_given(const Json& messages);
TemplateValue call_method(const TemplateCall& call, TemplateBudget& budget);
TemplateValue call_filter(const TemplateCall& call, TemplateBudget& budget);
bool call_test(const TemplateCall& call, TemplateBudget& budget);
TemplateValue item_of(const TemplateValue& value, const TemplateValue& key, int line, TemplateBudget& budget);
TemplateValue attribute_of(const TemplateValue& value, const std::string& name, int line,
                           TemplateBudget& budget);
TemplateValue slice_of(const TemplateValue& value, const TemplateValue& begin, const TemplateValue& end,
                       const TemplateValue& step, int line, TemplateBudget& budget);
/// Python's text % values. `values`: a tuple, or a single one.
TemplateValue format_text(const TemplateValue& text, const TemplateValue& values, int line,
                          TemplateBudget& budget);
TemplateValue calculate(const std::string& op, const TemplateValue& a, const TemplateValue& b, int line,
                        TemplateBudget& budget);

}  // namespace multihead::text
