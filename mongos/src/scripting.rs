//! What a router that takes no JavaScript (`--noscripting`) refuses: shards would run it, for its
//! clients.

use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawBsonRef, RawDocument};

/// # Errors
/// Those of a `mongod` without an engine: 6108304 for a `$where`, 31264 for all else.
pub fn check(request: &Request) -> Result<(), CommandError> {
    check_command(&request.body)?;
    let sequences = request.sequences.iter();
    let statements = sequences.flat_map(|sequence| sequence.docs());
    for statement in statements {
        if has_where_in(statement, "q") {
            return Err(no_where());
        }
        if STATEMENT_FIELDS
            .iter()
            .any(|field| calls_in(statement, field))
        {
            return Err(no_engine());
        }
    }
    Ok(())
}

/// Where a statement, and a command, may have expressions.
const STATEMENT_FIELDS: [&str; 3] = ["q", "u", "c"];
const COMMAND_FIELDS: [&str; 7] = [
    "pipeline",
    "filter",
    "query",
    "projection",
    "fields",
    "update",
    "let",
];

fn check_command(body: &RawDocument) -> Result<(), CommandError> {
    let Some(command) = banyan_document::elements(body).next() else {
        return Ok(());
    };
    match (command.name(), command.value()) {
        ("mapReduce" | "mapreduce", _) => {
            return Err(no_engine());
        }
        ("explain", RawBsonRef::Document(explained)) => return check_command(explained),
        _ => {}
    }
    let mut filters = ["filter", "query"].iter();
    let statements = || {
        ["updates", "deletes"].iter().flat_map(|list| {
            let list = banyan_document::field(body, list).and_then(|list| list.as_array());
            let list = list.into_iter().flatten().flatten();
            list.filter_map(|statement| statement.as_document())
        })
    };
    if filters.any(|field| has_where_in(body, field))
        || statements().any(|statement| has_where_in(statement, "q"))
    {
        return Err(no_where());
    }
    let calls = COMMAND_FIELDS.iter().any(|field| calls_in(body, field))
        || statements().any(|statement| {
            let mut fields = STATEMENT_FIELDS.iter();
            fields.any(|field| calls_in(statement, field))
        });
    match calls {
        true => Err(no_engine()),
        false => Ok(()),
    }
}

fn calls_in(holder: &RawDocument, field: &str) -> bool {
    banyan_document::field(holder, field).is_some_and(calls)
}

/// Whether it may be an expression, or a stage, that calls a function.
fn calls(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Document(document) => banyan_document::elements(document).any(|element| {
            match element.name() {
                "$literal" | "$const" => false,
                // Both are given a document; a value with such a field is as good as none.
                "$function" | "$accumulator" => element.value().as_document().is_some(),
                _ => calls(element.value()),
            }
        }),
        RawBsonRef::Array(array) => array.into_iter().flatten().any(calls),
        _ => false,
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

fn no_engine() -> CommandError {
    CommandError::new(
        ErrorCode::Location(31_264),
        "Cannot run server-side javascript without the javascript engine enabled",
    )
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
        let call = rawdoc! { "$function": { "body": "f", "args": [], "lang": "js" } };
        for body in [
            rawdoc! { "mapReduce": "c", "map": "m", "reduce": "r", "out": { "inline": 1 } },
            rawdoc! { "aggregate": "c", "pipeline": [{ "$project": { "a": { "$add": [1, call.clone()] } } }] },
            rawdoc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": 1, "a": { "$accumulator": {} } } }] },
            rawdoc! { "find": "c", "filter": { "$expr": call.clone() } },
            rawdoc! { "find": "c", "projection": { "a": call.clone() } },
            rawdoc! { "update": "c", "updates": [{ "q": {}, "u": [{ "$set": { "a": call.clone() } }] }] },
            rawdoc! { "explain": { "find": "c", "filter": { "$expr": call.clone() } } },
        ] {
            assert_eq!(code(body.clone()), Err(31_264), "{body:?}");
        }
        for body in [
            rawdoc! { "insert": "c", "documents": [{ "filter": { "$where": "theirs" } }] },
            rawdoc! { "aggregate": "c", "pipeline": [{ "$project": { "a": { "$literal": call.clone() } } }] },
            rawdoc! { "insert": "c", "documents": [call] },
            rawdoc! { "find": "c", "filter": { "a": { "$eq": { "$where": "theirs" } } } },
            rawdoc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "q": 1 } } }] },
        ] {
            assert_eq!(code(body.clone()), Ok(()), "{body:?}");
        }
    }
}
