#include "multihead/io/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <span>
#include <string>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/testing/files.h"
#include "multihead/testing/matchers.h"

namespace multihead::io {
namespace {

class NpyTest : public ::testing::Test {
 protected:
  // A file of version 1.0 with the numbers 0 to 5.
  void write(const std::string& header) {
    std::ofstream file(path_, std::ios::binary);
    file << std::string("\x93NUMPY\x01\x00", 8) << static_cast<char>(header.size() & 0xFF)
         << static_cast<char>(header.size() >> 8) << header;
    for (const float x : {0.f, 1.f, 2.f, 3.f, 4.f, 5.f}) {
      file.write(reinterpret_cast<const char*>(&x), sizeof x);
    }
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/x.npy";
};

TEST_F(NpyTest, ReadsWhatIsWritten) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  save_npy(path_, Tensor::of<float>({2, 3}, values));
  const Tensor read = load_npy(path_);
  EXPECT_EQ(read.shape(), Shape({2, 3}));
  EXPECT_THAT(read.to_vector<float>(), ::testing::ElementsAreArray(values));
}

TEST_F(NpyTest, WritesRowsAsTheyCome) {
  const float values[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  save_npy(path_, Tensor::of<float>({3, 3}, values));
  const std::string whole = read_file(path_);
  {
    NpyWriter writer(path_, 3, 3);
    writer.add(Tensor::of<float>({1, 3}, std::span(values).first(3)));
    EXPECT_MESSAGE(writer.add(Tensor::zeros({1, 2})), ShapeError, "expected [rows, 3], got [1, 2]");
    EXPECT_MESSAGE(writer.commit(), ShapeError, "expected 3 rows, got 1");
    EXPECT_EQ(read_file(path_), whole);  // as it was before
    writer.add(Tensor::of<float>({2, 3}, std::span(values).subspan(3)));
    writer.commit();
  }
  EXPECT_EQ(read_file(path_), whole);
}

TEST_F(NpyTest, RefusesFilesThatAreCutOff) {
  save_npy(path_, Tensor::zeros({7, 3}));
  const std::string whole = read_file(path_);
  for (size_t size = 0; size < whole.size(); size += 7) {
    write_file_atomically(path_, whole.substr(0, size));
    EXPECT_THROW(load_npy(path_), FormatError) << size;
  }
}

TEST_F(NpyTest, ReadsHeadersOfOthers) {
  for (const char* header : {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n",
                             "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
                             "{'descr':'<f4','fortran_order':False,'shape':(2,3),}",
                             "{ 'descr':\t'<f4', \n'fortran_order': False, 'shape': (2,\n3),\t}"}) {
    write(header);
    EXPECT_THAT(load_npy(path_).to_vector<float>(), ::testing::ElementsAre(0, 1, 2, 3, 4, 5)) << header;
  }
}

TEST_F(NpyTest, RefusesOtherHeaders) {
  using namespace std::string_literals;
  for (const std::string& header : {
           "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }"s,
           "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (+2, 3), }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2 , 3), }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1234567890123, 3), }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), },"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3),, }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)\0, }"s,
           " {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3"s,
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), }"s,
           ""s,
       }) {
    write(header);
    EXPECT_THROW(load_npy(path_), FormatError) << header;
  }
}

}  // namespace
}  // namespace multihead::io
