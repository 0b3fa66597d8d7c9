//! The document by which a donor's successor learns of a migration that may have been committed.

use banyan_sharding::{Chunk, ChunkRange, RoutingTable, ShardKeyPattern};
use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use super::donor_state::{DonorState, MoveRange};
use crate::shard::errors::bad_value;
use crate::shard::state::Identity;

/// A range that may be changing hands: a document of `config.migrationCoordinators`.
#[derive(Debug, Clone)]
pub struct CoordinatorDocument {
    pub id: ObjectId,
    pub ns: String,
    pub(super) uuid: [u8; 16],
    pub key: RawDocumentBuf,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub from: String,
    pub to: String,
    pub to_host: String,
    pub(super) epoch: ObjectId,
    pub(super) lastmod: Timestamp,
}

impl CoordinatorDocument {
    pub fn new(
        donor: &DonorState,
        table: &RoutingTable,
        chunk: &Chunk,
        identity: &Identity,
        request: &MoveRange,
    ) -> CoordinatorDocument {
        CoordinatorDocument {
            id: donor.id,
            ns: donor.ns.clone(),
            uuid: table.uuid(),
            key: donor.pattern.document().to_owned(),
            min: donor.range.min.document().to_owned(),
            max: donor.range.max.document().to_owned(),
            from: identity.name.to_string(),
            to: request.to.clone(),
            to_host: request.to_host.clone(),
            epoch: table.version().epoch,
            lastmod: chunk.lastmod,
        }
    }

    pub(super) fn parse(document: &RawDocument) -> Result<CoordinatorDocument, CommandError> {
        let text = |name| document.get_str(name).map(str::to_owned).map_err(bad_value);
        let part = |name| {
            document
                .get_document(name)
                .map(RawDocument::to_owned)
                .map_err(bad_value)
        };
        let uuid = document.get_binary("uuid").map_err(bad_value)?.bytes;
        Ok(CoordinatorDocument {
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

    pub(super) fn to_document(&self) -> RawDocumentBuf {
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

    pub(super) fn range(&self) -> Result<ChunkRange, CommandError> {
        let pattern = ShardKeyPattern::parse(&self.key).map_err(bad_value)?;
        ChunkRange::parse(&pattern, &self.min, &self.max).map_err(bad_value)
    }
}
