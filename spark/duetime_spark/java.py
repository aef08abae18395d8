"""Java for Spark: found by JAVA_HOME, then by PATH, as in Spark's own scripts."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from duetime_core.errors import StartupError

JAVA_MIN = 17
_ANSWER_S = 30
# `openjdk version "17.0.15" 2025-04-15`; before 9 it was `java version "1.8.0_412"`.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
INSTALL = f"install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"


def is_submitted() -> bool:
    """Whether spark-submit started this process, so that Java and Spark run already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def find_java() -> Path:
    """Spark's Java program.

    Raises:
        StartupError: Java is missing, does not run or is too old; the text names the package to install.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise StartupError(f"Spark needs Java, and PATH has none: {INSTALL}")
    if not os.access(found, os.X_OK) or Path(found).is_dir():
        raise StartupError(f"Spark needs Java, and JAVA_HOME={home} has no bin/java: {INSTALL}")
    version = _version(found)
    if version < JAVA_MIN:
        raise StartupError(f"{found} is Java {version}: {INSTALL}")
    return Path(found)


def _version(java: str) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise StartupError(f"{java} does not run ({error}): {INSTALL}") from error
    found_version = _VERSION.search(answer.stderr + answer.stdout)
    if found_version is None:
        raise StartupError(f"{java} does not print its version: {INSTALL}")
    return int(found_version.group(1))
