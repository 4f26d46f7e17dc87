#include "multihead/core/files.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include "multihead/testing/files.h"

namespace multihead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

void put(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

TEST(FilesTest, WhatIsWrittenIsRead) {
  const TemporaryFolder folder(TemporaryFolder::On::disk);
  const std::string content("a\0b\xff\n", 5);
  write_file_atomically(folder / "x", content);
  EXPECT_EQ(read_file(folder / "x"), content);
  write_file_atomically(folder / "x", "");
  EXPECT_EQ(read_file(folder / "x"), "");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x"));
}

TEST(FilesTest, AnAtomicFileIsThereOnceItIsCommitted) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "x");
    file.contents().write("0123456789");
    file.contents().rewrite(3, "abc");
    EXPECT_FALSE(fs::exists(folder / "x"));
    EXPECT_THROW(file.contents().rewrite(8, "abc"), IoError);
    file.commit();
    EXPECT_EQ(read_file(folder / "x"), "012abc6789");
  }
  {
    AtomicFile file(folder / "x");
    file.contents().write("not committed");
  }
  EXPECT_EQ(read_file(folder / "x"), "012abc6789");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x"));
}

TEST(FilesTest, ReadErrorsNamePathAndReason) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { read_file(folder / "none"); }), HasSubstr("/none\": No such file"));
  EXPECT_THAT(message_of<IoError>([&] { read_file(folder.path()); }), HasSubstr("it is a folder"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { read_file(folder / "pipe"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of<IoError>([&] { read_file("/dev/zero"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of<IoError>([&] { read_file(""); }), HasSubstr("empty"));
  EXPECT_THAT(message_of<IoError>([&] { read_file(std::string("a\0b", 3)); }), HasSubstr("NUL"));
  put(folder / "big", "0123456789");
  EXPECT_THAT(message_of<FormatError>([&] { read_file(folder / "big", 9); }),
              HasSubstr("has 10 bytes, the limit is 9"));
  EXPECT_EQ(read_file(folder / "big", 10), "0123456789");
}

TEST(FilesTest, AFileThatShrinksWhileOpenIsAnErrorNotACrash) {
  const TemporaryFolder folder;
  put(folder / "x", "0123456789");
  const FileReader reader(folder / "x");
  fs::resize_file(folder / "x", 4);
  char buffer[10];
  EXPECT_THAT(message_of<IoError>([&] { reader.read(0, buffer, 10); }), HasSubstr("ends at byte 4"));
}

TEST(FilesTest, AnOpenFileKeepsItsBytesWhenThePathIsReplaced) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", "old");
  const FileReader reader(folder / "x");
  write_file_atomically(folder / "x", "new");
  char buffer[3];
  reader.read(0, buffer, 3);
  EXPECT_EQ(std::string(buffer, 3), "old");
}

TEST(FilesTest, WhatFillThrowsLeavesTheOldFile) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", "old");
  EXPECT_THROW(write_file_atomically(folder / "x",
                                     [](FileWriter& file) {
                                       file.write("half");
                                       throw ValueError("stop");
                                     }),
               ValueError);
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x"));
}

TEST(FilesTest, ReplacingKeepsPermissionsAndLinks) {
  const TemporaryFolder folder;
  put(folder / "x", "old");
  fs::create_symlink("x", folder / "link");
  for (const mode_t mode : {0640, 0666, 0600}) {
    ::chmod((folder / "x").c_str(), mode);
    write_file_atomically(folder / "link", "new");
    EXPECT_TRUE(fs::is_symlink(folder / "link"));
    EXPECT_EQ(read_file(folder / "x"), "new");
    struct stat status = {};
    ::stat((folder / "x").c_str(), &status);
    EXPECT_EQ(status.st_mode & 0777, mode);
  }
}

TEST(FilesTest, RefusesToReplaceWhatIsNotAFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { write_file_atomically(folder.path(), "x"); }), HasSubstr("a folder"));
  EXPECT_THAT(message_of<IoError>([&] { write_file_atomically("/dev/full", "x"); }),
              HasSubstr("not a regular file"));
  EXPECT_THAT(message_of<IoError>([&] { write_file_atomically(folder / "no/x", "x"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(message_of<IoError>([&] { write_file_atomically("/proc/none", "x"); }),
              HasSubstr("/proc/none"));
}

// A power cut would find this: the content is on the disk before the name points to it.
TEST(FilesTest, ContentReachesTheDiskBeforeTheName) {
  if (!fs::exists("/proc/self/fd")) GTEST_SKIP() << "needs /proc to tell which file is flushed";
  const TemporaryFolder folder;
  fs::create_directory(folder / "parent");
  const DiskLog log;
  write_file_atomically(folder / "parent/x", "new");
  EXPECT_THAT(DiskLog::lines(), ElementsAre("flush x.tmp", "rename x.tmp x", "flush parent"));
}

TEST(FilesTest, AKillLeavesNothingBesideTheFile) {
  const TemporaryFolder folder;
  const std::string content(100'003, 'n');
  int left = 0;
  const int kills = kill_everywhere(
      [&] {
        for (const std::string& name : names_in(folder.path())) fs::remove(folder / name);
        write_file_atomically(folder / "x", "old");
      },
      [&] { write_file_atomically(folder / "x", content); },
      [&](int nth) {
        const std::string now = read_file(folder / "x");
        EXPECT_TRUE(now == "old" || now == content) << nth;
        left += static_cast<int>(names_in(folder.path()).size()) - 1;
      });
  EXPECT_GT(kills, 4);
  EXPECT_LE(left, 1);  // between the file's name and its place
}

TEST(FilesTest, AWriterNeverTakesOverAFile) {
  const TemporaryFolder folder;
  put(folder / "x", "mine");
  EXPECT_THAT(message_of<IoError>([&] { FileWriter writer(folder / "x"); }), HasSubstr("File exists"));
  EXPECT_EQ(read_file(folder / "x"), "mine");
  FileWriter writer(folder / "y");
  writer.finish();
  EXPECT_THAT(message_of<IoError>([&] { writer.write("late"); }), HasSubstr("it is already closed"));
}

TEST(FilesTest, EveryFailingCallIsReportedAndLeavesTheOldFile) {
  using Kind = FailingCalls::Kind;
  const std::string content(100'003, 'n');
  for (const Kind kind : FailingCalls::kAll) {
    for (const int error : {ENOSPC, EIO, EDQUOT, EINTR}) {
      for (int nth = 0; nth < 6; ++nth) {
        const TemporaryFolder folder;
        write_file_atomically(folder / "x", "old");
        const int descriptors = open_descriptors();
        bool threw = false, fired = false;
        {
          const FailingCalls failing(kind, nth, error);
          try {
            write_file_atomically(folder / "x", content);
          } catch (const IoError& failure) {
            threw = true;
            EXPECT_THAT(failure.what(), HasSubstr(std::generic_category().message(error)));
            EXPECT_THAT(failure.what(), HasSubstr(folder.path()));
          }
          fired = FailingCalls::fired();
        }
        const std::string now = read_file(folder / "x");
        EXPECT_TRUE(now == "old" || now == content);
        // These calls must survive an interruption: all but rename, which no signal interrupts.
        const bool harmless = kind == Kind::short_write || (error == EINTR && kind != Kind::rename);
        EXPECT_TRUE(now == content || (fired && !harmless)) << int(kind) << " " << error << " " << nth;
        // Closing the parent folder after its flush has nothing left to lose.
        const bool lossless = kind == Kind::close && nth > 0;
        EXPECT_EQ(threw, fired && !harmless && !lossless) << int(kind) << " " << error << " " << nth;
        EXPECT_THAT(names_in(folder.path()), ElementsAre("x"));
        EXPECT_EQ(open_descriptors(), descriptors);
      }
    }
  }
}

TEST(FilesTest, AFileSizeLimitIsAnError) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", "old");
  EXPECT_EQ(in_child([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit = {50'000, 50'000};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              try {
                write_file_atomically(folder / "x", std::string(100'000, 'n'));
              } catch (const IoError& error) {
                return std::string(error.what()).find("File too large") != std::string::npos ? 7 : 2;
              }
              return 1;
            }),
            7);
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x"));
}

TEST(FilesTest, AFullDiskIsAnError) {
  const TemporaryFolder folder;
  const int code = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=65536") != 0)
      return 77;
    write_file_atomically(folder / "x", "old");
    try {
      write_file_atomically(folder / "x", std::string(100'000, 'n'));
      return 1;
    } catch (const IoError& error) {
      if (std::string(error.what()).find("No space left on device") == std::string::npos) return 2;
    }
    if (read_file(folder / "x") != "old") return 3;
    if (names_in(folder.path()).size() != 1) return 4;
    return ::mount("none", folder.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0 ? 77 : [&] {
      try {
        write_file_atomically(folder / "x", "new");
        return 5;
      } catch (const IoError& error) {
        return std::string(error.what()).find("Read-only file system") != std::string::npos ? 7 : 6;
      }
    }();
  });
  if (code == 77) GTEST_SKIP() << "mounting is not permitted here";
  EXPECT_EQ(code, 7);
}

TEST(FilesTest, LockKeepsASecondRunOut) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder / "run");
    const std::string expected = concat("in use by process ", ::getpid());
    EXPECT_THAT(message_of<IoError>([&] { FolderLock second(folder / "run"); }), HasSubstr(expected));
    EXPECT_EQ(in_child([&] {
                try {
                  FolderLock second(folder / "run");
                } catch (const IoError&) {
                  return 7;
                }
                return 1;
              }),
              7);
    EXPECT_THROW(FolderLock second(folder / "run"), IoError);
  }
  EXPECT_THAT(names_in(folder / "run"), testing::IsEmpty());
  const FolderLock again(folder / "run");
}

TEST(FilesTest, LockOfADeadProcessIsFree) {
  const TemporaryFolder folder;
  EXPECT_EQ(in_child([&] {
              new FolderLock(folder.path());
              ::kill(::getpid(), SIGKILL);
              return 0;
            }),
            128 + SIGKILL);
  EXPECT_THAT(names_in(folder.path()), ElementsAre(".lock"));
  const FolderLock lock(folder.path());
}

TEST(FilesTest, OnlyOneOfManyGetsTheLock) {
  const TemporaryFolder folder;
  const std::string counter = folder / "counter";
  put(counter, "");
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      int taken = 0;
      for (int attempt = 0; attempt < 5000 && taken < 20; ++attempt) {
        try {
          const FolderLock lock(folder.path());
          // Creating exclusively fails if another process is in here too.
          FileWriter inside(folder / "inside");
          ++taken;
        } catch (const IoError& error) {
          if (std::string(error.what()).find("cannot create") != std::string::npos) ::_exit(1);
        }
      }
      ::_exit(taken > 0 ? 0 : 2);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_NE(status, 1 << 8) << "two processes held the lock at once";
  }
}

// The holder may leave between our opening of the lock file and our locking of it.
TEST(FilesTest, ALockOnARemovedFileIsNotALock) {
  const TemporaryFolder folder;
  static int removals;
  removals = 1;
  system_calls().open = [](const char* path, int flags, mode_t mode) {
    const int descriptor = SystemCalls().open(path, flags, mode);
    if (removals-- > 0) ::unlink(path);
    return descriptor;
  };
  {
    const FolderLock lock(folder.path());
    system_calls() = SystemCalls();
    EXPECT_THROW(FolderLock second(folder.path()), IoError);
  }
  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(FilesTest, LockErrorsAreNamed) {
  const TemporaryFolder folder;
  put(folder / "file", "");
  EXPECT_THROW(FolderLock lock(folder / "file"), IoError);
  EXPECT_THAT(message_of<IoError>([] { FolderLock lock("/proc/multihead"); }), HasSubstr("/proc/multihead"));
}

// A lock file is a short file of ours with one name. Anything else stays as it is.
TEST(FilesTest, ALockFileOfSomebodyElseIsNeitherWrittenNorRemoved) {
  using Make = std::function<void(const std::string&)>;
  const std::vector<std::pair<const char*, Make>> table = {
      {"a foreign file", [](const std::string& path) { put(path, "precious"); }},
      {"a foreign file", [](const std::string& path) { put(path, "12 monkeys\n"); }},
      {"a file with a second name (a hard link)",
       [](const std::string& path) {
         put(path + "-outside", "12\n");
         fs::create_hard_link(path + "-outside", path);
       }},
      {"a symbolic link",
       [](const std::string& path) {
         put(path + "-outside", "precious");
         fs::create_symlink(path + "-outside", path);
       }},
      {"a symbolic link", [](const std::string& path) { fs::create_symlink("nowhere", path); }},
      {"a folder", [](const std::string& path) { fs::create_directory(path); }},
      {"a pipe", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }}};
  for (const auto& [what, make] : table) {
    const TemporaryFolder folder;
    make(folder / ".lock");
    const auto before = tree_of(folder.path());
    EXPECT_THAT(message_of<ValueError>([&] { FolderLock lock(folder.path()); }),
                HasSubstr(concat("its .lock is ", what, "; move it away")));
    EXPECT_EQ(tree_of(folder.path()), before) << what;
  }
}

TEST(FilesTest, LockFilesThatKilledProcessesLeftAreTaken) {
  for (const char* content : {"", "multihead ", "multihead 123\n", "123\n"}) {
    const TemporaryFolder folder;
    put(folder / ".lock", content);
    {
      const FolderLock lock(folder.path());
      EXPECT_EQ(read_file(folder / ".lock"), concat("multihead ", ::getpid(), "\n"));
    }
    EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
  }
}

TEST(FilesTest, EveryNewFolderIsOnTheDiskInItsParent) {
  if (!fs::exists("/proc/self/fd")) GTEST_SKIP() << "needs /proc to tell which file is flushed";
  const TemporaryFolder folder;
  const std::string root = fs::path(folder.path()).filename().string();
  for (const char* end : {"", "/"}) {
    const DiskLog log;
    make_folder(folder / concat("a/b/c", end));
    EXPECT_THAT(DiskLog::lines(), ElementsAre("flush " + root, "flush a", "flush b"));
    make_folder(folder / concat("a/b/c", end));
    EXPECT_EQ(DiskLog::lines().size(), 3u);
    fs::remove_all(folder / "a");
  }
  put(folder / "file", "");
  EXPECT_THAT(message_of<IoError>([&] { make_folder(folder / "file/x"); }), HasSubstr("in the way"));
}

TEST(FilesTest, WhatANameStandsFor) {
  const TemporaryFolder folder;
  put(folder / "file", "");
  fs::create_symlink("file", folder / "link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(node_at(folder / "none"), Node::absent);
  EXPECT_EQ(node_at(folder / "file/none"), Node::absent);
  EXPECT_EQ(node_at(folder / "file"), Node::file);
  EXPECT_EQ(node_at(folder / "link"), Node::link);
  EXPECT_EQ(node_at(folder / "pipe"), Node::pipe);
  EXPECT_EQ(node_at(folder.path()), Node::folder);
  EXPECT_EQ(node_at("/dev/null"), Node::device);
  EXPECT_STREQ(node_name(Node::pipe), "a pipe");
  EXPECT_STREQ(node_name(Node::device), "a device");
  EXPECT_EQ(read_file(folder / "link"), "");
  EXPECT_THROW(read_file(folder / "link", 1, Links::refuse), IoError);
  EXPECT_EQ(read_file(folder / "file", 1, Links::refuse), "");
}

TEST(FilesTest, AFlushedFileCanBeMovedAndAppendedTo) {
  const TemporaryFolder folder;
  {
    FileWriter file(folder / "x");
    file.write("one ");
    file.flush();
    fs::rename(folder / "x", folder / "y");
    file.write("two");
  }
  EXPECT_EQ(read_file(folder / "y"), "one two");
}

}  // namespace
}  // namespace multihead
