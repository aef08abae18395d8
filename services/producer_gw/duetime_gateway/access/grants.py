"""A user's rights on topics and groups, by name pattern. Pure.

In a pattern, `*` matches any characters and `?` matches one. Topics of groups (retries and dead letters) match only
their own names, `*`, and patterns that begin with `%`. Other system topics (lanes, timers, quarantine) take the right
to inspect, which applies to no other topic: `receive *` does not cover the lanes of all topics. A call without a name,
for all topics or groups, takes a pattern that matches an empty name: `*`.
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

# The right to everything, including calls without a topic or group.
ADMIN = "admin"
# Prefix of a user name that stands for a group of the identity provider.
GROUP_PREFIX = "group:"
# Cached answers per user.
ANSWERS_MAX = 1_000

_PATTERN = re.compile(r"[%|a-zA-Z0-9_*?-]+")


class Right(Flag):
    """One kind of access. If a call accepts several rights, one of them is enough."""

    SEND = auto()
    RECEIVE = auto()
    MANAGE = auto()
    INSPECT = auto()


ANY_RIGHT = Right.SEND | Right.RECEIVE | Right.MANAGE | Right.INSPECT
# Rights to read a topic; system topics take INSPECT.
READ = Right.RECEIVE | Right.INSPECT
RIGHTS = {str(right.name).lower(): right for right in Right}


class Kind(Enum):
    """The kind of a named object; a group is one of consumers or of producers."""

    TOPIC = "topic"
    GROUP = "group"


KINDS = frozenset(kind.value for kind in Kind)


def admin_grant() -> StoredGrant:
    """The grant of all rights."""
    return StoredGrant(ADMIN, "", "*")


def check_pattern(pattern: str) -> None:
    """Raises: InvalidArgument."""
    if not (len(pattern) <= PATTERN_CHARS_MAX and _PATTERN.fullmatch(pattern)):
        text = f"{pattern[:PATTERN_CHARS_MAX]!r} is not 1 to {PATTERN_CHARS_MAX} characters of [%|a-zA-Z0-9_*?-]"
        raise InvalidArgument([Violation("pattern", text)])


class _Pattern:
    """The pattern of one grant."""

    def __init__(self, right: Right, pattern: str) -> None:
        self.right = right
        self._pattern = pattern
        # fnmatch also supports character sets, but patterns cannot contain brackets.
        self._matches = re.compile(translate(pattern)).match

    def covers(self, kind: Kind, name: str) -> bool:
        if kind is Kind.TOPIC and (self.right is Right.INSPECT) is not is_internal_topic(name):
            return False
        is_special = kind is Kind.TOPIC and is_group_topic(name)
        if is_special and self._pattern != "*" and self._pattern != name and not self._pattern.startswith("%"):
            return False
        return self._matches(name) is not None


class Access:
    """The rights of one user at one version of the users; immutable."""

    def __init__(self, name: str, grants: Iterable[StoredGrant]) -> None:
        self.name = name
        self._grants = frozenset(grants)
        self.is_admin = any(grant.right == ADMIN for grant in self._grants)
        self._patterns: dict[Kind, list[_Pattern]] = {kind: [] for kind in Kind}
        for grant in self._grants:
            # Rights of a later version are ignored.
            if grant.right in RIGHTS and grant.kind in KINDS:
                self._patterns[Kind(grant.kind)].append(_Pattern(RIGHTS[grant.right], grant.pattern))
        self._answers: dict[tuple[Right, Kind, str], bool] = {}
        # Precomputed: each send request needs it.
        self.sends_everywhere = self.may(Right.SEND, Kind.TOPIC, "")
        # Methods covered for every name.
        self.methods: set[str] = set()

    @property
    def grants(self) -> list[StoredGrant]:
        """Sorted."""
        return sorted(self._grants)

    def may(self, rights: Right, kind: Kind, name: str) -> bool:
        """Whether the user has one of the rights on this topic or group; an empty name: on all of them."""
        if self.is_admin:
            return True
        # Longer names are invalid and are rejected later.
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
        """Whether the user has one of the rights on at least one topic or group."""
        return self.is_admin or any(one.right & rights for one in self._patterns[kind])

    def lost(self, later: "Access") -> bool:
        """Whether `later` lacks any of these rights."""
        return not later.is_admin and (self.is_admin or not self._grants <= later._grants)

    def refusal(self, rights: Right, kind: Kind, name: str) -> PermissionDenied:
        """The error of a call without these rights. It does not depend on the existence of the name."""
        what = f"{kind.value} {shown(name)}" if name else f"all {kind.value}s"
        return denied(f"user {self.name} has no right to {_words(rights)} for {what}")

    def lacks(self, rights: Right, kind: Kind) -> PermissionDenied:
        """The error of a call whose user has none of these rights on any name."""
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


# Rights of all callers while users are off.
EVERYTHING = Access("", [admin_grant()])
# Rights of unauthenticated callers in public methods.
NOTHING = Access("", [])
