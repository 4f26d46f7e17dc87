#include "cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <system_error>
#include <thread>

#include "cli/parser.h"
#include "cli/streams.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/threads.h"
#include "multihead/core/version.h"
#include "multihead/distributed/world.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"

namespace multihead::cli {
namespace {

int complain(const char* what, int code) {
  std::string line = what;  // may repeat what stands in a file, or on the command line
  if (const auto launch = distributed::launch(); launch && launch->rank > 0) {
    // The first rank reports an error that all ranks share, and ends the job meanwhile.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    line = concat("rank ", launch->rank, ": ", line);
  }
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fputs(("multihead: " + printable(line) + "\n").c_str(), stderr);  // fmt would throw if stderr is full
  return code;
}

// A closed pipe (`multihead --help | head -1`) is the reader's right and ends a command quietly.
int output_lost(const std::system_error& error) {
  if (error.code() == std::errc::broken_pipe) return kPipeClosed;
  return complain(("stdout cannot be written: " + error.code().message()).c_str(), kFailed);
}

// The verb whose words the arguments begin with, and how many those are.
std::pair<Verb*, size_t> find(const Verbs& verbs, const std::vector<std::string>& arguments) {
  for (const auto& verb : verbs) {
    const std::string name = verb->name;
    const size_t space = name.find(' ');
    const std::string first = name.substr(0, space);
    if (arguments.empty() || arguments[0] != first) continue;
    if (space == std::string::npos) return {verb.get(), 1};
    if (arguments.size() > 1 && arguments[1] == name.substr(space + 1)) return {verb.get(), 2};
  }
  return {nullptr, 0};
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h" || word == "help"; }

bool is_group(const Verbs& verbs, const std::string& word) {
  return std::any_of(verbs.begin(), verbs.end(), [&](auto& v) { return v->name.starts_with(word + " "); });
}

// A mistyped verb of a group (`train`) gets suggestions from that group only.
[[noreturn]] void refuse(const Verbs& verbs, const std::vector<std::string>& arguments) {
  const std::string given = arguments[0] + (arguments.size() > 1 ? " " + arguments[1] : "");
  const bool group = is_group(verbs, arguments[0]);
  std::vector<std::string> names;
  for (const auto& verb : verbs) {
    if (!group || verb->name.starts_with(arguments[0] + " ")) names.push_back(verb->name);
  }
  std::string hint = group ? "" : suggestion(given, names);
  if (!group && hint.empty()) hint = suggestion(arguments[0], names);
  throw UsageError(concat("unknown verb ", quote(given), hint, ", expected one of ",
                          fmt::to_string(fmt::join(names, ", "))));
}

// `multihead help train lm` is `multihead train lm --help`.
std::vector<std::string> help_last(std::vector<std::string> arguments) {
  if (!arguments.empty() && asks_for_help(arguments[0])) {
    std::rotate(arguments.begin(), arguments.begin() + 1, arguments.end());
    arguments.back() = "--help";
  }
  return arguments;
}

void note(const CommonOptions& common, const std::string& text) {
  if (!common.quiet) std::fputs(("note: " + text + "\n").c_str(), stderr);
}

void choose_precision(const CommonOptions& common) {
  kernels::set_float32_matmul_precision(common.precision);
  if (common.precision == kernels::MatmulPrecision::highest || kernels::has_tiles()) return;
  note(common, concat("--float32-matmul-precision ", kernels::precision_name(common.precision),
                      " has no effect: this CPU has no AMX tiles"));
}

// Starts the threads now, so that a failure is reported before any work.
void start_threads(const CommonOptions& common) {
  parallel_for(num_threads(), [](int64_t, int) {});
  if (missing_threads() == 0) return;
  note(common, concat("only ", num_threads() - missing_threads(), " of ", num_threads(),
                      " threads could be started (a limit on processes or memory); continuing with those"));
}

// Names what can be made smaller: those of the verb's flags that memory grows with.
std::string out_of_memory(const Flags& flags) {
  std::vector<std::string> smaller;
  for (const Flag& flag : flags.list()) {
    for (const char* name : {"batch", "batch-tokens", "context", "max-length"})
      if (flag.name == name) smaller.push_back(flag.shown());
  }
  return smaller.empty() ? "out of memory"
                         : fmt::format("out of memory; try a smaller {}", fmt::join(smaller, " or "));
}

// What a report of an error should say of the program and of the machine.
std::string version_text() {
  std::string text = concat("multihead ", version(), "\n");
  if (!git_hash().empty()) text += concat("commit ", git_hash(), "\n");
  return text + concat("CPU ", kernels::cpu_name(), ", instruction set ",
                       kernels::isa_name(kernels::current_isa()),
                       kernels::has_tiles() ? " with AMX tiles" : "", "\n");
}

int run(const std::vector<std::string>& given) {
  const Verbs verbs = make_verbs();
  const std::vector<std::string> arguments = help_last(given);
  if (arguments.empty() || arguments[0] == "--help") {
    fmt::print("{}", help_text(verbs));
    return arguments.empty() ? kUsage : kDone;
  }
  if (arguments[0] == "--version") {
    fmt::print("{}", version_text());
    return kDone;
  }
  const auto [verb, words] = find(verbs, arguments);
  if (verb == nullptr) {
    if (arguments.size() < 2 || !asks_for_help(arguments[1]) || !is_group(verbs, arguments[0])) {
      refuse(verbs, arguments);
    }
    fmt::print("{}", help_text(verbs, arguments[0]));
    return kDone;
  }
  Flags flags;
  verb->declare(flags);
  const ParsedLine line =
      parse(verb->name, flags, {arguments.begin() + static_cast<long>(words), arguments.end()});
  if (line.wants_help) {
    fmt::print("{}", help_text(*verb, flags));
    return kDone;
  }
  if (line.common.threads > 0) set_num_threads(static_cast<int>(line.common.threads));
  num_threads(), kernels::current_isa();  // refuse environment variables before anything is written
  choose_precision(line.common);
  start_threads(line.common);
  if (const std::string missing = kernels::missing_vectors(); !missing.empty()) note(line.common, missing);
  try {
    return verb->run(line.common);
  } catch (const MemoryError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(out_of_memory(flags));
  }
}

int guarded(const std::vector<std::string>& arguments) {
  try {
    const int code = run(arguments);
    flush_output();
    return code;
  } catch (const InputError& error) {
    return complain(error.what(), kBadInput);
  } catch (const FormatError& error) {
    return complain(error.what(), kBadInput);
  } catch (const std::invalid_argument& error) {
    return complain(error.what(), kUsage);
  } catch (const MemoryError& error) {
    return complain(error.what(), kUnsupported);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", kFailed);
  } catch (const std::system_error& error) {
    return std::ferror(stdout) ? output_lost(error) : complain(error.what(), kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}

// A standard stream that came closed would lend its number to the next file opened, and what is printed would
// land in that file. Opened the wrong way round, it fails as a closed one does.
void occupy_standard_streams() {
  for (const int stream : {0, 1, 2}) {
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF) open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int program(const std::vector<std::string>& arguments) {
  std::signal(SIGPIPE, SIG_IGN);  // training goes on without its audience
  std::signal(SIGXFSZ, SIG_IGN);  // a file that passes `ulimit -f` is an error of its write, which names it
  occupy_standard_streams();
  const int code = guarded(arguments);
  const bool failed = code != 0 && code < 128;  // not: interrupted, all ranks alike
  if (failed) distributed::abort_world(code);   // other ranks would wait for this one
  return code;
}

}  // namespace multihead::cli
