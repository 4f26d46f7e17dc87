#include "multihead/core/files.h"

#include <sys/file.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/core/threads/system-inl.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;

// close() after EINTR has closed the descriptor on Linux; trying again could close another thread's.
int close_descriptor(int descriptor) {
  const int result = system_calls().close(descriptor);
  return result != 0 && errno == EINTR ? 0 : result;
}

int open_retrying(const std::string& path, int flags, mode_t mode) {
  int descriptor;
  do {
    descriptor = system_calls().open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

int fsync_retrying(int descriptor) {
  int result;
  do {
    result = system_calls().fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  return result;
}

// A new file for writing. Where the system can, it has no name until it is flushed: whatever ends this
// process before that leaves nothing behind.
int create(const std::string& path, mode_t mode) {
  if (::access("/proc/self/fd", X_OK) == 0 && node_at(path) == Node::absent) {
    const int descriptor = open_retrying(parent_of(path), O_WRONLY | O_TMPFILE, mode);
    if (descriptor >= 0) return descriptor;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -1;
  }
  return open_retrying(path, O_WRONLY | O_CREAT | O_EXCL, mode);
}

// Gives a file that has no name yet its own. Errors are those of creating it.
void give_name(int descriptor, const std::string& path) {
  struct stat status = {};
  if (::fstat(descriptor, &status) == 0 && status.st_nlink > 0) return;
  if (system_calls().link(descriptor, path.c_str()) != 0) fail("create", path, errno);
}

// A path with a NUL would be cut short by the system.
void check_path(const std::string& path) {
  MH_CHECK(!path.empty(), IoError, "file path is empty");
  MH_CHECK(path.find('\0') == std::string::npos, IoError, "file path ", quote(path, 400), " holds a NUL");
}

// Unique among processes and threads.
std::string temporary_name(const std::string& path) {
  static std::atomic<uint64_t> counter = 0;
  return concat(path, ".tmp-", ::getpid(), "-", counter++);
}

Node node_of(const struct stat& status) {
  switch (status.st_mode & S_IFMT) {
    case S_IFREG:
      return Node::file;
    case S_IFDIR:
      return Node::folder;
    case S_IFLNK:
      return Node::link;
    case S_IFIFO:
      return Node::pipe;
    case S_IFSOCK:
      return Node::socket;
    default:
      return Node::device;
  }
}

}  // namespace

SystemCalls& system_calls() {
  static SystemCalls calls;
  return calls;
}

void fail(std::string_view what, const std::string& path, int error) {
  throw IoError(concat("cannot ", what, " ", quote(path, 400), ": ", std::generic_category().message(error)));
}

Node node_at(const std::string& path) {
  check_path(path);
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0) return node_of(status);
  if (errno == ENOENT || errno == ENOTDIR) return Node::absent;
  fail("look at", path, errno);
}

const char* node_name(Node node) {
  constexpr std::array<const char*, 7> kNames = {"nothing", "a file",   "a folder", "a symbolic link",
                                                 "a pipe",  "a socket", "a device"};
  return kNames[static_cast<size_t>(node)];
}

FileReader::FileReader(std::string path, Links links) : path_(std::move(path)) {
  check_path(path_);
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int flags = O_RDONLY | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0);
  const int descriptor = open_retrying(path_, flags, 0);
  if (descriptor < 0) fail("open", path_, errno);
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    const bool folder = S_ISDIR(status.st_mode);
    close_descriptor(descriptor);
    throw IoError(concat("cannot read ", quote(path_, 400), ": ",
                         folder ? "it is a folder" : "it is not a regular file"));
  }
  descriptor_ = descriptor;
  size_ = static_cast<uint64_t>(status.st_size);
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) close_descriptor(descriptor_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

void FileReader::read(uint64_t offset, void* data, size_t bytes) const {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const size_t chunk = std::min<size_t>(bytes, size_t{1} << 30);
    const ssize_t got = system_calls().pread(descriptor_, to, chunk, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path_, errno);
    MH_CHECK(got > 0, IoError, "cannot read ", quote(path_, 400), ": it ends at byte ", offset, ", ", bytes,
             " more were expected");
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

std::string read_file(const std::string& path, uint64_t limit, Links links) {
  const FileReader file(path, links);
  MH_CHECK(file.size() <= limit, FormatError, "file ", quote(path, 400), " has ", file.size(),
           " bytes, the limit is ", limit);
  std::string content(static_cast<size_t>(file.size()), '\0');
  file.read(0, content.data(), content.size());
  return content;
}

FileWriter::FileWriter(std::string path, std::optional<uint32_t> mode) : path_(std::move(path)) {
  check_path(path_);
  descriptor_ = create(path_, static_cast<mode_t>(mode.value_or(0666)));
  if (descriptor_ < 0) fail("create", path_, errno);
  if (!mode) return;
  struct stat status = {};
  const bool differs =
      ::fstat(descriptor_, &status) == 0 && (status.st_mode & 0777) != *mode;  // by the umask
  if (!differs || ::fchmod(descriptor_, static_cast<mode_t>(*mode)) == 0) return;
  const int error = errno;
  close_descriptor(descriptor_);
  ::unlink(path_.c_str());
  fail("set the permissions of", path_, error);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) close_descriptor(descriptor_);
  if (!finished_) ::unlink(path_.c_str());
}

void FileWriter::write(const void* data, size_t bytes) {
  MH_CHECK(descriptor_ >= 0, IoError, "cannot write to ", quote(path_, 400), ": it is already closed");
  const auto* from = static_cast<const char*>(data);
  checksum_.update(from, bytes);
  size_ += bytes;
  while (bytes > 0) {
    const ssize_t put = system_calls().write(descriptor_, from, std::min<size_t>(bytes, size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", path_, errno);
    // A regular file that takes nothing without an error would make this loop endless.
    if (put == 0) fail("write", path_, ENOSPC);
    from += put;
    bytes -= static_cast<size_t>(put);
  }
}

void FileWriter::rewrite(uint64_t offset, std::string_view text) {
  MH_CHECK(descriptor_ >= 0 && offset <= size_ && text.size() <= size_ - offset, IoError, "cannot rewrite ",
           quote(path_, 400), ": ", text.size(), " bytes at ", offset, " of ", size_);
  while (!text.empty()) {
    const ssize_t put = ::pwrite(descriptor_, text.data(), text.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", path_, errno);
    text.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
}

void FileWriter::flush() {
  MH_CHECK(descriptor_ >= 0, IoError, "cannot flush ", quote(path_, 400), ": it is already closed");
  if (fsync_retrying(descriptor_) != 0) fail("flush", path_, errno);
  give_name(descriptor_, path_);
  finished_ = true;
}

void FileWriter::finish() {
  if (finished_ && descriptor_ < 0) return;
  if (fsync_retrying(descriptor_) != 0) fail("flush", path_, errno);
  give_name(descriptor_, path_);
  // Some network file systems report a full disk only here.
  if (close_descriptor(std::exchange(descriptor_, -1)) != 0) fail("close", path_, errno);
  finished_ = true;
}

AtomicFile::Target AtomicFile::target_of(const std::string& path) {
  check_path(path);
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return {path, {}};
  // Renaming over a device or a pipe would replace it by a file.
  MH_CHECK(S_ISREG(status.st_mode), IoError, "cannot replace ", quote(path, 400), ": it is ",
           S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  std::error_code error;
  const std::string target = fs::canonical(path, error).string();
  if (error) fail("resolve", path, error.value());
  return {target, status.st_mode & 0777};
}

AtomicFile::AtomicFile(Target target)
    : target_(std::move(target.path)), file_(temporary_name(target_), target.mode) {}

void AtomicFile::commit() {
  file_.finish();
  if (system_calls().rename(file_.path().c_str(), target_.c_str()) != 0) {
    const int error = errno;
    ::unlink(file_.path().c_str());
    fail("replace", target_, error);
  }
  flush_folder(parent_of(target_));
}

void write_file_atomically(const std::string& path, const FillFile& fill) {
  AtomicFile file(path);
  fill(file.contents());
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view content) {
  write_file_atomically(path, [&](FileWriter& file) { file.write(content); });
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) fail("list", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void make_folder(const std::string& path) {
  check_path(path);
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  // "a/b/" is the folder "a/b".
  const std::string name = path.size() > 1 && path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
  if (name != path) return make_folder(name);
  const std::string parent = parent_of(path);
  if (parent != path) make_folder(parent);
  if (system_calls().mkdir(path.c_str(), 0777) != 0) {
    const int reason = errno;
    // Another process may have been faster.
    if (reason == EEXIST && fs::is_directory(path, error)) return;
    MH_CHECK(reason != EEXIST, IoError, "cannot create folder ", quote(path, 400), ": a file is in the way");
    fail("create folder", path, reason);
  }
  flush_folder(parent);
}

void flush_folder(const std::string& path) {
  const int descriptor = open_retrying(path, O_RDONLY | O_DIRECTORY, 0);
  if (descriptor < 0) fail("open folder", path, errno);
  const int result = fsync_retrying(descriptor);
  const int error = errno;
  close_descriptor(descriptor);
  // File systems that cannot flush a folder say EINVAL; they have nothing to flush.
  if (result != 0 && error != EINVAL) fail("flush folder", path, error);
}

namespace {

constexpr std::string_view kLockMark = "multihead ";

// The process that holds a lock writes its number into the file. Nothing: it was killed before it could.
struct LockContent {
  bool ours = false;
  std::string_view process = "";
};

LockContent lock_content(std::string_view text) {
  if (text.starts_with(kLockMark)) text.remove_prefix(kLockMark.size());  // earlier versions had no mark
  const bool number =
      text.ends_with('\n') && text.substr(0, text.size() - 1).find_first_not_of("0123456789") == text.npos;
  if (!number) return {text.empty(), ""};
  return {true, text.substr(0, text.size() - 1)};
}

// The whole of a lock file, which is short if it is one.
std::string lock_text(int descriptor) {
  char text[64];
  const ssize_t got = ::pread(descriptor, text, sizeof text, 0);
  return {text, got > 0 ? static_cast<size_t>(got) : 0};
}

// Whether an open lock file still has its name. The holder removes the file when it leaves: a lock on a
// removed file protects nothing.
bool is_still_at(int descriptor, const std::string& path) {
  struct stat ours = {}, current = {};
  return ::fstat(descriptor, &ours) == 0 && ::lstat(path.c_str(), &current) == 0 &&
         ours.st_ino == current.st_ino && ours.st_dev == current.st_dev;
}

// Null if it is a lock file; else what it is.
const char* foreign_lock(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return node_name(node_of(status));
  if (status.st_nlink > 1) return "a file with a second name (a hard link)";
  return lock_content(lock_text(descriptor)).ours ? nullptr : "a foreign file";
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  make_folder(folder);
  path_ = (fs::path(folder) / kFile).string();
  const auto refuse = [&](const char* what) {
    throw ValueError(concat("folder ", quote(folder, 400), " cannot be locked: its ", kFile, " is ", what,
                            "; move it away or choose another folder"));
  };
  while (descriptor_ < 0) {
    const int descriptor = open_retrying(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (descriptor < 0) {
      const int error = errno;
      const Node node = node_at(path_);
      if (node != Node::file && node != Node::absent) refuse(node_name(node));
      fail("lock", path_, error);
    }
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      const std::string text = lock_text(descriptor);
      close_descriptor(descriptor);
      if (error == EINTR) continue;
      const std::string_view process = lock_content(text).process;
      MH_CHECK(error != EWOULDBLOCK, IoError, "folder ", quote(folder, 400), " is in use by ",
               process.empty() ? "another process" : concat("process ", process));
      fail("lock", path_, error);
    }
    if (!is_still_at(descriptor, path_)) {
      close_descriptor(descriptor);
      continue;
    }
    if (const char* what = foreign_lock(descriptor)) {
      close_descriptor(descriptor);
      refuse(what);
    }
    descriptor_ = descriptor;
  }
  const std::string pid = concat(kLockMark, ::getpid(), "\n");
  // A full disk must not keep a run from being resumed; the number is for messages only.
  if (::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, pid.data(), pid.size(), 0) < 0) return;
}

FolderLock::~FolderLock() {
  if (is_still_at(descriptor_, path_)) ::unlink(path_.c_str());
  close_descriptor(descriptor_);
}

}  // namespace multihead
