//! A request that one shard can answer: passed on as it came, and its reply passed back.

use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, Outgoing, ReadMode, Request};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::Context;
use crate::cursors::{Cursor, Forwarded, Source, with_cursor_id};
use crate::dispatch::read_preference;
use crate::fields;
use crate::merge::{Merge, Remote, Shape};

/// The request as it came, with the versions of the route.
pub fn outgoing(request: &Request, route: &Route, shard: &str) -> Outgoing {
    with_sequences(
        request,
        passed_on(&request.body, &[], &route.versions(shard)),
    )
}

/// The request with some fields replaced.
pub fn changed(
    request: &Request,
    dropped: &[&str],
    added: &RawDocument,
    route: &Route,
    shard: &str,
) -> Outgoing {
    let mut fields = DocumentWriter::new();
    fields.append_all(added);
    fields.append_all(&route.versions(shard));
    with_sequences(request, passed_on(&request.body, dropped, &fields.finish()))
}

/// A client's command for a shard. Every one of them is made here.
pub fn passed_on(body: &RawDocument, dropped: &[&str], added: &RawDocument) -> Outgoing {
    let dropped = &[dropped, VERSIONS].concat();
    let Some(concern) = timeless_read_concern(body) else {
        return Outgoing::forward(body, dropped, added);
    };
    let mut fields = DocumentWriter::new();
    fields.append_doc("readConcern", &concern);
    fields.append_all(added);
    Outgoing::forward(
        body,
        &[dropped, &["readConcern"][..]].concat(),
        &fields.finish(),
    )
}

/// What the router says of its picture, and nobody else.
const VERSIONS: &[&str] = &["shardVersion", "databaseVersion"];

/// The read concern without `afterClusterTime`, where that may go. The time is one that some shard
/// told the client, and another shard may never reach it. The primary of a shard has applied every
/// write that was acknowledged, so there it is late enough anyway, and requests with such a time go
/// to primaries unless they insist on a secondary (see [`crate::dispatch::read_preference`]).
fn timeless_read_concern(body: &RawDocument) -> Option<RawDocumentBuf> {
    let Some(RawBsonRef::Document(concern)) = fields::get(body, "readConcern") else {
        return None;
    };
    fields::get(concern, "afterClusterTime")?;
    if read_preference(body).mode != ReadMode::Primary {
        return None;
    }
    let mut out = DocumentWriter::new();
    for element in banyan_document::elements(concern) {
        if element.name() != "afterClusterTime" {
            out.append_element(&element);
        }
    }
    Some(out.finish())
}

fn with_sequences(request: &Request, outgoing: Outgoing) -> Outgoing {
    request
        .sequences
        .iter()
        .fold(outgoing, |outgoing, sequence| {
            outgoing.sequence(&sequence.identifier, std::iter::once(&sequence.bytes()[..]))
        })
}

/// Sends the request to one shard. A stale route is an error; any other failure is the shard's
/// reply as it stands.
pub async fn forward(
    context: &Context<'_>,
    route: &Route,
    shard: &str,
    writes: bool,
) -> Result<Answer, CommandError> {
    let request = context.request;
    let outgoing = outgoing(request, route, shard);
    let answer = context
        .router
        .send(shard, context.request_options(writes), &outgoing)
        .await?;
    match answer.error() {
        Some(error) if error.code.is_stale_routing() => Err(error),
        _ => Ok(answer),
    }
}

/// The same for a command that opens a cursor: the client gets an id of this router's.
pub async fn forward_cursor(
    context: &Context<'_>,
    route: &Route,
    shard: &str,
    writes: bool,
) -> Result<RawDocumentBuf, CommandError> {
    let answer = forward(context, route, shard, writes).await?;
    Ok(adopt_cursor(context, answer))
}

