//! Writes of one document that do not say on which shard it is, in steps: all shards look, one
//! changes. `crates/replication/src/write/without_shard_key.rs` is the shards' side, and tells why no
//! more than one document is changed.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use banyan_document::DocumentWriter;
use banyan_query::sort::SORT_KEY_FIELD;
use banyan_wire::{CommandError, ErrorCode, Outgoing};
use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, rawdoc};
use tokio::time::Instant;

use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::Context;
use crate::dispatch::StaleRetries;
use crate::ending::gone;
use crate::errors::expired;
use crate::fields;

/// A statement that is carried out so.
pub struct Write<'a> {
    pub context: &'a Context<'a>,
    pub route: &'a Route,
    /// Those that may hold the document; those that may be given it, if there is none.
    pub shards: &'a [Arc<str>],
    pub upsert: bool,
    /// The request without the fields of the first, and with those of the second argument.
    pub request: &'a (dyn Fn(&[&str], &RawDocument) -> Outgoing + Sync),
}

/// What a shard is to do with the statement.
#[derive(Clone, Copy)]
enum Step<'a> {
    Look,
    Make,
    Change { id: Option<RawBsonRef<'a>> },
    Upsert { id: Option<ObjectId> },
}

impl Step<'_> {
    fn name(self) -> &'static str {
        match self {
            Step::Look => "look",
            Step::Make => "make",
            Step::Change { .. } => "change",
            Step::Upsert { .. } => "upsert",
        }
    }

    fn changes(self) -> bool {
        matches!(self, Step::Change { .. } | Step::Upsert { .. })
    }
}

/// A try of a numbered statement, in the order of all of them.
#[derive(Clone, Copy)]
struct Attempt {
    number: i64,
    id: ObjectId,
}

impl Attempt {
    /// One that is later than those that are known.
    fn after(known: i64) -> Attempt {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
        Attempt {
            number: now.max(known.saturating_add(1)),
            id: ObjectId::new(),
        }
    }
}

/// What one round of steps has come to.
enum Round {
    Over(Answer),
    /// What a shard had found was gone, or changed, or another try has begun. Its number, if a shard
    /// has said it.
    Again(i64),
}

