// A user's program: the installed library by its one header, no GoogleTest.
#include <rankloom/rankloom.h>

#include <iostream>

int main() {
  std::cout << "rankloom " << rankloom::version() << "\n";
  return rankloom::version().empty() ? 1 : 0;
}
