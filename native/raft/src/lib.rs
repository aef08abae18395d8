//! Raft's core as a Python class: messages in, work out; no I/O, no thread, no clock.

mod log;

use std::panic::{catch_unwind, AssertUnwindSafe};

use prost::Message as _;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, Message, MessageType,
};
use raft::{Config, RawNode, SnapshotStatus, StateRole};

use crate::log::Log;

create_exception!(
    duetime_raft,
    RaftError,
    PyException,
    "The core rejects a call; it stays usable unless `CoreFailed`."
);
create_exception!(duetime_raft, NotLeader, RaftError, "Only the leader does this; `status` names it if it is known.");
create_exception!(duetime_raft, ProposalDropped, RaftError, "The leader takes no proposal now, as it hands over.");
create_exception!(duetime_raft, MessageRejected, RaftError, "A message is not valid, or not for this node.");
create_exception!(duetime_raft, CoreFailed, RaftError, "The core broke one of its own rules; the node is unusable.");

/// An entry: index, term, kind (0 of the caller or of Raft's own, 1 a change of members), data.
type Row<'py> = (u64, u64, u8, Bound<'py, PyBytes>);

/// The members of a group, as a dict.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
struct Members {
    voters: Vec<u64>,
    learners: Vec<u64>,
    voters_outgoing: Vec<u64>,
    learners_next: Vec<u64>,
    auto_leave: bool,
}

impl From<&ConfState> for Members {
    fn from(state: &ConfState) -> Self {
        let state = state.clone();
        Members {
            voters: state.voters,
            learners: state.learners,
            voters_outgoing: state.voters_outgoing,
            learners_next: state.learners_next,
            auto_leave: state.auto_leave,
        }
    }
}

impl From<Members> for ConfState {
    fn from(members: Members) -> Self {
        ConfState {
            voters: members.voters,
            learners: members.learners,
            voters_outgoing: members.voters_outgoing,
            learners_next: members.learners_next,
            auto_leave: members.auto_leave,
        }
    }
}

fn rows<'py>(py: Python<'py>, entries: &[Entry]) -> Vec<Row<'py>> {
    let kind = |entry: &Entry| u8::from(entry.get_entry_type() != EntryType::EntryNormal);
    entries.iter().map(|entry| (entry.index, entry.term, kind(entry), PyBytes::new(py, &entry.data))).collect()
}

fn decode(message: &[u8]) -> PyResult<Message> {
    Message::decode(message).map_err(|error| MessageRejected::new_err(format!("not a message of Raft: {error}")))
}

/// The descriptors in a message, so that their bytes can be checked before `step`.
#[pyfunction]
fn entries<'py>(py: Python<'py>, message: &[u8]) -> PyResult<Vec<Row<'py>>> {
    Ok(rows(py, &decode(message)?.entries))
}

/// The caller's bytes in a change of members; none in one of Raft's own.
#[pyfunction]
fn context<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let change = ConfChangeV2::decode(data)
        .map_err(|error| MessageRejected::new_err(format!("not a change of members: {error}")))?;
    Ok(PyBytes::new(py, &change.context))
}

fn error(failure: raft::Error) -> PyErr {
    match failure {
        raft::Error::ProposalDropped => ProposalDropped::new_err("the leader takes no proposal now"),
        raft::Error::StepLocalMsg | raft::Error::StepPeerNotFound => MessageRejected::new_err(failure.to_string()),
        raft::Error::ConfigInvalid(text) => PyValueError::new_err(text),
        other => RaftError::new_err(other.to_string()),
    }
}

/// One member of a group; not for several threads at a time.
#[pyclass]
struct Node {
    raw: RawNode<Log>,
    failed: Option<String>,
    /// Number of the last `ready`, of the last with a new term or vote, and of the last flushed.
    readied: u64,
    voted: u64,
    flushed: u64,
}

