// Tokens of a chat template -> nodes, with Jinja's grammar and precedences.
#include <initializer_list>

#include "multihead/core/text/numbers-inl.h"
#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {
namespace {

using Node = TemplateNode;
using Token = TemplateToken;
using Kind = Node::Kind;

constexpr int kSourceDepth = 100;

class Parser {
 public:
  Parser(const std::vector<Token>& tokens, ChatTemplate::Program& program)
      : tokens_(tokens), program_(program) {}

  void run() {
    program_.body = body({});
    if (now().kind != Token::Kind::end) fail("unexpected ", quote(now().text));
  }

 private:
  struct Deeper {
    explicit Deeper(Parser& parser) : depth(parser.depth_) {
      if (++depth > kSourceDepth) --depth, parser.fail("is nested too deeply");
    }
    ~Deeper() { --depth; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    int& depth;
  };

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    program_.fail(now().line, parts...);
  }

  const Token& now() const { return tokens_[at_]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_symbol(const char* text) const { return now().kind == Token::Kind::symbol && now().text == text; }
  bool is_name(const char* text) const { return now().kind == Token::Kind::name && now().text == text; }
  bool skip_symbol(const char* text) { return is_symbol(text) && (next(), true); }
  bool skip_name(const char* text) { return is_name(text) && (next(), true); }
  void want_symbol(const char* text) {
    if (!skip_symbol(text)) fail("expected ", quote(text), ", got ", quote(now().text));
  }
  std::string want_name() {
    if (now().kind != Token::Kind::name) fail("expected a name, got ", quote(now().text));
    return next().text;
  }
  void want(Token::Kind kind, const char* what) {
    if (now().kind != kind) fail("expected ", what, ", got ", quote(now().text));
    next();
  }

  Node* make(Kind kind, int line, std::string text = {}, std::vector<Node*> args = {}) {
    program_.nodes.push_back({.kind = kind, .line = line, .text = std::move(text), .args = std::move(args)});
    return &program_.nodes.back();
  }
  Node* literal(int line, TemplateValue value) {
    Node* node = make(Kind::literal, line);
    node->value = std::move(value);
    return node;
  }

  // Statements up to {% ends %}, whose name is then the next token.
  std::vector<Node*> body(std::initializer_list<const char*> ends) {
    const Deeper deeper(*this);
    std::vector<Node*> list;
    while (now().kind != Token::Kind::end) {
      const int line = now().line;
      if (now().kind == Token::Kind::text) {
        list.push_back(make(Kind::text, line, next().text));
      } else if (now().kind == Token::Kind::begin_output) {
        next();
        list.push_back(make(Kind::output, line, {}, {expression()}));
        want(Token::Kind::end_output, "\"}}\"");
      } else {
        want(Token::Kind::begin_block, "\"{%\"");
        for (const char* end : ends) {
          if (is_name(end)) return list;
        }
        list.push_back(statement(want_name(), line));
      }
    }
    if (ends.size() > 0) fail("expected {% ", *(ends.end() - 1), " %}");
    return list;
  }

  void end_block() { want(Token::Kind::end_block, "\"%}\""); }
  std::vector<Node*> body_to(const char* end, int scopes = 0) {
    scopes_ += scopes;
    std::vector<Node*> list = body({end});
    scopes_ -= scopes;
    next();
    end_block();
    return list;
  }

  Node* statement(const std::string& name, int line) {
    if (name == "if") return branch(line);
    if (name == "for") return loop(line);
    if (name == "set") return set(line);
    if (name == "macro") return macro(line);
    if (name == "generation")
      return scope(line, "endgeneration");  // transformers: marks what the assistant says
    if (name == "with") return with(line);
    if (name == "filter") return filter(line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) program_.fail(line, name, " outside of a loop");
      end_block();
      return make(name == "break" ? Kind::leave : Kind::next, line);
    }
    program_.fail(line, "{% ", quote(name), " %} is not supported");
  }

  Node* scope(int line, const char* end) {
    end_block();
    Node* node = make(Kind::scope, line);
    node->body = body_to(end, 1);
    return node;
  }

