//! `insert`: documents go in, one after another.

use std::borrow::Cow;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_query::update::{lacks_timestamps, with_timestamps};
use banyan_replication::sessions::StatementOutcome;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::insert::{KeyedDocument, Staged, fault_of, look_up_together};
use banyan_replication::write::staging::Staging;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use super::validation::{self, BYPASS};
use super::write_report::{self, StatementIds, WriteReport, ordered, statement_ids};
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::forms;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("insert", Run::Future(run))
    .access(Access::Checked(reads_and_writes::insert))
    .writes_statements("documents")
    .in_transaction()
    .required(&["documents"])
    .form(check_form)
    .fields(&["documents", "ordered", BYPASS, collection_uuid::FIELD])
    .ignored(&["encryptionInformation"])
    .computes();

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "documents" => forms::documents(field),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "ordered" if !field.is_null() => field.strict_bool().map(drop),
        "encryptionInformation" => field.document_or_null().map(drop),
        _ => Ok(()),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(insert(ctx))
}

async fn insert(ctx: &CommandContext<'_>) -> CommandResult {
    let collection = ctx.collection()?;
    let documents = ctx.request.batch("documents")?;
    write_report::check_size(documents.len())?;
    let mut report = WriteReport::new(ordered(ctx)?);
    if let Err(error) = collection_uuid::check_unless_view(ctx, collection) {
        report.refuse_all(documents.len(), &error);
        return Ok(report.reply(|_| {}));
    }
    let write_context = WriteContext {
        bypass_validation: validation::is_bypassed(ctx)?,
        ..ctx.write_context()
    };
    // A document that cannot be inserted does not make the collection.
    let tried = match report.is_ordered() {
        true => 1,
        false => documents.len(),
    };
    let mut tried = documents.iter().take(tried);
    let creates = tried.any(|document| fault_of(document).is_none());
    let opened = Staging::open(write_context, collection, creates).await;
    let mut staging = match opened {
        Ok(staging) => staging,
        Err(error) if error.code == ErrorCode::CommandNotSupportedOnView => {
            if time_series::named(ctx, collection).is_some() {
                return time_series::insert::insert(ctx, collection, &documents, report).await;
            }
            report.refuse_all(documents.len(), &error);
            return Ok(report.reply(|_| {}));
        }
        Err(error) => return Err(error),
    };
    let statements = statement_ids(ctx, documents.len())?;
    if let Err(error) = stage_all(ctx, &mut staging, &documents, &statements, &mut report).await {
        staging.give_up().await;
        return Err(error);
    }
    staging.finish().await?;
    report.count(ctx);
    ctx.work
        .inserted
        .add(report.n - report.retried.len() as u64);
    Ok(report.reply(|_| {}))
}

/// Inserts what another command makes, in one go, and fails with the first document that is refused.
pub struct Loading<'a, 'c> {
    ctx: &'a CommandContext<'c>,
    staging: Staging<'a>,
}

impl<'a, 'c> Loading<'a, 'c> {
    pub async fn open(
        ctx: &'a CommandContext<'c>,
        context: WriteContext<'a>,
        collection: &str,
    ) -> Result<Loading<'a, 'c>, CommandError> {
        let staging = Staging::open(context, collection, false).await?;
        Ok(Loading { ctx, staging })
    }

    /// Some of it may be committed only when more comes, or at the end.
    pub async fn insert(&mut self, documents: &[&RawDocument]) -> Result<(), CommandError> {
        let (ctx, staging) = (self.ctx, &mut self.staging);
        let mut report = WriteReport::new(true);
        let statements = StatementIds::From(0);
        stage_all(ctx, staging, documents, &statements, &mut report).await?;
        report.count(ctx);
        ctx.work.inserted.add(report.n);
        report.first_error().map_or(Ok(()), Err)
    }

    pub async fn finish(self) -> Result<(), CommandError> {
        self.staging.finish().await
    }

    /// Ends with an error, once nothing of it is on its way any more.
    pub async fn fail(self, error: CommandError) -> Result<(), CommandError> {
        self.staging.give_up().await;
        Err(error)
    }
}

async fn stage_all(
    ctx: &CommandContext<'_>,
    staging: &mut Staging<'_>,
    documents: &[&RawDocument],
    statements: &StatementIds,
    report: &mut WriteReport,
) -> Result<(), CommandError> {
    let mut at = 0;
    while at < documents.len() && !report.is_over() {
        if at > 0 {
            ctx.check_interrupt()?;
        }
        // As many as fit into an entry: what is done for those that follow would be void with it. And no
        // more at once than the processor's caches hold.
        let mut room = staging.unit.room().max(1);
        let fits = |document: &&&RawDocument| {
            let fits = room > 0;
            room = room.saturating_sub(document.as_bytes().len());
            fits
        };
        let some = documents.iter().skip(at).take(TOGETHER_MAX);
        let some = some.take_while(fits);
        let some: Vec<_> = some.map(|document| timed(ctx, document)).collect();
        let staged = stage_some(staging, &some, at, statements, report).await;
        staging.end_together();
        at += staged?;
    }
    Ok(())
}

/// The document with the time in its empty timestamps.
fn timed<'a>(ctx: &CommandContext<'_>, document: &'a RawDocument) -> Cow<'a, RawDocument> {
    if !lacks_timestamps(document) {
        return Cow::Borrowed(document);
    }
    Cow::Owned(with_timestamps(document, || ctx.node.replica.clock.tick()))
}

/// Documents whose keys are looked up in one snapshot.
const TOGETHER_MAX: usize = 1_000;

/// Stages documents, the first of which is the command's document number `first`; with how many it is
/// done.
async fn stage_some(
    staging: &mut Staging<'_>,
    documents: &[Cow<'_, RawDocument>],
    first: usize,
    statements: &StatementIds,
    report: &mut WriteReport,
) -> Result<usize, CommandError> {
    let Some(collection) = staging.collection.clone() else {
        let Some(fault) = documents.first().and_then(|document| fault_of(document)) else {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                "the collection is gone",
            ));
        };
        staging.ctx.work.insert_tried.add(1);
        report.refuse(first, fault);
        return Ok(1);
    };
    let mut keyed_documents: Vec<(usize, KeyedDocument<'_>)> = Vec::new();
    let mut busy = None;
    let mut at = 0;
    while at < documents.len() {
        let statement = statements.of(first + at);
        if staging.settled(statement).is_some() {
            report.n += 1;
            report.retried.push(statement);
            at += 1;
            continue;
        }
        match KeyedDocument::new(&collection, &documents[at]) {
            Ok(mut keyed) => match keyed.latch(staging, &collection) {
                Ok(()) => keyed_documents.push((at, keyed)),
                Err(latch) => {
                    busy = Some(latch);
                    break;
                }
            },
            Err(error) => {
                // The documents before it come first: an ordered batch ends here.
                if keyed_documents.is_empty() {
                    staging.ctx.work.insert_tried.add(1);
                    report.refuse(first + at, error);
                    return Ok(at + 1);
                }
                break;
            }
        }
        at += 1;
    }
    let present = staging.unit.present();
    let mut together: Vec<_> = keyed_documents.iter_mut().map(|(_, keyed)| keyed).collect();
    look_up_together(staging, &collection, &mut together, &present)?;
    if keyed_documents.len() > 1 {
        staging.begin_together();
    }
    for (position, keyed) in keyed_documents {
        match keyed.stage(staging, &collection, &present) {
            Ok(Staged::Done) => {
                staging.ctx.work.insert_tried.add(1);
                report.n += 1;
                staging.settle(statements.of(first + position), StatementOutcome::Insert);
            }
            // It and those that follow are latched again.
            Ok(Staged::Busy(latch)) => {
                staging.wait_for(latch).await?;
                return Ok(position);
            }
            Ok(Staged::Later) => {
                staging.flush().await?;
                return Ok(position);
            }
            Err(error) => {
                staging.ctx.work.insert_tried.add(1);
                report.refuse(first + position, error);
                if report.is_over() {
                    return Ok(at);
                }
            }
        }
        if staging.unit.is_full() {
            // The latches of those that follow are released with the entry: they are staged again.
            staging.flush_beside().await?;
            return Ok(position + 1);
        }
    }
    if let Some(latch) = busy {
        staging.wait_for(latch).await?;
    }
    Ok(at)
}
