// The system calls behind files.cc, in one table so that tests can make the n-th one fail.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace multihead {

struct SystemCalls {
  int (*open)(const char* path, int flags, mode_t mode) = [](const char* path, int flags, mode_t mode) {
    return ::open(path, flags, mode);
  };
  ssize_t (*pread)(int, void*, size_t, off_t) = ::pread;
  ssize_t (*write)(int, const void*, size_t) = ::write;
  int (*fsync)(int) = ::fsync;
  int (*close)(int) = ::close;
  int (*rename)(const char*, const char*) = ::rename;
  int (*exchange)(const char*, const char*) = [](const char* a, const char* b) {
#ifdef SYS_renameat2
    constexpr unsigned kExchange =
        2;  // Linux's RENAME_EXCHANGE: older musl has neither the name nor the function
    return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, kExchange));
#else  // WebAssembly's
    static_cast<void>(a), static_cast<void>(b);
    errno = ENOSYS;
    return -1;
#endif
  };
  // Gives an open file without a name one. Through /proc, for by its descriptor alone only root may.
  int (*link)(int, const char*) = [](int descriptor, const char* path) {
    const std::string from = "/proc/self/fd/" + std::to_string(descriptor);
    return ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, path, AT_SYMLINK_FOLLOW);
  };
  int (*mkdir)(const char*, mode_t) = ::mkdir;
  int (*unlink)(const char*) = ::unlink;
  int (*rmdir)(const char*) = ::rmdir;
};

SystemCalls& system_calls();

/// Throws IoError: cannot <what> "<path>": <the system's reason>.
[[noreturn]] void fail(std::string_view what, const std::string& path, int error);

}  // namespace multihead
