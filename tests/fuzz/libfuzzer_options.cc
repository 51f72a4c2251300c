// The sanitizers' defaults of a program of libFuzzer, however it is started: what UBSan finds ends it, too, so that the
// fuzzer keeps the input.

extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }
