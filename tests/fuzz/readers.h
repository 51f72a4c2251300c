#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Readers of what the library writes for others: written from the formats' definitions, and stricter than most. They
// share nothing with the writers. Bytes that do not fit end the process (fuzz.h, wrong()).
namespace rankloom::fuzz {

// A value of JSON or of a pickle.
struct Value {
  enum class Kind : uint8_t { kNull, kBool, kInteger, kReal, kText, kList, kDict };

  // The member of a dict; wrong() if there is none.
  const Value& at(std::string_view name) const;
  bool has(std::string_view name) const;

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  std::string text = {};
  std::vector<Value> list = {};
  std::vector<std::pair<std::string, Value>> dict = {};  // a number that is a key is written out
};

// RFC 8259: UTF-8, no name twice in an object, no lone half of a surrogate pair, whole numbers within 64 bits.
Value read_json(std::string_view text);

// Protocol 2 of Python's pickle, as far as dumps need it: dicts, lists, pairs (as lists), texts, numbers.
Value read_pickle(std::string_view bytes);

// A Chakra trace: messages after their lengths, with the published numbers; texts are UTF-8. Returns the names of all
// nodes.
std::vector<std::string> read_chakra(std::string_view bytes);

// Whether `text` is UTF-8 by the table of the Unicode standard (3-7).
bool is_utf8(std::string_view text);

}  // namespace rankloom::fuzz