  Node* with(int line) {
    std::vector<std::pair<std::string, Node*>> named;
    while (now().kind != Token::Kind::end_block) {
      if (!named.empty()) want_symbol(",");
      const std::string name = want_name();
      want_symbol("=");
      named.emplace_back(name, expression());
    }
    Node* node = scope(line, "endwith");
    node->named = std::move(named);
    return node;
  }

  // {% filter upper | trim %}
  Node* filter(int line) {
    Node* node = make(Kind::filter_block, line);
    Node* first = make(Kind::filter, line, want_name(), {make(Kind::captured, line)});
    if (is_symbol("(")) arguments(*first);
    node->args = {filters(first)};
    end_block();
    node->body = body_to("endfilter", 1);
    return node;
  }

  Node* branch(int line) {
    const Deeper deeper(*this);
    Node* node = make(Kind::branch, line, {}, {logical_or()});
    end_block();
    node->body = body({"elif", "else", "endif"});
    const std::string end = next().text;
    if (end == "elif") {
      node->otherwise = {branch(now().line)};
      return node;
    }
    end_block();
    if (end == "else") node->otherwise = body_to("endif");
    return node;
  }

  Node* loop(int line) {
    Node* node = make(Kind::loop, line);
    const bool in_parentheses = skip_symbol("(");
    do {
      node->targets.push_back(want_name());
    } while (skip_symbol(","));
    if (in_parentheses) want_symbol(")");
    if (!skip_name("in")) fail("expected in, got ", quote(now().text));
    node->args = {logical_or(), nullptr};
    if (is_symbol(",")) {
      node->args[0] = make(Kind::tuple, line, {}, {node->args[0]});
      while (skip_symbol(",")) node->args[0]->args.push_back(logical_or());
    }
    if (skip_name("if")) node->args[1] = expression();
    if (is_name("recursive")) fail("a recursive loop is not supported");
    end_block();
    ++loops_;
    node->body = body({"else", "endfor"});
    --loops_;
    const bool has_else = next().text == "else";
    end_block();
    if (has_else) node->otherwise = body_to("endfor");
    return node;
  }

  Node* set(int line) {
    Node* node = make(Kind::set, line, want_name());
    if (skip_symbol(".")) {
      node->kind = Kind::set_attribute;
      node->targets = {want_name()};
    }
    if (node->kind == Kind::set) node->targets = {node->text};
    while (node->kind == Kind::set && skip_symbol(",")) node->targets.push_back(want_name());
    if (skip_symbol("=")) {
      node->args = {items_or_one()};
      end_block();
      return node;
    }
    if (node->targets.size() > 1) fail("expected \"=\", got ", quote(now().text));
    if (node->kind == Kind::set_attribute) fail("this form of {% set %} is not supported");
    Node* const captured = make(Kind::captured, line);
    node->args = {is_symbol("|") ? filters(captured) : captured};
    end_block();
    node->kind = Kind::set_block;
    node->body = body_to("endset", 1);
    return node;
  }

  Node* macro(int line) {
    if (loops_ > 0 || scopes_ > 0 || in_macro_)
      program_.fail(line, "a macro inside of another block than if is not supported");
    Node* node = make(Kind::macro, line, want_name());
    want_symbol("(");
    while (!skip_symbol(")")) {
      const std::string name = want_name();
      Node* value = skip_symbol("=") ? expression() : nullptr;
      node->named.emplace_back(name, value);
      if (!is_symbol(")")) want_symbol(",");
    }
    end_block();
    in_macro_ = true;
    node->body = body_to("endmacro");
    in_macro_ = false;
    return node;
  }

  Node* expression() {
    const Deeper deeper(*this);
    Node* node = logical_or();
    while (is_name("if")) {
      const int line = next().line;
      Node* condition = logical_or();
      Node* otherwise = skip_name("else") ? expression() : nullptr;
      node = make(Kind::conditional, line, {}, {condition, node, otherwise});
    }
    return node;
  }

  Node* logical_or() {
    Node* node = logical_and();
    while (is_name("or")) {
      const int line = next().line;
      node = make(Kind::logical_or, line, {}, {node, logical_and()});
    }
    return node;
  }

  Node* logical_and() {
    Node* node = logical_not();
    while (is_name("and")) {
      const int line = next().line;
      node = make(Kind::logical_and, line, {}, {node, logical_not()});
    }
    return node;
  }

  Node* logical_not() {
    const Deeper deeper(*this);
    if (!is_name("not")) return comparison();
    const int line = next().line;
    return make(Kind::logical_not, line, {}, {logical_not()});
  }

  Node* comparison() {
    Node* left = binary(0);
    Node* all = nullptr;
    while (true) {
      const int line = now().line;
      std::string op;
      for (const char* symbol : {"==", "!=", "<", "<=", ">", ">="}) {
        if (is_symbol(symbol)) op = symbol;
      }
      if (is_name("in")) op = "in";
      if (is_name("not") && tokens_[at_ + 1].kind == Token::Kind::name && tokens_[at_ + 1].text == "in")
        op = "not in";
      if (op.empty()) return all != nullptr ? all : left;
      next();
      if (op == "not in") next();
      Node* right = binary(0);
      Node* one = make(Kind::binary, line, op, {left, right});
      all = all == nullptr ? one : make(Kind::logical_and, line, {}, {all, one});
      left = right;
    }
  }

  // From loose to tight.
  Node* binary(size_t level) {
    static constexpr std::initializer_list<const char*> kLevels[] = {
        {"+", "-"}, {"~"}, {"*", "/", "//", "%"}};
    if (level == std::size(kLevels)) return power();
    Node* node = binary(level + 1);
    while (true) {
      const char* found = nullptr;
      for (const char* symbol : kLevels[level]) {
        if (is_symbol(symbol)) found = symbol;
      }
      if (found == nullptr) return node;
      const int line = next().line;
      node = make(Kind::binary, line, found, {node, binary(level + 1)});
    }
  }

  Node* power() {
    Node* node = unary(true);
    if (is_symbol("**")) fail("\"**\" is not supported");
    return node;
  }

  Node* unary(bool with_filters) {
    const Deeper deeper(*this);
    const int line = now().line;
    Node* node = nullptr;
    if (skip_symbol("-")) {
      node = make(Kind::negate, line, {}, {unary(false)});
    } else if (skip_symbol("+")) {
      node = make(Kind::plus, line, {}, {unary(false)});
    } else {
      node = primary();
    }
    node = postfix(node);
    return with_filters ? filters(node) : node;
  }

  Node* primary() {
    const Token& token = next();
    switch (token.kind) {
      case Token::Kind::name:
        return name(token);
      case Token::Kind::integer:
        return literal(token.line, int64_t{std::stoll(token.text)});
      case Token::Kind::number:
        return literal(token.line, spelled_number<double>(token.text).value());
      case Token::Kind::string: {
        std::string text = token.text;
        while (now().kind == Token::Kind::string) text += next().text;
        return literal(token.line, std::move(text));
      }
      default:
        break;
    }
    if (token.text == "(") {
      if (skip_symbol(")")) return make(Kind::tuple, token.line);
      Node* node = items_or_one();
      want_symbol(")");
      return node;
    }
    if (token.text == "[") return list(token.line);
    if (token.text == "{" && token.kind == Token::Kind::symbol) return dict(token.line);
    program_.fail(token.line, "expected an expression, got ", quote(token.text));
  }

  // One expression, or a tuple of those between commas, up to what closes it.
  Node* items_or_one() {
    const int line = now().line;
    Node* node = expression();
    if (!is_symbol(",")) return node;
    node = make(Kind::tuple, line, {}, {node});
    while (skip_symbol(",")) {
      if (is_symbol(")") || now().kind == Token::Kind::end_block) break;
      node->args.push_back(expression());
    }
    return node;
  }

  Node* name(const Token& token) {
    const std::string& text = token.text;
    if (text == "true" || text == "True") return literal(token.line, true);
    if (text == "false" || text == "False") return literal(token.line, false);
    if (text == "none" || text == "None") return literal(token.line, nullptr);
    for (const char* word : {"and", "or", "not", "in", "is", "if", "else"}) {
      if (text == word) program_.fail(token.line, "expected an expression, got ", quote(text));
    }
    return make(Kind::name, token.line, text);
  }

