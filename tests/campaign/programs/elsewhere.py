"""steps.py for a job that starts in a directory where nothing can be kept, or without streams."""

import os
import runpy
import sys

os.chdir(os.environ["WORK"])
if sys.stdout is None:
    sys.stdout = open(os.devnull, "w")
if sys.stderr is None:
    sys.stderr = open(os.devnull, "w")
runpy.run_path(os.environ["STEPS_PROGRAM"], run_name="__main__")
