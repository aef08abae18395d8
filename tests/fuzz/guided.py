"""One target, with inputs that reach code which none before has reached.

    python -m tests.fuzz.guided NAME RUNS SEED FOLDER      what it learns stays in FOLDER

A process for each: the decoders are instrumented when they are imported, and libFuzzer ends its process itself.
"""

import sys
from pathlib import Path

import atheris

PACKAGES = ["duetime", "duetime_format", "duetime_core", "duetime_store", "duetime_gateway", "duetime_spark"]


def main(name: str, runs: str, seed: str, folder: str) -> None:
    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.all_targets import TARGETS
    from tests.fuzz.judging import Finding, judge

    target, learned = TARGETS[name], Path(folder)
    learned.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds):
        (learned / f"seed-{number}").write_bytes(data)

    def check(data: bytes) -> None:
        try:
            judge(target, data)
        except Finding as finding:
            print(f"{finding}\n  kept as {finding.keep()}", file=sys.stderr, flush=True)
            raise

    options = [f"-runs={runs}", f"-seed={seed}", "-verbosity=0", "-rss_limit_mb=0", "-timeout=30", "-max_len=65536"]
    atheris.Setup([sys.argv[0], folder, *options, f"-artifact_prefix={learned.parent}/"], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
