"""`python -m duetime_console.health`: checks that the console of this machine serves, for container health checks.

Exit code 0: it serves; 1: it does not, with one line of output.
"""

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from duetime_format.printing import echo

from duetime_console.settings import Settings

TIMEOUT_S = 3.0


def main() -> int:
    """Calls the configured port; returns the exit code."""
    settings = Settings.read()
    # Only the process is checked: the name in its certificate does not matter here.
    connection = (
        HTTPSConnection("127.0.0.1", settings.port, timeout=TIMEOUT_S, context=ssl._create_unverified_context())  # noqa: S323
        if settings.tls_cert_file
        else HTTPConnection("127.0.0.1", settings.port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        echo(str(error))
        return 1
    finally:
        connection.close()
    echo(str(status))
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
