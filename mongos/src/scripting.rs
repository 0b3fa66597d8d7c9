//! What a router that takes no JavaScript (`--noscripting`) refuses. It runs none itself: shards would,
//! for its clients.

use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawBsonRef, RawDocument};

/// # Errors
/// Those of a `mongod` without an engine: 31264 for a map-reduce, 6108304 for a `$where`.
pub fn check(request: &Request) -> Result<(), CommandError> {
    check_command(&request.body)?;
    let sequences = request.sequences.iter();
    let mut statements = sequences.flat_map(|sequence| sequence.docs());
    match statements.any(|statement| has_where_in(statement, "q")) {
        true => Err(no_where()),
        false => Ok(()),
    }
}

fn check_command(body: &RawDocument) -> Result<(), CommandError> {
    let Some(command) = banyan_document::elements(body).next() else {
        return Ok(());
    };
    match (command.name(), command.value()) {
        ("mapReduce" | "mapreduce", _) => {
            return Err(CommandError::new(
                ErrorCode::Location(31_264),
                "Cannot run server-side javascript without the javascript engine enabled",
            ));
        }
        ("explain", RawBsonRef::Document(explained)) => return check_command(explained),
        _ => {}
    }
    let mut filters = ["filter", "query"].iter();
    let mut statements = ["updates", "deletes"].iter().flat_map(|list| {
        let list = banyan_document::field(body, list).and_then(|list| list.as_array());
        let list = list.into_iter().flatten().flatten();
        list.filter_map(|statement| statement.as_document())
    });
    let found = filters.any(|field| has_where_in(body, field))
        || statements.any(|statement| has_where_in(statement, "q"));
    match found {
        true => Err(no_where()),
        false => Ok(()),
    }
}

fn has_where_in(holder: &RawDocument, field: &str) -> bool {
    matches!(banyan_document::field(holder, field),
        Some(RawBsonRef::Document(filter)) if has_where(filter))
}

/// It may stand beside fields, and wherever these may stand.
fn has_where(filter: &RawDocument) -> bool {
    banyan_document::elements(filter).any(|element| match (element.name(), element.value()) {
        ("$where", _) => true,
        ("$and" | "$or" | "$nor", RawBsonRef::Array(parts)) => {
            let mut parts = parts.into_iter().flatten();
            parts.any(|part| part.as_document().is_some_and(has_where))
        }
        _ => false,
    })
}

fn no_where() -> CommandError {
    CommandError::new(
        ErrorCode::Location(6_108_304),
        "no globalScriptEngine in $where parsing",
    )
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn scripts_are_found_wherever_they_may_stand() {
        let code = |body| check(&Request::command("test", body)).map_err(|error| error.code.code());
        for body in [
            rawdoc! { "find": "c", "filter": { "$where": "true" } },
            rawdoc! { "count": "c", "query": { "$or": [{ "a": 1 }, { "$and": [{ "$where": "1" }] }] } },
            rawdoc! { "update": "c", "updates": [{ "q": { "$where": "true" }, "u": {} }] },
            rawdoc! { "delete": "c", "deletes": [{ "q": { "$nor": [{ "$where": "1" }] }, "limit": 0 }] },
            rawdoc! { "explain": { "find": "c", "filter": { "$where": "true" } } },
        ] {
            assert_eq!(code(body.clone()), Err(6_108_304), "{body:?}");
        }
        let job = rawdoc! { "mapReduce": "c", "map": "m", "reduce": "r", "out": { "inline": 1 } };
        assert_eq!(code(job), Err(31_264));
        for body in [
            rawdoc! { "insert": "c", "documents": [{ "filter": { "$where": "theirs" } }] },
            rawdoc! { "find": "c", "filter": { "a": { "$eq": { "$where": "theirs" } } } },
            rawdoc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "q": 1 } } }] },
        ] {
            assert_eq!(code(body.clone()), Ok(()), "{body:?}");
        }
    }
}