impl Node {
    /// Runs a step of the core; its panic fails this call and all later ones, never the process.
    fn run<T>(&mut self, step: impl FnOnce(&mut Self) -> PyResult<T>) -> PyResult<T> {
        if let Some(text) = &self.failed {
            return Err(CoreFailed::new_err(text.clone()));
        }
        match catch_unwind(AssertUnwindSafe(|| step(&mut *self))) {
            Ok(result) => result,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
                self.failed = Some(format!("Raft's core failed: {text}"));
                Err(CoreFailed::new_err(self.failed.clone()))
            }
        }
    }

    fn lead(&self) -> PyResult<()> {
        match (self.raw.raft.state, self.raw.raft.leader_id) {
            (StateRole::Leader, _) => Ok(()),
            (_, 0) => Err(NotLeader::new_err(format!("node {} follows, and knows no leader", self.raw.raft.id))),
            (_, leader) => Err(NotLeader::new_err(format!("node {} follows, node {leader} leads", self.raw.raft.id))),
        }
    }

    fn addressed<'py>(
        &self,
        py: Python<'py>,
        messages: Vec<Message>,
    ) -> Vec<(u64, Bound<'py, PyBytes>, Vec<Row<'py>>)> {
        let parts =
            |message: &Message| (message.to, PyBytes::new(py, &message.encode_to_vec()), rows(py, &message.entries));
        messages.iter().map(parts).collect()
    }
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (id, members, *, term=0, vote=0, commit=0, base=(0, 0), entries=Vec::new(), applied=0,
                        heartbeat_ticks=1, election_ticks=10, timeout_ticks=(10, 20), inflight_max=64))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        id: u64,
        members: Members,
        term: u64,
        vote: u64,
        commit: u64,
        base: (u64, u64),
        entries: Vec<(u64, u64, u8, Vec<u8>)>,
        applied: u64,
        heartbeat_ticks: usize,
        election_ticks: usize,
        timeout_ticks: (usize, usize),
        inflight_max: usize,
    ) -> PyResult<Self> {
        let config = Config {
            id,
            applied,
            heartbeat_tick: heartbeat_ticks,
            election_tick: election_ticks,
            min_election_tick: timeout_ticks.0,
            max_election_tick: timeout_ticks.1,
            max_inflight_msgs: inflight_max,
            // One entry a message: an entry stands for the bytes of a whole group commit.
            max_size_per_msg: 0,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        config.validate().map_err(error)?;
        let mut log = Log { base, applied, members: members.into(), ..Log::default() };
        (log.hard.term, log.hard.vote, log.hard.commit) = (term, vote, commit);
        let (mut index, mut latest) = base;
        for (place, term, kind, data) in entries {
            if place != index + 1 || term < latest {
                return Err(PyValueError::new_err(format!("entry {place}/{term} does not follow {index}/{latest}")));
            }
            (index, latest) = (place, term);
            let mut entry = Entry { index, term, data, ..Entry::default() };
            if kind == 1 {
                entry.set_entry_type(EntryType::EntryConfChangeV2);
            }
            log.entries.push_back(entry);
        }
        if latest > term || commit > index || applied > commit || base.0 > applied {
            return Err(PyValueError::new_err(format!(
                "base {} <= applied {applied} <= commit {commit} <= last {index} and last term {latest} <= term {term} \
                 must hold",
                base.0
            )));
        }
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = catch_unwind(|| RawNode::new(&config, log, &logger))
            .map_err(|_| CoreFailed::new_err("Raft's core failed at its start"))?
            .map_err(error)?;
        Ok(Node { raw, failed: None, readied: 0, voted: 0, flushed: 0 })
    }

    fn tick(&mut self) -> PyResult<()> {
        self.run(|node| {
            node.raw.tick();
            Ok(())
        })
    }

    fn campaign(&mut self) -> PyResult<()> {
        self.run(|node| node.raw.campaign().map_err(error))
    }

    fn step(&mut self, message: &[u8]) -> PyResult<()> {
        self.run(|node| {
            let message = decode(message)?;
            let id = node.raw.raft.id;
            if message.to != id || message.from == id || message.from == 0 {
                let text = format!("message from {} to {} at node {id}", message.from, message.to);
                return Err(MessageRejected::new_err(text));
            }
            // The leader alone proposes: its positions are part of a descriptor.
            if message.get_msg_type() == MessageType::MsgPropose {
                return Err(MessageRejected::new_err("proposals are not forwarded"));
            }
            node.raw.step(message).map_err(error)
        })
    }

    fn propose(&mut self, data: Vec<u8>) -> PyResult<(u64, u64)> {
        self.run(|node| {
            node.lead()?;
            if data.is_empty() {
                return Err(PyValueError::new_err("empty data: Raft's own entries have none"));
            }
            node.raw.propose(Vec::new(), data).map_err(error)?;
            Ok((node.raw.raft.raft_log.last_index(), node.raw.raft.term))
        })
    }

    #[pyo3(signature = (changes, context=Vec::new()))]
    fn propose_conf(&mut self, changes: Vec<(u64, String)>, context: Vec<u8>) -> PyResult<(u64, u64)> {
        self.run(|node| {
            node.lead()?;
            let mut change = ConfChangeV2 { context, ..ConfChangeV2::default() };
            for (id, kind) in changes {
                let mut single = ConfChangeSingle { node_id: id, ..ConfChangeSingle::default() };
                single.set_change_type(match kind.as_str() {
                    "voter" => ConfChangeType::AddNode,
                    "learner" => ConfChangeType::AddLearnerNode,
                    "removed" => ConfChangeType::RemoveNode,
                    _ => return Err(PyValueError::new_err(format!("{kind} is not voter, learner or removed"))),
                });
                change.changes.push(single);
            }
            let last = node.raw.raft.raft_log.last_index();
            node.raw.propose_conf_change(Vec::new(), change).map_err(error)?;
            // The core replaces a change by an empty entry if it cannot begin now.
            if node.raw.raft.pending_conf_index != last + 1 {
                return Err(ProposalDropped::new_err("another change of members is pending"));
            }
            Ok((last + 1, node.raw.raft.term))
        })
    }

    fn apply_conf(&mut self, index: u64, data: &[u8]) -> PyResult<Members> {
        self.run(|node| {
            let change = ConfChangeV2::decode(data).map_err(|fault| RaftError::new_err(fault.to_string()))?;
            let members = node.raw.apply_conf_change(&change).map_err(error)?;
            node.raw.mut_store().members = members.clone();
            node.advance(index)?;
            Ok(Members::from(&members))
        })
    }

    fn applied(&mut self, index: u64) -> PyResult<()> {
        self.run(|node| node.advance(index))
    }

    fn persisted(&mut self, number: u64) -> PyResult<()> {
        self.run(|node| {
            if number > node.readied {
                return Err(PyValueError::new_err(format!("{number} is above the last number, {}", node.readied)));
            }
            node.flushed = node.flushed.max(number);
            node.raw.on_persist_ready(number);
            Ok(())
        })
    }

    fn read_index(&mut self, context: Vec<u8>) -> PyResult<()> {
        self.run(|node| {
            node.raw.read_index(context);
            Ok(())
        })
    }

    fn transfer(&mut self, to: u64) -> PyResult<()> {
        self.run(|node| {
            node.lead()?;
            node.raw.transfer_leader(to);
            Ok(())
        })
    }

    fn unreachable(&mut self, id: u64) -> PyResult<()> {
        self.run(|node| {
            node.raw.report_unreachable(id);
            Ok(())
        })
    }

    fn snapshot_sent(&mut self, to: u64, arrived: bool) -> PyResult<()> {
        self.run(|node| {
            let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
            node.raw.report_snapshot(to, status);
            Ok(())
        })
    }

    fn compact(&mut self, index: u64) -> PyResult<()> {
        self.run(|node| {
            let applied = node.raw.store().applied;
            if index > applied {
                return Err(PyValueError::new_err(format!("{index} is above the last applied entry, {applied}")));
            }
            node.raw.mut_store().compact(index);
            Ok(())
        })
    }

    /// Takes the work that is due, or None; see the stubs for its keys.
    fn ready<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.run(|node| {
            if !node.raw.has_ready() {
                return Ok(None);
            }
            let (term, vote) = (node.raw.store().hard.term, node.raw.store().hard.vote);
            let mut work = node.raw.ready();
            node.readied = work.number();
            let result = PyDict::new(py);
            result.set_item("number", work.number())?;
            result.set_item("flush", work.must_sync())?;
            if let Some(hard) = work.hs() {
                // A sole voter leads before its vote is on the disk: its messages wait too.
                if (hard.term, hard.vote) != (term, vote) {
                    node.voted = work.number();
                }
                node.raw.mut_store().hard = hard.clone();
                result.set_item("hard", (hard.term, hard.vote, hard.commit))?;
            } else {
                result.set_item("hard", py.None())?;
            }
            let mut now = work.take_messages();
            let mut later = work.take_persisted_messages();
            if node.flushed < node.voted {
                later.append(&mut now);
            }
            result.set_item("messages", node.addressed(py, now))?;
            result.set_item("messages_flushed", node.addressed(py, later))?;
            let metadata = work.snapshot().get_metadata().clone();
            if metadata.index > 0 {
                let members = Members::from(metadata.get_conf_state());
                result.set_item("snapshot", (metadata.index, metadata.term, members))?;
                node.raw.mut_store().restore(&metadata);
            } else {
                result.set_item("snapshot", py.None())?;
            }
            result.set_item("entries", rows(py, work.entries()))?;
            node.raw.mut_store().append(work.take_entries());
            result.set_item("committed", rows(py, work.committed_entries()))?;
            let reads = work.take_read_states();
            let reads: Vec<_> = reads.iter().map(|read| (PyBytes::new(py, &read.request_ctx), read.index)).collect();
            result.set_item("reads", reads)?;
            node.raw.advance_append_async(work);
            Ok(Some(result))
        })
    }

    fn status<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.run(|node| {
            let core = &node.raw.raft;
            let result = PyDict::new(py);
            result.set_item("id", core.id)?;
            result.set_item("role", format!("{:?}", core.state).to_lowercase())?;
            result.set_item("term", core.term)?;
            result.set_item("vote", core.vote)?;
            result.set_item("leader", core.leader_id)?;
            result.set_item("commit", core.raft_log.committed)?;
            result.set_item("applied", core.raft_log.applied)?;
            result.set_item("persisted", core.raft_log.persisted)?;
            result.set_item("first", core.raft_log.first_index())?;
            result.set_item("last", core.raft_log.last_index())?;
            result.set_item("last_term", core.raft_log.last_term())?;
            result.set_item("transfer", core.lead_transferee.unwrap_or(0))?;
            result.set_item("members", Members::from(&node.raw.store().members))?;
            let peers = PyDict::new(py);
            if core.state == StateRole::Leader {
                for (id, progress) in core.prs().iter() {
                    let state = progress.state.to_string().to_lowercase();
                    peers.set_item(id, (progress.matched, state, progress.recent_active))?;
                }
            }
            result.set_item("peers", peers)?;
            Ok(result)
        })
    }
}

impl Node {
    fn advance(&mut self, index: u64) -> PyResult<()> {
        let log = &self.raw.raft.raft_log;
        let most = log.committed.min(log.persisted);
        if index < log.applied || index > most {
            return Err(PyValueError::new_err(format!("{index} is not within {} to {most}", log.applied)));
        }
        self.raw.mut_store().applied = index;
        self.raw.advance_apply_to(index);
        Ok(())
    }
}

#[pymodule]
fn duetime_raft(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Raised by changes that older callers do not fit, as in duetime_format/compiled.py.
    module.add("INTERFACE", 2)?;
    module.add_class::<Node>()?;
    module.add_function(wrap_pyfunction!(entries, module)?)?;
    module.add_function(wrap_pyfunction!(context, module)?)?;
    let py = module.py();
    module.add("RaftError", py.get_type::<RaftError>())?;
    module.add("NotLeader", py.get_type::<NotLeader>())?;
    module.add("ProposalDropped", py.get_type::<ProposalDropped>())?;
    module.add("MessageRejected", py.get_type::<MessageRejected>())?;
    module.add("CoreFailed", py.get_type::<CoreFailed>())
}
