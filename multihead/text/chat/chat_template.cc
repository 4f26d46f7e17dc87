// Renders chat templates.
#include "multihead/text/chat/chat_template.h"

#include <algorithm>
#include <ctime>
#include <list>

#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {
namespace {

using Node = TemplateNode;
using Kind = Node::Kind;
using Value = TemplateValue;

constexpr int kRenderDepth = 400;
constexpr size_t kMaxSource = size_t{1} << 20;

// The budget of a template: each step costs some units, each byte of output one.
size_t budget_for(size_t bytes) { return (size_t{64} << 20) + 64 * bytes; }

class Renderer {
 public:
  Renderer(const ChatTemplate::Program& program, size_t units) : program_(program), budget_(program, units) {
    scopes_.emplace_back();
  }

  std::string run(const Json& messages, bool add_generation_prompt, const Json& variables) {
    std::map<std::string, Value>& global = scopes_[0];
    global["messages"] = budget_.of(messages_as_given(messages), 1);
    global["add_generation_prompt"] = add_generation_prompt;
    global["tools"] = nullptr;
    global["documents"] = nullptr;
    for (const auto& [name, value] : variables.members()) global[std::string(name)] = budget_.of(value, 1);
    std::string out;
    execute(program_.body, out);
    return out;
  }

 private:
  enum class Flow { on, leave, next };

  struct Deeper {
    Deeper(Renderer& of, int line) : depth(of.depth_) {
      if (++depth > kRenderDepth) --depth, of.program_.fail(line, "is nested too deeply");
    }
    ~Deeper() { --depth; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    int& depth;
  };
  // The names of a loop or macro, gone at its end. A macro sees the outermost besides its own.
  struct Scope {
    explicit Scope(Renderer& of, bool macro = false) : renderer(of), base(of.base_) {
      of.scopes_.emplace_back();
      if (macro) of.base_ = of.scopes_.size() - 1;
    }
    ~Scope() {
      renderer.scopes_.pop_back();
      renderer.base_ = base;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    Renderer& renderer;
    size_t base;
  };

  const Value* find(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > base_;) {
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return &found->second;
    }
    const auto found = scopes_[0].find(name);
    return found != scopes_[0].end() ? &found->second : nullptr;
  }

  void assign(const std::string& name, Value value, int line) {
    budget_.spend(64 + name.size(), line);
    scopes_.back()[name] = std::move(value);
  }

