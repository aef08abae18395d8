"""The alert rules for the Prometheus operator: `python deploy/observability/rules.py` writes the copy in deploy/k8s."""

from pathlib import Path
from textwrap import indent

FOLDER = Path(__file__).parent
TARGET = FOLDER.parent / "k8s" / "components" / "monitoring" / "rules.yaml"
HEAD = """# Written by deploy/observability/rules.py from the rules in deploy/observability/alerts.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: duetime
spec:
  groups:
"""


def manifest() -> str:
    """The groups of all rule files, unchanged."""
    groups = (path.read_text().partition("\ngroups:\n")[2] for path in sorted((FOLDER / "alerts").glob("*.yml")))
    return HEAD + "".join(indent(text, "  ") for text in groups)


if __name__ == "__main__":
    TARGET.write_text(manifest())
