//! The builds that a member works on, and how those that it aborted have ended.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use banyan_storage::build::BuildAddress;
use banyan_storage::{BuildId, IndexBuild};
use banyan_wire::CommandError;
use bson::RawDocumentBuf;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::operations::Registration;

/// So many builds load at the same time; others wait for their turn.
const LOADS_MAX: usize = 3;
/// How those that ended have ended is known of so many.
const ENDED_MAX: usize = 100;

/// The builds of one member.
pub struct IndexBuilds {
    pub(super) active: Mutex<HashMap<BuildId, Arc<Active>>>,
    /// Why builds were aborted by this member.
    pub(super) aborted: Mutex<VecDeque<(BuildId, CommandError)>>,
    changed: watch::Sender<u64>,
    pub(super) loads: Arc<Semaphore>,
    pub(super) runtime: Mutex<Option<Handle>>,
}

/// A build that this member works on.
pub(super) struct Active {
    pub(super) address: BuildAddress,
    pub(super) build: Arc<IndexBuild>,
    /// The catalog does not name it any more.
    pub(super) gone: AtomicBool,
    pub(super) registration: Registration,
    /// The hosts of the secondaries that have loaded everything.
    pub(super) votes: Mutex<HashSet<String>>,
    /// What has taken the place of the quorum that the build began with. Who leads next does not
    /// know of it.
    pub(super) quorum: Mutex<Option<RawDocumentBuf>>,
    /// Why it could not be loaded when that was last tried.
    pub(super) failure: Mutex<Option<CommandError>>,
}

impl Default for IndexBuilds {
    fn default() -> Self {
        IndexBuilds {
            active: Mutex::default(),
            aborted: Mutex::default(),
            changed: watch::Sender::new(0),
            loads: Arc::new(Semaphore::new(LOADS_MAX)),
            runtime: Mutex::default(),
        }
    }
}

impl IndexBuilds {
    pub(super) fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// A secondary has loaded everything.
    pub fn vote(&self, build: &BuildId, host: &str) {
        if let Some(active) = self.active.lock().get(build) {
            active.votes.lock().insert(host.to_owned());
        }
        self.tell();
    }

    /// Has a build that is under way go by another commit quorum. False: it is not known here.
    pub fn set_quorum(&self, build: &BuildId, quorum: RawDocumentBuf) -> bool {
        let active = self.active.lock().get(build).cloned();
        if let Some(active) = &active {
            *active.quorum.lock() = Some(quorum);
        }
        self.tell();
        active.is_some()
    }

    /// Changes whenever something is known of a build.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Why a build could not be loaded when that was last tried.
    pub fn failure(&self, build: &BuildId) -> Option<CommandError> {
        let active = self.active.lock().get(build).cloned();
        active.and_then(|active| active.failure.lock().clone())
    }

    pub(super) fn note_aborted(&self, build: BuildId, error: CommandError) {
        let mut aborted = self.aborted.lock();
        if aborted.iter().any(|(id, _)| *id == build) {
            return;
        }
        if aborted.len() == ENDED_MAX {
            aborted.pop_front();
        }
        aborted.push_back((build, error));
    }

    pub(super) fn error_of(&self, build: &BuildId) -> Option<CommandError> {
        let aborted = self.aborted.lock();
        let found = aborted.iter().find(|(id, _)| id == build);
        found.map(|(_, error)| error.clone())
    }
}
