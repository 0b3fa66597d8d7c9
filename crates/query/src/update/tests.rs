use banyan_document::extjson;
use bson::{Bson, DateTime, RawBson, Timestamp, rawdoc};

use super::*;
use crate::budget::Budget;
use crate::golden;

fn parse(text: &str) -> RawDocumentBuf {
    extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn parse_value(text: &str) -> RawBson {
    let value = extjson::parse_value(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    RawBson::try_from(value).unwrap()
}

fn context() -> UpdateContext {
    let now = DateTime::from_millis(1_000);
    UpdateContext::new(
        now,
        Timestamp {
            time: 7,
            increment: 1,
        },
    )
}

/// What stands before an update in a script.
#[derive(Default)]
struct Setting {
    document: RawDocumentBuf,
    filter: Option<Filter>,
    array_filters: Vec<RawDocumentBuf>,
}

/// Prints what each update makes of the document before it. A filter says where it matched, or
/// what an upsert starts from; `arrays` are array filters.
#[test]
fn golden() {
    golden::check("src/update/update.golden", |commands| {
        let mut setting = Setting::default();
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = golden::split(command);
            match name {
                "doc" => {
                    setting = Setting {
                        document: parse(argument),
                        ..Setting::default()
                    }
                }
                "filter" => {
                    let filter = Filter::parse(&parse(argument), &Context::default()).unwrap();
                    setting.filter = Some(filter);
                }
                "arrays" => {
                    let Ok(Bson::Array(filters)) = extjson::parse_value(argument) else {
                        panic!("{argument}");
                    };
                    let document = |filter: Bson| {
                        RawDocumentBuf::try_from(filter.as_document().unwrap()).unwrap()
                    };
                    setting.array_filters = filters.into_iter().map(document).collect();
                }
                _ => {
                    let result = match run(name == "upsert", argument, &setting) {
                        Ok(Some(document)) => extjson::relaxed_text(&document).unwrap(),
                        Ok(None) => "unchanged".into(),
                        Err(error) => {
                            format!("error {} {}", error.kind.code(), error.message)
                        }
                    };
                    output.push(format!("{argument} => {result}"));
                }
            }
        }
        output
    });
}

fn run(
    upsert: bool,
    update: &str,
    setting: &Setting,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let update = parse_value(update);
    let filters: Vec<&RawDocument> = setting.array_filters.iter().map(|f| &**f).collect();
    let update = Update::parse(update.as_raw_bson_ref(), &filters, &Context::default())?;
    let all = Filter::all();
    let filter = setting.filter.as_ref().unwrap_or(&all);
    if upsert {
        return update.upsert_document(filter, &context()).map(Some);
    }
    let position = filter.matches_with_position(&setting.document).unwrap();
    update.apply(&setting.document, &context().at(position))
}

fn apply(update: RawDocumentBuf, document: RawDocumentBuf) -> Result<RawDocumentBuf, QueryError> {
    let update = Update::parse(RawBsonRef::Document(&update), &[], &Context::default())?;
    Ok(update.apply(&document, &context())?.unwrap_or(document))
}

#[test]
fn clocks_come_from_the_context() {
    let result = apply(
        rawdoc! {"$currentDate": {"a": true, "b": {"$type": "timestamp"}}},
        rawdoc! {"_id": 1},
    );
    let expected = rawdoc! {"_id": 1, "a": DateTime::from_millis(1_000),
    "b": Timestamp { time: 7, increment: 1 }};
    assert_eq!(result, Ok(expected));
    let zero = Timestamp {
        time: 0,
        increment: 0,
    };
    let result = apply(rawdoc! {"t": zero, "d": {"t": zero}}, rawdoc! {"_id": 1});
    let expected = rawdoc! {"_id": 1, "t": Timestamp { time: 7, increment: 1 }, "d": {"t": zero}};
    assert_eq!(result, Ok(expected));
}

#[test]
fn an_insert_has_empty_timestamps_filled_in_where_mongodb_does() {
    let zero = Timestamp {
        time: 0,
        increment: 0,
    };
    let at = |increment| Timestamp { time: 9, increment };
    let document = rawdoc! {"_id": zero, "a": zero, "b": {"c": zero}, "d": [zero], "e": zero};
    assert!(lacks_timestamps(&document));
    assert!(!lacks_timestamps(
        &rawdoc! {"_id": zero, "b": {"c": zero}, "t": at(0)}
    ));
    let mut next = 0;
    let filled = with_timestamps(&document, || {
        next += 1;
        at(next)
    });
    let expected = rawdoc! {"_id": zero, "a": at(1), "b": {"c": zero}, "d": [zero], "e": at(2)};
    assert_eq!(filled, expected);
}

#[test]
fn the_filter_of_an_upsert_has_no_expressions() {
    let context = Context {
        is_upsert: true,
        ..Context::default()
    };
    let kind = |text| match Filter::of_query(&parse(text), &context) {
        Ok(_) => None,
        Err(error) => Some(error.kind),
    };
    for refused in [
        r#"{"$expr": true}"#,
        r#"{"a": 1, "$or": [{"b": 2}, {"$and": [{"$expr": {"$bad": 1}}]}]}"#,
        r#"{"$nor": [{"$expr": true}]}"#,
        r#"{"$or": [{"$expr": true}, 1]}"#,
    ] {
        assert_eq!(
            kind(refused),
            Some(ErrorKind::QueryFeatureNotAllowed),
            "{refused}"
        );
    }
    let wrong = r#"{"$or": [1, {"$expr": true}]}"#;
    assert_eq!(kind(wrong), Some(ErrorKind::BadValue));
    assert_eq!(kind("{}"), None);
}

/// The filters of arrays are asked for each item, so that they can be many questions.
#[test]
fn modifiers_count_their_work() {
    let context = Context {
        budget: Budget::allowance(100_000),
        ..Context::default()
    };
    let filters: Vec<_> = (0..100)
        .map(|n| parse(&format!(r#"{{"f{n}": -1}}"#)))
        .collect();
    let filters: Vec<&RawDocument> = filters.iter().map(|filter| &**filter).collect();
    let fields: Vec<_> = (0..100).map(|n| format!(r#""a.$[f{n}]": 1"#)).collect();
    let update = parse(&format!(r#"{{"$set": {{{}}}}}"#, fields.join(", ")));
    let update = Update::parse(RawBsonRef::Document(&update), &filters, &context).unwrap();
    let items = |count: i32| rawdoc! {"_id": 1, "a": bson::RawArrayBuf::from_iter(0..count)};
    let taken = update.apply(&items(100), &self::context()).unwrap();
    assert_eq!(taken, None);
    let error = update.apply(&items(10_000), &self::context()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ExceededMemoryLimit);
}

#[test]
fn operands_keep_their_types() {
    let result = apply(
        rawdoc! {"$inc": {"a": 1i64}, "$mul": {"b": 2i64}},
        rawdoc! {"a": 1},
    );
    assert_eq!(result, Ok(rawdoc! {"a": 2i64, "b": 0i64}));
    let result = apply(rawdoc! {"$inc": {"a": 1}}, rawdoc! {"a": i32::MAX});
    assert_eq!(result, Ok(rawdoc! {"a": 2_147_483_648i64}));
    let error = apply(
        rawdoc! {"$inc": {"a": 1}},
        rawdoc! {"_id": 1, "a": i64::MAX},
    )
    .unwrap_err();
    assert_eq!(
        error.message,
        "Failed to apply $inc operations to current value ((NumberLong)9223372036854775807) for \
         document {_id: 1}"
    );
}

#[test]
fn results_stay_within_bounds() {
    let mut deep = rawdoc! {};
    for _ in 0..178 {
        deep = rawdoc! {"a": deep};
    }
    assert!(apply(rawdoc! {"$set": {"x": deep.clone()}}, rawdoc! {"_id": 1}).is_ok());
    let error = apply(rawdoc! {"$set": {"x.y.z": deep}}, rawdoc! {"_id": 1}).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Overflow);
    let half = "x".repeat(MAX_DOCUMENT_BYTES / 2);
    let document = rawdoc! {"_id": 1, "a": half.as_str()};
    let error = apply(rawdoc! {"$set": {"b": half.as_str()}}, document).unwrap_err();
    assert_eq!(error.kind, ErrorKind::BsonObjectTooLarge);
}

#[test]
fn upserts_get_an_id() {
    let update = rawdoc! {"$set": {"a": 1}};
    let update = Update::parse(RawBsonRef::Document(&update), &[], &Context::default()).unwrap();
    let document = update.upsert_document(&Filter::all(), &context()).unwrap();
    assert!(matches!(
        field(&document, "_id"),
        Some(RawBsonRef::ObjectId(_))
    ));
    assert_eq!(field(&document, "a"), Some(RawBsonRef::Int32(1)));
}
