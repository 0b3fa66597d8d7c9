//! Pipelines whose scripts are run for many documents at a time, against the same pipelines run document
//! by document.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use banyan_document::extjson;
use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};

use super::{Flow, Pipeline};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::items;
use crate::javascript::{Answers, Call, JavaScript, Running};

const DOCUMENTS: i32 = 1600;

/// How an engine answers several requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    All,
    /// No more than three of them at once.
    Three,
    /// It dies where a function fails.
    Dies,
}

/// Its functions are known by their sources.
#[derive(Debug)]
struct Functions {
    manner: Manner,
    requests: AtomicUsize,
    /// Calls have been begun and not finished.
    is_busy: AtomicBool,
}

struct Begun<'f> {
    answers: Result<Answers, QueryError>,
    is_busy: &'f AtomicBool,
}

impl Running for Begun<'_> {
    fn finish(self: Box<Self>) -> Result<Answers, QueryError> {
        self.is_busy.store(false, Ordering::Relaxed);
        self.answers
    }
}

impl Functions {
    fn request(&self) {
        assert!(!self.is_busy.load(Ordering::Relaxed));
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn answers(&self, calls: &[&Call]) -> Result<Answers, QueryError> {
        self.request();
        let most = match self.manner {
            Manner::All | Manner::Dies => calls.len(),
            Manner::Three => 3,
        };
        let mut answers = Answers::default();
        for call in calls.iter().take(most) {
            match self.call(&call.request()) {
                Ok(value) => answers.values.push(value),
                Err(error) if self.manner == Manner::Dies => return Err(error),
                Err(error) => {
                    answers.failure = Some(error);
                    break;
                }
            }
        }
        Ok(answers)
    }

    fn call(&self, request: &RawDocument) -> Result<RawBson, QueryError> {
        let arguments = request.get_array("arguments").unwrap();
        let first = items(arguments).next().unwrap();
        let number = first.as_i32().unwrap_or_default();
        let failed = |message: &str| Err(QueryError::new(ErrorKind::JsInterpreterFailure, message));
        match request.get_str("source").unwrap() {
            "twice" => Ok(RawBson::Int32(number * 2)),
            "odd" => Ok(RawBson::Boolean(number % 2 == 1)),
            "not 7" if number == 7 => failed("7"),
            "not 12" if number == 12 => failed("12"),
            "not 7" | "not 12" => Ok(RawBson::Int32(number)),
            other => panic!("{other}"),
        }
    }
}

impl JavaScript for Functions {
    fn run(&self, request: &RawDocument) -> Result<RawBson, QueryError> {
        self.request();
        self.call(request)
    }

    fn begin_each(&self, calls: &[&Call]) -> Result<Box<dyn Running + '_>, QueryError> {
        let answers = self.answers(calls);
        self.is_busy.store(true, Ordering::Relaxed);
        Ok(Box::new(Begun {
            answers,
            is_busy: &self.is_busy,
        }))
    }
}

/// What a pipeline comes to, with the error at its end, and in how many requests.
struct Run {
    results: Vec<String>,
    requests: usize,
}

fn input() -> impl Iterator<Item = Result<RawDocumentBuf, QueryError>> {
    let document = |n| rawdoc! { "_id": n, "a": n % 10, "l": [n, n + 1], "z": 100 - n };
    (0..DOCUMENTS).map(move |n| Ok(document(n)))
}

fn parse(stages: &str, manner: Manner) -> (Pipeline, Arc<Functions>) {
    let functions = Arc::new(Functions {
        manner,
        requests: AtomicUsize::new(0),
        is_busy: AtomicBool::new(false),
    });
    let context = Context {
        javascript: Some(functions.clone()),
        ..Context::default()
    };
    let call = |text: &str, source: &str| {
        let called =
            format!("{{\"$function\": {{\"body\": \"{source}\", \"lang\": \"js\", \"args\": [");
        text.replace(&format!("{}(", source.replace(' ', "_")), &called)
    };
    let mut text = ["twice", "odd", "not 7", "not 12"]
        .iter()
        .fold(stages.to_owned(), |t, s| call(&t, s));
    text = text.replace(')', "]}}");
    let wrapped = extjson::parse(&format!("{{\"p\": [{text}]}}")).expect(&text);
    let stages = wrapped.get_array("p").unwrap();
    let stages: Vec<_> = items(stages).map(|s| s.as_document().unwrap()).collect();
    (Pipeline::parse(&stages, &context).unwrap(), functions)
}

fn shown(result: &Result<RawDocumentBuf, QueryError>) -> String {
    match result {
        Ok(document) => extjson::canonical_text(document).unwrap(),
        Err(error) => format!("error {} {}", error.kind.code(), error.message),
    }
}

/// Many documents at a time.
fn ahead<I>(stages: &str, manner: Manner, input: I) -> Run
where
    I: Iterator<Item = Result<RawDocumentBuf, QueryError>>,
{
    let (pipeline, functions) = parse(stages, manner);
    let results = pipeline.run(input, None).unwrap();
    Run {
        results: results.map(|result| shown(&result)).collect(),
        requests: functions.requests.load(Ordering::Relaxed),
    }
}

