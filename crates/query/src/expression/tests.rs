use banyan_document::extjson;
use bson::RawDocumentBuf;

use super::*;
use crate::golden;

fn parse(text: &str) -> RawDocumentBuf {
    extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Evaluates each expression over the block's document. The expected results are those of the
/// reference server, apart from a block of known differences.
#[test]
fn golden() {
    golden::check("src/expression/expression.golden", |commands| {
        let mut document = RawDocumentBuf::new();
        let mut output = Vec::new();
        for command in commands {
            match golden::split(command) {
                ("doc", argument) => document = parse(argument),
                (_, argument) => output.push(evaluate(argument, &document)),
            }
        }
        output
    });
}

fn evaluate(expression: &str, document: &RawDocumentBuf) -> String {
    let wrapped = parse(&format!("{{\"r\":{expression}}}"));
    let expression_value = wrapped.iter().next().unwrap().unwrap().1;
    let result = Expression::parse(expression_value, &Context::default())
        .and_then(|parsed| parsed.evaluate_owned(document));
    match result {
        Ok(None) => "missing".into(),
        Ok(Some(value)) => {
            let mut answer = RawDocumentBuf::new();
            answer.append(bson::raw::cstr!("r"), value);
            let text = extjson::canonical_text(&answer).unwrap();
            text.trim_start_matches("{\"r\":")
                .strip_suffix('}')
                .unwrap()
                .to_string()
        }
        Err(error) => format!("error {} {}", error.kind.code(), error.message),
    }
}

/// Small expressions must not compute large values, however they go about it.
#[test]
fn computed_values_are_bounded() {
    let large = "x".repeat(1 << 20);
    let mut document = RawDocumentBuf::new();
    document.append(bson::raw::cstr!("s"), large.as_str());
    let thousand = "\"$s\",".repeat(200);
    let list = thousand.trim_end_matches(',');
    for expression in [
        format!("[{list}]"),
        format!("{{\"$concat\":[{list}]}}"),
        "{\"$map\":{\"input\":{\"$range\":[0,100000]},\"in\":\"$s\"}}".into(),
        "{\"$replaceAll\":{\"input\":\"$s\",\"find\":\"x\",\"replacement\":\"$s\"}}".into(),
        "{\"$zip\":{\"inputs\":[{\"$range\":[0,100000]},[]],\"defaults\":[0,\"$s\"],
            \"useLongestLength\":true}}"
            .into(),
        "{\"$range\":[0,2147483647]}".into(),
    ] {
        let result = evaluate(&expression, &document);
        assert!(
            result.starts_with("error 10334 ") || result.starts_with("error 146 "),
            "{result}"
        );
    }
}
