//! What becomes of a migration whose donor has written down that it may be committed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_wire::{CommandError, RequestOptions};
use bson::oid::ObjectId;
use bson::rawdoc;

use super::coordinator::CoordinatorDocument;
use super::orphans::{Kind, NewTask};
use crate::shard::errors::conflict;
use crate::shard::state::ShardRole;

/// Where the documents are, in the shard's own database `config`.
const COLLECTION: &str = "migrationCoordinators";

const TIMEOUT: Duration = Duration::from_secs(15);

/// Written before the hand-over can become true anywhere.
pub async fn write(
    role: &ShardRole,
    coordinator: &CoordinatorDocument,
) -> Result<(), CommandError> {
    let body = rawdoc! { "insert": COLLECTION, "documents": [coordinator.to_document()] };
    role.local.write("config", body).await.map(drop)
}

/// Whether a hand-over of this id is under way here, or its outcome still open.
pub async fn is_open(role: &ShardRole, id: ObjectId) -> Result<bool, CommandError> {
    if role
        .donor
        .lock()
        .as_ref()
        .is_some_and(|donor| donor.id == id)
    {
        return Ok(true);
    }
    let body = rawdoc! { "find": COLLECTION, "filter": { "_id": id } };
    Ok(!role.local.find("config", body).await?.is_empty())
}

/// Asks the config servers who owns the range. With `fence` a commit that may still be under way
/// is made impossible first.
pub async fn find_out(
    role: &ShardRole,
    coordinator: &CoordinatorDocument,
    fence: bool,
    term: u64,
) -> Result<bool, CommandError> {
    let identity = role.identified()?;
    let mut pause = Duration::from_millis(50);
    loop {
        if role.term() != term {
            return Err(conflict("this member is no longer the primary that it was"));
        }
        let asked = async {
            if fence {
                let body = rawdoc! {
                    "_configsvrEnsureChunkVersionIsGreaterThan": coordinator.ns.as_str(),
                    "min": coordinator.min.clone(),
                    "max": coordinator.max.clone(),
                    "epoch": coordinator.epoch,
                    "lastmod": coordinator.lastmod,
                };
                let request_options = RequestOptions::write().idempotent().timeout(Some(TIMEOUT));
                identity.config.command(request_options, &body).await?;
            }
            let collection = role.collection(&coordinator.ns);
            role.read_table(&collection, term).await?;
            let Some(filter) = collection.filter() else {
                return Ok(false);
            };
            let range = coordinator.range()?;
            let same = filter.table.uuid() == coordinator.uuid;
            Ok::<_, CommandError>(same && filter.table.find(&range.min).shard != identity.name)
        };
        match asked.await {
            Ok(committed) => return Ok(committed),
            Err(error) => {
                tracing::warn!(ns = coordinator.ns, %error, "a migration's outcome is not known yet");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// What went away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    pub documents: u64,
    pub bytes: u64,
}

/// How a migration ended.
#[derive(Debug, Clone, Copy)]
pub enum Ended {
    NotCommitted,
    Committed {
        moved: Moved,
        /// Somebody waits for the end of the orphans.
        is_awaited: bool,
    },
}

/// Acts on the outcome: documents that went away are to be removed, the recipient is told, the
/// coordinator document is deleted.
pub async fn conclude(
    role: &Arc<ShardRole>,
    coordinator: &CoordinatorDocument,
    ended: Ended,
) -> Result<(), CommandError> {
    if let Ended::Committed { moved, is_awaited } = ended {
        let task = NewTask {
            id: coordinator.id,
            ns: &coordinator.ns,
            uuid: coordinator.uuid,
            key: coordinator.key.clone(),
            min: coordinator.min.clone(),
            max: coordinator.max.clone(),
            donor: &coordinator.from,
            documents: moved.documents,
            bytes: moved.bytes,
            kind: if is_awaited { Kind::Now } else { Kind::Delayed },
        };
        role.orphans.add(&role.local, task).await?;
    }
    let committed = matches!(ended, Ended::Committed { .. });
    let body = rawdoc! { "delete": COLLECTION, "deletes": [{ "q": { "_id": coordinator.id }, "limit": 1 }] };
    role.local.write("config", body).await?;
    let (role, coordinator) = (role.clone(), coordinator.clone());
    // A recipient that misses this asks later.
    tokio::spawn(async move {
        let body = rawdoc! {
            "_recvChunkFinish": coordinator.ns.as_str(), "migrationId": coordinator.id, "committed": committed,
        };
        let request_options = RequestOptions::write().idempotent().timeout(Some(TIMEOUT));
        let told = async {
            Ok(role
                .peer(&coordinator.to_host)?
                .command(request_options, "admin", &body)
                .await?)
        };
        if let Err(error) = told.await.map_err(|error: CommandError| error) {
            tracing::debug!(ns = coordinator.ns, %error, "the recipient was not told of the outcome");
        }
    });
    Ok(())
}

impl ShardRole {
    /// Settles what earlier primaries left open. Nothing is answered for sharded collections in
    /// this term before that is done.
    pub async fn recover_migrations(&self, term: u64) -> Result<(), CommandError> {
        if self.recovered_term.load(Ordering::Acquire) == term {
            return Ok(());
        }
        let _turn = self.recovering.lock().await;
        if self.recovered_term.load(Ordering::Acquire) == term {
            return Ok(());
        }
        let body = rawdoc! { "find": COLLECTION };
        for document in self.local.find("config", body).await? {
            let coordinator = CoordinatorDocument::parse(&document)?;
            tracing::info!(ns = coordinator.ns, id = %coordinator.id, "settling a migration left open");
            let committed = find_out(self, &coordinator, true, term).await?;
            let ended = match committed {
                true => Ended::Committed {
                    moved: Moved::default(),
                    is_awaited: false,
                },
                false => Ended::NotCommitted,
            };
            conclude(&self.strong()?, &coordinator, ended).await?;
        }
        if self.term() != term {
            return Err(conflict(
                "this member's state changed while it settled migrations",
            ));
        }
        self.recovered_term.store(term, Ordering::Release);
        Ok(())
    }
}
