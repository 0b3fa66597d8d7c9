//! What changes the indexes of a collection: on its one shard, or, if it is sharded, on all of its
//! shards or none, which the config servers see to.

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, ErrorCode, RequestOptions};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::forward;
use super::pass::GENERIC;
use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::{CommandResult, Context};
use crate::fields;

/// Carries the request out and shows what each shard answered, under its address.
pub async fn run(context: &Context<'_>, route: &Route) -> CommandResult {
    if route.is_sharded() {
        let (reply, shards) = coordinate(context, route).await?;
        let mut answers = Vec::new();
        for shard in shards {
            let shard = context.router.shards.get(&shard).await?;
            answers.push((shard.address.clone(), reply.clone()));
        }
        return Ok(raw_reply(&answers));
    }
    let primary = &route.database.primary;
    let answer = forward::forward(context, route, primary, true).await;
    let answer = answer.and_then(Answer::checked)?;
    let shard = context.router.shards.get(primary).await?;
    Ok(raw_reply(&[(shard.address.clone(), answer.reply)]))
}

/// Has the config servers change the indexes of a sharded collection. The answer: what each shard
/// would say by itself, and which shards there are.
pub async fn coordinate(
    context: &Context<'_>,
    route: &Route,
) -> Result<(RawDocumentBuf, Vec<String>), CommandError> {
    let mut body = rawdoc! {
        "_configsvrChangeIndexes": route.ns.as_str(), "command": command(context),
    };
    if let Some(allowed) = context.request.get("maxTimeMS") {
        body.append(cstr!("maxTimeMS"), allowed);
    }
    let router = context.router;
    // Not twice: the second time an index that was dropped would be missing.
    let request_options = RequestOptions::write().deadline(context.deadline);
    let outcome = router.config.command(request_options, "admin", &body).await;
    let reply = outcome.map_err(|error| match CommandError::from(error) {
        error if error.code == ErrorCode::NamespaceNotSharded => {
            CommandError::new(ErrorCode::StaleConfig, error.message)
        }
        error => error,
    })?;
    router.gossip.observe(&reply);
    let shards = reply
        .get_array("shards")
        .ok()
        .into_iter()
        .flatten()
        .flatten();
    let shards = shards.filter_map(|shard| shard.as_str().map(str::to_owned));
    let own = fields::document(&reply, "reply")?.map(|own| own.to_owned());
    Ok((own.unwrap_or_default(), shards.collect()))
}

/// The request as one document, without what belongs to the way that it came.
fn command(context: &Context<'_>) -> RawDocumentBuf {
    let request = context.request;
    let mut out = DocumentWriter::new();
    for element in banyan_document::elements(&request.body) {
        let name = element.name();
        if !GENERIC.contains(&name) && !matches!(name, "maxTimeMS" | "writeConcern") {
            out.append_element(&element);
        }
    }
    for sequence in &request.sequences {
        let documents: RawArrayBuf = sequence
            .docs()
            .map(|document| document.to_owned())
            .collect();
        out.append(&sequence.identifier, RawBsonRef::Array(&documents));
    }
    out.finish()
}

fn raw_reply(answers: &[(String, RawDocumentBuf)]) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    out.begin_document("raw");
    for (address, reply) in answers {
        fields::append_reply(&mut out, address, reply);
    }
    out.end();
    out.append_f64("ok", 1.0);
    out.finish()
}
