"""`python -m duetime_console.health`: asks the console of this machine whether it serves, for container health checks.

Exit code 0: it serves; 1: it does not, in one line.
"""

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from duetime_console.settings import Settings

TIMEOUT_S = 3.0


def main() -> int:
    """Asks the port that the settings say; the exit code."""
    settings = Settings.read()
    # It is asked on this machine whether it serves: the name in its certificate is another matter.
    connection = (
        HTTPSConnection("127.0.0.1", settings.port, timeout=TIMEOUT_S, context=ssl._create_unverified_context())  # noqa: S323
        if settings.tls_cert_file
        else HTTPConnection("127.0.0.1", settings.port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        sys.stdout.write(f"{error}\n")
        return 1
    finally:
        connection.close()
    sys.stdout.write(f"{status}\n")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
