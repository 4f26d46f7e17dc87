// Helpers of tests that use files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/system-inl.h"

namespace multihead {

/// An empty folder for one test: in memory where that is possible, because thousands of fsync take minutes.
class TemporaryFolder {
 public:
  enum class On { memory, disk };

  explicit TemporaryFolder(On place = On::memory) {
    if (place == On::memory) path_ = make("/dev/shm");
    if (path_.empty()) path_ = make(std::filesystem::temp_directory_path());
    if (path_.empty()) throw IoError("no place for temporary files");
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  static std::string make(const std::filesystem::path& parent) {
    std::string pattern = (parent / "multihead-test-XXXXXX").string();
    const char* made = ::mkdtemp(pattern.data());
    return made == nullptr ? "" : made;
  }

  std::string path_;
};

/// The message of the error that `f` must throw: exactly an E.
template <class E>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    EXPECT_TRUE(typeid(error) == typeid(E));
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Makes the n-th system call of a kind fail while it lives.
class FailingCalls {
 public:
  enum class Kind { open, pread, write, short_write, fsync, close, rename, exchange, mkdir, unlink };
  static constexpr Kind kAll[] = {Kind::open,  Kind::pread,  Kind::write,    Kind::short_write, Kind::fsync,
                                  Kind::close, Kind::rename, Kind::exchange, Kind::mkdir,       Kind::unlink};

  FailingCalls(Kind kind, int nth, int error) {
    kind_ = kind;
    left_ = nth;
    error_ = error;
    SystemCalls& calls = system_calls();
    calls.open = [](const char* path, int flags, mode_t mode) {
      return fails(Kind::open) ? -1 : SystemCalls().open(path, flags, mode);
    };
    calls.pread = [](int descriptor, void* data, size_t bytes, off_t offset) -> ssize_t {
      return fails(Kind::pread) ? -1 : ::pread(descriptor, data, bytes, offset);
    };
    calls.write = [](int descriptor, const void* data, size_t bytes) -> ssize_t {
      if (fails(Kind::write)) return -1;
      return ::write(descriptor, data, fails(Kind::short_write) ? (bytes + 1) / 2 : bytes);
    };
    calls.fsync = [](int descriptor) { return fails(Kind::fsync) ? -1 : ::fsync(descriptor); };
    calls.close = [](int descriptor) {
      const int result = ::close(descriptor);
      return fails(Kind::close) ? -1 : result;
    };
    calls.rename = [](const char* from, const char* to) {
      return fails(Kind::rename) ? -1 : ::rename(from, to);
    };
    calls.exchange = [](const char* a, const char* b) {
      return fails(Kind::exchange) ? -1 : SystemCalls().exchange(a, b);
    };
    calls.mkdir = [](const char* path, mode_t mode) { return fails(Kind::mkdir) ? -1 : ::mkdir(path, mode); };
    calls.unlink = [](const char* path) { return fails(Kind::unlink) ? -1 : ::unlink(path); };
  }
  ~FailingCalls() { system_calls() = SystemCalls(); }
  /// True once the n-th call came.
  static bool fired() { return left_ < 0; }

 private:
  static bool fails(Kind kind) {
    if (kind != kind_ || left_-- != 0) return false;
    errno = error_;
    return true;
  }
  static inline Kind kind_;
  static inline int left_;
  static inline int error_;
};

/// Ends the process, as a kill would, instead of the n-th call that changes something on the disk. A write is
/// cut in half.
class KillingCalls {
 public:
  static constexpr int kKilled = 99;

