#include "multihead/io/npy.h"

#include <cctype>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead::io {
namespace {

constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kPreamble = 10;  // the magic and two bytes of length

}  // namespace

NpyWriter::NpyWriter(const std::string& path, int64_t rows, int64_t columns)
    : file_(path), rows_(rows), columns_(columns) {
  std::string header =
      concat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ", columns, "), }");
  while ((kPreamble + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  file_.contents().write(kMagic);
  const char length[] = {static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  file_.contents().write(length, sizeof length);
  file_.contents().write(header);
}

void NpyWriter::add(const Tensor& rows) {
  MH_CHECK(rows.dtype() == Dtype::f32, DtypeError, "save_npy: expected f32, got ", rows.dtype());
  MH_CHECK(rows.rank() == 2 && rows.size(1) == columns_, ShapeError, "save_npy: expected [rows, ", columns_,
           "], got ", rows.shape());
  const Tensor values = rows.contiguous();
  file_.contents().write(values.data<float>(), static_cast<size_t>(values.numel()) * sizeof(float));
  added_ += rows.size(0);
}

void NpyWriter::commit() {
  MH_CHECK(added_ == rows_, ShapeError, "save_npy: expected ", rows_, " rows, got ", added_);
  file_.commit();
}

void save_npy(const std::string& path, const Tensor& matrix) {
  MH_CHECK(matrix.rank() == 2, ShapeError, "save_npy: expected [rows, columns], got ", matrix.shape());
  NpyWriter writer(path, matrix.size(0), matrix.size(1));
  writer.add(matrix);
  writer.commit();
}

Tensor load_npy(const std::string& path) {
  const FileReader file(path);
  std::string start(kPreamble, '\0');
  MH_CHECK(file.size() >= kPreamble, FormatError, path, ": is not an .npy file");
  file.read(0, start.data(), start.size());
  MH_CHECK(start.starts_with(kMagic), FormatError, path, ": is not an .npy file of version 1.0");
  const size_t length = static_cast<unsigned char>(start[8]) | static_cast<unsigned char>(start[9]) << 8;
  MH_CHECK(kPreamble + length <= file.size(), FormatError, path, ": the header is truncated");
  std::string header(length, '\0');
  file.read(kPreamble, header.data(), length);
  char sizes[2][13];  // a space of the pattern stands for any white space, or none
  int end = 0;
  const int found =
      std::sscanf(header.c_str(), "{ 'descr': '<f4', 'fortran_order': False, 'shape': (%12[0-9], %12[0-9])%n",
                  sizes[0], sizes[1], &end);
  std::string rest = header.substr(static_cast<size_t>(end));
  if (rest.starts_with(',')) rest.erase(0, 1);
  std::erase_if(rest, [](unsigned char c) { return std::isspace(c) != 0; });
  MH_CHECK(found == 2 && end > 0 && rest == "}", FormatError, path,
           ": expected a matrix of f32 in C order, got ", quote(header, 120));
  const int64_t rows = std::stoll(sizes[0]), columns = std::stoll(sizes[1]);
  const uint64_t bytes = file.size() - kPreamble - length;
  const bool fits = columns == 0
                        ? bytes == 0
                        : bytes % 4 == 0 && bytes / 4 % static_cast<uint64_t>(columns) == 0 &&
                              bytes / 4 / static_cast<uint64_t>(columns) == static_cast<uint64_t>(rows);
  MH_CHECK(fits, FormatError, path, ": holds ", bytes, " bytes for a matrix of ", rows, " x ", columns,
           " f32");
  Tensor out = Tensor::empty({rows, columns}, Dtype::f32);
  if (bytes > 0) file.read(kPreamble + length, out.data<float>(), static_cast<size_t>(bytes));
  return out;
}

}  // namespace multihead::io
