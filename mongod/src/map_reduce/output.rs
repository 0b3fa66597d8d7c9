//! Results on their way into a collection.
//!
//! `replace` fills a temporary collection that then takes the target's name, so that readers see
//! the old results or the new ones. `merge` and `reduce` put every result in the place of the one
//! with its key; `reduce` has the old value reduced with the new one first.

use std::sync::Arc;

use banyan_document::writer::DocumentWriter;
use banyan_execution::by_id;
use banyan_node::errors;
use banyan_node::local::Local;
use banyan_node::node::Node;
use banyan_node::service::NodeService;
use banyan_node::views;
use banyan_replication::write::catalog_ops::independent_spec;
use banyan_script::hosts::Existing;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};
use tokio::runtime::Handle;

use super::error::Failure;
use super::parameters::Mode;

const BATCH_BYTES: usize = 1 << 20;
const BATCH_DOCUMENTS: usize = 10_000;

/// Writes through the node's own commands. To be used where blocking is allowed.
pub struct Writer {
    local: Local,
    runtime: Handle,
    database: String,
    target: String,
    /// Where `replace` collects the results.
    temporary: Option<String>,
    batch: Vec<RawDocumentBuf>,
    batch_bytes: usize,
    written: i64,
    /// Results need not be what the target's validator asks for.
    bypass_validation: bool,
}

impl Writer {
    pub fn open(
        node: &Arc<Node>,
        mode: Mode,
        database: &str,
        collection: &str,
        bypass_validation: bool,
    ) -> Result<Writer, CommandError> {
        views::refuse(&node.replica, &Namespace::new(database, collection))?;
        let service = Arc::new(NodeService::new(node.clone(), &[]));
        let mut writer = Writer {
            local: Local::new(&service),
            runtime: Handle::current(),
            database: database.to_owned(),
            target: collection.to_owned(),
            temporary: None,
            batch: Vec::new(),
            batch_bytes: 0,
            written: 0,
            bypass_validation,
        };
        if mode == Mode::Replace {
            writer.create_temporary(node)?;
        }
        Ok(writer)
    }

    /// An empty collection with the options and indexes of the one that it will replace.
    fn create_temporary(&mut self, node: &Node) -> Result<(), CommandError> {
        let name = format!(
            "tmp.mr.{}_{}",
            self.target,
            bson::oid::ObjectId::new().to_hex()
        );
        let catalog = node.replica.store.catalog();
        let target = catalog.get(&self.database, &self.target);
        let mut create = rawdoc! { "create": name.as_str() };
        for (name, value) in target
            .iter()
            .flat_map(|target| target.options.iter().flatten())
        {
            create.append(name, value);
        }
        self.command(create)?;
        self.temporary = Some(name.clone());
        let Some(target) = target else { return Ok(()) };
        let mut indexes = RawArrayBuf::new();
        for index in target.indexes.iter().filter(|index| !index.is_id()) {
            indexes.push(independent_spec(&index.spec));
        }
        if indexes.is_empty() {
            return Ok(());
        }
        self.command(rawdoc! { "createIndexes": name.as_str(), "indexes": indexes })?;
        Ok(())
    }

    pub fn push(&mut self, document: RawDocumentBuf) -> Result<(), CommandError> {
        self.batch_bytes += document.as_bytes().len();
        self.batch.push(document);
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_DOCUMENTS {
            self.flush()?;
        }
        Ok(())
    }

    /// Completes the output; gives back how many results were written.
    pub fn finish(mut self) -> Result<i64, CommandError> {
        self.flush()?;
        if let Some(temporary) = self.temporary.take() {
            let from = format!("{}.{temporary}", self.database);
            let to = format!("{}.{}", self.database, self.target);
            let rename = rawdoc! {
                "renameCollection": from.as_str(), "to": to.as_str(), "dropTarget": true,
            };
            let renamed = self.runtime.block_on(self.local.command("admin", rename));
            if let Err(error) = renamed {
                self.temporary = Some(temporary);
                return Err(error);
            }
        }
        Ok(self.written)
    }

    fn command(&self, body: RawDocumentBuf) -> Result<RawDocumentBuf, CommandError> {
        self.runtime
            .block_on(self.local.write(&self.database, body))
    }

    fn flush(&mut self) -> Result<(), CommandError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let count = batch.len();
        let mut body = match &self.temporary {
            Some(temporary) => insert(temporary, &batch),
            None => upsert(&self.target, &batch)?,
        };
        if self.bypass_validation {
            body.append(cstr!("bypassDocumentValidation"), true);
        }
        self.command(body)?;
        self.written += i64::try_from(count).unwrap_or(i64::MAX);
        Ok(())
    }
}

impl Drop for Writer {
    /// A job that failed leaves nothing behind.
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = self.command(rawdoc! { "drop": temporary.as_str() })
        {
            tracing::warn!(%error, collection = %temporary, "a temporary collection stays");
        }
    }
}

fn insert(collection: &str, batch: &[RawDocumentBuf]) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    writer.append_str("insert", collection);
    writer.begin_array("documents");
    for document in batch {
        writer.push(RawBsonRef::Document(document));
    }
    writer.end();
    writer.finish()
}

fn upsert(collection: &str, batch: &[RawDocumentBuf]) -> Result<RawDocumentBuf, CommandError> {
    let mut writer = DocumentWriter::new();
    writer.append_str("update", collection);
    writer.begin_array("updates");
    for document in batch {
        let key = key_of(document)?;
        writer.push_document();
        writer.begin_document("q");
        writer.begin_document("_id");
        writer.append("$eq", key);
        writer.end();
        writer.end();
        writer.append_doc("u", document);
        writer.append_bool("upsert", true);
        writer.end();
    }
    writer.end();
    Ok(writer.finish())
}

fn key_of(document: &RawDocumentBuf) -> Result<RawBsonRef<'_>, CommandError> {
    document
        .get("_id")
        .ok()
        .flatten()
        .ok_or_else(|| CommandError::new(ErrorCode::InternalError, "a result without a key"))
}

/// For `reduce`: the old results by key, as of now.
pub fn existing(node: &Arc<Node>, database: &str, collection: &str) -> Existing<Failure> {
    let (catalog, snapshot) = node.replica.view();
    let collection = catalog.get(database, collection).cloned();
    Box::new(move |key| {
        let Some(collection) = &collection else {
            return Ok(None);
        };
        let Some(index) = collection.id_index() else {
            return Ok(None);
        };
        let record = snapshot
            .unique_lookup(index, &by_id::key(index, key))
            .map_err(errors::storage)?;
        let Some(record) = record else {
            return Ok(None);
        };
        let found = snapshot
            .record(collection.id, &record)
            .map_err(errors::storage)?;
        Ok(found.map(|record| (*record).to_owned()))
    })
}
