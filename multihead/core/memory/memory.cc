#include "multihead/core/memory/memory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "multihead/core/error.h"

namespace multihead {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return std::move(out).str();
}

// The number after `key` at the beginning of a line; an empty key: of the first line. "max" is none.
std::optional<int64_t> number_of(const std::string& text, std::string_view key) {
  for (size_t at = 0; at < text.size(); at = std::min(text.find('\n', at), text.size() - 1) + 1) {
    if (text.compare(at, key.size(), key) != 0) continue;
    const size_t digits = text.find_first_not_of(' ', at + key.size());
    if (digits == std::string::npos) return std::nullopt;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + digits, text.data() + text.size(), value);
    if (error != std::errc()) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

int64_t left_on_machine(const std::string& root) {
  const std::string info = content(root + "/proc/meminfo");
  const std::optional<int64_t> available = number_of(info, "MemAvailable:");
  if (!available) return kUnknown;
  return (*available + number_of(info, "SwapFree:").value_or(0)) * 1024;
}

// The names of the two versions of control groups.
struct GroupFiles {
  const char *limit, *usage, *cache;
};
constexpr GroupFiles kFirst = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kSecond = {"/memory.max", "/memory.current", "inactive_file "};

// File contents that the group holds go when it needs memory.
int64_t left_in_group(const std::string& folder, const GroupFiles& files) {
  const std::optional<int64_t> limit = number_of(content(folder + files.limit), ""),
                               usage = number_of(content(folder + files.usage), "");
  if (!limit || !usage) return kUnknown;
  const int64_t cache = number_of(content(folder + "/memory.stat"), files.cache).value_or(0);
  return std::max<int64_t>(0, *limit - *usage + std::min(cache, *usage));
}

// A group's limit holds for all groups inside it.
int64_t left_in_groups(const std::string& mount, std::string path, const GroupFiles& files) {
  int64_t left = kUnknown;
  while (true) {
    left = std::min(left, left_in_group(mount + path, files));
    if (path.empty()) return left;
    path.resize(std::min(path.rfind('/'), path.size() - 1));
  }
}

int64_t left_for_process(const std::string& root) {
  int64_t left = kUnknown;
  std::istringstream lines(content(root + "/proc/self/cgroup"));  // "4:memory:/path" or "0::/path"
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kinds = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    while (path.ends_with('/')) path.pop_back();
    const std::string mount = root + "/sys/fs/cgroup";
    if (kinds == ",,") left = std::min(left, left_in_groups(mount, path, kSecond));
    if (kinds.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_groups(mount + "/memory", path, kFirst));
    }
  }
  return left;
}

std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {" kB", " MB", " GB", " TB", " PB", " EB"};
  size_t unit = 0;
  for (bytes /= 1e3; bytes >= 999.95 && unit + 1 < std::size(kUnits); bytes /= 1e3) ++unit;
  return concat(std::round(bytes * 10) / 10, kUnits[unit]);
}

}  // namespace

int64_t available_memory(const std::string& root) {
  return std::min(left_on_machine(root), left_for_process(root));
}

void check_memory(double bytes, std::string_view who, std::string_view advice) {
  const int64_t left = available_memory();
  MH_CHECK(bytes <= static_cast<double>(left), MemoryError, who, " needs ", bytes_text(bytes), ", but only ",
           bytes_text(static_cast<double>(left)), " of memory are available", advice.empty() ? "" : "; ",
           advice);
}

}  // namespace multihead
