#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rankloom/error.h"

struct _ts;  // PyThreadState

namespace rankloom::bridge {

// Lets go of the interpreter lock for a scope, if this thread holds it. Everything that may wait, or that takes a lock
// of the core, happens under one of these: so no thread ever waits for the core with the interpreter lock in its hands.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  _ts* saved_ = nullptr;
};

// The line of Python that called, from the innermost frame that is not torch's or ours. Needs no interpreter lock on
// CPython 3.11 and 3.12, whose frames this thread may read while it is in C++; takes it on others. Empty on a thread
// that runs no Python. The file's name stays for ever.
CodeSite python_site();
// The same; empty where all frames are torch's or ours, and `library`, unless null, is the innermost of those.
CodeSite callers_site(CodeSite* library = nullptr);

// Paths of folders, with a slash at the end, or of files. Of those that a file is below the longest decides: a file of
// `libraries` is not the caller's, a file of `exceptions` is.
void set_library_folders(std::vector<std::string> libraries, std::vector<std::string> exceptions);

}  // namespace rankloom::bridge
