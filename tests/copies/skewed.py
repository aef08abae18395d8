"""`python -m tests.copies.skewed MS FLAGS`: a store process whose wall clock is ahead by MS; negative: behind."""

import runpy
import sys
import time

ahead_ns = int(sys.argv.pop(1)) * 1_000_000
true_ns = time.time_ns
time.time_ns = lambda: true_ns() + ahead_ns
runpy.run_module("duetime_store", run_name="__main__", alter_sys=True)
