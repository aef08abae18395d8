//! The descriptors that the core reads: a log in memory, without the bytes that they describe.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};
use raft::util::limit_size;
use raft::{GetEntriesContext, RaftState, Result, Storage, StorageError};

/// Entries after `base`, and the state that a restart needs.
#[derive(Default)]
pub struct Log {
    pub hard: HardState,
    pub members: ConfState,
    /// Index and term of the entry before the first one.
    pub base: (u64, u64),
    pub entries: VecDeque<Entry>,
    pub applied: u64,
}

impl Log {
    pub fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    fn at(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.base.0 + 1)? as usize)
    }

    /// Adds entries of consecutive indexes; the first may overrule a tail.
    pub fn append(&mut self, entries: Vec<Entry>) {
        if let Some(first) = entries.first() {
            assert!(self.base.0 < first.index && first.index <= self.last() + 1, "gap before entry {}", first.index);
            self.entries.truncate((first.index - self.base.0 - 1) as usize);
            self.entries.extend(entries);
        }
    }

    /// Drops the descriptors up to `index`, which is applied.
    pub fn compact(&mut self, index: u64) {
        if let Some(entry) = self.at(index) {
            let term = entry.term;
            self.entries.drain(..(index - self.base.0) as usize);
            self.base = (index, term);
        }
    }

    /// Begins again behind a snapshot.
    pub fn restore(&mut self, metadata: &SnapshotMetadata) {
        self.base = (metadata.index, metadata.term);
        self.entries.clear();
        self.members = metadata.get_conf_state().clone();
        self.applied = metadata.index;
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.members.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        let places = (low - self.base.0 - 1) as usize..(high - self.base.0 - 1) as usize;
        let max_size = max_size.into();
        // No copy of a whole log for a message that takes one entry.
        let most = if max_size == Some(0) { 1 } else { usize::MAX };
        let mut entries: Vec<Entry> = self.entries.range(places).take(most).cloned().collect();
        limit_size(&mut entries, max_size);
        Ok(entries)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        if index < self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        Ok(self.at(index).ok_or(StorageError::Unavailable)?.term)
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// The state after the last applied entry; its bytes are the caller's to send.
    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        if self.applied == 0 || self.applied < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied;
        metadata.term = self.term(self.applied)?;
        metadata.set_conf_state(self.members.clone());
        Ok(snapshot)
    }
}
