"""Programs that tests run in processes of their own."""

import os
import subprocess
import sys
import textwrap


def run_python(code: str, server: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with DUETIME_SERVER, for 30 s at most."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"DUETIME_SERVER": server},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