impl Write<'_> {
    /// The answer of the shard that has carried the statement out, or of one that has found nothing.
    /// A stale route is an error; nothing has been changed then.
    pub async fn run(&self) -> Result<Answer, CommandError> {
        let mut retries = StaleRetries::new();
        let mut known = 0;
        loop {
            match self.round(known).await? {
                Round::Over(answer) => return Ok(answer),
                Round::Again(told) => known = known.max(told),
            }
            let deadline = self.context.deadline;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(expired());
            }
            if !retries.is_left() {
                let text = "what matches keeps changing before it can be written";
                return Err(CommandError::new(ErrorCode::WriteConflict, text));
            }
            retries.pause().await;
        }
    }

    /// `known`: the number of a later try.
    async fn round(&self, known: i64) -> Result<Round, CommandError> {
        let is_numbered = self.context.request.get("txnNumber").is_some();
        let attempt = is_numbered.then(|| Attempt::after(known));
        let looked = self.look(attempt).await;
        // Whoever has carried the statement out tells so once more, and waits for its concern.
        let mut answered = looked.iter().flatten();
        if let Some(answer) = answered.find(|answer| is_settled(&answer.reply)) {
            let again = Step::Change { id: None };
            return self.carry_out(&answer.shard, again, attempt).await;
        }
        let mut answers = Vec::new();
        let mut refusal = None;
        let mut later = None;
        for answer in looked {
            let answer = answer?;
            match refusal_of(&answer.reply)? {
                Some(error) if error.code == ErrorCode::WriteConflict => {
                    later = later.max(Some(later_try(&answer.reply)));
                }
                Some(_) => refusal = refusal.or(Some(answer)),
                None => answers.push(answer),
            }
        }
        if let Some(later) = later {
            return Ok(Round::Again(later));
        }
        if let Some(refusal) = refusal {
            return Ok(Round::Over(refusal));
        }
        if let Some((shard, candidate)) = first(&answers) {
            let has_order = fields::get(candidate, SORT_KEY_FIELD.as_str()).is_some();
            let id = fields::get(candidate, "_id").filter(|_| has_order);
            return self.carry_out(shard, Step::Change { id }, attempt).await;
        }
        if self.upsert {
            return self.insert(attempt).await;
        }
        let nothing = answers.into_iter().next();
        nothing.map(Round::Over).ok_or_else(|| {
            let text = "a sharded collection has shards";
            CommandError::new(ErrorCode::InternalError, text)
        })
    }

    /// What all shards have found.
    async fn look(&self, attempt: Option<Attempt>) -> Vec<Result<Answer, CommandError>> {
        let requests = self
            .shards
            .iter()
            .map(|shard| (shard.clone(), self.outgoing(shard, Step::Look, attempt)))
            .collect();
        let request_options = self.context.request_options(true);
        let router = self.context.router;
        router.send_all(requests, request_options).await
    }

    /// Ends a numbered statement whose client has gone. It may have sent the statement again and been
    /// told that nothing matches: of what is changed after that it would never learn. It leaves before
    /// it sends again. So a try that looks at the shards after that is found out here, behind its
    /// look, and one that has looked before is refused by them, as the later try has begun.
    fn check_client(&self, attempt: Option<Attempt>) -> Result<(), CommandError> {
        match attempt.is_some() && self.context.connection.has_ended() {
            true => Err(gone()),
            false => Ok(()),
        }
    }

    /// Has a shard do what the statement says.
    async fn carry_out(
        &self,
        shard: &Arc<str>,
        step: Step<'_>,
        attempt: Option<Attempt>,
    ) -> Result<Round, CommandError> {
        self.check_client(attempt)?;
        let answer = self.send(shard, step, attempt).await?;
        let upserts = matches!(step, Step::Upsert { .. });
        match refusal_of(&answer.reply)? {
            Some(error) if error.code == ErrorCode::WriteConflict => Ok(Round::Again(0)),
            // What is inserted may be another document than the one that was made before, or there is
            // one by now, which is another shard's when it is changed.
            Some(error) if upserts && error.code == ErrorCode::WouldChangeOwningShard => {
                Ok(Round::Again(0))
            }
            None if count(&answer.reply) == 0 => Ok(Round::Again(0)),
            _ => Ok(Round::Over(answer)),
        }
    }

    /// Nothing matches anywhere: a document is inserted where it belongs.
    async fn insert(&self, attempt: Option<Attempt>) -> Result<Round, CommandError> {
        let (Some(table), Some(any)) = (&self.route.table, self.shards.first()) else {
            let text = "the collection is not sharded";
            return Err(CommandError::new(ErrorCode::StaleConfig, text));
        };
        let answer = self.send(any, Step::Make, None).await?;
        if refusal_of(&answer.reply)?.is_some() {
            return Ok(Round::Over(answer));
        }
        let made = fields::document(&answer.reply, "made")?;
        let Some(made) = made.filter(|_| !is_settled(&answer.reply)) else {
            return Ok(Round::Again(0));
        };
        let chunk = table
            .find_document(made)
            .map_err(|error| CommandError::new(ErrorCode::ShardKeyNotFound, error.to_string()))?;
        let id = fields::get(made, "_id").and_then(|id| id.as_object_id());
        self.carry_out(&chunk.shard, Step::Upsert { id }, attempt)
            .await
    }

    async fn send(
        &self,
        shard: &Arc<str>,
        step: Step<'_>,
        attempt: Option<Attempt>,
    ) -> Result<Answer, CommandError> {
        let outgoing = self.outgoing(shard, step, attempt);
        let request_options = self.context.request_options(true);
        let router = self.context.router;
        router.send(shard, request_options, &outgoing).await
    }

    fn outgoing(&self, shard: &str, step: Step<'_>, attempt: Option<Attempt>) -> Outgoing {
        let mut said = rawdoc! { "step": step.name() };
        match step {
            Step::Change { id: Some(id) } => said.append(cstr!("_id"), id),
            Step::Upsert { id: Some(id) } => said.append(cstr!("_id"), id),
            _ => {}
        }
        if let Some(attempt) = attempt {
            said.append(cstr!("attempt"), attempt.number);
            said.append(cstr!("try"), attempt.id);
        }
        let mut versions = DocumentWriter::new();
        for element in banyan_document::elements(&self.route.versions(shard)) {
            match element.value() {
                RawBsonRef::Document(version) if element.name() == "shardVersion" => {
                    versions.begin_document("shardVersion");
                    versions.append_all(version);
                    versions.append_doc("withoutShardKey", &said);
                    versions.end();
                }
                _ => versions.append_element(&element),
            }
        }
        // Nothing is written yet that could be waited for.
        let dropped: &[&str] = match step.changes() {
            true => &[],
            false => &["writeConcern"],
        };
        (self.request)(dropped, &versions.finish())
    }
}