  Flow execute(const std::vector<Node*>& nodes, std::string& out) {
    for (const Node* node : nodes) {
      const Deeper deeper(*this, node->line);
      budget_.spend(16, node->line);
      if (const Flow flow = execute(*node, out); flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow execute(const Node& node, std::string& out) {
    switch (node.kind) {
      case Kind::text:
        budget_.spend(node.text.size(), node.line), out += node.text;
        break;
      case Kind::output:
        out += budget_.text(evaluate(node.args[0]), node.line);
        break;
      case Kind::branch:
        return execute(evaluate(node.args[0]).truth() ? node.body : node.otherwise, out);
      case Kind::loop:
        return loop(node, out);
      case Kind::set:
        bind(node, evaluate(node.args[0]));
        break;
      case Kind::set_attribute:
        set_attribute(node);
        break;
      case Kind::set_block: {
        std::string text;
        const Flow flow = scoped(node, text);
        if (flow == Flow::on) assign(node.text, filtered(node, std::move(text)), node.line);
        return flow;  // what was captured before break or continue is lost, as in Jinja
      }
      case Kind::filter_block: {
        std::string text;
        const Flow flow = scoped(node, text);
        if (flow == Flow::on) out += budget_.text(filtered(node, std::move(text)), node.line);
        return flow;
      }
      case Kind::macro:
        assign(node.text, &node, node.line);
        break;
      case Kind::scope:
        return scoped(node, out);
      case Kind::leave:
        return Flow::leave;
      case Kind::next:
        return Flow::next;
      default:
        break;
    }
    return Flow::on;
  }

  Flow scoped(const Node& node, std::string& out) {
    std::vector<Value> values;
    for (const auto& [name, value] : node.named) values.push_back(evaluate(value));
    const Scope scope(*this);
    for (size_t i = 0; i < values.size(); ++i) assign(node.named[i].first, values[i], node.line);
    return execute(node.body, out);
  }

  // What a block holds, after the block's filters.
  Value filtered(const Node& node, std::string text) {
    captured_.push_back(budget_.string(std::move(text), node.line));
    Value value = evaluate(node.args[0]);
    captured_.pop_back();
    return value;
  }

  void set_attribute(const Node& node) {
    const Value* target = find(node.text);
    const auto* space = target != nullptr ? target->as<TemplateNamespace*>() : nullptr;
    if (space == nullptr)
      program_.fail(node.line, quote(node.text), " must be a namespace for its attributes to be set");
    TemplateNamespace* to = *space;
    Value value = evaluate(node.args[0]);
    budget_.spend(64 + node.targets[0].size(), node.line);
    to->members[node.targets[0]] = std::move(value);
  }

  void bind(const Node& node, const Value& item) {
    if (node.targets.size() == 1) return assign(node.targets[0], item, node.line);
    const std::vector<Value> parts = budget_.items(item, node.line);
    if (parts.size() != node.targets.size())
      program_.fail(node.line, node.targets.size(), " values are needed, got ", parts.size());
    for (size_t i = 0; i < parts.size(); ++i) assign(node.targets[i], parts[i], node.line);
  }

  Flow loop(const Node& node, std::string& out) {
    const Value all = evaluate(node.args[0]);
    std::vector<Value> items = budget_.items(all, node.line);
    const TemplateList* const iterator = all.iterator();
    if (iterator != nullptr) iterator->is_unsettled = true;
    if (node.args[1] != nullptr) {
      std::erase_if(items, [&](const Value& item) {
        const Scope scope(*this);
        bind(node, item);
        return !evaluate(node.args[1]).truth();
      });
    }
    bool is_left = false, has_gone_through = false;
    for (size_t i = 0; i < items.size() && !is_left; ++i) {
      const Scope scope(*this);
      assign("loop", loop_state(items, i, node.line), node.line);
      bind(node, items[i]);
      const Flow flow = execute(node.body, out);
      is_left = flow == Flow::leave;
      has_gone_through |= flow == Flow::on;
    }
    if (iterator != nullptr) iterator->is_unsettled = is_left;
    // Jinja's {% else %} also comes if break or continue ended every turn.
    return has_gone_through ? Flow::on : scoped_body(node.otherwise, out);
  }

  Flow scoped_body(const std::vector<Node*>& body, std::string& out) {
    const Scope scope(*this);
    return execute(body, out);
  }

  Value loop_state(const std::vector<Value>& items, size_t i, int line) {
    const auto at = static_cast<int64_t>(i), size = static_cast<int64_t>(items.size());
    TemplateNamespace& state = make_namespace(line);
    state.members = {{"index", at + 1},           {"index0", at},   {"first", at == 0},
                     {"last", at + 1 == size},    {"length", size}, {"revindex", size - at},
                     {"revindex0", size - at - 1}};
    if (i > 0) state.members["previtem"] = items[i - 1];
    if (i + 1 < items.size()) state.members["nextitem"] = items[i + 1];
    return &state;
  }

  TemplateNamespace& make_namespace(int line) {
    budget_.spend(1024, line);
    return namespaces_.emplace_back();
  }

  Value evaluate(const Node* node) {
    if (node == nullptr) return {};
    const Deeper deeper(*this, node->line);
    budget_.spend(16, node->line);
    const auto& args = node->args;
    switch (node->kind) {
      case Kind::literal:
        return node->value;
      case Kind::name:
        return name(*node);
      case Kind::list:
        return budget_.list(evaluate_all(args, 0), node->line);
      case Kind::tuple:
        return budget_.list(evaluate_all(args, 0), node->line, TemplateListKind::tuple);
      case Kind::dict:
        return dict(*node);
      case Kind::attribute:
        return attribute_of(evaluate(args[0]), node->text, node->line, budget_);
      case Kind::index: {
        const Value of = evaluate(args[0]);
        return item_of(of, evaluate(args[1]), node->line, budget_);
      }
      case Kind::slice:
        return slice(*node);
      case Kind::call:
        return call(*node);
      case Kind::filter:
        return call_filter(call_of(*node), budget_);
      case Kind::test:
        return test(*node);
      case Kind::negate:
        return negated(evaluate(args[0]), node->line);
      case Kind::plus:
        return calculate("+", int64_t{0}, evaluate(args[0]), node->line, budget_);
      case Kind::logical_not:
        return !evaluate(args[0]).truth();
      case Kind::logical_and: {
        Value left = evaluate(args[0]);
        return left.truth() ? evaluate(args[1]) : left;
      }
      case Kind::logical_or: {
        Value left = evaluate(args[0]);
        return left.truth() ? left : evaluate(args[1]);
      }
      case Kind::conditional:
        return evaluate(evaluate(args[0]).truth() ? args[1] : args[2]);
      case Kind::captured:
        return captured_.back();
      case Kind::binary: {
        const Value left = evaluate(args[0]);
        return calculate(node->text, left, evaluate(args[1]), node->line, budget_);
      }
      default:
        program_.fail(node->line, "is not an expression");
    }
  }

  Value negated(const Value& value, int line) {
    if (const auto* number = value.as<double>()) return -*number;  // of 0, too
    return calculate("-", int64_t{0}, value, line, budget_);
  }

  static bool is_function(const std::string& name) {
    static constexpr const char* kFunctions[] = {"namespace", "raise_exception", "range", "strftime_now",
                                                 "dict"};
    return std::ranges::count(kFunctions, name) > 0;
  }

  Value name(const Node& node) {
    if (const Value* found = find(node.text)) return *found;
    static constexpr const char* kOthers[] = {"lipsum", "cycler", "joiner", "self"};
    const bool is_of_macro = base_ > 0 && (node.text == "varargs" || node.text == "kwargs");
    if (is_function(node.text) || is_of_macro || std::ranges::count(kOthers, node.text) > 0) {
      program_.fail(node.line, quote(node.text), " is not supported here");
    }
    return {};
  }

  std::vector<Value> evaluate_all(const std::vector<Node*>& nodes, size_t from) {
    std::vector<Value> values;
    for (size_t i = from; i < nodes.size(); ++i) values.push_back(evaluate(nodes[i]));
    return values;
  }

  TemplateKeywords keywords(const Node& node) {
    TemplateKeywords named;
    for (const auto& [key, value] : node.named) named.emplace_back(key, evaluate(value));
    return named;
  }

  // Keys and values take turns.
  Value dict(const Node& node) {
    TemplateKeywords members;
    for (size_t i = 0; i < node.args.size(); i += 2) {
      const Value given = evaluate(node.args[i]);
      const std::optional<std::string> key = template_key(given);
      if (!key || given.as<bool>() != nullptr)
        program_.fail(node.line, "a key must be a string or an integer, got ", given.kind());
      members.emplace_back(*key, evaluate(node.args[i + 1]));
    }
    return budget_.dict(members, node.line);
  }

  // A filter or test of its first argument.
  TemplateCall call_of(const Node& node) {
    return {node.text, evaluate(node.args[0]), evaluate_all(node.args, 1), keywords(node), node.line};
  }

  Value test(const Node& node) {
    const bool of_function = node.text == "defined" && node.args[0]->kind == Kind::name &&
                             is_function(node.args[0]->text) && find(node.args[0]->text) == nullptr;
    return of_function || call_test(call_of(node), budget_);
  }

  Value slice(const Node& node) {
    Value parts[4];
    for (size_t i = 0; i < 4; ++i)
      parts[i] = node.args[i] != nullptr ? evaluate(node.args[i]) : Value(nullptr);
    return slice_of(parts[0], parts[1], parts[2], parts[3], node.line, budget_);
  }

  Value call(const Node& node) {
    const Node& callee = *node.args[0];
    if (callee.kind == Kind::attribute) {
      return call_method(
          {callee.text, evaluate(callee.args[0]), evaluate_all(node.args, 1), keywords(node), node.line},
          budget_);
    }
    if (callee.kind != Kind::name) program_.fail(node.line, "calling this expression is not supported");
    if (const Value* found = find(callee.text)) {
      const auto* macro = found->as<const Node*>();
      if (macro == nullptr)
        program_.fail(node.line, quote(callee.text), " is ", found->kind(), " and cannot be called");
      return call_macro(**macro, node);
    }
    return function(callee.text, evaluate_all(node.args, 1), keywords(node), node.line);
  }

  Value call_macro(const Node& macro, const Node& node) {
    const std::vector<Value> args = evaluate_all(node.args, 1);
    const TemplateKeywords named = keywords(node);
    const std::vector<const Value*> given = given_values(macro, args, named, node);
    const Scope scope(*this, true);
    for (size_t i = 0; i < given.size(); ++i) {
      assign(macro.named[i].first, given[i] != nullptr ? *given[i] : evaluate(macro.named[i].second),
             node.line);
    }
    std::string out;
    execute(macro.body, out);
    return budget_.string(std::move(out), node.line);
  }

  // The argument of each parameter; nullptr: its default. By name, so that many of them take no quadratic time.
  std::vector<const Value*> given_values(const Node& macro, const std::vector<Value>& args,
                                         const TemplateKeywords& named, const Node& node) {
    if (args.size() > macro.named.size())
      program_.fail(node.line, "too many arguments for the macro ", quote(macro.text));
    std::vector<const Value*> given(macro.named.size());
    std::map<std::string_view, size_t> places;
    for (size_t i = 0; i < macro.named.size(); ++i) {
      budget_.spend(64 + macro.named[i].first.size(), node.line);
      places.emplace(macro.named[i].first, i);
      if (i < args.size()) given[i] = &args[i];
    }
    for (const auto& [key, value] : named) {
      const auto found = places.find(key);
      if (found == places.end() || found->second < args.size())
        program_.fail(node.line, "the macro ", quote(macro.text), " has no place for ", quote(key));
      if (given[found->second] == nullptr) given[found->second] = &value;
    }
    return given;
  }

  Value function(const std::string& name, const std::vector<Value>& args, const TemplateKeywords& named,
                 int line) {
    if (name == "namespace" && args.empty()) {
      TemplateNamespace& space = make_namespace(line);
      for (const auto& [key, value] : named) space.members[key] = value;
      return &space;
    }
    if (named.empty() && name == "raise_exception" && args.size() == 1) {
      throw ValueError(concat(program_.name, ": ", budget_.text(args[0], line)));
    }
    if (named.empty() && name == "range") return range(args, line);
    if (named.empty() && name == "strftime_now" && args.size() == 1 && args[0].text() != nullptr)
      return date(*args[0].text(), line);
    if (args.empty() && name == "dict") return budget_.dict(named, line);
    if (is_function(name)) program_.fail(line, quote(name), " with these arguments is not supported");
    program_.fail(line, "the function ", quote(name), " is not supported");
  }

  Value range(const std::vector<Value>& args, int line) {
    int64_t bounds[3] = {0, 0, 1};
    if (args.empty() || args.size() > 3)
      program_.fail(line, "\"range\" with these arguments is not supported");
    for (size_t i = 0; i < args.size(); ++i) {
      if (args[i].as<int64_t>() == nullptr)
        program_.fail(line, "range: a bound must be an integer, got ", args[i].kind());
      bounds[args.size() == 1 ? 1 : i] = *args[i].as<int64_t>();
    }
    const auto [first, last, step] = bounds;
    if (step == 0) program_.fail(line, "range: the step must not be 0");
    std::vector<Value> values;
    for (int64_t i = first; step > 0 ? i < last : i > last;) {
      budget_.spend(64, line);
      values.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return budget_.list(std::move(values), line, TemplateListKind::range);
  }

  // The local date and time.
  Value date(const std::string& format, int line) {
    for (size_t at = 0; at < format.size(); ++at) {
      if (format[at] != '%') continue;
      const char letter = ++at < format.size() ? format[at] : ' ';
      if (std::string_view("aAbBdHIjmMpSyY%").find(letter) == std::string_view::npos) {
        program_.fail(line, "strftime_now(", quote(format), ") is not supported");
      }
    }
    if (format.empty() || format.size() > 256)
      program_.fail(line, "strftime_now of this format is not supported");
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char text[4096];
    return budget_.string({text, std::strftime(text, sizeof text, format.c_str(), &parts)}, line);
  }

  const ChatTemplate::Program& program_;
  TemplateBudget budget_;
  std::vector<std::map<std::string, Value>> scopes_;
  std::vector<Value> captured_;
  size_t base_ = 0;
  std::list<TemplateNamespace> namespaces_;
  int depth_ = 0;
};

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name) {
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  if (source.size() > kMaxSource) program->fail(1, "is larger than ", kMaxSource, " bytes");
  parse_template(template_tokens(source, *program), *program);
  program_ = std::move(program);
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                 const Variables& variables) const {
  Json list = Json::array(), values = Json::object();
  for (const ChatMessage& m : messages)
    list.push_back(Json::object({{"role", m.role}, {"content", m.content}}));
  for (const auto& [name, value] : variables) {
    if (!value.empty()) values[name] = value;
  }
  return render(list, add_generation_prompt, values);
}

std::string ChatTemplate::render(const Json& messages, bool add_generation_prompt,
                                 const Json& variables) const {
  const bool are_messages =
      messages.is_array() && std::all_of(messages.items().begin(), messages.items().end(),
                                         [](const Json& message) { return message.is_object(); });
  MH_CHECK(are_messages, ValueError, "chat template: messages must be a list of objects with \"role\" and ",
           "\"content\"");
  MH_CHECK(variables.is_object(), ValueError, "chat template: variables must be an object, got ",
           name(variables.kind()));
  MH_CHECK(!variables.contains("messages"), ValueError,
           "chat template: a variable must not be called \"messages\", which the conversation is");
  const size_t bytes = messages.dump().size() + variables.dump().size();
  return Renderer(*program_, budget_for(bytes + 256 * messages.size()))
      .run(messages, add_generation_prompt, variables);
}

}  // namespace multihead::text
