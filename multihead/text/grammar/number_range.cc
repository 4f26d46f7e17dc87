#include <algorithm>
#include <charconv>

#include "multihead/core/error.h"
#include "multihead/text/grammar/json_program-inl.h"

namespace multihead::text::grammar {
namespace {

constexpr size_t kMostRangeDigits = 100;
constexpr int64_t kMostMultiple = 1'000'000'000'000'000;

// Whole numbers of any size: digits without zeros in front ("0" is zero).
std::string trimmed_digits(std::string digits) {
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return digits;
}

int compare_digits(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

std::string plus_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0; digits[i] = '0') {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
  }
  return "1" + digits;
}

std::string minus_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0; digits[i] = '9') {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
  }
  return trimmed_digits(std::move(digits));
}

struct Signed {
  bool is_negative = false;
  std::string digits = "0";
};

// One unit more or less.
Signed moved(Signed value, bool up) {
  if (value.is_negative == up && value.digits != "0") {
    value.digits = minus_one(std::move(value.digits));
    value.is_negative = value.is_negative && value.digits != "0";
    return value;
  }
  value.digits = plus_one(std::move(value.digits));
  value.is_negative = !up;
  return value;
}

struct Decimal {
  bool is_negative = false;
  std::string whole, fraction;
};

Decimal decimal_of(const Json& number) {
  std::string text;
  if (number.is_integer()) {
    text = std::to_string(number.as_int());
  } else if (!number.digits().empty()) {
    text = number.digits();
  } else {
    std::string digits(1500, '\0');
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number.as_double(),
                                   std::chars_format::fixed);
    digits.resize(static_cast<size_t>(end.ptr - digits.data()));
    text = digits;
  }
  Decimal decimal;
  decimal.is_negative = text.starts_with('-');
  if (decimal.is_negative) text.erase(0, 1);
  const size_t dot = std::min(text.find('.'), text.size());
  decimal.whole = text.substr(0, dot);
  if (dot < text.size()) decimal.fraction = text.substr(dot + 1);
  while (decimal.fraction.ends_with('0')) decimal.fraction.pop_back();
  return decimal;
}

// The first unit at or above a number (or, downwards, the last at or below it), or strictly beyond it.
Signed unit_of(const Json& number, size_t places, bool up, bool is_strict) {
  const Decimal decimal = decimal_of(number);
  std::string fraction = decimal.fraction;
  const bool is_exact = fraction.size() <= places;
  fraction.resize(places, '0');
  Signed value = {.is_negative = decimal.is_negative, .digits = trimmed_digits(decimal.whole + fraction)};
  if (value.digits == "0") value.is_negative = false;
  if (is_exact) return is_strict ? moved(std::move(value), up) : value;
  return decimal.is_negative == up ? value : moved(std::move(value), up);
}

bool is_less(const Signed& a, const Signed& b) {
  if (a.is_negative != b.is_negative) return a.is_negative;
  const int order = compare_digits(a.digits, b.digits);
  return a.is_negative ? order > 0 : order < 0;
}

// Whether a side has a number whose digits lie between these two, of equal length.
bool meets(const NumberRange::Side& side, const std::string& low, const std::string& high, int64_t multiple) {
  std::string least = trimmed_digits(low), most = trimmed_digits(high);
  if (compare_digits(least, side.least) < 0) least = side.least;
  if (side.most && compare_digits(most, *side.most) > 0) most = *side.most;
  if (compare_digits(least, most) > 0) return false;
  if (multiple == 0) return true;
  const int64_t last = std::stoll(most) / multiple * multiple;
  return last >= std::stoll(least);
}

// 03, which JSON does not have.
bool is_padded(std::string_view digits) { return digits.size() > 1 && digits[0] == '0' && digits[1] != '.'; }

}  // namespace

NumberRange number_range(const NumberBounds& bounds) {
  NumberRange range = {.multiple_of = bounds.multiple_of};
  MH_CHECK(bounds.multiple_of <= kMostMultiple, ValueError, "JSON schema: multipleOf must be at most ",
           kMostMultiple);
  const bool is_integer = bounds.is_integer || bounds.multiple_of > 0;
  std::optional<Signed> least, most;
  if (!is_integer) {
    range.places = 20;
    for (const auto* bound : {&bounds.least, &bounds.most, &bounds.above, &bounds.below}) {
      if (*bound) range.places = std::max(range.places, decimal_of(**bound).fraction.size() + 3);
    }
  }
  const auto raise = [&](const std::optional<Json>& bound, bool is_strict) {
    if (!bound) return;
    Signed unit = unit_of(*bound, range.places, true, is_strict);
    if (!least || is_less(*least, unit)) least = std::move(unit);
  };
  const auto lower = [&](const std::optional<Json>& bound, bool is_strict) {
    if (!bound) return;
    Signed unit = unit_of(*bound, range.places, false, is_strict);
    if (!most || is_less(unit, *most)) most = std::move(unit);
  };
  raise(bounds.least, false), raise(bounds.above, true);
  lower(bounds.most, false), lower(bounds.below, true);
  if (least && most && is_less(*most, *least)) return range;
  const bool starts_negative = !least || least->is_negative, ends_negative = most && most->is_negative;
  if (!ends_negative) {
    range.positive = {.exists = true};
    if (!starts_negative) range.positive.least = least->digits;
    if (most) range.positive.most = most->digits;
  }
  if (starts_negative) {
    range.negative = {.exists = true, .least = "1"};  // zero has no sign
    if (ends_negative) range.negative.least = most->digits;
    if (least) range.negative.most = least->digits;
  }
  for (NumberRange::Side* side : {&range.positive, &range.negative}) {
    if (range.multiple_of == 0 || !side->exists) continue;
    const std::string highest(18, '9');  // what an int64 holds
    if (!side->most || compare_digits(*side->most, highest) > 0) side->most = highest;
    side->exists = compare_digits(side->least, highest) <= 0 &&
                   meets(*side, side->least, *side->most, range.multiple_of);
  }
  return range;
}

bool NumberRange::can_begin(std::string_view text) const {
  const bool is_negative = text.starts_with('-');
  const Side& side = is_negative ? negative : positive;
  if (is_negative) text.remove_prefix(1);
  if (!side.exists || text.empty()) return side.exists;
  const size_t dot = text.find('.');
  std::string digits(text);
  const auto fits = [&](size_t more) {
    return meets(side, digits + std::string(more, '0'), digits + std::string(more, '9'), multiple_of);
  };
  if (dot != std::string_view::npos) {
    digits.erase(dot, 1);
    const size_t used = text.size() - dot - 1;
    return used <= places && (used > 0 || places > 0) && fits(places - used);
  }
  if (is_padded(digits)) return false;
  if (digits[0] == '0') return fits(places);
  const size_t longest = multiple_of > 0 ? 18 : side.most ? side.most->size() : kMostRangeDigits + places;
  for (size_t more = places; digits.size() + more <= longest; ++more) {
    if (fits(more)) return true;
  }
  return false;
}

bool NumberRange::has(std::string_view text) const {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const Side& side = is_negative ? negative : positive;
  if (!side.exists || text.empty() || text.back() == '.' || is_padded(text)) return false;
  std::string digits(text);
  const size_t dot = text.find('.');
  if (dot != std::string_view::npos) digits.erase(dot, 1);
  const size_t used = dot == std::string_view::npos ? 0 : text.size() - dot - 1;
  if (used > places) return false;
  digits.append(places - used, '0');
  return meets(side, digits, digits, multiple_of);
}

// What is finer than a unit counts as the next one away from zero, so that 1e-30 is above 0.
bool NumberRange::holds(const Json& number) const {
  const Decimal decimal = decimal_of(number);
  if (places == 0 && !decimal.fraction.empty()) return false;
  const Signed unit = unit_of(number, places, !decimal.is_negative, false);
  const Side& side = unit.is_negative ? negative : positive;
  return side.exists && meets(side, unit.digits, unit.digits, multiple_of);
}

}  // namespace multihead::text::grammar
