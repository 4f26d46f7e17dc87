// Finds the verb, runs it, and turns what went wrong into one line and an exit code.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <new>

#include "cli/parser.h"
#include "multihead/core/json.h"
#include "multihead/core/parallel.h"
#include "multihead/core/version.h"

namespace multihead::cli {
namespace {

int complain(const char* what, int code) {
  std::string line = what;
  for (char& c : line) c = c == '\n' ? ' ' : c;
  fmt::print(stderr, "multihead: {}\n", line);
  return code;
}

// The verb whose words the arguments begin with, and how many those are.
std::pair<Verb*, size_t> find(const Verbs& verbs, const std::vector<std::string>& arguments) {
  for (const auto& verb : verbs) {
    const std::string name = verb->name();
    const size_t space = name.find(' ');
    const std::string first = name.substr(0, space);
    if (arguments.empty() || arguments[0] != first) continue;
    if (space == std::string::npos) return {verb.get(), 1};
    if (arguments.size() > 1 && arguments[1] == name.substr(space + 1)) return {verb.get(), 2};
  }
  return {nullptr, 0};
}

int run(const std::vector<std::string>& arguments) {
  const Verbs verbs = make_verbs();
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    fmt::print("{}", help_text(verbs));
    return arguments.empty() ? kUsage : kDone;
  }
  if (arguments[0] == "--version") {
    fmt::print("multihead {}\n", version());
    return kDone;
  }
  const auto [verb, words] = find(verbs, arguments);
  if (verb == nullptr) {
    std::string known;
    for (const auto& v : verbs) known += (known.empty() ? "" : ", ") + v->name();
    const std::string given = arguments[0] + (arguments.size() > 1 ? " " + arguments[1] : "");
    throw UsageError(fmt::format("unknown verb {}, expected one of {}", quote(given), known));
  }
  Flags flags;
  verb->declare(flags);
  const ParsedLine line =
      parse(verb->name(), flags, {arguments.begin() + static_cast<long>(words), arguments.end()});
  if (line.wants_help) {
    fmt::print("{}", help_text(*verb, flags));
    return kDone;
  }
  if (line.common.threads > 0) set_num_threads(static_cast<int>(line.common.threads));
  return verb->run(line.common);
}

int guarded(const std::vector<std::string>& arguments) {
  try {
    const int code = run(arguments);
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) return complain("stdout cannot be written", kFailed);
    return code;
  } catch (const UsageError& error) {
    return complain(error.what(), kUsage);
  } catch (const InputError& error) {
    return complain(error.what(), kBadInput);
  } catch (const UnsupportedError& error) {
    return complain(error.what(), kUnsupported);
  } catch (const FormatError& error) {
    return complain(error.what(), kBadInput);
  } catch (const std::invalid_argument& error) {
    return complain(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return complain("out of memory; try a smaller --batch or --context", kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}

}  // namespace
}  // namespace multihead::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return multihead::cli::guarded({argv + 1, argv + argc});
}
