#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

// utf8proc 2.8 knows Unicode 15.0. These are the letters and numbers assigned since (15.1 and 16.0), so that
// pieces equal those of current Hugging Face tokenizers on every code point; a newer utf8proc never looks
// here.
constexpr CodePoints kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr CodePoints kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                      {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                      {0x1E5F1, 0x1E5FA}};

// Hugging Face's tokenizers know the categories of Unicode 8; these became punctuation since. Found by
// comparing every code point with tokenizers 0.23.
constexpr CodePoints kLaterPunctuation[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},     {0xC84, 0xC84},
    {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},   {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59},
    {0x10F86, 0x10F89}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C},
    {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71},
    {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};

constexpr CodePoints kNewUpper[] = {
    {0x1C89, 0x1C89}, {0xA7CB, 0xA7CC}, {0xA7DA, 0xA7DA}, {0xA7DC, 0xA7DC}, {0x10D50, 0x10D65}};
constexpr CodePoints kNewLower[] = {{0x1C8A, 0x1C8A}, {0xA7CD, 0xA7CD}, {0xA7DB, 0xA7DB}, {0x10D70, 0x10D85}};

constexpr CodePoints kNewMarks[] = {
    {0x897, 0x897},     {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
    {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF}};
constexpr CodePoints kNewSymbols[] = {
    {0x1B4E, 0x1B4F},   {0x1B7F, 0x1B7F},   {0x2427, 0x2429},   {0x2FFC, 0x2FFF},   {0x31E4, 0x31E5},
    {0x31EF, 0x31EF},   {0x10D6E, 0x10D6E}, {0x10D8E, 0x10D8F}, {0x113D4, 0x113D5}, {0x113D7, 0x113D8},
    {0x11BE1, 0x11BE1}, {0x16D6D, 0x16D6F}, {0x1CC00, 0x1CCEF}, {0x1CD00, 0x1CEB3}, {0x1E5FF, 0x1E5FF},
    {0x1F8B2, 0x1F8BB}, {0x1F8C0, 0x1F8C1}, {0x1FA89, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FABE, 0x1FABE},
    {0x1FAC6, 0x1FAC6}, {0x1FADC, 0x1FADC}, {0x1FADF, 0x1FADF}, {0x1FAE9, 0x1FAE9}, {0x1FBCB, 0x1FBEF}};

CharCase case_of_new(int32_t c) {
  if (contains(kNewUpper, c)) return CharCase::upper;
  if (contains(kNewLower, c)) return CharCase::lower;
  if (contains(kNewSymbols, c)) return CharCase::symbol;
  return contains(kNewLetters, c) || contains(kNewMarks, c) ? CharCase::both : CharCase::neither;
}

bool is_white_space(int32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  if (c < 0x2000) return c == 0x85 || c == 0xA0 || c == 0x1680;
  return c <= 0x200A || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

CharClass classify(int32_t c) {
  if (is_white_space(c)) return CharClass::space;
  const utf8proc_category_t category = utf8proc_category(c);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return CharClass::letter;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return CharClass::number;
  if (category == UTF8PROC_CATEGORY_CN) {
    if (contains(kNewLetters, c)) return CharClass::letter;
    if (contains(kNewNumbers, c)) return CharClass::number;
  }
  return CharClass::other;
}

struct ByteAlphabet {
  std::array<int32_t, 256> symbol;  // of a byte
  std::array<int16_t, 324> byte;    // of a symbol
};

// Printable Latin-1 characters stand for themselves, the 68 others for U+0100 onwards.
ByteAlphabet make_byte_alphabet() {
  ByteAlphabet alphabet;
  alphabet.byte.fill(-1);
  int32_t next = 0x100;
  for (int32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
    alphabet.symbol[b] = printable ? b : next++;
    alphabet.byte[alphabet.symbol[b]] = static_cast<int16_t>(b);
  }
  return alphabet;
}

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet = make_byte_alphabet();
  return alphabet;
}

}  // namespace

bool contains(std::span<const CodePoints> ranges, int32_t c) {
  const auto behind = std::ranges::upper_bound(ranges, c, {}, &CodePoints::first);
  return behind != ranges.begin() && c <= behind[-1].last;
}

CharClass char_class(int32_t c) {
  static const auto ascii = [] {
    std::array<CharClass, 128> table;
    for (int32_t i = 0; i < 128; ++i) table[i] = classify(i);
    return table;
  }();
  if (c < 0) return CharClass::other;
  return c < 128 ? ascii[c] : classify(c);
}

CharCase char_case(int32_t c) {
  if (c < 0) return CharCase::neither;
  const utf8proc_category_t category = utf8proc_category(c);
  if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT) return CharCase::upper;
  if (category == UTF8PROC_CATEGORY_LL) return CharCase::lower;
  if (category >= UTF8PROC_CATEGORY_LM && category <= UTF8PROC_CATEGORY_ME) return CharCase::both;
  if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO) return CharCase::symbol;
  return category == UTF8PROC_CATEGORY_CN ? case_of_new(c) : CharCase::neither;
}

bool is_punctuation(int32_t c) {
  if (c < 0x80) return c > 0x20 && c < 0x7F && char_class(c) == CharClass::other;
  if (c == 0x166D || c == 0x111C9) return true;
  const utf8proc_category_t category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO &&
         !contains(kLaterPunctuation, c);
}

bool is_word_character(int32_t c) {
  if (c < 0x80) return c == '_' || char_class(c) == CharClass::letter || char_class(c) == CharClass::number;
  if (c == 0x200C || c == 0x200D) return true;
  // Other_Alphabetic beyond letters and marks: letters in circles and squares.
  constexpr CodePoints kEnclosed[] = {
      {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  if (char_class(c) == CharClass::letter || contains(kEnclosed, c)) return true;
  const utf8proc_category_t category = utf8proc_category(c);
  if (category == UTF8PROC_CATEGORY_CN) return contains(kNewMarks, c) || contains(kNewNumbers, c);
  return (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

void append_utf8(int32_t code_point, std::string& out) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(code_point, buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

int32_t byte_to_symbol(uint8_t byte) { return byte_alphabet().symbol[byte]; }

int32_t symbol_to_byte(int32_t code_point) {
  const auto& table = byte_alphabet().byte;
  return code_point >= 0 && code_point < std::ssize(table) ? table[code_point] : -1;
}

}  // namespace multihead::text