/// Each document is pushed through, and its results taken, before the next one comes.
fn one_by_one<I>(stages: &str, input: I) -> Run
where
    I: Iterator<Item = Result<RawDocumentBuf, QueryError>>,
{
    let (pipeline, functions) = parse(stages, Manner::All);
    let mut execution = pipeline.start(None).unwrap();
    let mut results = Vec::new();
    let run = || {
        for document in input {
            let flow = execution.push(&document?)?;
            while let Some(result) = execution.pop()? {
                results.push(shown(&Ok(result)));
            }
            if flow == Flow::Stop {
                break;
            }
        }
        loop {
            let more = execution.drain()?;
            while let Some(result) = execution.pop()? {
                results.push(shown(&Ok(result)));
            }
            if !more {
                return Ok(());
            }
        }
    };
    if let Err(error) = run() {
        results.push(shown(&Err(error)));
    }
    Run {
        results,
        requests: functions.requests.load(Ordering::Relaxed),
    }
}

fn check(what: &str, run: &Run, expected: &Run) {
    let results = run.results.iter().zip(&expected.results).enumerate();
    for (n, (result, expected)) in results {
        assert_eq!(result, expected, "result {n} of {what}");
    }
    let counts = (run.results.len(), expected.results.len());
    assert_eq!(counts.0, counts.1, "{what}");
}

