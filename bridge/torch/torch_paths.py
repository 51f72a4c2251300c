"""For meson: torch's include folders, its library folder, and its C++ ABI, its version, a line each."""

import torch
from torch.utils.cpp_extension import include_paths, library_paths

print(":".join(include_paths()))
print(library_paths()[0])
print(int(torch.compiled_with_cxx11_abi()))
print(torch.__version__)
