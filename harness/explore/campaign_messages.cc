#include "harness/explore/campaign_messages.h"

#include <cstddef>
#include <type_traits>

#include "absl/algorithm/container.h"
#include "sim/base/dist_error.h"
#include "sim/schedule/schedule_tree.h"

namespace rankloom::internal {
namespace {

// Numbers as LEB128, signed ones in zigzag order; a text or list begins with its length.
class Writer {
 public:
  static constexpr bool kReads = false;

  template <typename T>
  void number(const T& value) {
    const auto wide = static_cast<int64_t>(value);
    uint64_t rest = (static_cast<uint64_t>(wide) << 1) ^ static_cast<uint64_t>(wide >> 63);
    for (; rest >= 0x80; rest >>= 7) bytes_ += static_cast<char>(rest | 0x80);
    bytes_ += static_cast<char>(rest);
  }
  void text(const std::string& text) {
    number(text.size());
    bytes_ += text;
  }
  template <typename T, typename Each>
  void list(const std::vector<T>& items, Each each) {
    number(items.size());
    for (const T& item : items) each(item);
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what a Writer wrote. Nothing more is read once something does not fit.
class Reader {
 public:
  static constexpr bool kReads = true;

  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  void number(T& value) {
    uint64_t read = 0;
    for (int shift = 0;; shift += 7) {
      if (rest_.empty() || shift > 63) return spoil();
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      read |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    value = static_cast<T>(static_cast<int64_t>(read >> 1) ^ -static_cast<int64_t>(read & 1));
  }
  void text(std::string& text) {
    const size_t size = length();
    text.assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
  }
  template <typename T, typename Each>
  void list(std::vector<T>& items, Each each) {
    items.clear();
    for (size_t left = length(); left > 0 && ok_; --left) each(items.emplace_back());
  }

  // All was read, and fitted.
  bool ends() const { return ok_ && rest_.empty(); }

 private:
  // Of what follows, which takes a byte for each at least.
  size_t length() {
    size_t size = 0;
    number(size);
    if (size > rest_.size()) {
      spoil();
      return 0;
    }
    return size;
  }
  void spoil() {
    ok_ = false;
    rest_ = {};
  }

  std::string_view rest_;
  bool ok_ = true;
};

// One description of each message, for both directions: `Stream` is a Writer, and `T` const, or a Reader.

template <typename Stream, typename T>
void go_texts(Stream& stream, T& texts) {
  stream.list(texts, [&](auto& text) { stream.text(text); });
}

template <typename Stream, typename T>
void go_numbers(Stream& stream, T& numbers) {
  stream.list(numbers, [&](auto& number) { stream.number(number); });
}

template <typename Stream, typename T>
void go_tried(Stream& stream, T& tried) {
  stream.number(tried.id);
  stream.number(tried.one_way);
  stream.list(tried.ops, [&](auto& op) {
    stream.number(op.what);
    stream.number(op.object);
  });
}

template <typename Stream, typename T>
void go_node(Stream& stream, T& node) {
  stream.number(node.kind);
  stream.number(node.size);
  stream.number(node.chosen);
  stream.number(node.step);
  stream.number(node.chose_within);
  go_numbers(stream, node.candidates);
  go_numbers(stream, node.todo);
  stream.list(node.tried, [&](auto& tried) { go_tried(stream, tried); });
  stream.list(node.asleep, [&](auto& tried) { go_tried(stream, tried); });
}

template <typename Stream, typename T>
void go_part(Stream& stream, T& part) {
  stream.list(part.path, [&](auto& node) { go_node(stream, node); });
  stream.number(part.floor);
  stream.number(part.new_from);
  stream.number(part.rooted);
  stream.number(part.completions_write);
}

template <typename Stream, typename T>
void go_order(Stream& stream, T& order) {
  stream.number(order.kind);
  stream.number(order.work);
  stream.number(order.careful);
  stream.number(order.fresh);
  stream.number(order.runs);
  stream.number(order.first);
  stream.number(order.end);
  if (order.kind == CampaignOrder::Kind::kPart) go_part(stream, order.part);
}

template <typename Stream, typename T>
void go_part_news(Stream& stream, T& news) {
  go_tried(stream, news.opened);
  stream.list(news.given, [&](auto& given) {
    go_node(stream, given.node);
    go_tried(stream, given.chosen);
  });
  go_part(stream, news.rest);
  stream.list(news.wishes, [&](auto& wish) {
    stream.number(wish.node);
    go_numbers(stream, wish.any_of);
  });
  stream.number(news.runs);
  stream.number(news.schedules);
  stream.number(news.repeated);
  stream.number(news.open);
  go_texts(stream, news.uncovered);
  stream.number(news.saw_any);
  stream.number(news.rooted_asked);
  stream.number(news.older_objects);
  stream.number(news.completions_write);
}

template <typename Stream, typename T>
void go_failure(Stream& stream, T& failure) {
  bool has = failure.has_value();
  stream.number(has);
  if (!has) return;
  if constexpr (Stream::kReads) failure.emplace();
  stream.text(failure->trace);
  stream.text(failure->headline);
  go_texts(stream, failure->failures);
}

template <typename Stream, typename T>
void go_news(Stream& stream, T& news) {
  using Kind = CampaignNews::Kind;
  stream.number(news.kind);
  stream.number(news.work);
  stream.number(news.state);
  stream.number(news.run);
  stream.number(news.ns);
  if (news.kind == Kind::kHello) {
    stream.text(news.identity.program);
    stream.text(news.identity.options);
    stream.text(news.identity.first_run);
    stream.number(news.objects);
  }
  if (news.kind == Kind::kOpened) go_tried(stream, news.opened);
  if (news.kind == Kind::kPart) go_part_news(stream, news);
  if (news.kind == Kind::kSwitch) {
    stream.list(news.switches, [&](auto& change) {
      stream.number(change.kind);
      stream.number(change.at);
      stream.number(change.nth);
      stream.number(change.to);
    });
  }
  go_failure(stream, news.failure);
}

// Whether a message that was read makes sense: the numbers that a search counts or looks things up by are of the size
// that they can have.

bool sound(const TriedTask& tried) {
  return absl::c_all_of(tried.ops, [](const StepRecord::Op& op) { return op.what <= StepRecord::What::kSettle; });
}

bool sound(const TreeNode& node) {
  if (node.kind > ChoiceKind::kRooted || node.step < 0 || node.chosen < 0) return false;
  if (node.kind != ChoiceKind::kNextTask && node.chosen >= node.size) return false;
  const auto is_sound = [](const TriedTask& tried) { return sound(tried); };
  const auto is_task = [](TaskId id) { return id >= 0; };
  return absl::c_all_of(node.tried, is_sound) && absl::c_all_of(node.asleep, is_sound) &&
         absl::c_all_of(node.candidates, is_task) && absl::c_all_of(node.todo, is_task);
}

bool sound(const TreePart& part) {
  if (part.new_from < 0 || part.rooted < 0 || part.rooted > 1) return false;
  for (size_t i = 0; i < part.path.size(); ++i) {
    if (!sound(part.path[i]) || (i > 0 && part.path[i].step < part.path[i - 1].step)) return false;
  }
  return true;
}

bool sound(const CampaignOrder& order) {
  return order.kind <= CampaignOrder::Kind::kStop && order.runs >= 0 && sound(order.part) &&
         order.part.floor <= order.part.path.size();
}

// The rest of a part has a path from the floor on only.
bool sound(const CampaignNews& news) {
  if (news.kind > CampaignNews::Kind::kSwitch || news.state > CampaignNews::State::kFailed) return false;
  return news.run >= -1 && news.ns >= 0 && sound(news.opened) && sound(news.rest) &&
         absl::c_all_of(news.given, [](const GivenNode& given) { return sound(given.node) && sound(given.chosen); });
}

}  // namespace

std::string CampaignOrder::encode() const {
  Writer writer;
  go_order(writer, *this);
  return writer.take();
}

absl::StatusOr<CampaignOrder> CampaignOrder::decode(std::string_view bytes) {
  Reader reader(bytes);
  CampaignOrder order;
  go_order(reader, order);
  if (!reader.ends() || !sound(order))
    return invalid_argument("explore: a message of ", bytes.size(), " bytes from the leading process makes no sense");
  return order;
}

CampaignNews CampaignNews::of_part(ScheduleTree* tree, State state) {
  CampaignNews news{.kind = Kind::kPart, .state = state};
  const bool goes_on = state == State::kGoing || state == State::kPaused;
  if (goes_on) news.rest = tree->rest();
  news.wishes = tree->take_wishes();
  news.open = tree->open();
  news.uncovered = tree->uncovered();
  news.saw_any = tree->record().saw_any();
  news.rooted_asked = tree->rooted_asked();
  news.older_objects = tree->record().older_objects();
  news.completions_write = tree->completions_write();
  return news;
}

std::string CampaignNews::encode() const {
  Writer writer;
  go_news(writer, *this);
  return writer.take();
}

absl::StatusOr<CampaignNews> CampaignNews::decode(std::string_view bytes) {
  Reader reader(bytes);
  CampaignNews news;
  go_news(reader, news);
  if (!reader.ends() || !sound(news)) return invalid_argument("a message of ", bytes.size(), " bytes makes no sense");
  return news;
}

}  // namespace rankloom::internal
