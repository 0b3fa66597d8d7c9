//! What a command that queries has because of its shape: settings, which the shards are told of, and
//! a place in the router's statistics.
//!
//! The router alone knows the command as its client has sent it, so shards neither look for settings
//! nor count what comes from here.

use std::sync::Arc;
use std::time::Instant;

use banyan_document::DocumentWriter;
use banyan_query::query_settings::{PARAMETER, QuerySettings};
use banyan_query::query_stats::{Asked, Batch, Key, Recording};
use banyan_query::shape::QueryShape;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawBsonRef, RawDocument, cstr};

use crate::context::{CommandResult, Context};
use crate::fields;

/// What is known of a command's query before it runs.
#[derive(Default)]
pub struct QueryNotes {
    /// What is explained has this shape.
    explained: Option<QueryShape>,
    /// The command with what its settings say.
    pub request: Option<Request>,
    recording: Option<Arc<Recording>>,
}

/// Looks for what is to be known. Fails where settings have the command refused.
pub fn note(context: &Context<'_>, command: &str) -> Result<QueryNotes, CommandError> {
    let router = context.router;
    let request = context.request;
    let stats = &router.query_stats;
    let mut notes = QueryNotes::default();
    let (explains, body) = match (command, request.first_value()) {
        ("find" | "aggregate" | "distinct", _) => (false, &*request.body),
        ("explain", Some(RawBsonRef::Document(inner))) => (true, inner),
        ("getMore", Some(RawBsonRef::Int64(id))) if stats.is_on() => {
            notes.recording = router.cursors.recording(id);
            return Ok(notes);
        }
        _ => return Ok(notes),
    };
    let runs = !explains && !fields::get_flag(body, "explain");
    let has_settings = router.cluster_parameters.have_query_settings();
    let is_told = fields::get(body, PARAMETER).is_some();
    if !explains && !has_settings && !stats.is_on() && !is_told {
        return Ok(notes);
    }
    let Some(shape) = QueryShape::of(&request.database, body) else {
        return Ok(notes);
    };
    let known = router.cluster_parameters.query_settings();
    let found = known.find(shape.hash());
    if runs && found.is_some_and(|found| found.settings.rejects()) {
        return Err(CommandError::new(
            ErrorCode::QueryRejectedBySettings,
            "Query rejected by admin query settings",
        ));
    }
    let settings = found.map(|found| &found.settings);
    if settings.is_some() || is_told {
        notes.request = Some(with_settings(request, body, explains, settings));
    }
    if runs && stats.sample() {
        let asked = Asked {
            database: &request.database,
            body,
            client: context.connection.metadata().map(|client| &**client),
            // A shard knows whether it is a view.
            collection_type: match request.first_value() {
                Some(RawBsonRef::String(_)) => "unknown",
                _ => "virtual",
            },
        };
        notes.recording = Some(Arc::new(stats.record(Key::new(&shape, &asked))));
    }
    notes.explained = Some(shape).filter(|_| explains);
    Ok(notes)
}

/// The request with its settings, and none that its client has made up.
fn with_settings(
    request: &Request,
    body: &RawDocument,
    explains: bool,
    settings: Option<&QuerySettings>,
) -> Request {
    let mut told = DocumentWriter::new();
    for element in banyan_document::elements(body) {
        if element.name() != PARAMETER {
            told.append_element(&element);
        }
    }
    if let Some(settings) = settings {
        told.append_doc(PARAMETER, &settings.to_document());
    }
    let told = told.finish();
    let whole = match explains {
        false => told,
        true => {
            let mut whole = DocumentWriter::new();
            whole.append_doc("explain", &told);
            for element in banyan_document::elements(&request.body).skip(1) {
                whole.append_element(&element);
            }
            whole.finish()
        }
    };
    Request {
        body: whole.into(),
        ..request.clone()
    }
}

impl QueryNotes {
    /// Counts what has come out of the command.
    pub fn settle(
        self,
        context: &Context<'_>,
        began: Instant,
        outcome: CommandResult,
    ) -> CommandResult {
        let recording = self.recording.as_ref();
        let mut reply = match outcome {
            Ok(reply) => reply,
            Err(error) => {
                recording.inspect(|recording| recording.discard());
                return Err(error);
            }
        };
        if let Some(recording) = &self.recording {
            count(context, recording, began, &reply);
        }
        if let Some(shape) = &self.explained {
            reply.append(cstr!("queryShapeHash"), shape.to_string());
        }
        Ok(reply)
    }
}

fn count(context: &Context<'_>, recording: &Arc<Recording>, began: Instant, reply: &RawDocument) {
    // What a shard refuses comes back as its reply.
    if !reply
        .get("ok")
        .is_ok_and(|ok| ok.is_some_and(banyan_document::is_true))
    {
        recording.discard();
        return;
    }
    let cursor = fields::get(reply, "cursor").and_then(|cursor| cursor.as_document());
    let batch = |name| fields::get(cursor?, name)?.as_array();
    let documents = batch("firstBatch").or_else(|| batch("nextBatch"));
    let returned = documents.map_or(0, |batch| banyan_document::items(batch).count());
    recording.add(&Batch {
        took: began.elapsed(),
        returned: returned as u64,
        work: None,
    });
    let id = cursor.and_then(|cursor| fields::get_number(cursor, "id"));
    if let Some(id) = id.filter(|id| *id != 0) {
        context.router.cursors.record(id, recording);
    }
}
