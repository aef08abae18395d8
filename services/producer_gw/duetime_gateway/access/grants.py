"""What a user may do: rights on topics and groups whose names match patterns. Pure.

A pattern is a name in which `*` stands for any characters and `?` for one. Topics of groups (their retries and
dead letters) match nothing but their own names, `*`, and patterns that begin with `%`. The right to inspect is the only
one on other topics of the system (lanes, timers, quarantine), and is one on no other topic: `receive *` does not read
the lanes of all topics. Where a call may name nothing, for all, it takes a pattern that matches nothing too: `*`.
"""

import re
from collections.abc import Iterable
from enum import Enum, Flag, auto
from fnmatch import translate

from duetime_core.errors import InvalidArgument, PermissionDenied, Violation
from duetime_core.metadata.models import PATTERN_CHARS_MAX
from duetime_core.metadata.users import StoredGrant
from duetime_format.names import is_group_topic, is_internal_topic
from duetime_format.texts import shown

# The right to everything, calls that name neither topic nor group included.
ADMIN = "admin"
# A user's name that begins so stands for all whom an identity provider says to be of the group.
GROUP_PREFIX = "group:"
# Answers that are remembered for one user.
ANSWERS_MAX = 1_000

_PATTERN = re.compile(r"[%|a-zA-Z0-9_*?-]+")


class Right(Flag):
    """What may be done. Where a call can be made with several rights, one of them is enough."""

    SEND = auto()
    RECEIVE = auto()
    MANAGE = auto()
    INSPECT = auto()


ANY_RIGHT = Right.SEND | Right.RECEIVE | Right.MANAGE | Right.INSPECT
# To read a topic: of the system, to inspect it.
READ = Right.RECEIVE | Right.INSPECT
RIGHTS = {str(right.name).lower(): right for right in Right}


class Kind(Enum):
    """What a name is the name of; a group is one of consumers or of producers."""

    TOPIC = "topic"
    GROUP = "group"


KINDS = frozenset(kind.value for kind in Kind)


def admin_grant() -> StoredGrant:
    """The grant of everything."""
    return StoredGrant(ADMIN, "", "*")


def check_pattern(pattern: str) -> None:
    """Raises: InvalidArgument."""
    if not (len(pattern) <= PATTERN_CHARS_MAX and _PATTERN.fullmatch(pattern)):
        text = f"{pattern[:PATTERN_CHARS_MAX]!r} is not 1 to {PATTERN_CHARS_MAX} characters of [%|a-zA-Z0-9_*?-]"
        raise InvalidArgument([Violation("pattern", text)])


class _Pattern:
    """A grant's."""

    def __init__(self, right: Right, pattern: str) -> None:
        self.right = right
        self._pattern = pattern
        # fnmatch has sets of characters too, whose brackets no pattern has.
        self._matches = re.compile(translate(pattern)).match

    def covers(self, kind: Kind, name: str) -> bool:
        if kind is Kind.TOPIC and (self.right is Right.INSPECT) is not is_internal_topic(name):
            return False
        is_special = kind is Kind.TOPIC and is_group_topic(name)
        if is_special and self._pattern != "*" and self._pattern != name and not self._pattern.startswith("%"):
            return False
        return self._matches(name) is not None


class Access:
    """What one user may do, as of one version of the users: another version makes another object."""

    def __init__(self, name: str, grants: Iterable[StoredGrant]) -> None:
        self.name = name
        self._grants = frozenset(grants)
        self.is_admin = any(grant.right == ADMIN for grant in self._grants)
        self._patterns: dict[Kind, list[_Pattern]] = {kind: [] for kind in Kind}
        for grant in self._grants:
            # One of a later version means nothing here.
            if grant.right in RIGHTS and grant.kind in KINDS:
                self._patterns[Kind(grant.kind)].append(_Pattern(RIGHTS[grant.right], grant.pattern))
        self._answers: dict[tuple[Right, Kind, str], bool] = {}
        # Asked for each request to send.
        self.sends_everywhere = self.may(Right.SEND, Kind.TOPIC, "")
        # Methods that were found to be within the user's rights, whatever they name.
        self.methods: set[str] = set()

    @property
    def grants(self) -> list[StoredGrant]:
        """In order."""
        return sorted(self._grants)

    def may(self, rights: Right, kind: Kind, name: str) -> bool:
        """Whether one of the rights is there for the topic or group. An empty name: for all that there are."""
        if self.is_admin:
            return True
        # What is longer is no name at all, as the call itself is told if it gets so far.
        name = name[: PATTERN_CHARS_MAX + 1]
        question = rights, kind, name
        answer = self._answers.get(question)
        if answer is None:
            answer = any(one.right & rights and one.covers(kind, name) for one in self._patterns[kind])
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[question] = answer
        return answer

    def has(self, rights: Right, kind: Kind) -> bool:
        """Whether one of the rights is there for some topic or group."""
        return self.is_admin or any(one.right & rights for one in self._patterns[kind])

    def lost(self, later: "Access") -> bool:
        """Whether rights are missing later that are there now."""
        return not later.is_admin and (self.is_admin or not self._grants <= later._grants)

    def refusal(self, rights: Right, kind: Kind, name: str) -> PermissionDenied:
        """The error of a call that takes one of these rights. It is the same whether the name exists or not."""
        what = f"{kind.value} {shown(name)}" if name else f"all {kind.value}s"
        return denied(f"user {self.name} has no right to {_words(rights)} for {what}")

    def lacks(self, rights: Right, kind: Kind) -> PermissionDenied:
        """The same, where there is none of these rights at all."""
        return denied(f"user {self.name} has no right to {_words(rights)} for any {kind.value}")

    def check(self, rights: Right, kind: Kind, name: str) -> None:
        """Raises: PermissionDenied."""
        if not self.may(rights, kind, name):
            raise self.refusal(rights, kind, name)


def _words(rights: Right) -> str:
    return " or ".join(word for word, right in RIGHTS.items() if right & rights)


def denied(text: str) -> PermissionDenied:
    """The error of a caller without the right."""
    return PermissionDenied(text, reason="RIGHT_MISSING")


# Of calls where nobody asks who calls.
EVERYTHING = Access("", [admin_grant()])
# Of callers that are not known, in calls that are for anybody.
NOTHING = Access("", [])
