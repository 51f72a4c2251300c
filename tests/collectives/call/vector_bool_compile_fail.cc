// Must not compile, and the compiler must say why: std::vector<bool> packs bits, so there are no bytes to send.
// vector_bool_test.py tries it, and again with -DINPUT, for memory that is only read.

#include <vector>

#include "rankloom/tensor.h"

void refuse(const rankloom::TensorView& output);
void refuse_input(const rankloom::ConstTensorView& input);

void use() {
  std::vector<bool> flags(3);
#if defined(INPUT)
  const std::vector<bool>& read_only = flags;
  refuse_input(read_only);
#else
  refuse(flags);
#endif
}