  Node* list(int line) {
    Node* node = make(Kind::list, line);
    while (!skip_symbol("]")) {
      node->args.push_back(expression());
      if (!is_symbol("]")) want_symbol(",");
    }
    return node;
  }

  Node* dict(int line) {
    Node* node = make(Kind::dict, line);
    while (!skip_symbol("}")) {
      node->args.push_back(expression());
      want_symbol(":");
      node->args.push_back(expression());
      if (!is_symbol("}")) want_symbol(",");
    }
    return node;
  }

  Node* postfix(Node* node) {
    while (true) {
      const int line = now().line;
      if (skip_symbol(".")) {
        if (now().kind == Token::Kind::integer) {
          node = make(Kind::index, line, {}, {node, literal(line, int64_t{std::stoll(next().text)})});
        } else {
          node = make(Kind::attribute, line, want_name(), {node});
        }
      } else if (skip_symbol("[")) {
        node = subscript(node, line);
      } else if (is_symbol("(")) {
        node = make(Kind::call, line, {}, {node});
        arguments(*node);
      } else {
        return node;
      }
    }
  }

  Node* subscript(Node* node, int line) {
    Node* first = is_symbol(":") ? nullptr : expression();
    if (first != nullptr && skip_symbol("]")) return make(Kind::index, line, {}, {node, first});
    std::vector<Node*> parts = {node, first, nullptr, nullptr};
    for (size_t part = 2; part < 4 && skip_symbol(":"); ++part) {
      if (!is_symbol(":") && !is_symbol("]")) parts[part] = expression();
    }
    want_symbol("]");
    return make(Kind::slice, line, {}, std::move(parts));
  }

  void arguments(Node& node) {
    want_symbol("(");
    while (!skip_symbol(")")) {
      if (is_symbol("*") || is_symbol("**")) fail("* in arguments is not supported");
      const bool keyword = now().kind == Token::Kind::name && tokens_[at_ + 1].kind == Token::Kind::symbol &&
                           tokens_[at_ + 1].text == "=";
      if (keyword) {
        const std::string name = want_name();
        next();
        node.named.emplace_back(name, expression());
      } else {
        if (!node.named.empty()) fail("a positional argument after a named one");
        node.args.push_back(expression());
      }
      if (!is_symbol(")")) want_symbol(",");
    }
  }

  Node* filters(Node* node) {
    while (true) {
      const int line = now().line;
      if (skip_symbol("|")) {
        node = make(Kind::filter, line, want_name(), {node});
        if (is_symbol("(")) arguments(*node);
      } else if (skip_name("is")) {
        node = test(node, line);
      } else if (is_symbol("(")) {
        fail("calling the result of a filter is not supported");
      } else {
        return node;
      }
    }
  }

  Node* test(Node* node, int line) {
    const bool negated = skip_name("not");
    node = make(Kind::test, line, want_name(), {node});
    using enum Token::Kind;
    const Token& token = now();
    const bool operand = token.kind == string || token.kind == integer || token.kind == number ||
                         is_symbol("[") || is_symbol("{") ||
                         (token.kind == Token::Kind::name && token.text != "else" && token.text != "or" &&
                          token.text != "and" && token.text != "is" && token.text != "if");
    if (is_symbol("(")) {
      arguments(*node);
    } else if (operand) {
      node->args.push_back(postfix(primary()));
    } else if (is_name("is") || is_name("if")) {  // as in Jinja, where they are taken for an operand
      fail(quote(now().text), " directly after a test is not supported; put the test in parentheses");
    }
    return negated ? make(Kind::logical_not, line, {}, {node}) : node;
  }

  const std::vector<Token>& tokens_;
  ChatTemplate::Program& program_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0, scopes_ = 0;
  bool in_macro_ = false;
};

}  // namespace

void parse_template(const std::vector<Token>& tokens, ChatTemplate::Program& program) {
  Parser(tokens, program).run();
}

}  // namespace multihead::text
