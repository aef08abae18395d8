"""Users, tokens, keys and grants in the metadata database: changed by commands, followed by gateways.

Each change increments one number and stores it with the user. So a gateway reads one number a second, and then only the
users changed since its last read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.orm import Session

from duetime_core.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Overloaded, Violation
from duetime_core.metadata.models import (
    USER_CHARS_MAX,
    AccessKeyModel,
    GrantModel,
    TokenModel,
    UserModel,
    UsersVersionModel,
    table_of,
)

USERS_MAX = 10_000
TOKENS_OF_A_USER_MAX = 16
KEYS_OF_A_USER_MAX = 8
GRANTS_OF_A_USER_MAX = 256
# Users per statement; both databases accept more parameters.
_READ_AT_ONCE = 500


class UsersExhausted(Overloaded):
    """A limit of users, or of one user's objects, is reached: delete some."""

    reason = "USERS_EXHAUSTED"
    retriable = False


class StoredToken(NamedTuple):
    """A token as stored."""

    id: str
    hashed: str
    created_at_ms: int
    # 0: never.
    expires_at_ms: int


class StoredGrant(NamedTuple):
    """A right, its kind (`topic`, `group`), and the pattern of names."""

    right: str
    kind: str
    pattern: str


class StoredKey(NamedTuple):
    """An access key and its encrypted secret."""

    access_key: str
    user: str
    sealed: str
    created_at_ms: int


class StoredUser(NamedTuple):
    """A user with all data needed by gateways."""

    name: str
    revoked: bool
    created_at_ms: int
    tokens: Sequence[StoredToken]
    grants: Sequence[StoredGrant]
    keys: Sequence[StoredKey] = ()


class Changes(NamedTuple):
    """Changes of users since a version."""

    version: int
    # Names of all users; None: no changes.
    names: frozenset[str] | None
    changed: Mapping[str, StoredUser]


# Every gateway reads it each second.
_READ_VERSION = select(table_of(UsersVersionModel).c.version)


def changes_since(session: Session, version: int) -> Changes:
    """The users changed after `version`. A lower number means a restored database: returns all."""
    now = session.scalar(_READ_VERSION) or 0
    if now == version:
        return Changes(now, None, {})
    rows = session.execute(select(UserModel.name, UserModel.version)).all()
    since = version if version < now else -1
    changed = read_users(session, [name for name, changed_at in rows if changed_at > since])
    return Changes(now, frozenset(name for name, _ in rows), changed)


def read_users(session: Session, names: Sequence[str] | None = None) -> dict[str, StoredUser]:
    """Users by name, sorted; those among `names`, or all."""
    if names is None:
        names = list(session.scalars(select(UserModel.name)))
    found: dict[str, StoredUser] = {}
    ordered = sorted(names)
    for first in range(0, len(ordered), _READ_AT_ONCE):
        found |= _read(session, ordered[first : first + _READ_AT_ONCE])
    return found


def _read(session: Session, names: Sequence[str]) -> dict[str, StoredUser]:
    tokens: dict[str, list[StoredToken]] = {name: [] for name in names}
    grants: dict[str, list[StoredGrant]] = {name: [] for name in names}
    keys: dict[str, list[StoredKey]] = {name: [] for name in names}
    for token in session.scalars(select(TokenModel).where(TokenModel.user.in_(names)).order_by(TokenModel.id)):
        tokens[token.user].append(StoredToken(token.id, token.hashed, token.created_at_ms, token.expires_at_ms))
    ordered = (GrantModel.right, GrantModel.kind, GrantModel.pattern)
    for grant in session.scalars(select(GrantModel).where(GrantModel.user.in_(names)).order_by(*ordered)):
        grants[grant.user].append(StoredGrant(grant.right, grant.kind, grant.pattern))
    for key in session.scalars(
        select(AccessKeyModel).where(AccessKeyModel.user.in_(names)).order_by(AccessKeyModel.access_key)
    ):
        keys[key.user].append(_stored_key(key))
    users = session.scalars(select(UserModel).where(UserModel.name.in_(names)).order_by(UserModel.name))
    return {
        user.name: StoredUser(
            user.name, user.revoked, user.created_at_ms, tokens[user.name], grants[user.name], keys[user.name]
        )
        for user in users
    }


def _stored_key(row: AccessKeyModel) -> StoredKey:
    return StoredKey(row.access_key, row.user, row.sealed, row.created_at_ms)


# --- changes; each is part of the caller's transaction ------------------------------------------------------------


def create_user(session: Session, name: str, now_ms: int) -> None:
    """Raises: AlreadyExists, UsersExhausted."""
    version = _count_up(session)
    if session.get(UserModel, name) is not None:
        raise AlreadyExists(f"user {name} exists", reason="USER_EXISTS")
    _check_room("users", session.scalar(select(func.count()).select_from(UserModel)) or 0, USERS_MAX)
    session.add(UserModel(name=name, revoked=False, version=version, created_at_ms=now_ms))
    session.flush()


def delete_user(session: Session, name: str) -> None:
    """Deletes a user with all tokens, keys and grants. Raises: NotFound."""
    _change(session, name)
    session.execute(delete(UserModel).where(UserModel.name == name))


def set_revoked(session: Session, name: str, *, revoked: bool) -> None:
    """Revokes a user, or admits them again. Raises: NotFound."""
    _change(session, name).revoked = revoked