/// Registers the cursor that a shard's reply opens, if it does.
pub fn adopt_cursor(context: &Context<'_>, answer: Answer) -> RawDocumentBuf {
    let Some(RawBsonRef::Document(cursor)) = fields::get(&answer.reply, "cursor") else {
        return answer.reply;
    };
    let id = fields::get_number(cursor, "id").unwrap_or(0);
    let (true, Some(RawBsonRef::String(ns))) = (id != 0, fields::get(cursor, "ns")) else {
        return answer.reply;
    };
    let source = Source::Forwarded(Forwarded {
        member: answer.member,
        cursor: id,
    });
    let body = &context.request.body;
    // Who waits for what is to come may do so for as long as each `getMore` says.
    let deadline = context
        .deadline
        .filter(|_| !fields::get_flag(body, "awaitData"));
    let cursor = Cursor::new(ns.to_owned(), source, body)
        .owned_by(context.owner())
        .within(deadline);
    let id = context.router.cursors.insert(cursor);
    with_cursor_id(answer.reply, id)
}

/// The session of a request, for the requests that it leads to.
pub fn session(request: &Request) -> Option<RawDocumentBuf> {
    match request.get("lsid") {
        Some(RawBsonRef::Document(session)) => Some(session.to_owned()),
        _ => None,
    }
}

/// Sends each shard its version of the request; all must answer well.
pub async fn gather(
    context: &Context<'_>,
    requests: Vec<(Arc<str>, Outgoing)>,
    writes: bool,
) -> Result<Vec<Answer>, CommandError> {
    let request_options = context.request_options(writes);
    let answers = context.router.send_all(requests, request_options).await;
    answers
        .into_iter()
        .map(|answer| answer.and_then(Answer::checked))
        .collect()
}

/// As [`gather`], with the request as it came, from every shard that holds a part of the collection.
pub async fn gather_from_owners(
    context: &Context<'_>,
    route: &Route,
    writes: bool,
) -> Result<Vec<Answer>, CommandError> {
    let request = |shard: Arc<str>| {
        let outgoing = outgoing(context.request, route, &shard);
        (shard, outgoing)
    };
    let requests = route.shards().into_iter().map(request).collect();
    gather(context, requests, writes).await
}

/// Takes over the cursors of all shards; if one failed, the others' are killed.
pub async fn open_all(
    context: &Context<'_>,
    answers: Vec<Result<Answer, CommandError>>,
) -> Result<Vec<Remote>, CommandError> {
    let session = session(context.request);
    let mut remotes = Vec::new();
    let mut failure: Option<CommandError> = None;
    for answer in answers {
        let opened = answer
            .and_then(Answer::checked)
            .and_then(|answer| Remote::open(answer, session.clone()));
        match opened {
            Ok(remote) => remotes.push(remote),
            // A stale route is the one worth telling: it is tried again.
            Err(error) if error.code.is_stale_routing() => failure = Some(error),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        None => Ok(remotes),
        Some(error) => {
            Merge::new(remotes, Shape::default()).kill().await;
            Err(error)
        }
    }
}

/// Passes a write on to the one shard that takes all of it.
pub async fn forward_write(
    context: &Context<'_>,
    route: &Route,
    shard: &str,
) -> Result<Answer, CommandError> {
    forward(context, route, shard, true).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Timestamp, rawdoc};

    #[test]
    fn a_time_of_one_shard_is_not_asked_of_another() {
        let time = Timestamp {
            time: 1,
            increment: 1,
        };
        let concern = rawdoc! {"level": "majority", "afterClusterTime": time};
        let body = rawdoc! {"find": "a", "readConcern": concern.clone()};
        assert_eq!(
            timeless_read_concern(&body),
            Some(rawdoc! {"level": "majority"})
        );
        let body = rawdoc! {"find": "a", "readConcern": {"level": "majority"}};
        assert_eq!(timeless_read_concern(&body), None);
        let secondary = rawdoc! { "mode": "secondary" };
        let body = rawdoc! {"find": "a", "readConcern": concern, "$readPreference": secondary};
        assert_eq!(timeless_read_concern(&body), None, "a secondary may lag");
    }
}
