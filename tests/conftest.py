"""One thread for each process that tests: they share the cores, and what they compute is small."""

import os

for setting in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
    os.environ.setdefault(setting, "1")  # read when torch is imported
