#include "cli/rival_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cli/verb.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

constexpr const char kScript[] =
#include "attention_rivals.inc"
    ;

void check_signals() {
  if (train::StopSignals::received() != 0) throw Interrupted();
}

// Returns when `fd` can be used, looking for signals meanwhile.
void wait_for(int fd, short events) {
  pollfd p = {fd, events, 0};
  while (poll(&p, 1, 200) <= 0) check_signals();
}

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw IoError(concat("pipe: ", std::strerror(errno)));
    read = ends[0], write = ends[1];
  }
};

// In the child, between fork and exec: system calls only.
[[noreturn]] void become(char* const* arguments, const Pipe& in, const Pipe& out, int errors, int report) {
  setpgid(0, 0);  // Ctrl-C reaches our parent, which ends us and all that we start
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(in.read, 0), dup2(out.write, 1), dup2(errors, 2);
  signal(SIGPIPE, SIG_DFL);
  execvp(arguments[0], arguments);
  const int why = errno;
  [[maybe_unused]] const ssize_t written = write(report, &why, sizeof(why));
  _exit(127);
}

}  // namespace

RivalProcess::RivalProcess(const std::string& python, const std::string& rival, int threads) : name_(rival) {
  start(python, threads);
  try {
    const Json hello = read_reply().message;
    if (const Json* error = hello.find("error")) {
      throw UnsupportedError(concat(python, " cannot run ", rival, ": ", error->as_string(),
                                    "; name another interpreter with --python, or leave ", rival,
                                    " out of --vs"));
    }
    version_ = hello.at("version").as_string();
  } catch (...) {
    stop();
    throw;
  }
}

RivalProcess::~RivalProcess() { stop(); }

void RivalProcess::start(const std::string& python, int threads) {
  const std::string count = std::to_string(threads);
  for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) setenv(variable, count.c_str(), 1);
  const char* arguments[] = {python.c_str(), "-c", kScript, name_.c_str(), count.c_str(), nullptr};
  std::FILE* errors = std::tmpfile();
  if (errors == nullptr) throw IoError(concat("a temporary file: ", std::strerror(errno)));
  errors_ = fcntl(fileno(errors), F_DUPFD_CLOEXEC, 3);
  std::fclose(errors);
  const Pipe in, out, failure;
  pid_ = fork();
  if (pid_ == 0)
    become(const_cast<char* const*>(arguments), in, out, errors_, failure.write);  // NOLINT: exec's type
  close(in.read), close(out.write), close(failure.write);
  to_ = in.write, from_ = out.read;
  if (pid_ < 0) throw IoError(concat("fork: ", std::strerror(errno)));
  int why = 0;
  const ssize_t got = read(failure.read, &why, sizeof(why));
  close(failure.read);
  if (got == sizeof(why)) {
    stop();
    throw UnsupportedError(concat("--python ", quote(python), " cannot be started: ", std::strerror(why)));
  }
  for (const int fd : {to_, from_}) fcntl(fd, F_SETFL, O_NONBLOCK);
}

void RivalProcess::stop() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL), kill(pid_, SIGKILL);  // the first fails if it died before it had its group
    waitpid(pid_, nullptr, 0);
  }
  for (int* fd : {&to_, &from_, &errors_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  pid_ = -1;
}

// Its last words say why.
void RivalProcess::died() {
  char text[4096];
  const off_t end = lseek(errors_, 0, SEEK_END);
  const auto size = std::min<off_t>(end, sizeof(text));
  const ssize_t got = pread(errors_, text, static_cast<size_t>(size), end - size);
  std::string_view words(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  while (!words.empty() && words.back() == '\n') words.remove_suffix(1);
  words = words.substr(words.rfind('\n') + 1);
  throw std::runtime_error(concat("the process of ", name_, " ended: ", quote(words, 300)));
}

void RivalProcess::send(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    wait_for(to_, POLLOUT);
    const ssize_t done = write(to_, at, std::min<size_t>(bytes, 1 << 20));
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (done < 0) died();
    at += done, bytes -= static_cast<size_t>(done);
  }
}

void RivalProcess::receive(void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  const size_t buffered = std::min(bytes, buffer_.size());
  std::memcpy(at, buffer_.data(), buffered);
  buffer_.erase(0, buffered);
  at += buffered, bytes -= buffered;
  while (bytes > 0) {
    wait_for(from_, POLLIN);
    const ssize_t done = read(from_, at, bytes);
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (done <= 0) died();
    at += done, bytes -= static_cast<size_t>(done);
  }
}

RivalReply RivalProcess::read_reply() {
  size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    char piece[4096];
    wait_for(from_, POLLIN);
    const ssize_t got = read(from_, piece, sizeof(piece));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) died();
    buffer_.append(piece, static_cast<size_t>(got));
  }
  RivalReply reply{Json::parse(std::string_view(buffer_).substr(0, end), name_), {}};
  buffer_.erase(0, end + 1);
  if (const Json* outputs = reply.message.find("outputs")) {
    for (const Json& sizes : outputs->items()) {
      Shape shape;
      for (const Json& size : sizes.items()) shape.push_back(size.as_int());
      reply.tensors.push_back(Tensor::empty(shape));
      receive(reply.tensors.back().raw(), reply.tensors.back().bytes());
    }
  }
  return reply;
}

RivalReply RivalProcess::ask(const Json& message, const std::vector<Tensor>& tensors) {
  const std::string line = message.dump() + "\n";
  send(line.data(), line.size());
  for (const Tensor& t : tensors) send(t.raw(), t.bytes());
  return read_reply();
}

}  // namespace multihead::cli
