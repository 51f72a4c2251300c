"""For meson: torch's include folders, its library folder, and its C++ ABI, a line each."""

import torch
from torch.utils import cpp_extension

print(":".join(cpp_extension.include_paths()))
print(cpp_extension.library_paths()[0])
print(int(torch.compiled_with_cxx11_abi()))
