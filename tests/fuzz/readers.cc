#include "tests/fuzz/readers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <set>

#include "tests/fuzz/fuzz.h"

namespace rankloom::fuzz {
namespace {

constexpr int kDeepest = 64;

void must(bool good, std::string_view what) {
  if (!good) wrong(what);
}

void must_have_each_name_once(const Value& dict) {
  std::set<std::string_view> names;
  for (const auto& [name, value] : dict.dict) must(names.insert(name).second, "a key stands twice in a dict");
}

// ---- JSON

class Json {
 public:
  explicit Json(std::string_view text) : text_(text) {}

  Value document() {
    Value value = any(0);
    space();
    must(at_ == text_.size(), "JSON goes on after its value");
    return value;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char next() {
    must(at_ < text_.size(), "JSON is cut short");
    return text_[at_++];
  }
  void space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  void word(std::string_view expected) {
    must(text_.substr(at_, expected.size()) == expected, "JSON has a word of its own");
    at_ += expected.size();
  }

  Value any(int depth) {
    must(depth < kDeepest, "JSON is too deep");
    space();
    Value value;
    switch (peek()) {
      case '{':
        return dict(depth);
      case '[':
        return list(depth);
      case '"':
        value.kind = Value::Kind::kText;
        value.text = text();
        return value;
      case 't':
        word("true");
        value = {.kind = Value::Kind::kBool, .boolean = true};
        return value;
      case 'f':
        word("false");
        value.kind = Value::Kind::kBool;
        return value;
      case 'n':
        word("null");
        return value;
      default:
        return number();
    }
  }

  Value dict(int depth) {
    Value value = {.kind = Value::Kind::kDict};
    next();
    space();
    if (peek() == '}') return next(), value;
    while (true) {
      space();
      must(peek() == '"', "a name of JSON is no text");
      std::string name = text();
      space();
      must(next() == ':', "a name of JSON has no colon");
      value.dict.emplace_back(std::move(name), any(depth + 1));
      space();
      const char c = next();
      if (c == '}') break;
      must(c == ',', "members of JSON have no comma");
    }
    must_have_each_name_once(value);
    return value;
  }

  Value list(int depth) {
    Value value = {.kind = Value::Kind::kList};
    next();
    space();
    if (peek() == ']') return next(), value;
    while (true) {
      value.list.push_back(any(depth + 1));
      space();
      const char c = next();
      if (c == ']') return value;
      must(c == ',', "elements of JSON have no comma");
    }
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = next();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      must(digit >= 0, "an escape of JSON is not hexadecimal");
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return code;
  }

  static void append_utf8(uint32_t code, std::string* out) {
    if (code < 0x80) {
      *out += static_cast<char>(code);
    } else if (code < 0x800) {
      *out += static_cast<char>(0xc0 | code >> 6);
      *out += static_cast<char>(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      *out += static_cast<char>(0xe0 | code >> 12);
      *out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
      *out += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      *out += static_cast<char>(0xf0 | code >> 18);
      *out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
      *out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
      *out += static_cast<char>(0x80 | (code & 0x3f));
    }
  }

  std::string text() {
    next();
    std::string out;
    while (true) {
      const char c = next();
      if (c == '"') break;
      must(static_cast<uint8_t>(c) >= 0x20, "a control character stands in a text of JSON");
      if (c != '\\') {
        out += c;
        continue;
      }
      const char kind = next();
      constexpr std::string_view kKinds = "\"\\/bfnrt";
      constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
      if (const size_t at = kKinds.find(kind); at != std::string_view::npos) {
        out += kMeant[at];
        continue;
      }
      must(kind == 'u', "JSON has no such escape");
      uint32_t code = hex4();
      if (code >= 0xd800 && code < 0xdc00) {
        must(next() == '\\' && next() == 'u', "half of a surrogate pair stands alone");
        const uint32_t low = hex4();
        must(low >= 0xdc00 && low < 0xe000, "half of a surrogate pair stands alone");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else {
        must(code < 0xdc00 || code >= 0xe000, "half of a surrogate pair stands alone");
      }
      append_utf8(code, &out);
    }
    must(is_utf8(out), "a text of JSON is no UTF-8");
    return out;
  }

  void digits() {
    const size_t first = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    must(at_ > first, "a number of JSON has no digits");
  }

  Value number() {
    const size_t first = at_;
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const size_t begin = at_;
    digits();
    must(!zero || at_ == begin + 1, "a number of JSON begins with 0");
    bool whole = true;
    if (peek() == '.') {
      ++at_;
      digits();
      whole = false;
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
      whole = false;
    }
    const std::string shown(text_.substr(first, at_ - first));
    Value value = {.kind = whole ? Value::Kind::kInteger : Value::Kind::kReal};
    value.real = std::strtod(shown.c_str(), nullptr);
    if (!whole) return value;
    const auto read = std::from_chars(shown.data(), shown.data() + shown.size(), value.integer);
    must(read.ec == std::errc(), "a whole number of JSON has more than 64 bits");
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// ---- pickles

class Pickle {
 public:
  explicit Pickle(std::string_view bytes) : bytes_(bytes) {}

  Value document() {
    must(take(2) == std::string_view("\x80\x02", 2), "a pickle does not begin with protocol 2");
    while (step(take(1)[0])) {
    }
    must(at_ == bytes_.size(), "a pickle goes on after its end");
    must(stack_.size() == 1 && marks_.empty(), "a pickle leaves other than one value");
    return std::move(stack_[0]);
  }

 private:
  std::string_view take(size_t count) {
    must(count <= bytes_.size() - at_, "a pickle is cut short");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  uint64_t little_endian(size_t count) {
    uint64_t value = 0;
    const std::string_view part = take(count);
    for (size_t i = count; i > 0; --i) value = value << 8 | static_cast<uint8_t>(part[i - 1]);
    return value;
  }
  void push(Value value) { stack_.push_back(std::move(value)); }
  // The values above the last mark.
  std::vector<Value> above_mark() {
    must(!marks_.empty(), "a pickle has no mark");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<Value> values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    must(!stack_.empty(), "a pickle has nothing below a mark");
    return values;
  }
  static std::string key_text(const Value& key) {
    must(key.kind == Value::Kind::kText || key.kind == Value::Kind::kInteger, "a key of a pickle is no text");
    return key.kind == Value::Kind::kText ? key.text : std::to_string(key.integer);
  }

  void set_items() {
    std::vector<Value> values = above_mark();
    must(values.size() % 2 == 0 && stack_.back().kind == Value::Kind::kDict, "a pickle has a key without a value");
    for (size_t i = 0; i < values.size(); i += 2)
      stack_.back().dict.emplace_back(key_text(values[i]), std::move(values[i + 1]));
    must_have_each_name_once(stack_.back());
  }

  void append_items() {
    std::vector<Value> values = above_mark();
    must(stack_.back().kind == Value::Kind::kList, "a pickle appends to no list");
    for (Value& value : values) stack_.back().list.push_back(std::move(value));
  }

  void make_pair() {
    must(stack_.size() >= 2, "a pair of a pickle has no two values");
    Value pair = {.kind = Value::Kind::kList};
    pair.list = {stack_[stack_.size() - 2], stack_[stack_.size() - 1]};
    stack_.resize(stack_.size() - 2);
    push(std::move(pair));
  }

  // False: the end.
  bool step(char opcode) {
    switch (opcode) {
      case '.':
        return false;
      case '}':
        push({.kind = Value::Kind::kDict});
        break;
      case ']':
        push({.kind = Value::Kind::kList});
        break;
      case '(':
        marks_.push_back(stack_.size());
        break;
      case 'u':
        set_items();
        break;
      case 'e':
        append_items();
        break;
      case 'X': {
        Value text = {.kind = Value::Kind::kText};
        text.text = std::string(take(little_endian(4)));
        must(is_utf8(text.text), "a text of a pickle is no UTF-8");
        push(std::move(text));
        break;
      }
      case 'J':
        push({.kind = Value::Kind::kInteger, .integer = static_cast<int32_t>(little_endian(4))});
        break;
      case '\x8a':
        must(little_endian(1) == 8, "a long of a pickle has other than 8 bytes");
        push({.kind = Value::Kind::kInteger, .integer = static_cast<int64_t>(little_endian(8))});
        break;
      case 'G': {
        uint64_t bits = 0;
        for (const char c : take(8)) bits = bits << 8 | static_cast<uint8_t>(c);
        push({.kind = Value::Kind::kReal, .real = std::bit_cast<double>(bits)});
        break;
      }
      case '\x88':
      case '\x89':
        push({.kind = Value::Kind::kBool, .boolean = opcode == '\x88'});
        break;
      case 'N':
        push({});
        break;
      case '\x86':
        make_pair();
        break;
      default:
        wrong("a pickle has an opcode that dumps do not need");
    }
    return true;
  }

  std::string_view bytes_;
  size_t at_ = 0;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
};

// ---- Chakra

class Protobuf {
 public:
  explicit Protobuf(std::string_view bytes) : bytes_(bytes) {}

  bool at_end() const { return at_ == bytes_.size(); }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      must(at_ < bytes_.size(), "a varint is cut short");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    wrong("a varint has more than ten bytes");
  }
  std::string_view delimited() {
    const uint64_t size = varint();
    must(size <= bytes_.size() - at_, "a field is longer than its message");
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  // Calls `take` with each field's number and, for fields with a length, its bytes. `numbers`: the fields of varints.
  template <typename Take>
  void fields(Take take) {
    while (!at_end()) {
      const uint64_t key = varint();
      switch (key & 7) {
        case 0:
          varint();
          take(key >> 3, true, std::string_view());
          break;
        case 1:
          must(bytes_.size() - at_ >= 8, "a field is longer than its message");
          at_ += 8;
          take(key >> 3, true, std::string_view());
          break;
        case 2:
          take(key >> 3, false, delimited());
          break;
        default:
          wrong("a field has no such wire type");
      }
    }
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

void must_be_text(std::string_view text) { must(is_utf8(text), "a text of a Chakra trace is no UTF-8"); }

void read_attribute(std::string_view bytes) {
  Protobuf(bytes).fields([](uint64_t number, bool scalar, std::string_view value) {
    constexpr std::array<uint64_t, 4> kScalars = {3, 7, 9, 27};
    const bool known = scalar ? std::find(kScalars.begin(), kScalars.end(), number) != kScalars.end()
                              : number == 1 || number == 10 || number == 29;
    must(known, "an attribute has a field that no Chakra trace has");
    if (!scalar && number != 10) must_be_text(value);
  });
}

std::string read_node(std::string_view bytes) {
  std::string name;
  Protobuf(bytes).fields([&name](uint64_t number, bool scalar, std::string_view value) {
    if (scalar) {
      must(number == 1 || (number >= 3 && number <= 7), "a node has a number that no Chakra trace has");
    } else if (number == 2) {
      must_be_text(value);
      name = std::string(value);
    } else if (number == 8 || number == 9) {
      Protobuf(value).fields([](uint64_t field, bool number_field, std::string_view text) {
        must(field >= 1 && field <= 3 && !number_field, "tensors have a field that no Chakra trace has");
        must_be_text(text);
      });
    } else if (number == 10) {
      read_attribute(value);
    } else {
      must(number == 4 || number == 5, "a node has a field that no Chakra trace has");  // packed numbers
    }
  });
  return name;
}

}  // namespace

bool Value::has(std::string_view name) const {
  return std::any_of(dict.begin(), dict.end(), [name](const auto& member) { return member.first == name; });
}

const Value& Value::at(std::string_view name) const {
  for (const auto& [key, value] : dict) {
    if (key == name) return value;
  }
  wrong("there is no member " + std::string(name));
}

Value read_json(std::string_view text) { return Json(text).document(); }
Value read_pickle(std::string_view bytes) { return Pickle(bytes).document(); }

std::vector<std::string> read_chakra(std::string_view bytes) {
  Protobuf file(bytes);
  Protobuf(file.delimited()).fields([](uint64_t number, bool scalar, std::string_view value) {
    must(!scalar && (number == 1 || number == 2), "the metadata has a field that no Chakra trace has");
    if (number == 1) must_be_text(value);
    if (number == 2) read_attribute(value);
  });
  std::vector<std::string> names;
  while (!file.at_end()) names.push_back(read_node(file.delimited()));
  return names;
}

bool is_utf8(std::string_view text) {
  // First byte from, to; second byte from, to; bytes.
  constexpr std::array<std::array<int, 5>, 9> kRows = {{{0x00, 0x7f, 0, 0, 1},
                                                        {0xc2, 0xdf, 0x80, 0xbf, 2},
                                                        {0xe0, 0xe0, 0xa0, 0xbf, 3},
                                                        {0xe1, 0xec, 0x80, 0xbf, 3},
                                                        {0xed, 0xed, 0x80, 0x9f, 3},
                                                        {0xee, 0xef, 0x80, 0xbf, 3},
                                                        {0xf0, 0xf0, 0x90, 0xbf, 4},
                                                        {0xf1, 0xf3, 0x80, 0xbf, 4},
                                                        {0xf4, 0xf4, 0x80, 0x8f, 4}}};
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<uint8_t>(text[i + k]) : -1; };
    const auto row = std::find_if(kRows.begin(), kRows.end(),
                                  [&](const auto& one) { return byte(0) >= one[0] && byte(0) <= one[1]; });
    if (row == kRows.end()) return false;
    const auto& [first, last, from, to, count] = *row;
    if (count > 1 && (byte(1) < from || byte(1) > to)) return false;
    for (size_t k = 2; k < static_cast<size_t>(count); ++k) {
      if (byte(k) < 0x80 || byte(k) > 0xbf) return false;
    }
    i += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace rankloom::fuzz
