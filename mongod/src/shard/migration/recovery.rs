//! The donor's note of a hand-over, and what becomes of one that nobody finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_sharding::{Chunk, ChunkRange, RoutingTable, ShardKeyPattern};
use banyan_wire::{CommandError, Treatment};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use super::donor::{Donation, Order};
use super::orphans::{Kind, NewTask};
use crate::shard::errors::{bad_value, conflict};
use crate::shard::role::{Identity, ShardRole};

/// Where the notes are, in the shard's own database `config`.
const COLLECTION: &str = "migrationCoordinators";

const TIMEOUT: Duration = Duration::from_secs(15);

/// A range that may be changing hands.
#[derive(Debug, Clone)]
pub struct Note {
    pub id: ObjectId,
    pub ns: String,
    uuid: [u8; 16],
    pub key: RawDocumentBuf,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub from: String,
    pub to: String,
    pub to_host: String,
    epoch: ObjectId,
    lastmod: Timestamp,
}

impl Note {
    pub fn new(
        donation: &Donation,
        table: &RoutingTable,
        chunk: &Chunk,
        identity: &Identity,
        order: &Order,
    ) -> Note {
        Note {
            id: donation.id,
            ns: donation.ns.clone(),
            uuid: table.uuid(),
            key: donation.pattern.document().to_owned(),
            min: donation.range.min.document().to_owned(),
            max: donation.range.max.document().to_owned(),
            from: identity.name.to_string(),
            to: order.to.clone(),
            to_host: order.to_host.clone(),
            epoch: table.version().epoch,
            lastmod: chunk.lastmod,
        }
    }

    fn parse(document: &RawDocument) -> Result<Note, CommandError> {
        let text = |name| document.get_str(name).map(str::to_owned).map_err(bad_value);
        let part = |name| {
            document
                .get_document(name)
                .map(RawDocument::to_owned)
                .map_err(bad_value)
        };
        let uuid = document.get_binary("uuid").map_err(bad_value)?.bytes;
        Ok(Note {
            id: document.get_object_id("_id").map_err(bad_value)?,
            ns: text("nss")?,
            uuid: uuid.try_into().map_err(bad_value)?,
            key: part("key")?,
            min: part("min")?,
            max: part("max")?,
            from: text("donorShardId")?,
            to: text("recipientShardId")?,
            to_host: text("recipientHost")?,
            epoch: document.get_object_id("epoch").map_err(bad_value)?,
            lastmod: document.get_timestamp("lastmod").map_err(bad_value)?,
        })
    }

    fn to_document(&self) -> RawDocumentBuf {
        rawdoc! {
            "_id": self.id,
            "nss": self.ns.as_str(),
            "uuid": self.uuid(),
            "key": self.key.clone(),
            "min": self.min.clone(),
            "max": self.max.clone(),
            "donorShardId": self.from.as_str(),
            "recipientShardId": self.to.as_str(),
            "recipientHost": self.to_host.as_str(),
            "epoch": self.epoch,
            "lastmod": self.lastmod,
        }
    }

    pub fn uuid(&self) -> Binary {
        Binary {
            subtype: BinarySubtype::Uuid,
            bytes: self.uuid.to_vec(),
        }
    }

    pub fn commit_command(&self) -> RawDocumentBuf {
        rawdoc! {
            "_configsvrCommitChunkMigration": self.ns.as_str(),
            "fromShard": self.from.as_str(),
            "toShard": self.to.as_str(),
            "min": self.min.clone(),
            "max": self.max.clone(),
            "epoch": self.epoch,
            "lastmod": self.lastmod,
        }
    }

    fn range(&self) -> Result<ChunkRange, CommandError> {
        let pattern = ShardKeyPattern::parse(&self.key).map_err(bad_value)?;
        ChunkRange::parse(&pattern, &self.min, &self.max).map_err(bad_value)
    }
}

/// Written before the hand-over can become true anywhere.
pub async fn write(role: &ShardRole, note: &Note) -> Result<(), CommandError> {
    let body = rawdoc! { "insert": COLLECTION, "documents": [note.to_document()] };
    role.local.write("config", body).await.map(drop)
}

/// Whether a hand-over of this id is under way here, or its outcome still open.
pub async fn is_open(role: &ShardRole, id: ObjectId) -> Result<bool, CommandError> {
    if role
        .donation
        .lock()
        .as_ref()
        .is_some_and(|donation| donation.id == id)
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
    note: &Note,
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
                    "_configsvrEnsureChunkVersionIsGreaterThan": note.ns.as_str(),
                    "min": note.min.clone(),
                    "max": note.max.clone(),
                    "epoch": note.epoch,
                    "lastmod": note.lastmod,
                };
                let treatment = Treatment::write().idempotent().timeout(Some(TIMEOUT));
                identity.config.command(treatment, &body).await?;
            }
            let collection = role.collection(&note.ns);
            role.read_table(&collection, term).await?;
            let Some(filter) = collection.filter() else {
                return Ok(false);
            };
            let range = note.range()?;
            let same = filter.table.uuid() == note.uuid;
            Ok::<_, CommandError>(same && filter.table.find(&range.min).shard != identity.name)
        };
        match asked.await {
            Ok(committed) => return Ok(committed),
            Err(error) => {
                tracing::warn!(ns = note.ns, %error, "a migration's outcome is not known yet");
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
/// note is thrown away.
pub async fn conclude(
    role: &Arc<ShardRole>,
    note: &Note,
    ended: Ended,
) -> Result<(), CommandError> {
    if let Ended::Committed { moved, is_awaited } = ended {
        let task = NewTask {
            id: note.id,
            ns: &note.ns,
            uuid: note.uuid,
            key: note.key.clone(),
            min: note.min.clone(),
            max: note.max.clone(),
            donor: &note.from,
            documents: moved.documents,
            bytes: moved.bytes,
            kind: if is_awaited { Kind::Now } else { Kind::Delayed },
        };
        role.orphans.add(role, task).await?;
    }
    let committed = matches!(ended, Ended::Committed { .. });
    let body =
        rawdoc! { "delete": COLLECTION, "deletes": [{ "q": { "_id": note.id }, "limit": 1 }] };
    role.local.write("config", body).await?;
    let (role, note) = (role.clone(), note.clone());
    // A recipient that misses this asks later.
    tokio::spawn(async move {
        let body = rawdoc! {
            "_recvChunkFinish": note.ns.as_str(), "migrationId": note.id, "committed": committed,
        };
        let treatment = Treatment::write().idempotent().timeout(Some(TIMEOUT));
        let told = async {
            Ok(role
                .peer(&note.to_host)?
                .command(treatment, "admin", &body)
                .await?)
        };
        if let Err(error) = told.await.map_err(|error: CommandError| error) {
            tracing::debug!(ns = note.ns, %error, "the recipient was not told of the outcome");
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
            let note = Note::parse(&document)?;
            tracing::info!(ns = note.ns, id = %note.id, "settling a migration left open");
            let committed = find_out(self, &note, true, term).await?;
            let ended = match committed {
                true => Ended::Committed {
                    moved: Moved::default(),
                    is_awaited: false,
                },
                false => Ended::NotCommitted,
            };
            conclude(&self.strong()?, &note, ended).await?;
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
