//! Results on their way into a collection. They are written on a thread of their own, while the
//! script host works on those that follow.
//!
//! `replace` fills a temporary collection that then takes the target's name, so that readers see
//! the old results or the new ones. `merge` and `reduce` put every result in the place of the one
//! with its key; `reduce` has the old value reduced with the new one first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

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
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use tokio::runtime::Handle;

use super::error::Failure;
use super::parameters::Mode;

const BATCH_BYTES: usize = 1 << 20;
const BATCH_DOCUMENTS: usize = 5_000;

/// Writes through the node's own commands. To be used where blocking is allowed.
pub struct Writer {
    statements: Arc<Statements>,
    /// Where `replace` collects the results.
    temporary: Option<String>,
    batch: Batch,
    /// The way to the thread that writes.
    batches: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<Result<i64, CommandError>>>,
    /// What still waits to be written is not wanted any more.
    given_up: Arc<AtomicBool>,
}

/// A command that writes results, as far as it is made.
#[derive(Default)]
struct Batch {
    command: Option<DocumentWriter>,
    results: usize,
}

/// How results become commands.
struct Statements {
    local: Local,
    runtime: Handle,
    database: String,
    target: String,
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
        let statements = Arc::new(Statements {
            local: Local::new(&service),
            runtime: Handle::current(),
            database: database.to_owned(),
            target: collection.to_owned(),
            bypass_validation,
        });
        let mut writer = Writer {
            statements,
            temporary: None,
            batch: Batch::default(),
            batches: None,
            thread: None,
            given_up: Arc::default(),
        };
        if mode == Mode::Replace {
            writer.create_temporary(node)?;
        }
        writer.start()?;
        Ok(writer)
    }

    /// Starts the thread that writes.
    fn start(&mut self) -> Result<(), CommandError> {
        // One waits while one is written.
        let (sender, batches) = sync_channel::<Batch>(1);
        let statements = self.statements.clone();
        let given_up = self.given_up.clone();
        let write = move || {
            let mut written = 0;
            for batch in batches {
                if given_up.load(Ordering::Relaxed) {
                    break;
                }
                written += i64::try_from(batch.results).unwrap_or(i64::MAX);
                statements.write(batch)?;
            }
            Ok(written)
        };
        let thread = thread::Builder::new().name("map-reduce-out".into());
        let thread = thread.spawn(write).map_err(|error| {
            CommandError::new(ErrorCode::InternalError, format!("no thread: {error}"))
        })?;
        self.batches = Some(sender);
        self.thread = Some(thread);
        Ok(())
    }

    /// An empty collection with the options and indexes of the one that it will replace.
    fn create_temporary(&mut self, node: &Node) -> Result<(), CommandError> {
        let Statements {
            database, target, ..
        } = &*self.statements;
        let name = format!("tmp.mr.{target}_{}", bson::oid::ObjectId::new().to_hex());
        let catalog = node.replica.store.catalog();
        let target = catalog.get(database, target);
        let mut create = rawdoc! { "create": name.as_str() };
        for (name, value) in target
            .iter()
            .flat_map(|target| target.options.iter().flatten())
        {
            create.append(name, value);
        }
        self.statements.command(create)?;
        self.temporary = Some(name.clone());
        let Some(target) = target else { return Ok(()) };
        let mut indexes = RawArrayBuf::new();
        for index in target.indexes.iter().filter(|index| !index.is_id()) {
            indexes.push(independent_spec(&index.spec));
        }
        if indexes.is_empty() {
            return Ok(());
        }
        self.statements
            .command(rawdoc! { "createIndexes": name.as_str(), "indexes": indexes })?;
        Ok(())
    }

    pub fn push(&mut self, document: &RawDocument) -> Result<(), CommandError> {
        let Batch { command, results } = &mut self.batch;
        let temporary = self.temporary.as_deref();
        let command = command.get_or_insert_with(|| self.statements.begin(temporary));
        match temporary {
            Some(_) => command.push(RawBsonRef::Document(document)),
            None => push_upsert(command, document)?,
        }
        *results += 1;
        if command.len() >= BATCH_BYTES || *results >= BATCH_DOCUMENTS {
            self.flush()?;
        }
        Ok(())
    }

    /// Completes the output; gives back how many results were written.
    pub fn finish(mut self) -> Result<i64, CommandError> {
        self.flush()?;
        let written = self.end()?;
        if let Some(temporary) = self.temporary.take() {
            let Statements {
                database, target, ..
            } = &*self.statements;
            let from = format!("{database}.{temporary}");
            let to = format!("{database}.{target}");
            let rename = rawdoc! {
                "renameCollection": from.as_str(), "to": to.as_str(), "dropTarget": true,
            };
            if let Err(error) = self.statements.administer(rename) {
                self.temporary = Some(temporary);
                return Err(error);
            }
        }
        Ok(written)
    }

    fn flush(&mut self) -> Result<(), CommandError> {
        if self.batch.results == 0 {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        let sent = self.batches.as_ref().map(|batches| batches.send(batch));
        match sent {
            Some(Ok(())) => Ok(()),
            // The thread has ended before its time.
            _ => self.end().and(Err(thread_is_gone())),
        }
    }

    /// Waits until everything is written; gives back how much that was.
    fn end(&mut self) -> Result<i64, CommandError> {
        self.batches = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            _ => Err(thread_is_gone()),
        }
    }
}

fn thread_is_gone() -> CommandError {
    CommandError::new(ErrorCode::InternalError, "results cannot be written")
}

impl Drop for Writer {
    /// A job that failed leaves nothing behind.
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        if self.thread.is_some() {
            // What the job failed with is known.
            let _ = self.end();
        }
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = self
                .statements
                .command(rawdoc! { "drop": temporary.as_str() })
        {
            tracing::warn!(%error, collection = %temporary, "a temporary collection stays");
        }
    }
}

impl Statements {
    fn command(&self, body: RawDocumentBuf) -> Result<RawDocumentBuf, CommandError> {
        self.runtime
            .block_on(self.local.write(&self.database, body))
    }

    fn administer(&self, body: RawDocumentBuf) -> Result<RawDocumentBuf, CommandError> {
        self.runtime.block_on(self.local.command("admin", body))
    }

    /// A command to which results can be added.
    fn begin(&self, temporary: Option<&str>) -> DocumentWriter {
        let mut command = DocumentWriter::new();
        match temporary {
            Some(temporary) => {
                command.append_str("insert", temporary);
                command.begin_array("documents");
            }
            None => {
                command.append_str("update", &self.target);
                command.begin_array("updates");
            }
        }
        command
    }

    fn write(&self, batch: Batch) -> Result<(), CommandError> {
        let Some(mut command) = batch.command else {
            return Ok(());
        };
        command.end();
        if self.bypass_validation {
            command.append_bool("bypassDocumentValidation", true);
        }
        self.command(command.finish())?;
        Ok(())
    }
}

/// The statement that puts a result in the place of the one with its key.
fn push_upsert(command: &mut DocumentWriter, document: &RawDocument) -> Result<(), CommandError> {
    let key = key_of(document)?;
    command.push_document();
    command.begin_document("q");
    command.begin_document("_id");
    command.append("$eq", key);
    command.end();
    command.end();
    command.append_doc("u", document);
    command.append_bool("upsert", true);
    command.end();
    Ok(())
}

fn key_of(document: &RawDocument) -> Result<RawBsonRef<'_>, CommandError> {
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