/// The first document in the order of the statement that a shard has found, and which shard that is.
fn first(answers: &[Answer]) -> Option<(&Arc<str>, &RawDocument)> {
    let found = answers.iter().filter_map(|answer| {
        let candidate = fields::get(&answer.reply, "candidate")?.as_document()?;
        Some((&answer.shard, candidate))
    });
    found.min_by_key(
        |(_, candidate)| match fields::get(candidate, SORT_KEY_FIELD.as_str()) {
            Some(RawBsonRef::Binary(order)) => order.bytes,
            _ => &[],
        },
    )
}

/// Whether the shard knows the statement from an earlier try.
fn is_settled(reply: &RawDocument) -> bool {
    fields::get(reply, "retriedStmtId").is_some() || fields::get(reply, "retriedStmtIds").is_some()
}

/// Why a shard has not done what it was asked. A stale route ends the round.
fn refusal_of(reply: &RawDocument) -> Result<Option<CommandError>, CommandError> {
    match error_of(reply) {
        Some(error) if error.code.is_stale_routing() => Err(error),
        refusal => Ok(refusal),
    }
}

/// What is wrong with the command, or with its one statement.
fn error_of(reply: &RawDocument) -> Option<CommandError> {
    if !fields::is_ok(reply) {
        return CommandError::from_reply(reply);
    }
    let error = fields::documents(reply, "writeErrors").next()?;
    let code = fields::get_number(error, "code").unwrap_or(0) as i32;
    let text = error.get_str("errmsg").unwrap_or_default();
    Some(CommandError::new(ErrorCode::from_code(code), text))
}

/// The number of a later try, if the refusal of one tells it.
fn later_try(reply: &RawDocument) -> i64 {
    let error = fields::documents(reply, "writeErrors").next();
    fields::get_number(error.unwrap_or(reply), "attempt").unwrap_or(0)
}

/// How many documents a reply tells of.
fn count(reply: &RawDocument) -> i64 {
    let told = match fields::get(reply, "lastErrorObject") {
        Some(RawBsonRef::Document(told)) => told,
        _ => reply,
    };
    fields::get_number(told, "n").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use bson::spec::BinarySubtype;
    use bson::{Binary, RawDocumentBuf};

    use super::*;

    fn candidate(id: i32, order: &[u8]) -> RawDocumentBuf {
        let order = Binary {
            subtype: BinarySubtype::Generic,
            bytes: order.to_vec(),
        };
        rawdoc! { "candidate": { "_id": id, "$sortKey": order } }
    }

    #[test]
    fn a_reply_tells_how_many() {
        assert_eq!(count(&rawdoc! { "n": 1, "ok": 1.0 }), 1);
        assert_eq!(count(&rawdoc! { "lastErrorObject": { "n": 1 } }), 1);
        assert_eq!(count(&rawdoc! { "lastErrorObject": { "n": 0 }, "n": 1 }), 0);
        let failed = rawdoc! { "ok": 1.0, "n": 0, "writeErrors": [{ "index": 0, "code": 112 }] };
        assert_eq!(
            error_of(&failed).map(|error| error.code),
            Some(ErrorCode::WriteConflict)
        );
        assert!(error_of(&rawdoc! { "ok": 1.0, "n": 1 }).is_none());
        assert!(is_settled(&rawdoc! { "retriedStmtIds": [0] }));
        let sent = candidate(1, &[3, 4]);
        assert!(fields::get(sent.get_document("candidate").unwrap(), "$sortKey").is_some());
    }
}
