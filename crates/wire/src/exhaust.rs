//! Replies that follow one another without being asked for: a client that sets `exhaustAllowed`
//! takes them for `hello` (it is told of every change) and for `getMore` (it is sent the whole
//! cursor). A driver of 2012 takes them for a query.
//!
//! Each reply says with `moreToCome`, or with its cursor's id, that another one follows and answers
//! the one before it. The next one is made only once the last one has left, so a client that does
//! not read holds nothing but its own connection.

use std::time::Duration;

use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::error::CommandError;
use crate::hello;
use crate::request::{Origin, Request};

/// A reply with nothing in it that came faster than this did not wait for anything: repeating it
/// would only keep both sides busy, so the client has to ask again.
const WAITED_MIN: Duration = Duration::from_millis(5);

/// The request that a client would send next, were it not spared to.
pub(crate) fn next(request: Request, reply: &RawDocument, took: Duration) -> Option<Request> {
    if !request.exhaust_allowed || CommandError::from_reply(reply).is_some() {
        return None;
    }
    if hello::is_hello(&request.name) {
        return next_hello(request, reply);
    }
    if request.origin == Origin::LegacyOp && request.name == "find" {
        return first_get_more(request, reply);
    }
    if !matches!(&*request.name, "getMore" | "getmore") {
        return None;
    }
    let cursor = reply.get_document("cursor").ok()?;
    let empty = cursor
        .get_array("nextBatch")
        .is_ok_and(|batch| batch.into_iter().next().is_none());
    let goes_on = cursor.get_i64("id").is_ok_and(|id| id != 0);
    (goes_on && !(empty && took < WAITED_MIN)).then_some(request)
}

/// What an old driver's query goes on with.
fn first_get_more(request: Request, reply: &RawDocument) -> Option<Request> {
    let cursor = reply.get_document("cursor").ok()?;
    let id = cursor.get_i64("id").ok().filter(|id| *id != 0)?;
    let collection = request.get("find")?.as_str()?;
    let mut body = rawdoc! {"getMore": id, "collection": collection};
    body.append(cstr!("$db"), request.database.as_str());
    Some(Request {
        name: "getMore".to_owned(),
        body: body.into(),
        ..request
    })
}

/// The same question, about what has changed since this answer.
fn next_hello(request: Request, reply: &RawDocument) -> Option<Request> {
    let waits = match request.get("maxAwaitTimeMS")? {
        RawBsonRef::Int32(n) => n > 0,
        RawBsonRef::Int64(n) => n > 0,
        RawBsonRef::Double(n) => n >= 1.0,
        _ => false,
    };
    if !waits || request.get("topologyVersion").is_none() {
        return None;
    }
    let version = reply.get_document("topologyVersion").ok()?;
    let mut body = RawDocumentBuf::new();
    for (name, value) in request.body.iter().flatten() {
        match name.as_str() {
            "topologyVersion" => {}
            _ => body.append(name, value),
        }
    }
    body.append(cstr!("topologyVersion"), version);
    Some(Request {
        body: body.into(),
        ..request
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: RawDocumentBuf) -> Request {
        Request {
            exhaust_allowed: true,
            ..Request::command("admin", body)
        }
    }

    fn follows(body: RawDocumentBuf, reply: &RawDocument) -> Option<Request> {
        next(asked(body), reply, WAITED_MIN)
    }

    #[test]
    fn a_hello_goes_on_from_its_own_answer() {
        let body = rawdoc! {"hello": 1, "topologyVersion": {"counter": 1i64}, "maxAwaitTimeMS": 9};
        let reply = rawdoc! {"ok": 1.0, "topologyVersion": {"counter": 7i64}};
        let next = follows(body.clone(), &reply).unwrap();
        let version = next.body.get_document("topologyVersion").unwrap();
        assert_eq!(version.get_i64("counter").unwrap(), 7);
        assert_eq!(next.body.get_i32("maxAwaitTimeMS").unwrap(), 9);
        assert_eq!(next.name, "hello");
        let refused = rawdoc! {"ok": 0.0, "code": 91, "errmsg": "", "topologyVersion": {}};
        assert!(follows(body, &refused).is_none());
        assert!(follows(rawdoc! {"hello": 1}, &reply).is_none());
        let restless =
            rawdoc! {"hello": 1, "topologyVersion": {"counter": 1i64}, "maxAwaitTimeMS": 0};
        assert!(follows(restless, &reply).is_none());
    }

    #[test]
    fn a_cursor_goes_on_until_it_ends() {
        let body = rawdoc! {"getMore": 5i64, "collection": "c"};
        let reply = |id: i64| rawdoc! {"cursor": {"id": id, "nextBatch": [{}]}, "ok": 1.0};
        assert!(follows(body.clone(), &reply(5)).is_some());
        assert!(follows(body.clone(), &reply(0)).is_none());
        assert!(follows(rawdoc! {"find": "c"}, &reply(5)).is_none());
        let nothing = rawdoc! {"cursor": {"id": 5i64, "nextBatch": []}, "ok": 1.0};
        assert!(follows(body.clone(), &nothing).is_some());
        assert!(next(asked(body), &nothing, Duration::ZERO).is_none());
    }

    #[test]
    fn a_query_of_an_old_driver_goes_on_with_its_cursor() {
        let query = || Request {
            origin: Origin::LegacyOp,
            ..asked(rawdoc! {"find": "c"})
        };
        let reply = |id: i64| rawdoc! {"cursor": {"id": id, "firstBatch": [{}]}, "ok": 1.0};
        let next_of = |reply: &RawDocument| next(query(), reply, WAITED_MIN);
        assert!(next_of(&reply(0)).is_none());
        let more = next_of(&reply(5)).unwrap();
        assert_eq!(more.name, "getMore");
        let body = rawdoc! {"getMore": 5i64, "collection": "c", "$db": "admin"};
        assert_eq!(more.body.as_bytes(), body.as_bytes());
        let batch = rawdoc! {"cursor": {"id": 5i64, "nextBatch": [{}]}, "ok": 1.0};
        assert!(next(more, &batch, WAITED_MIN).is_some());
    }
}
