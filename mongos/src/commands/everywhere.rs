//! Commands that every shard runs.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_security::Action;
use banyan_wire::{CommandError, RequestOptions};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::{forward, on_primary, pass};
use crate::answer::Answer;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new(
        "setFeatureCompatibilityVersion",
        "sets the version whose features may be used",
        run!(set_version),
    )
    .access(Access::Cluster(Action::SetFeatureCompatibilityVersion))
    .admin_only(),
    CommandSpec::new(
        "setIndexCommitQuorum",
        "changes which members an index build waits for",
        run!(on_primary::on_owners),
    )
    .access(Access::Collection(Action::CreateIndex)),
    CommandSpec::new(
        "validateDBMetadata",
        "what of a database does not belong to a version of the stable API",
        run!(validate_metadata),
    )
    .access(Access::Checked(reads_and_writes::validate_metadata)),
];

/// The request as it came, for every shard; what each answers.
async fn ask_all(context: &Context<'_>, writes: bool) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let (router, request) = (context.router, context.request);
    router.shards.reload().await?;
    let shards: Vec<Arc<str>> = router.shards.all().keys().cloned().collect();
    let none = RawDocumentBuf::new();
    let requests = shards.into_iter().map(|shard| {
        let outgoing = forward::passed_on(&request.body, &[], &none);
        (shard, outgoing)
    });
    let options = context.request_options(writes);
    let answers = router.send_all(requests.collect(), options).await;
    let replies = answers
        .into_iter()
        .map(|answer| Ok(answer.and_then(Answer::checked)?.reply));
    replies.collect()
}

/// Config servers and shards know one version each: all have to agree.
async fn set_version(context: &Context<'_>) -> CommandResult {
    let options = RequestOptions::write().idempotent();
    pass::as_it_is(context, options).await?;
    ask_all(context, true).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn validate_metadata(context: &Context<'_>) -> CommandResult {
    let mut errors = RawArrayBuf::new();
    let mut told: Vec<RawDocumentBuf> = Vec::new();
    let mut has_more = false;
    for reply in ask_all(context, false).await? {
        has_more |= fields::get_flag(&reply, "hasMoreErrors");
        let own = reply.get_array("apiVersionErrors").into_iter().flatten();
        for error in own.flatten().filter_map(|error| error.as_document()) {
            // A collection that lies on several shards is told of once.
            if !told.iter().any(|known| **known == *error) {
                told.push(error.to_owned());
                errors.push(error.to_owned());
            }
        }
    }
    let mut out = rawdoc! { "apiVersionErrors": errors };
    if has_more {
        out.append(bson::cstr!("hasMoreErrors"), true);
    }
    out.append(bson::cstr!("ok"), 1.0);
    Ok(out)
}
