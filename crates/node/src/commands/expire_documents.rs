//! `_expireDocuments`: the TTL monitor deletes some of the documents that an index with
//! `expireAfterSeconds` says are over.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::DocumentWriter;
use banyan_document::time_series::{TimeSeries, bucket_id};
use banyan_query::{Context, Filter};
use banyan_replication::time_series;
use banyan_replication::write::modify::{self, Action, Target};
use banyan_replication::write::staging::Staging;
use banyan_storage::Index;
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{DateTime, RawBsonRef, RawDocumentBuf, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("_expireDocuments", Run::Future(run))
    .access(Access::Member)
    .help("internal: deletes documents whose time is over")
    .writes()
    .fields(&["index", "before", "most"])
    .computes();

/// The field whose dates say when documents of an index are over. `None`: they stay.
pub fn field(index: &Index) -> Option<&str> {
    index.expire_after_seconds?;
    let key = index.spec.get_document("key").ok()?;
    let mut fields = key.iter().flatten();
    let (name, order) = fields.next()?;
    // Special indexes hold no dates.
    let is_single = fields.next().is_none();
    (is_single && params::number(order).is_some()).then(|| name.as_str())
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(expire(ctx))
}

async fn expire(ctx: &CommandContext<'_>) -> CommandResult {
    let name = ctx.required("index")?.str()?;
    let before = ctx.required("before")?;
    let RawBsonRef::DateTime(before) = before.value else {
        return Err(before.wrong_type("type 'date'"));
    };
    let most = ctx.required("most")?.unsigned()?;
    let mut staging = Staging::open(ctx.write_context(), ctx.collection()?, false).await?;
    // The index may have been changed since the monitor looked.
    let collection = staging.collection.clone();
    let index = collection.iter().find_map(|known| {
        let mut indexes = known.all_indexes();
        indexes.find(|index| index.name == name && field(index).is_some())
    });
    let Some(index) = index else {
        return Ok(rawdoc! { "n": 0_i64, "ok": 1.0 });
    };
    staging.leave_to_owners();
    let context = Context {
        collator: index.pattern.collator.clone(),
        budget: ctx.budget(),
        ..Context::default()
    };
    let series = collection.as_deref().and_then(time_series::of);
    let expired = match &series {
        Some(series) => expired_buckets(series, before),
        None => expired(index, before)?,
    };
    let filter = Filter::parse(&expired, &context).map_err(errors::query)?;
    let target = Target {
        filter: Arc::new(filter),
        // The order of a clustered collection needs no name.
        hint: (!index.is_clustered()).then_some(RawBsonRef::String(name)),
        hidden_too: true,
        sort: None,
        multi: true,
        most: Some(most),
        keep_documents: false,
    };
    let effect = modify::run(&mut staging, &target, &Action::Delete).await?;
    staging.finish().await?;
    let deleted = i64::try_from(effect.matched).unwrap_or(i64::MAX);
    Ok(rawdoc! { "n": deleted, "ok": 1.0 })
}

/// The buckets whose last measurement is over. None of them begins behind that.
fn expired_buckets(series: &TimeSeries, before: DateTime) -> RawDocumentBuf {
    let last = bucket_id(before.timestamp_millis(), ObjectId::from_bytes([0xff; 12]));
    let mut over = DocumentWriter::new();
    over.begin_document("_id");
    over.append_oid("$lte", last);
    over.end();
    over.begin_document(&format!("control.max.{}", series.time_field));
    over.append_date("$lte", before);
    over.end();
    over.finish()
}

/// What is over: in an array, the earliest date counts. A date is compared with dates alone.
fn expired(index: &Index, before: DateTime) -> Result<RawDocumentBuf, CommandError> {
    let field = field(index).unwrap_or_default();
    let name = bson::raw::CString::try_from(field)
        .map_err(|error| CommandError::new(ErrorCode::BadValue, error.to_string()))?;
    let mut over = RawDocumentBuf::new();
    over.append(name, rawdoc! { "$lte": before });
    Ok(match &index.partial_filter {
        Some(partial) => rawdoc! { "$and": [partial.clone(), over] },
        None => over,
    })
}