  explicit KillingCalls(int nth) {
    left_ = nth;
    SystemCalls& calls = system_calls();
    calls.open = [](const char* path, int flags, mode_t mode) {
      if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) step();
      return SystemCalls().open(path, flags, mode);
    };
    calls.write = [](int descriptor, const void* data, size_t bytes) -> ssize_t {
      if (left_ == 0 && ::write(descriptor, data, bytes / 2) < 0) ::_exit(1);
      step();
      return ::write(descriptor, data, bytes);
    };
    calls.fsync = [](int descriptor) { return step(), ::fsync(descriptor); };
    calls.rename = [](const char* from, const char* to) { return step(), ::rename(from, to); };
    calls.exchange = [](const char* a, const char* b) { return step(), SystemCalls().exchange(a, b); };
    calls.link = [](int descriptor, const char* path) {
      return step(), SystemCalls().link(descriptor, path);
    };
    calls.mkdir = [](const char* path, mode_t mode) { return step(), ::mkdir(path, mode); };
    calls.unlink = [](const char* path) { return step(), ::unlink(path); };
    calls.rmdir = [](const char* path) { return step(), ::rmdir(path); };
  }
  ~KillingCalls() { system_calls() = SystemCalls(); }

 private:
  static void step() {
    if (left_-- == 0) ::_exit(kKilled);
  }
  static inline int left_;
};

/// Runs f in a child; its exit code.
inline int in_child(const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(f());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Runs f in children that are killed at its first, second … change on the disk, until one ends by itself;
/// calls `after` with the number of each kill. Returns how many there were. `before` prepares each round.
inline int kill_everywhere(const std::function<void()>& before, const std::function<void()>& f,
                           const std::function<void(int)>& after) {
  for (int nth = 0;; ++nth) {
    before();
    const int code = in_child([&] {
      const KillingCalls killing(nth);
      try {
        f();
      } catch (const std::exception& error) {
        return std::fprintf(stderr, "%s\n", error.what()), 1;
      }
      return 0;
    });
    EXPECT_TRUE(code == 0 || code == KillingCalls::kKilled) << "kill " << nth << ": exit code " << code;
    if (code != KillingCalls::kKilled) return nth;
    after(nth);
  }
}

/// Every file with its content, every link with its target, everything else with its kind; links not
/// followed.
inline std::map<std::string, std::string> tree_of(const std::string& folder) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().string();
    const Node node = node_at(path);
    tree[path] = node == Node::file   ? "file " + read_file(path)
                 : node == Node::link ? "link " + std::filesystem::read_symlink(path).string()
                                      : node_name(node);
  }
  return tree;
}

/// Writes down what reaches the disk and in which order while it lives: "flush x", "rename x.tmp x".
class DiskLog {
 public:
  DiskLog() {
    lines_.clear();
    system_calls().fsync = [](int descriptor) {
      std::error_code ignored;
      lines_.push_back("flush " + last_part(std::filesystem::read_symlink(
                                      "/proc/self/fd/" + std::to_string(descriptor), ignored)));
      return ::fsync(descriptor);
    };
    // A file that has no name when it is flushed gets it next.
    system_calls().link = [](int descriptor, const char* path) {
      const bool flushed = !lines_.empty() && lines_.back().ends_with(" (deleted)");
      if (flushed) lines_.pop_back();
      lines_.push_back((flushed ? "flush " : "name without a flush ") + last_part(path));
      return SystemCalls().link(descriptor, path);
    };
    system_calls().rename = [](const char* from, const char* to) {
      lines_.push_back("rename " + last_part(from) + " " + last_part(to));
      return ::rename(from, to);
    };
    system_calls().unlink = [](const char* path) {
      lines_.push_back("remove " + last_part(path));
      return ::unlink(path);
    };
    system_calls().exchange = [](const char* a, const char* b) {
      lines_.push_back("exchange " + last_part(a) + " " + last_part(b));
      return SystemCalls().exchange(a, b);
    };
  }
  ~DiskLog() { system_calls() = SystemCalls(); }
  static const std::vector<std::string>& lines() { return lines_; }

 private:
  // The numbers in the names of temporary files differ from run to run.
  static std::string last_part(const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    if (name.starts_with(".multihead-")) return ".multihead";
    const size_t number = name.find(".tmp-");
    return number == std::string::npos ? name : name.substr(0, number + 4);
  }
  static inline std::vector<std::string> lines_;
};

inline int open_descriptors() {
  int count = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) count += ::fcntl(descriptor, F_GETFD) >= 0;
  return count;
}

}  // namespace multihead
