// Binds the arguments of methods, filters and tests of chat templates.
#include "multihead/text/chat/chat_template_calls-inl.h"

#include <algorithm>

namespace multihead::text {

using Value = TemplateValue;
using In = TemplateArguments;

void In::unsupported() const {
  budget.program.fail(call.line, quote(call.name), " of ", call.on.kind(),
                      " with these arguments is not supported");
}

const std::string& In::text(size_t at) const {
  const std::string* text = given[at]->text();
  if (text == nullptr)
    budget.program.fail(call.line, quote(call.name), ": an argument must be a string, got ",
                        given[at]->kind());
  return *text;
}

bool In::truth(size_t at, bool missing) const { return given[at] == nullptr ? missing : given[at]->truth(); }

int64_t In::integer(size_t at, int64_t missing) const {
  if (is_missing(at)) return missing;
  const auto* integer = given[at]->as<int64_t>();
  if (integer == nullptr) unsupported();
  return *integer;
}

namespace {

void bind(const TemplateFunction& row, In& in) {
  const TemplateCall& call = in.call;
  const auto none = std::ranges::find(row.parameters, std::string_view());
  if (call.args.size() > static_cast<size_t>(none - row.parameters.begin())) in.unsupported();
  for (size_t i = 0; i < call.args.size(); ++i) in.given[i] = &call.args[i];
  for (const auto& [key, value] : call.named) {
    const auto found = std::find(row.parameters.begin(), none, std::string_view(key));
    const auto at = static_cast<size_t>(found - row.parameters.begin());
    if (found == none || in.given[at] != nullptr) in.unsupported();
    in.given[at] = &value;
  }
  const auto required = in.given.begin() + static_cast<std::ptrdiff_t>(row.required);
  if (std::find(in.given.begin(), required, nullptr) != required) in.unsupported();
}

}  // namespace

Value call_of_table(std::span<const TemplateFunction> table, const char* kind, const TemplateCall& call,
                    TemplateBudget& budget, const std::string& of) {
  budget.spend(16, call.line);
  const auto row = std::ranges::find(table, std::string_view(call.name), &TemplateFunction::name);
  if (row == table.end())
    budget.program.fail(call.line, "the ", kind, " ", quote(call.name), of, " is not supported");
  In in = {call, budget};
  if (row->required != kAnyArguments) bind(*row, in);
  return row->call(in);
}

}  // namespace multihead::text
