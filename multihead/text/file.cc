#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/text/file-inl.h"

namespace multihead::text {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::string reason(int error) { return std::generic_category().message(error); }

std::string read_file(const std::filesystem::path& path) {
  // Not blocking on open: a pipe somebody named must give an error, not wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  MH_CHECK(file.fd >= 0, IoError, path.string(), ": cannot open: ", reason(errno));
  struct stat info;
  MH_CHECK(::fstat(file.fd, &info) == 0, IoError, path.string(), ": cannot stat: ", reason(errno));
  MH_CHECK(!S_ISDIR(info.st_mode), IoError, path.string(), ": expected a file, got a directory");
  MH_CHECK(S_ISREG(info.st_mode), IoError, path.string(), ": expected a regular file, got a device or pipe");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.fd, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    MH_CHECK(got >= 0, IoError, path.string(), ": cannot read: ", reason(errno));
    if (got == 0) break;  // it shrank meanwhile
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += ".tmp-" + std::to_string(::getpid());
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("create");
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what) const {
  throw IoError(concat(path_.string(), ": cannot ", what, ": ", reason(errno)));
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void AtomicFile::rewrite(size_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<size_t>(put);
  }
}

void AtomicFile::commit() {
  if (::fsync(file_) != 0) fail("sync");
  if (::close(std::exchange(file_, -1)) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    fail("replace");
  }
  // Some file systems cannot sync a directory; the file itself is safe by then.
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  const Descriptor folder{::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);
}

}  // namespace multihead::text
