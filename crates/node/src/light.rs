//! Which requests are clearly small: reading, planning and staging them takes so little that they
//! need no ticket and hold up nobody. What is not known to be cheap counts as large, so the worst
//! mistake in here is a hand-over that was not needed.

use banyan_document::{RawField, raw_fields};
use banyan_wire::Request;
use bson::spec::ElementType;

/// Documents that are inserted are taken as they are: the work grows with their bytes alone.
const INSERT_BYTES_MAX: usize = 48 * 1024;
/// What holds filters and updates.
const QUERY_BYTES_MAX: usize = 4 * 1024;

/// Keys that begin with `$` and stand for little work, whatever comes after them.
const CHEAP: &[&str] = &[
    "$addToSet",
    "$all",
    "$and",
    "$bit",
    "$clusterTime",
    "$currentDate",
    "$db",
    "$each",
    "$elemMatch",
    "$eq",
    "$exists",
    "$gt",
    "$gte",
    "$id",
    "$in",
    "$inc",
    "$lt",
    "$lte",
    "$max",
    "$min",
    "$mod",
    "$mul",
    "$natural",
    "$ne",
    "$nin",
    "$nor",
    "$not",
    "$or",
    "$pop",
    "$position",
    "$pull",
    "$pullAll",
    "$push",
    "$query",
    "$readPreference",
    "$ref",
    "$rename",
    "$set",
    "$setOnInsert",
    "$size",
    "$slice",
    "$type",
    "$unset",
];

/// Whether a request is clearly small.
pub fn is_light(request: &Request) -> bool {
    let documents = || {
        let sequences = request.sequences.iter();
        sequences.flat_map(|sequence| sequence.docs())
    };
    let bytes: usize = request.sequences.iter().map(|s| s.bytes().len()).sum();
    let bytes = bytes + request.body.as_bytes().len();
    match request.name.as_str() {
        "insert" => bytes <= INSERT_BYTES_MAX,
        // Stages are what queries of any cost are made of.
        "aggregate" | "explain" => false,
        _ => {
            bytes <= QUERY_BYTES_MAX
                && raw_fields(&request.body).all(is_cheap)
                && documents().all(|document| raw_fields(document).all(is_cheap))
        }
    }
}

/// Whether there is no key in it that may stand for much work, and no regular expression.
fn is_cheap(field: RawField<'_>) -> bool {
    let name = field.name();
    if name.first() == Some(&b'$') && !CHEAP.iter().any(|cheap| cheap.as_bytes() == name) {
        return false;
    }
    match field.inner() {
        Some(mut inner) => inner.all(is_cheap),
        None => field.kind() != Some(ElementType::RegularExpression),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, Regex, rawdoc};

    fn light(body: RawDocumentBuf) -> bool {
        is_light(&Request::command("test", body))
    }

    #[test]
    fn what_is_small_and_cheap_is_light() {
        assert!(light(
            rawdoc! {"find": "c", "filter": {"a": {"$gte": 5}}, "$db": "test"}
        ));
        assert!(light(rawdoc! {"update": "c", "updates": [
        {"q": {"_id": 1}, "u": {"$set": {"a": "$money"}, "$inc": {"n": 1}}}]}));
        assert!(light(
            rawdoc! {"insert": "c", "documents": [{"_id": 1, "$odd": "$x"}]}
        ));
        assert!(light(
            rawdoc! {"insert": "c", "documents": [{"text": "x".repeat(40_000)}]}
        ));
        assert!(light(rawdoc! {"getMore": 5_i64, "collection": "c"}));
    }

    #[test]
    fn what_may_take_long_is_not() {
        assert!(!light(
            rawdoc! {"aggregate": "c", "pipeline": [], "cursor": {}}
        ));
        let folded = rawdoc! {"$expr": {"$size": {"$range": [0, 3_000_000]}}};
        assert!(!light(rawdoc! {"find": "c", "filter": folded}));
        let projection = rawdoc! {"n": {"$range": [0, 3_000_000]}};
        assert!(!light(rawdoc! {"find": "c", "projection": projection}));
        assert!(!light(
            rawdoc! {"find": "c", "filter": {"$where": "while (true);"}}
        ));
        assert!(!light(
            rawdoc! {"find": "c", "filter": {"a": {"$regex": "x"}}}
        ));
        let pattern = Regex {
            pattern: bson::cstr!("(a+)+b").to_owned(),
            options: bson::cstr!("").to_owned(),
        };
        let regex = rawdoc! {"a": pattern};
        assert!(!light(rawdoc! {"find": "c", "filter": regex}));
        assert!(!light(
            rawdoc! {"find": "c", "filter": {"a": "x".repeat(5000)}}
        ));
        assert!(!light(
            rawdoc! {"insert": "c", "documents": [{"text": "x".repeat(60_000)}]}
        ));
        let pipeline = rawdoc! {"q": {}, "u": [{"$set": {"a": {"$range": [0, 3_000_000]}}}]};
        assert!(!light(rawdoc! {"update": "c", "updates": [pipeline]}));
    }
}
