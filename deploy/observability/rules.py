"""The alert rules for the Prometheus operator: `python deploy/observability/rules.py` writes both copies in deploy."""

from pathlib import Path
from textwrap import indent

FOLDER = Path(__file__).parent
TARGETS = (
    FOLDER.parent / "k8s" / "components" / "monitoring" / "rules.yaml",
    # Helm reads only files below its chart.
    FOLDER.parent / "helm" / "duetime" / "files" / "rules.yaml",
)
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
    for target in TARGETS:
        target.write_text(manifest())
