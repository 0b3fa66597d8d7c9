use bson::{RawDocumentBuf, rawdoc};

use super::Validator;
use crate::context::Context;
use crate::error::QueryError;

fn parse(source: &RawDocumentBuf) -> Result<Validator, QueryError> {
    Validator::parse(source, &Context::default())
}

/// What is told of a document that the validator does not accept.
fn told(source: &RawDocumentBuf, document: &RawDocumentBuf) -> RawDocumentBuf {
    let validator = parse(source).unwrap();
    assert!(!validator.accepts(document).unwrap(), "{source:?}");
    let name = |code: i32| format!("Error{code}");
    validator.explain(document, &name).unwrap()
}

#[test]
fn one_operator_is_told_by_itself() {
    let details = told(&rawdoc! { "a": { "$gt": 1 } }, &rawdoc! { "a": [0, 1] });
    let expected = rawdoc! {
        "operatorName": "$gt",
        "specifiedAs": { "a": { "$gt": 1 } },
        "reason": "comparison failed",
        "consideredValues": [0, 1],
    };
    assert_eq!(details, expected);
}

#[test]
fn an_expression_that_fails_tells_why() {
    let source = rawdoc! { "$expr": { "$divide": [1, "$a"] } };
    let details = told(&source, &rawdoc! { "a": 0 });
    let failure = details.get_document("details").unwrap();
    assert_eq!(failure.get_str("codeName").unwrap(), "Error2");
    let accepted = parse(&source).unwrap().accepts(&rawdoc! { "a": 2 });
    assert!(accepted.unwrap());
}

#[test]
fn a_rule_about_other_types_than_the_stated_ones_is_none() {
    let schema = rawdoc! { "properties": { "a": { "bsonType": "string", "minimum": 5 } } };
    let source = rawdoc! { "$jsonSchema": schema };
    let details = told(&source, &rawdoc! { "a": 1 });
    let rule = details.get_array("schemaRulesNotSatisfied").unwrap();
    let rule = rule.get_document(0).unwrap();
    let property = rule.get_array("propertiesNotSatisfied").unwrap();
    let failures = property
        .get_document(0)
        .unwrap()
        .get_array("details")
        .unwrap();
    let names: Vec<&str> = failures
        .into_iter()
        .map(|failure| failure.unwrap().as_document().unwrap())
        .map(|failure| failure.get_str("operatorName").unwrap())
        .collect();
    assert_eq!(names, ["bsonType"]);
}

#[test]
fn what_depends_on_more_than_the_document_is_refused() {
    let refused = [
        (rawdoc! { "$where": "true" }, 2),
        (rawdoc! { "$or": [{ "$where": "true" }] }, 2),
        (rawdoc! { "$text": { "$search": "x" } }, 2),
        (rawdoc! { "a": { "$near": [0, 0] } }, 5_626_500),
        (
            rawdoc! { "$expr": { "$lt": [{ "$rand": {} }, 1] } },
            3_040_500,
        ),
        (rawdoc! { "$expr": [{ "$function": {} }] }, 4_660_800),
    ];
    for (source, code) in refused {
        assert_eq!(parse(&source).unwrap_err().kind.code(), code, "{source:?}");
    }
    let written_out = rawdoc! { "$expr": { "$eq": ["$a", { "$literal": { "$rand": 1 } }] } };
    assert!(parse(&written_out).is_ok());
}

#[test]
fn encryption_is_found_wherever_a_schema_asks_for_it() {
    let inner = rawdoc! { "encrypt": {} };
    for schema in [
        rawdoc! { "properties": { "a": inner.clone() } },
        rawdoc! { "anyOf": [{ "items": [inner.clone()] }] },
        rawdoc! { "not": { "additionalProperties": inner.clone() } },
    ] {
        let source = rawdoc! { "$and": [{ "$jsonSchema": schema }] };
        assert!(parse(&source).unwrap().asks_for_encryption());
    }
    let named = rawdoc! { "$jsonSchema": { "properties": { "encrypt": {} } } };
    assert!(!parse(&named).unwrap().asks_for_encryption());
}
