"""Today's contract changes nothing that the last version's processes and clients rely on, and reuses no number."""

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from tests.upgrade.contract import conflicts, violations
from tests.upgrade.release import FIXTURES, PROJECT

RELEASE = """
syntax = "proto3";
package p;

service S {
  rpc Get(Request) returns (Answer);
  rpc Watch(Request) returns (stream Answer);
  rpc Old(Request) returns (Answer) { option deprecated = true; }
}

message Request {
  string name = 1;
  repeated int64 offsets = 2;
  int32 old = 3 [deprecated = true];
  oneof where {
    int64 at_ms = 4;
    bool latest = 5;
  }
  map<string, int32> counts = 6;
  message Inner { string text = 1; }
  Inner inner = 7;
}

message Answer {
  State state = 1;
  optional int32 rest = 2;
}

enum State {
  STATE_UNSPECIFIED = 0;
  STATE_ON = 1;
  STATE_OLD = 2 [deprecated = true];
}
"""

# Permitted changes: pairs of a text of RELEASE and its replacement.
ALLOWED = {
    "method added": ("rpc Get(", "rpc Put(Request) returns (Answer);\n  rpc Get("),
    "deprecated method removed": ("  rpc Old(Request) returns (Answer) { option deprecated = true; }\n", ""),
    "deprecated field removed": ("int32 old = 3 [deprecated = true];", 'reserved 3; reserved "old";'),
    "field added": ("string name = 1;", "string name = 1; bytes body = 8;"),
    "field deprecated": ("string name = 1;", "string name = 1 [deprecated = true];"),
    "deprecated enum value removed": ("STATE_OLD = 2 [deprecated = true];", 'reserved 2; reserved "STATE_OLD";'),
    "message added": ("message Answer {", "message More {}\nmessage Answer {"),
    "presence added": ("State state = 1;", "optional State state = 1;"),
}

# Changes that the stop of an earlier version permits.
PERMITTED_AFTER_A_STOP = ("method removed", "service removed", "field removed without notice")

# Changes that break the other version, and the reported violation.
FORBIDDEN = {
    "method removed": ("  rpc Get(Request) returns (Answer);\n", "", "method p.S.Get is gone"),
    "method's request changed": ("Get(Request)", "Get(Answer)", "method p.S.Get was (.p.Request)"),
    "method's answer no stream": ("(stream Answer)", "(Answer)", "method p.S.Watch was"),
    "service removed": ("service S {", "service T {", "service p.S is gone"),
    "message removed": ("message Inner { string text = 1; }\n  Inner inner", "Answer inner", "p.Request.Inner is gone"),
    "field removed": ("string name = 1;", "", "p.Request.name = 1 is gone, and its number"),
    "field removed without notice": ("string name = 1;", 'reserved 1; reserved "name";', "= 1 is gone and was not"),
    "deprecated field not reserved": ("int32 old = 3 [deprecated = true];", "", "p.Request.old = 3 is gone, and its"),
    "number reused": ("string name = 1;", "string title = 1;", "p.Request.name = 1: the number is given to title"),
    "field renumbered": ("string name = 1;", "string name = 9;", "p.Request.name = 1: the name is given to number 9"),
    "type changed": ("string name = 1;", "bytes name = 1;", "p.Request.name = 1 had type string and has bytes"),
    "type's message changed": (
        "Inner inner = 7;",
        "Answer inner = 7;",
        "= 7 had type .p.Request.Inner and has .p.Answer",
    ),
    "map's value changed": ("map<string, int32>", "map<string, int64>", "CountsEntry.value = 2 had type int32"),
    "no longer repeated": ("repeated int64 offsets", "int64 offsets", "p.Request.offsets = 2 is repeated in one"),
    "oneof left": ("bool latest = 5;\n  }", "}\n  bool latest = 5;", "was of oneof 'where' and is of 'none'"),
    "nested field changed": ("string text = 1;", "int32 text = 1;", "p.Request.Inner.text = 1 had type string"),
    "enum removed": ("enum State", "enum Status", "enum p.State is gone"),
    "enum value removed": ("  STATE_ON = 1;\n", "", "p.State.STATE_ON = 1 is gone"),
    "enum value renumbered": ("STATE_ON = 1;", "STATE_ON = 7;", "p.State.STATE_ON = 1: the name is given to number 7"),
    "enum number reused": ("STATE_ON = 1;", "STATE_OFF = 1;", "the number is given to STATE_OFF"),
}

Judge = Callable[[FileDescriptorSet, FileDescriptorSet], list[str]]
# By version.
CONTRACTS = sorted(
    FIXTURES.parent.glob("*/contract.binpb"), key=lambda path: [int(part) for part in path.parent.name.split(".")]
)


def compile_protos(folder: Path, out: Path) -> FileDescriptorSet:
    """The descriptors of the .proto files below a folder: of our own contract, where it has others too."""
    ours = folder / "duetime"
    protos = sorted(str(path) for path in (ours if ours.is_dir() else folder).rglob("*.proto"))
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", *protos]) == 0
    return FileDescriptorSet.FromString(out.read_bytes())


def changed(tmp_path: Path, was: str, now: str, judge: Judge = violations) -> list[str]:
    """Violations when a text of RELEASE is replaced."""
    assert RELEASE.count(was) == 1
    sets = []
    for name, text in (("was", RELEASE), ("now", RELEASE.replace(was, now))):
        folder = tmp_path / name
        folder.mkdir()
        # A type that is no longer there is used by nobody either.
        (folder / "p.proto").write_text(text.replace("State state", "Status state") if "enum Status" in text else text)
        sets.append(compile_protos(folder, tmp_path / f"{name}.binpb"))
    return judge(*sets)


@pytest.mark.parametrize("change", ALLOWED)
def test_compatible_change_is_allowed(tmp_path: Path, change: str) -> None:
    assert changed(tmp_path, *ALLOWED[change]) == []


@pytest.mark.parametrize("change", FORBIDDEN)
def test_incompatible_change_is_found(tmp_path: Path, change: str) -> None:
    was, now, sentence = FORBIDDEN[change]
    found = changed(tmp_path, was, now)
    assert any(sentence in violation for violation in found), found


@pytest.mark.parametrize("change", FORBIDDEN)
def test_stop_permits_removals_alone(tmp_path: Path, change: str) -> None:
    was, now, _ = FORBIDDEN[change]
    found = changed(tmp_path, was, now, conflicts)
    assert bool(found) is (change not in PERMITTED_AFTER_A_STOP), found


def test_todays_contract_keeps_the_last_and_reuses_no_number(tmp_path: Path) -> None:
    """0.2.0's is that of the commit that ended the support of 0.1.0's processes, until 0.2.0 is released."""
    *earlier, last = [FileDescriptorSet.FromString(path.read_bytes()) for path in CONTRACTS]
    current = compile_protos(PROJECT / "proto", tmp_path / "now.binpb")
    assert sum(len(service.method) for file in last.file for service in file.service) > 50
    assert violations(last, current) == []
    assert [each for one in earlier for each in conflicts(one, current)] == []
