//! A member that lags too far: it fetches the state from the leader, and Raft learns of it when that
//! is done.

use raft::SnapshotStatus;
use raft::eraftpb::Message;

use super::{Core, Outlet, forced};
use crate::log::{Disk, decode_membership};
use crate::machine::{PeerId, Position, SnapshotMeta};

impl<D: Disk> Core<D> {
    /// A snapshot is held back until its state is here; only then does Raft learn of it.
    pub(super) fn take_snapshot(&mut self, message: Message, outlet: &mut impl Outlet) {
        let metadata = message.get_snapshot().get_metadata();
        let position = Position {
            term: metadata.term,
            index: metadata.index,
        };
        let stale = message.term < self.term();
        // The log reaches there by itself: the state must not be thrown away for it.
        let raft_log = &self.node.raft.raft_log;
        let needless = !self.needs_snapshot
            && (position.index <= raft_log.committed
                || raft_log.match_term(position.index, position.term));
        if self.installing {
            return;
        }
        // The leader repeats itself as long as it does not know that the state is here, and names a
        // later position once more is applied there. A state that goes as far is not thrown away
        // for the same: only the log begins anew.
        let is_here = !self.needs_snapshot
            && self.installed.is_none()
            && self.is_of_one_history()
            && self.log().applied().index >= position.index;
        if !stale && !needless && is_here {
            if (self.durable)() < position.index {
                // The log that begins anew has not what a crash would take from the state. The
                // leader repeats itself.
                self.awaits_durable = true;
                return;
            }
            // The state may be further than what the log will hold.
            if let Err(error) = self.log_mut().set_ahead(true) {
                self.broken = Some(error);
                return;
            }
        }
        if stale || needless || is_here {
            // Raft answers with what it has, which is what the leader needs to know.
            let _ = self.node.step(message);
            self.settle();
            return;
        }
        let Some(membership) = decode_membership(&message.get_snapshot().data) else {
            return;
        };
        if let Err(error) = self.log_mut().set_ahead(true) {
            self.broken = Some(error);
            return;
        }
        let leader_address = self.address(message.from, &membership);
        self.installing = true;
        self.installing_from = self.released;
        self.settle();
        outlet.install(
            SnapshotMeta {
                position,
                members: membership.members,
                leader: message.from,
                leader_address,
            },
            message,
        );
    }

    /// The state of a held snapshot is in place (or could not be fetched).
    pub fn snapshot_installed(&mut self, held: Message, success: bool) {
        self.installing = false;
        if success {
            self.installed = Some(held);
            self.step_installed();
        } else {
            if self.log().applied().index < self.installing_from {
                self.missed = self.released;
            }
            self.needs_snapshot = self.state_is_behind();
            self.settle();
        }
    }

    pub(super) fn step_installed(&mut self) {
        let Some(mut held) = self.installed.take() else {
            return;
        };
        if forced::epoch(held.term) < forced::epoch(self.term()) {
            // The state that was fetched belongs to a history that was given up meanwhile.
            self.abandon();
            return;
        }
        if held.term < self.term() {
            // What is installed is committed, whoever leads by now; it's told to the new leader.
            let Some(leader) = self.leader().filter(|&id| id != self.settings.id) else {
                self.installed = Some(held);
                return;
            };
            held.term = self.term();
            held.from = leader;
        }
        let _ = self.node.step(held);
        self.settle();
        self.needs_snapshot = self.state_is_behind();
    }

    /// The state lacks entries that the log will not hand over (again).
    pub(super) fn state_is_behind(&self) -> bool {
        self.log().is_stale()
            || self.log().applied().index < self.log().base().index.max(self.missed)
    }

    /// A follower that was told to fetch a snapshot may have crashed over it. Telling it again
    /// costs one small message, which it ignores while it is at it.
    pub(super) fn retry_snapshots(&mut self) {
        let waiting: Vec<PeerId> = self
            .node
            .raft
            .prs()
            .iter()
            .filter(|(_, progress)| progress.state == raft::ProgressState::Snapshot)
            .map(|(&id, _)| id)
            .collect();
        for id in waiting {
            self.node.report_snapshot(id, SnapshotStatus::Failure);
        }
    }

    /// While it lacks state, or is about to throw it away, a member takes no entries, so that none
    /// is thought to be safe with it; it answers every message of the leader by asking for a
    /// snapshot.
    pub(super) fn ask_for_snapshot(&mut self) {
        let lacking = self.needs_snapshot || self.installing || self.installed.is_some();
        let asks = lacking && !self.is_leader();
        let lowest = match self.is_of_one_history() {
            true => self.log().base().index.max(self.missed).max(1),
            false => 1,
        };
        self.node.raft.pending_request_snapshot = if asks { lowest } else { 0 };
    }
}
