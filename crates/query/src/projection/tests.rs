use banyan_document::extjson;
use bson::RawDocumentBuf;

use super::*;
use crate::filter::Filter;
use crate::golden;

fn parse(text: &str) -> RawDocumentBuf {
    extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Prints what each projection makes of the block's document. A filter before it says where it
/// matched.
#[test]
fn golden() {
    golden::check("src/projection/projection.golden", |commands| {
        let mut document = RawDocumentBuf::new();
        let mut filter = None;
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = golden::split(command);
            match name {
                "doc" => document = parse(argument),
                "filter" => {
                    filter = Some(Filter::parse(&parse(argument), &Context::default()).unwrap());
                }
                _ => {
                    let result = project(argument, &document, filter.take().as_ref());
                    output.push(format!("{argument} => {result}"));
                }
            }
        }
        output
    });
}

fn project(projection: &str, document: &RawDocument, filter: Option<&Filter>) -> String {
    let result = Projection::parse(&parse(projection), &Context::default()).and_then(|p| {
        let position = filter
            .filter(|_| p.needs_position())
            .and_then(|filter| filter.matches_with_position(document).unwrap());
        p.apply(document, position)
    });
    match result {
        Ok(document) => extjson::relaxed_text(&document).unwrap(),
        Err(error) => format!("error {} {}", error.kind.code(), error.message),
    }
}

#[test]
fn knows_what_it_needs() {
    use bson::rawdoc;
    let parse = |p: RawDocumentBuf| Projection::parse(&p, &Context::default()).unwrap();
    assert!(parse(rawdoc! {}).is_identity());
    assert!(!parse(rawdoc! {"_id": 0}).is_identity());
    assert!(parse(rawdoc! {"a.$": 1}).needs_position());
    let covered = parse(rawdoc! {"a.b": 1, "_id": 0, "c": true});
    assert_eq!(covered.included_paths().unwrap(), ["a.b", "c"]);
    assert_eq!(
        parse(rawdoc! {"a": 1}).included_paths().unwrap(),
        ["_id", "a"]
    );
    assert_eq!(parse(rawdoc! {"a": 0}).included_paths(), None);
    assert_eq!(parse(rawdoc! {"a": "$b"}).included_paths(), None);
}