/// Pipelines, each written with its functions as calls, and how many requests it may take.
const PIPELINES: [(&str, usize); 24] = [
    (r#"{"$project": {"x": twice("$a")}}"#, 20),
    (
        r#"{"$set": {"x": twice(twice("$a")), "y": odd("$_id")}}"#,
        50,
    ),
    (
        r#"{"$set": {"x": {"$cond": [odd("$a"), twice("$a"), 0]}}}"#,
        30,
    ),
    (
        r#"{"$set": {"x": {"$and": [{"$gt": ["$a", 3]}, odd("$a"), odd("$_id")]}}}"#,
        30,
    ),
    (r#"{"$set": {"x": {"$ifNull": ["$a", not_7(7)]}}}"#, 0),
    (
        r#"{"$set": {"x": {"$map": {"input": "$l", "in": twice("$$this")}}}}"#,
        30,
    ),
    (
        r#"{"$set": {"x": {"$reduce": {"input": "$l", "initialValue": 1, "in": twice("$$value")}}}}"#,
        30,
    ),
    (
        r#"{"$set": {"x": {"$let": {"vars": {"v": twice("$a")}, "in": odd("$$v")}}}}"#,
        30,
    ),
    (r#"{"$match": {"$expr": odd("$a")}}"#, 20),
    (
        r#"{"$match": {"$or": [{"a": 4}, {"$expr": odd("$a")}]}}"#,
        20,
    ),
    (r#"{"$replaceWith": {"x": twice("$a")}}"#, 20),
    (
        r#"{"$group": {"_id": odd("$a"), "x": {"$sum": twice("$a")}}}, {"$sort": {"_id": 1}}"#,
        30,
    ),
    (
        r#"{"$unwind": "$l"}, {"$set": {"x": twice("$l")}}, {"$unwind": "$l"}"#,
        30,
    ),
    // What fails is told behind the results of what came before.
    (r#"{"$set": {"x": not_7("$_id")}}"#, 20),
    (
        r#"{"$set": {"x": twice("$a")}}, {"$set": {"y": not_7("$_id")}}"#,
        20,
    ),
    (
        r#"{"$set": {"y": not_7("$_id")}}, {"$match": {"$expr": odd("$a")}}"#,
        20,
    ),
    (
        r#"{"$set": {"y": {"$divide": [1, "$z"]}}}, {"$set": {"x": twice("$a")}}"#,
        20,
    ),
    (
        r#"{"$set": {"x": twice("$a")}}, {"$set": {"y": {"$divide": [1, "$z"]}}}, {"$match": {"$expr": odd("$a")}}"#,
        40,
    ),
    (r#"{"$set": {"x": not_12("$_id")}}"#, 20),
    (
        r#"{"$unwind": "$l"}, {"$set": {"x": not_12("$_id")}}, {"$match": {"$expr": odd("$l")}}"#,
        30,
    ),
    // And not at all where that was enough.
    (
        r#"{"$set": {"x": not_7("$_id")}}, {"$match": {"_id": {"$gt": 2}}}, {"$limit": 4}"#,
        20,
    ),
    (
        r#"{"$set": {"y": {"$divide": [1, "$z"]}}}, {"$match": {"$expr": odd("$_id")}}, {"$limit": 50}"#,
        20,
    ),
    (
        r#"{"$match": {"$expr": odd("$a")}}, {"$unwind": "$l"}, {"$set": {"x": not_7("$a")}}, {"$limit": 5}"#,
        20,
    ),
    (r#"{"$group": {"_id": not_7("$_id")}}"#, 20),
];

#[test]
fn many_at_a_time_come_to_the_same_as_one_by_one() {
    for (stages, most) in PIPELINES {
        let expected = one_by_one(stages, input());
        for manner in [Manner::All, Manner::Three, Manner::Dies] {
            let run = ahead(stages, manner, input());
            check(&format!("{manner:?}: {stages}"), &run, &expected);
            if manner == Manner::All {
                assert!(run.requests <= most, "{}: {stages}", run.requests);
            }
        }
    }
}

/// As two workers do, each with its own half of the input.
fn in_parts(stages: &str, manner: Manner) -> Run {
    let (pipeline, functions) = parse(stages, manner);
    let gathering = pipeline.gathering().expect(stages);
    let together = Arc::default();
    let (mut parts, mut failure) = (Vec::new(), None);
    for half in 0..2 {
        let mut part = gathering.start_part(None, &together).unwrap();
        part.begin(half as u64);
        let mut own = input().skip(half * 800).take(800);
        let fed = own.try_for_each(|document| part.push(&document?).map(|_| ()));
        failure = failure.or(fed.and_then(|()| part.seal()).err());
        parts.push(part);
    }
    let mut whole = pipeline.run(input(), None).unwrap();
    let results = match failure {
        Some(error) => vec![shown(&Err(error))],
        None => {
            whole.gather(parts).unwrap();
            whole.map(|result| shown(&result)).collect()
        }
    };
    Run {
        results,
        requests: functions.requests.load(Ordering::Relaxed),
    }
}

#[test]
fn parts_that_call_scripts_come_to_what_the_whole_comes_to() {
    for stages in [
        r#"{"$group": {"_id": odd("$a"), "x": {"$sum": twice("$a")}, "ids": {"$push": "$_id"}}}, {"$sort": {"_id": 1}}"#,
        r#"{"$set": {"x": twice("$a")}}, {"$match": {"$expr": odd("$_id")}}, {"$sort": {"x": 1}}"#,
        r#"{"$unwind": "$l"}, {"$set": {"x": odd("$l")}}, {"$group": {"_id": "$x", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}"#,
        r#"{"$group": {"_id": not_7("$_id")}}"#,
        r#"{"$set": {"x": not_12("$_id")}}, {"$group": {"_id": null, "n": {"$sum": "$x"}}}"#,
    ] {
        let expected = one_by_one(stages, input());
        for manner in [Manner::All, Manner::Three, Manner::Dies] {
            let run = in_parts(stages, manner);
            check(&format!("{manner:?}: {stages}"), &run, &expected);
            if manner == Manner::All {
                assert!(run.requests <= 30, "{}: {stages}", run.requests);
            }
        }
    }
}

#[test]
fn what_the_input_fails_with_comes_behind_the_results() {
    let failing = || {
        let error = QueryError::new(ErrorKind::Interrupted, "the input");
        input().take(300).chain([Err(error)])
    };
    for stages in [
        r#"{"$set": {"x": twice("$a")}}"#,
        r#"{"$set": {"x": twice("$a")}}, {"$match": {"$expr": odd("$a")}}, {"$unwind": "$l"}"#,
        r#"{"$match": {"$expr": odd("$a")}}, {"$limit": 149}"#,
        r#"{"$group": {"_id": odd("$a")}}"#,
    ] {
        let expected = one_by_one(stages, failing());
        let run = ahead(stages, Manner::All, failing());
        check(stages, &run, &expected);
        assert!(run.requests < 40, "{}: {stages}", run.requests);
    }
}

#[test]
fn a_few_results_are_not_worked_far_ahead_of() {
    let stages = r#"{"$set": {"x": twice("$a")}}"#;
    let (pipeline, _) = parse(stages, Manner::All);
    let mut read = 0;
    let counted = input().inspect(|_| read += 1);
    let results: Vec<_> = pipeline.run(counted, None).unwrap().take(3).collect();
    assert_eq!(results.len(), 3);
    assert_eq!(read, 3);
}

#[test]
fn chance_may_decide_which_script_is_run() {
    let stages = r#"{"$set": {"x": {"$cond": [{"$lt": [{"$rand": {}}, 0.5]}, twice("$_id"), odd("$_id")]}}}"#;
    let run = ahead(stages, Manner::All, input());
    assert_eq!(run.results.len(), DOCUMENTS as usize);
    for (n, result) in run.results.iter().enumerate() {
        let found = extjson::parse(result).unwrap();
        match found.get("x").unwrap().unwrap() {
            bson::RawBsonRef::Int32(twice) => assert_eq!(twice, n as i32 * 2),
            bson::RawBsonRef::Boolean(odd) => assert_eq!(odd, n % 2 == 1),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn beyond_a_number_of_scripts_each_is_run_alone() {
    let list: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let list = list.join(", ");
    let stages =
        format!(r#"{{"$set": {{"x": {{"$map": {{"input": [{list}], "in": twice("$$this")}}}}}}}}"#);
    let short = || input().take(20);
    let expected = one_by_one(&stages, short());
    assert_eq!(expected.requests, 800);
    let run = ahead(&stages, Manner::All, short());
    check(&stages, &run, &expected);
    assert!(run.requests > 480 && run.requests < 600, "{}", run.requests);
}
