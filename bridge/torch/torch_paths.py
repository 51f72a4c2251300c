"""For meson: torch's include folders, its library folder, its C++ ABI, its version, and that of its CUDA (none: a torch without), a line each."""

import torch
from torch.utils.cpp_extension import include_paths, library_paths

print(":".join(include_paths()))
print(library_paths()[0])
print(int(torch.compiled_with_cxx11_abi()))
print(torch.__version__)
print(torch.version.cuda or "none")
