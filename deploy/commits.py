"""Subjects of commits: the component first, an imperative, at most 60 characters.

    python deploy/commits.py FILE             checks the message in a file, as a commit-msg hook
    python deploy/commits.py --new            checks the commits after FIRST that this clone has

It needs nothing but Python and git: a hook runs before anything is installed.
"""

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# The last commit before the rule was checked.
FIRST = "3cd113819e386923b5575cd51c707cf052663a24"
SUBJECT_CHARACTERS_MAX = 60
SUBJECT = re.compile(r"(?P<components>[a-z][a-z0-9 _,./-]*): (?P<verb>\S+) \S")
# Git's own subjects.
_GITS = re.compile(r'(fixup|squash|amend)! |Merge |Revert "')
# Words that begin a noun phrase or a clause.
_NOT_VERBS = set(
    "a about after all an and another any as at before both by each every everything few for from halves how if in "
    "into it its messages more most new no nobody nothing of on one only or others our some that the their these "
    "they this those three to two until we what when where whether which who whoever why with without".split()
)
# Endings of other forms and of nouns, and the imperatives that share them.
_NOT_VERB = re.compile(r".*(?:[^s]s|ed|ing|tion|ness|ity|ance|ence)$")
_VERBS = set(
    "alias bias bring caution condition embed exceed feed focus heed mention need partition position proceed question "
    "reference seed sequence shed speed spring station string succeed swing transition weed".split()
)


def fault(subject: str) -> str | None:
    """The reason why a subject breaks the rule, if it does."""
    if _GITS.match(subject):
        return None
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        return f"{len(subject)} characters, above the highest, {SUBJECT_CHARACTERS_MAX}"
    match = SUBJECT.match(subject)
    if not match:
        return "not of the form `component: imperative and object`"
    verb = match["verb"].lower().strip("`,:;")
    if verb not in _VERBS and (verb in _NOT_VERBS or _NOT_VERB.match(verb) or not verb.isalpha()):
        return f"{match['verb']} is not an imperative (if it is, add it to {Path(__file__).name})"
    return None


def _git(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def new_subjects(first: str = FIRST, folder: Path = PROJECT) -> list[str]:
    """Abbreviated hash and subject of each commit after the first.

    A shallow clone without the first one has only later commits. A history without it, or no history at all, has none.
    """
    if _git("merge-base", "--is-ancestor", first, "HEAD", folder=folder).returncode == 0:
        since = [f"{first}..HEAD"]
    elif _git("rev-parse", "--is-shallow-repository", folder=folder).stdout.strip() == "true":
        since = ["HEAD"]
    else:
        return []
    return _git("log", "--no-merges", "--format=%h %s", *since, folder=folder).stdout.splitlines()


def main(arguments: list[str]) -> int:
    if arguments == ["--new"]:
        listed = new_subjects()
    else:
        lines = [line for line in Path(arguments[0]).read_text().splitlines() if line and not line.startswith("#")]
        listed = [f"subject: {lines[0]}"] if lines else []
    faults = [f"{line}\n    {reason}" for line in listed if (reason := fault(line.partition(" ")[2]))]
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
