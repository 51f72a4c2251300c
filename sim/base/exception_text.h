#pragma once

#include <exception>
#include <string>

namespace rankloom::internal {

// The exception that the caller handles; never null. The process ends if it is none of C++'s: nobody can keep one, and
// pthread_exit() and a cancellation may not be stopped.
std::exception_ptr handled_exception();

// " (std::out_of_range)": the type of an exception, after its text; empty for types that say nothing to the author of a
// program: the library's, GoogleTest's, pybind11's.
std::string exception_type_text(const std::exception& error);

// "an exception that is no std::exception (int)": the one that the caller handles, as handled_exception() has it.
std::string odd_exception_text();

// Whether it is a failed assertion of GoogleTest's.
bool is_test_assertion(const std::exception& error);

}  // namespace rankloom::internal