def revoke_token(session: Session, name: str, token_id: str) -> None:
    """Deletes a user's token. Raises: NotFound."""
    _change(session, name)
    gone = delete(TokenModel).where(TokenModel.user == name, TokenModel.id == token_id).returning(TokenModel.id)
    if session.scalar(gone) is None:
        raise NotFound(f"user {name} has no token {token_id}", reason="TOKEN_NOT_FOUND")


def add_token(session: Session, name: str, token: StoredToken) -> None:
    """Raises: NotFound, FailedPrecondition: the user is revoked, UsersExhausted."""
    _check_admitted(_change(session, name))
    gone = delete(TokenModel).where(TokenModel.user == name, TokenModel.expires_at_ms.between(1, token.created_at_ms))
    session.execute(gone)
    _check_room(f"tokens of {name}", _count(session, TokenModel, name), TOKENS_OF_A_USER_MAX)
    session.add(TokenModel(user=name, **token._asdict()))
    session.flush()


def end_others(session: Session, name: str, token_id: str, at_ms: int) -> None:
    """Lets all other tokens of a user expire at this time, unless they do earlier."""
    later = (TokenModel.expires_at_ms == 0) | (TokenModel.expires_at_ms > at_ms)
    others = update(TokenModel).where(TokenModel.user == name, TokenModel.id != token_id, later)
    session.execute(others.values(expires_at_ms=at_ms))


def add_grants(session: Session, name: str, grants: Iterable[StoredGrant]) -> None:
    """Adds grants; existing ones are kept. Raises: NotFound, UsersExhausted."""
    _change(session, name)
    for grant in grants:
        if session.get(GrantModel, (name, *grant)) is None:
            _check_room(f"grants of {name}", _count(session, GrantModel, name), GRANTS_OF_A_USER_MAX)
            session.add(GrantModel(user=name, **grant._asdict()))
            session.flush()


def remove_grant(session: Session, name: str, grant: StoredGrant) -> None:
    """Raises: NotFound."""
    _change(session, name)
    found = session.get(GrantModel, (name, *grant))
    if found is None:
        raise NotFound(f"user {name} has no such grant", reason="GRANT_NOT_FOUND")
    session.delete(found)


def add_key(session: Session, key: StoredKey) -> None:
    """Raises: NotFound, FailedPrecondition: the user is revoked, UsersExhausted."""
    _check_admitted(_change(session, key.user))
    _check_room(f"keys of {key.user}", _count(session, AccessKeyModel, key.user), KEYS_OF_A_USER_MAX)
    session.add(AccessKeyModel(**key._asdict()))
    session.flush()


def read_keys(session: Session, name: str = "") -> list[StoredKey]:
    """A user's keys, or all."""
    wanted = select(AccessKeyModel).order_by(
        AccessKeyModel.user, AccessKeyModel.created_at_ms, AccessKeyModel.access_key
    )
    if name:
        wanted = wanted.where(AccessKeyModel.user == name)
    return list(map(_stored_key, session.scalars(wanted)))


def delete_key(session: Session, access_key: str) -> None:
    """Raises: NotFound."""
    found = session.get(AccessKeyModel, access_key)
    if found is None:
        raise NotFound(f"there is no key {access_key}", reason="KEY_NOT_FOUND")
    _change(session, found.user)
    session.delete(found)


def _change(session: Session, name: str) -> UserModel:
    """The user, marked as changed. Raises: NotFound."""
    version = _count_up(session)
    user = session.get(UserModel, name)
    if user is None:
        raise no_user(name)
    user.version = version
    session.flush()
    return user


def no_user(name: str) -> NotFound:
    """The error for an unknown user."""
    return NotFound(f"there is no user {name}", reason="USER_NOT_FOUND")


def _count_up(session: Session) -> int:
    """Returns the number of a change. Other changes wait until the transaction ends, so that changes are ordered.

    Must be a transaction's first statement. Otherwise PostgreSQL would fail it after the wait, since its snapshot would
    be older than the other change; waiting for a table lock takes no snapshot.
    """
    if session.connection().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE users_version IN EXCLUSIVE MODE"))
    counted = update(UsersVersionModel).values(version=UsersVersionModel.version + 1)
    return session.scalar(counted.returning(UsersVersionModel.version)) or 0


def _count(session: Session, model: type[TokenModel | GrantModel | AccessKeyModel], name: str) -> int:
    return session.scalar(select(func.count()).select_from(model).where(model.user == name)) or 0


def _check_admitted(user: UserModel) -> None:
    if user.revoked:
        raise FailedPrecondition(f"user {user.name} is revoked; restore it first", reason="USER_REVOKED")


def _check_room(what: str, count: int, count_max: int) -> None:
    if count >= count_max:
        raise UsersExhausted(f"there are {count} {what}, the limit")


def check_name(name: str) -> None:
    """Raises: InvalidArgument: not a valid user name."""
    if not (1 <= len(name) <= USER_CHARS_MAX and name.isascii() and name.isprintable() and " " not in name):
        text = f"{name[:USER_CHARS_MAX]!r} is not 1 to {USER_CHARS_MAX} printable ASCII characters without blanks"
        raise InvalidArgument([Violation("name", text)])
