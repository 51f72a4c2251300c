#include "bridge/torch/python_frames.h"

#include <Python.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

// The layout of frames is not public. Where it is not known, frames are read through the API, with the lock.
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
#define RANKLOOM_READ_FRAMES 1
#define Py_BUILD_CORE 1
extern "C" {
#include <internal/pycore_frame.h>
}
#undef Py_BUILD_CORE
#endif

namespace rankloom::bridge {

using namespace internal;

namespace {

struct Folders {
  std::vector<std::string> libraries;
  std::vector<std::string> exceptions;
};

Folders& folders() {
  static auto* const value = new Folders;
  return *value;
}

// The length of the longest of the folders that the file is below; 0: none.
size_t depth_below(std::string_view file, const std::vector<std::string>& folders) {
  size_t longest = 0;
  for (const std::string& folder : folders) {
    if (folder.size() > longest && file.substr(0, folder.size()) == folder) longest = folder.size();
  }
  return longest;
}

std::string_view interned(std::string_view text) {
  static std::mutex mu;
  static auto* const texts = new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(mu);
  return *texts->emplace(text).first;
}

struct FileOfCode {
  PyObject* name = nullptr;
  std::string_view file = "";  // with a NUL behind it
  bool in_library = false;
  // The line that was asked for last: loops ask for the same one, and a table of lines is read from its beginning. Kept
  // with the begin of that table, by which another code object at the same address is told.
  std::string table;
  int first_line = -1;
  int instruction = -1;
  int line = 0;
};

void append_utf8(uint32_t c, std::string* text) {
  if (c >= 0xD800 && c < 0xE000) c = '?';  // a byte of a name that is no UTF-8
  const auto byte = [text](uint32_t value) { text->push_back(static_cast<char>(value)); };
  if (c < 0x80) return byte(c);
  if (c >= 0x10000) byte(0xF0 | (c >> 18));
  if (c >= 0x800) byte(c >= 0x10000 ? 0x80 | ((c >> 12) & 0x3F) : 0xE0 | (c >> 12));
  byte(c >= 0x800 ? 0x80 | ((c >> 6) & 0x3F) : 0xC0 | (c >> 6));
  byte(0x80 | (c & 0x3F));
}

// Read without the lock, as nobody changes a string: UTF-8, until the thread's next call.
std::string_view text_of(PyObject* name) {
  const auto length = static_cast<size_t>(PyUnicode_GET_LENGTH(name));
  if (PyUnicode_IS_COMPACT_ASCII(name)) return {reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(name)), length};
  static thread_local std::string text;
  text.clear();
  const auto kind = PyUnicode_KIND(name);
  const void* const data = PyUnicode_DATA(name);
  for (size_t i = 0; i < length; ++i) append_utf8(PyUnicode_READ(kind, data, static_cast<Py_ssize_t>(i)), &text);
  return text;
}

// Code objects come and go, and so do their names: an entry is checked by the name that it was made for, and its text.
FileOfCode& file_of(PyCodeObject* code) {
  static thread_local std::unordered_map<PyCodeObject*, FileOfCode> files;
  FileOfCode& entry = files[code];
  PyObject* const name = code->co_filename;
  const std::string_view text = text_of(name);
  if (entry.name == name && entry.file == text) return entry;
  entry = {};
  entry.name = name;
  entry.file = interned(text);
  entry.in_library =
      depth_below(text, folders().libraries) > depth_below(text, folders().exceptions) || text.substr(0, 1) == "<";
  return entry;
}

}  // namespace

GilRelease::GilRelease() {
  if (PyGILState_GetThisThreadState() != nullptr && PyGILState_Check() != 0) saved_ = PyEval_SaveThread();
}

GilRelease::~GilRelease() {
  if (saved_ != nullptr) PyEval_RestoreThread(saved_);
}

void set_library_folders(std::vector<std::string> libraries, std::vector<std::string> exceptions) {
  folders() = {std::move(libraries), std::move(exceptions)};
}

#if defined(RANKLOOM_READ_FRAMES)

namespace {

std::string_view begin_of_lines(PyCodeObject* code) {
  constexpr size_t kMost = 512;
  return {PyBytes_AS_STRING(code->co_linetable), std::min(kMost, static_cast<size_t>(Py_SIZE(code->co_linetable)))};
}

CodeSite site_of(_PyInterpreterFrame* frame, FileOfCode& file) {
  PyCodeObject* const code = frame->f_code;
  const int instruction = _PyInterpreterFrame_LASTI(frame);
  const std::string_view table = begin_of_lines(code);
  if (file.instruction != instruction || file.first_line != code->co_firstlineno || file.table != table) {
    const int line = PyCode_Addr2Line(code, instruction * static_cast<int>(sizeof(_Py_CODEUNIT)));
    file.line = line > 0 ? line : code->co_firstlineno;
    file.instruction = instruction;
    file.first_line = code->co_firstlineno;
    file.table = table;
  }
  return {file.file.data(), file.line};
}

}  // namespace

CodeSite callers_site(CodeSite* library) {
  PyThreadState* const state = PyGILState_GetThisThreadState();
  if (state == nullptr || state->cframe == nullptr) return {};
  _PyInterpreterFrame* innermost = nullptr;
  for (_PyInterpreterFrame* frame = state->cframe->current_frame; frame != nullptr; frame = frame->previous) {
    PyCodeObject* const code = frame->f_code;
    if (code == nullptr || !PyCode_Check(code)) continue;
    FileOfCode& file = file_of(code);
    if (!file.in_library) return site_of(frame, file);
    if (innermost == nullptr) innermost = frame;
  }
  if (library != nullptr && innermost != nullptr) *library = site_of(innermost, file_of(innermost->f_code));
  return {};
}

#else

CodeSite callers_site(CodeSite* library) {
  if (PyGILState_GetThisThreadState() == nullptr) return {};
  const PyGILState_STATE held = PyGILState_Ensure();
  CodeSite innermost, callers;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    const FileOfCode& file = file_of(code);
    const CodeSite site{file.file.data(), PyFrame_GetLineNumber(frame)};
    Py_DECREF(code);
    if (!file.in_library) callers = site;
    if (innermost.line == 0) innermost = site;
    PyFrameObject* const back = file.in_library ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  PyGILState_Release(held);
  if (library != nullptr) *library = innermost;
  return callers;
}

#endif

CodeSite python_site() {
  CodeSite library;
  const CodeSite callers = callers_site(&library);
  return callers.line != 0 ? callers : library;
}

}  // namespace rankloom::bridge
