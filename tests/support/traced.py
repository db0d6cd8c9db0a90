"""Run by `torchrun`: a script that shows its stack and ends where it takes too long.

Usage: torchrun --nproc-per-node 2 tests/support/traced.py seconds script [arguments]
"""

import faulthandler
import runpy
import sys

if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
