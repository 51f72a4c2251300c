"""python -m rankloom.torch --nproc-per-node 8 train.py: torchrun, with ranks that are threads of this process."""

import sys

from rankloom.torch._torchrun import main

if __name__ == "__main__":
    sys.exit(main())
