use banyan_document::extjson;
use bson::RawDocumentBuf;

use std::sync::Arc;

use super::*;
use crate::error::ErrorKind;
use crate::golden;
use crate::memory::Memory;

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
            ["error 10334 ", "error 146 ", "error 16493 "]
                .iter()
                .any(|error| result.starts_with(error)),
            "{result}"
        );
    }
}

/// Fails at once.
#[derive(Debug)]
struct Over;

impl crate::Interrupt for Over {
    fn check(&self) -> Result<(), QueryError> {
        Err(QueryError::new(ErrorKind::Location(50), "time is over"))
    }
}

fn in_budget(expression: &str, budget: Budget) -> Result<Expression, QueryError> {
    let wrapped = extjson::parse(&format!("{{\"e\":{expression}}}")).unwrap();
    let context = Context {
        budget,
        ..Context::default()
    };
    Expression::parse(wrapped.get("e").unwrap().unwrap(), &context)
}

/// What takes long looks whether it has to end, whether it loops over documents or not.
#[test]
fn long_expressions_can_be_ended() {
    let numbers: Vec<String> = (0..3000).map(|n| (n * 7 % 3001).to_string()).collect();
    let document = extjson::parse(&format!("{{\"a\":[{}]}}", numbers.join(","))).unwrap();
    for expression in [
        r#"{"$map":{"input":"$a","in":{"$add":["$$this",1]}}}"#,
        r#"{"$filter":{"input":"$a","cond":{"$gt":["$$this",1]}}}"#,
        r#"{"$reduce":{"input":"$a","initialValue":[],
            "in":{"$concatArrays":["$$value",["$$this"]]}}}"#,
        r#"{"$range":[0,{"$size":"$a"}]}"#,
        r#"{"$setUnion":["$a",[1]]}"#,
        r#"{"$setIntersection":["$a","$a"]}"#,
        r#"{"$setDifference":["$a",[1]]}"#,
        r#"{"$setIsSubset":["$a","$a"]}"#,
        r#"{"$zip":{"inputs":["$a","$a"]}}"#,
        r#"{"$sortArray":{"input":"$a","sortBy":1}}"#,
        r#"{"$reverseArray":"$a"}"#,
        r#"{"$concatArrays":["$a","$a"]}"#,
        r#"{"$in":[-1,"$a"]}"#,
        r#"{"$indexOfArray":["$a",-1]}"#,
        r#"{"$maxN":{"input":"$a","n":3}}"#,
        r#"{"$sum":"$a"}"#,
        r#"{"$max":"$a"}"#,
    ] {
        let parsed = in_budget(
            expression,
            Budget::interruptible(Arc::new(Over), Memory::detached()),
        )
        .unwrap();
        let failed = parsed.evaluate_owned(&document).unwrap_err();
        assert_eq!(failed.kind, ErrorKind::Location(50), "{expression}");
        assert!(!evaluate(expression, &document).starts_with("error"));
    }
}

/// Parsing works constants out as far as that is cheap. The others have the same values later.
#[test]
fn folding_is_bounded() {
    let range = r#"{"$size":{"$range":[0,100000]}}"#;
    // Few operands: reading many is ended, too.
    let sum = [r#"{"$size":{"$range":[0,1000000]}}"#; 30].join(",");
    let sum = format!("{{\"$add\":[{sum}]}}");
    let began = std::time::Instant::now();
    let parsed = in_budget(
        &sum,
        Budget::interruptible(Arc::new(Over), Memory::detached()),
    )
    .unwrap();
    // Unbounded, this takes many times as long.
    assert!(began.elapsed() < std::time::Duration::from_secs(2));
    let failed = parsed.evaluate_owned(&RawDocumentBuf::new()).unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Location(50));

    let once = in_budget(range, Budget::unlimited()).unwrap();
    assert_eq!(once.as_constant(), Some(bson::RawBsonRef::Int32(100_000)));
    // It is evaluated once, not for each document.
    let large = r#"{"$slice":[{"$range":[0,100000]},-2]}"#;
    let kept = in_budget(large, Budget::allowance(1_000_000)).unwrap();
    for _ in 0..100 {
        let value = kept.evaluate_owned(&RawDocumentBuf::new()).unwrap();
        assert_eq!(
            extjson::canonical_text(&bson::rawdoc! {"v": value.unwrap()}).unwrap(),
            r#"{"v":[{"$numberInt":"99998"},{"$numberInt":"99999"}]}"#
        );
    }
    // Errors of what is cheap are errors of the request.
    assert!(in_budget(r#"{"$divide":[1,0]}"#, Budget::unlimited()).is_err());
    // A name may be evaluated late, too.
    let name = r#"{"$getField":{"input":"$$ROOT","field":{"$concat":["a",
        {"$substr":["",0,{"$size":{"$range":[0,50000]}}]}]}}}"#;
    assert!(in_budget(name, Budget::unlimited()).is_ok());
}

/// A document of many fields is gone over once, however many of them are read.
#[test]
fn many_fields_are_found_by_an_index() {
    let wide = |first: i32| {
        let mut writer = banyan_document::DocumentWriter::new();
        (0..60).for_each(|n| writer.append_i32(&format!("f{n}"), first + n));
        writer.finish()
    };
    let (one, other) = (wide(0), wide(1000));
    let paths: Vec<String> = (0..60).rev().map(|n| format!("\"$f{n}\"")).collect();
    let sum = format!("{{\"$add\":[{},\"$f7\"]}}", paths.join(","));
    let sum = in_budget(&sum, Budget::unlimited()).unwrap();
    let last = in_budget("\"$f59\"", Budget::unlimited()).unwrap();
    let missing = in_budget("\"$f60.a\"", Budget::unlimited()).unwrap();
    assert_eq!((sum.reads(), last.reads()), (61, 1));
    let arena = Arena::new();
    // Documents of one arena are not mixed up.
    let roots = [(arena.root(&one), 0), (arena.root(&other), 1000)];
    for _ in 0..2 {
        for (root, first) in roots {
            let value = |value| Some(bson::RawBsonRef::Int32(value));
            let found = sum.evaluate_at(root.expecting(61)).unwrap();
            assert_eq!(found, value(61 * first + 59 * 60 / 2 + 7));
            for _ in 0..50 {
                assert_eq!(last.evaluate_at(root).unwrap(), value(first + 59));
            }
            assert_eq!(missing.evaluate_at(root).unwrap(), None);
        }
    }
}
