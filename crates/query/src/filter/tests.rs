use std::sync::Arc;

use bson::RawDocumentBuf;

use banyan_document::extjson;

use super::*;
use crate::golden;
use crate::javascript::JavaScript;

fn parse(text: &str) -> RawDocumentBuf {
    extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Prints for each filter which of the block's documents match, by position.
#[test]
fn golden() {
    golden::check("src/filter/filter.golden", |commands| {
        let mut documents = Vec::new();
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = golden::split(command);
            match name {
                "doc" => documents.push(parse(argument)),
                _ => output.push(format!("{argument} => {}", matching(argument, &documents))),
            }
        }
        output
    });
}

/// `$jsonSchema`: which of the block's documents match. The expected output is what MongoDB 6.0
/// answers.
#[test]
fn schemas() {
    golden::check("src/filter/schema.golden", |commands| {
        let mut documents = Vec::new();
        let mut output = Vec::new();
        for command in commands {
            match command.strip_prefix("doc ") {
                Some(document) => documents.push(parse(document)),
                None => output.push(format!("{command} => {}", matching(command, &documents))),
            }
        }
        output
    });
}

/// Prints each filter as `explain` does. The expected output is what MongoDB 6.0 answers.
#[test]
fn parsed() {
    let shown = |command: &&str| {
        let context = Context {
            javascript: Some(Arc::new(SizeOver(0))),
            ..Context::default()
        };
        match Filter::parse(&parse(command), &context) {
            Ok(filter) => extjson::canonical_text(&filter.to_document()).unwrap(),
            Err(error) => format!("error {} {}", error.kind.code(), error.message),
        }
    };
    golden::check("src/filter/parsed.golden", |commands| {
        commands.iter().map(shown).collect()
    });
}

fn matching(filter: &str, documents: &[RawDocumentBuf]) -> String {
    let filter = match Filter::parse(&parse(filter), &Context::default()) {
        Ok(filter) => filter,
        Err(error) => return format!("error {} {}", error.kind.code(), error.message),
    };
    let mut found = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        match filter.try_matches(document) {
            Ok(true) => found.push(index.to_string()),
            Ok(false) => {}
            Err(error) => found.push(format!("error {}", error.kind.code())),
        }
    }
    if found.is_empty() {
        "none".into()
    } else {
        found.join(" ")
    }
}

/// Extended JSON cannot say these: it reads `$regex` as a pattern.
#[test]
fn regex_operators() {
    use bson::rawdoc;
    let matches = |filter: RawDocumentBuf, document: RawDocumentBuf| {
        Filter::parse(&filter, &Context::default())
            .map(|filter| filter.try_matches(&document).unwrap())
    };
    let document = || rawdoc! {"a": "ABC"};
    assert_eq!(
        matches(rawdoc! {"a": {"$regex": "b"}}, document()),
        Ok(false)
    );
    assert_eq!(
        matches(rawdoc! {"a": {"$regex": "b", "$options": "i"}}, document()),
        Ok(true)
    );
    assert_eq!(
        matches(rawdoc! {"a": {"$options": "i", "$regex": "b"}}, document()),
        Ok(true)
    );
    let not = rawdoc! {"a": {"$not": {"$regex": "b", "$options": "i"}}};
    assert_eq!(matches(not, document()), Ok(false));
    let refused = |filter| {
        let error = matches(filter, document()).unwrap_err();
        (error.kind.code(), error.message)
    };
    let (code, message) = refused(rawdoc! {"a": {"$regex": 1}});
    assert_eq!((code, &*message), (2, "$regex has to be a string"));
    let (code, message) = refused(rawdoc! {"a": {"$regex": "a", "$options": 1}});
    assert_eq!((code, &*message), (2, "$options has to be a string"));
    let (code, _) = refused(rawdoc! {"a": {"$regex": "a", "$options": "q"}});
    assert_eq!(code, 51108);
    let pattern = bson::Regex {
        pattern: "a".try_into().unwrap(),
        options: "i".try_into().unwrap(),
    };
    let (code, _) = refused(rawdoc! {"a": {"$regex": pattern, "$options": "m"}});
    assert_eq!(code, 51075);
    let (code, _) = refused(rawdoc! {"a": {"$regex": "a\0b"}});
    assert_eq!(code, 2);
}

#[derive(Debug)]
struct SizeOver(usize);

impl JavaScript for SizeOver {
    fn run(&self, request: &RawDocument) -> Result<bson::RawBson, QueryError> {
        assert_eq!(request.get_str("source").unwrap(), "code");
        assert!(request.get_bool("expression").unwrap());
        let document = request.get_document("this").unwrap();
        Ok((document.as_bytes().len() > self.0).into())
    }
}

#[test]
fn where_runs_in_the_engine_given() {
    use bson::rawdoc;
    let filter = rawdoc! {"$where": "code"};
    let error = Filter::parse(&filter, &Context::default()).unwrap_err();
    assert_eq!(error.kind, crate::ErrorKind::Location(6_108_304));
    let context = Context {
        javascript: Some(Arc::new(SizeOver(20))),
        ..Context::default()
    };
    let filter = Filter::parse(&filter, &context).unwrap();
    assert!(!filter.try_matches(&rawdoc! {"a": 1}).unwrap());
    assert!(
        filter
            .try_matches(&rawdoc! {"a": "quite a long text"})
            .unwrap()
    );
}

#[test]
fn tells_planners_what_it_is_about() {
    use bson::rawdoc;
    let filter = |document: RawDocumentBuf| Filter::parse(&document, &Context::default()).unwrap();
    assert_eq!(
        filter(rawdoc! {"_id": 5}).id_equality(),
        Some(RawBsonRef::Int32(5))
    );
    assert_eq!(
        filter(rawdoc! {"_id": {"$eq": 5}}).id_equality(),
        Some(RawBsonRef::Int32(5))
    );
    assert_eq!(filter(rawdoc! {"_id": 5, "a": 1}).id_equality(), None);
    assert_eq!(filter(rawdoc! {"_id": {"$gt": 5}}).id_equality(), None);
    assert!(filter(rawdoc! {}).is_empty());
    let equalities = filter(rawdoc! {"a": 1, "$and": [{"b.c": 2}], "d": {"$in": [3]}});
    let paths: Vec<_> = equalities
        .equalities()
        .iter()
        .map(|(p, _)| p.to_string())
        .collect();
    assert_eq!(paths, ["a", "b.c", "d"]);
}
