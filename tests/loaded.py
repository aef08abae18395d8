"""`python -m tests.loaded 2 COMMAND...`: runs a command beside 2 busy loops, and exits with its exit code."""

import subprocess
import sys


def main() -> int:
    count, command = int(sys.argv[1]), sys.argv[2:]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
