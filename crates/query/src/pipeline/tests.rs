use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_document::{Collator, extjson};
use bson::RawDocumentBuf;

use super::*;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::items;
use crate::golden;

fn parse(text: &str) -> RawDocumentBuf {
    extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn pipeline(text: &str) -> Result<Pipeline, QueryError> {
    let wrapped = parse(&format!("{{\"p\":{text}}}"));
    let stages = wrapped.get_array("p").unwrap();
    let stages: Vec<_> = items(stages)
        .map(|stage| stage.as_document().unwrap())
        .collect();
    Pipeline::parse(&stages, &Context::default())
}

fn run(pipeline: &Pipeline, documents: &[RawDocumentBuf]) -> Result<Vec<String>, QueryError> {
    let input = documents.iter().map(Ok::<_, QueryError>);
    let results = pipeline.run(input, None)?;
    results
        .map(|result| Ok(extjson::canonical_text(&result?).unwrap()))
        .collect()
}

/// Runs each pipeline over the block's documents. The expected results are those of the reference
/// server, apart from a block of known differences.
#[test]
fn golden() {
    for name in ["pipeline", "bucket_auto", "densify", "fill", "window"] {
        check_golden(&format!("src/pipeline/{name}.golden"));
    }
}

fn check_golden(path: &str) {
    golden::check(path, |commands| {
        let mut documents = Vec::new();
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = golden::split(command);
            if name == "doc" {
                documents.push(parse(argument));
                continue;
            }
            output.push(format!("> {argument}"));
            match pipeline(argument).and_then(|pipeline| run(&pipeline, &documents)) {
                Ok(results) => {
                    check_serialized(argument, &documents, &results);
                    output.extend(results);
                }
                Err(error) => output.push(format!("error {} {}", error.kind.code(), error.message)),
            }
        }
        output
    });
}

/// What a pipeline is written as does the same.
fn check_serialized(text: &str, documents: &[RawDocumentBuf], results: &[String]) {
    let stages = pipeline(text).unwrap().to_documents();
    let stages: Vec<_> = stages.iter().map(|stage| &**stage).collect();
    let again = Pipeline::parse(&stages, &Context::default()).unwrap();
    let again = run(&again, documents).unwrap();
    if !text.contains("$sample") {
        assert_eq!(again, results, "{text}");
    }
}

/// Puts documents on two shards, runs the shards' part there and the router's part on what they
/// give, and expects what one server gives for all documents.
fn check_split(text: &str) {
    let documents: Vec<_> = (0..20)
        .map(|i| {
            parse(&format!(
                "{{\"_id\":{i},\"k\":{},\"v\":{}.5,\"t\":[1,{i}]}}",
                i % 3,
                i % 7
            ))
        })
        .collect();
    let whole = pipeline(text).unwrap();
    let expected = run(&whole, &documents).unwrap();
    let split = whole.split();
    let stages: Vec<_> = split.shard.iter().map(|stage| &**stage).collect();
    let shard = Pipeline::parse(&stages, &Context::default()).unwrap();
    let mut streams: Vec<RawDocumentBuf> = Vec::new();
    for part in [&documents[..7], &documents[7..]] {
        let input = part.iter().map(Ok::<_, QueryError>);
        for result in shard.run(input, None).unwrap() {
            streams.push(result.unwrap());
        }
    }
    if let Some(order) = &split.order {
        streams.sort_by_key(|document| order.pattern.key(document).unwrap());
    }
    assert_eq!(run(&split.merge, &streams).unwrap(), expected, "{text}");
}

#[test]
fn split_pipelines_give_the_same_results() {
    let accumulators = r#"{"$group":{"_id":"$k","n":{"$sum":1},"s":{"$sum":"$v"},"a":{"$avg":"$v"},
        "lo":{"$min":"$v"},"hi":{"$max":"$v"},"f":{"$first":"$_id"},"l":{"$last":"$_id"},
        "p":{"$push":"$v"},"set":{"$addToSet":"$v"},"sd":{"$stdDevPop":"$v"},
        "m":{"$mergeObjects":{"k":"$k"}},"f2":{"$firstN":{"n":2,"input":"$v"}},
        "l2":{"$lastN":{"n":2,"input":"$v"}},"x2":{"$maxN":{"n":2,"input":"$v"}},
        "t":{"$top":{"sortBy":{"_id":-1},"output":"$v"}},
        "b2":{"$bottomN":{"n":2,"sortBy":{"_id":1},"output":"$_id"}},
        "md":{"$median":{"input":"$v","method":"approximate"}}}}"#;
    let sets = r#"{"$addFields":{"set":{"$sortArray":{"input":"$set","sortBy":1}},
        "sd":{"$round":["$sd",9]}}}"#;
    check_split(&format!(
        r#"[{accumulators},{sets},{{"$sort":{{"_id":1}}}}]"#
    ));
    check_split(r#"[{"$match":{"k":1}},{"$sort":{"v":-1,"_id":1}},{"$skip":2},{"$limit":3}]"#);
    check_split(r#"[{"$unwind":"$t"},{"$sortByCount":"$t"},{"$sort":{"count":-1,"_id":1}}]"#);
    check_split(r#"[{"$match":{"v":{"$gt":1}}},{"$count":"n"}]"#);
    check_split(r#"[{"$sort":{"_id":-1}},{"$group":{"_id":"$k","f":{"$first":"$_id"}}}]"#);
    check_split(r#"[{"$project":{"v":1}},{"$limit":5}]"#);
    check_split(r#"[{"$skip":3},{"$limit":4}]"#);
    check_split(r#"[{"$sample":{"size":4}},{"$count":"n"}]"#);
}

/// Foreign documents from a list.
struct Fixed {
    documents: Vec<RawDocumentBuf>,
    is_indexed: bool,
    reads: AtomicUsize,
}

impl Fixed {
    fn new(documents: &[&str], is_indexed: bool) -> Arc<Fixed> {
        Arc::new(Fixed {
            documents: documents.iter().map(|text| parse(text)).collect(),
            is_indexed,
            reads: AtomicUsize::new(0),
        })
    }
}

impl Sources for Fixed {
    fn is_indexed(&self, _: Option<&str>, _: &str, _: &str) -> Result<bool, QueryError> {
        Ok(self.is_indexed)
    }

    fn documents(
        &self,
        _: Option<&str>,
        collection: &str,
        query: &ForeignQuery,
    ) -> Result<Documents, QueryError> {
        assert_eq!(collection, "other");
        self.reads.fetch_add(1, Ordering::Relaxed);
        let filter = query.filter()?;
        // What a router sends on finds the same.
        let context = Context {
            collator: filter.collator().cloned(),
            ..Context::default()
        };
        let sent = crate::Filter::parse(&query.to_document(), &context)?;
        for document in &self.documents {
            let found = filter.try_matches(document)?;
            assert_eq!(found, sent.try_matches(document)?);
        }
        let found: Vec<_> = self
            .documents
            .iter()
            .filter(|d| filter.try_matches(d).unwrap())
            .cloned()
            .map(Ok)
            .collect();
        Ok(Box::new(found.into_iter()))
    }
}

/// Every stage that compares strings does it under the pipeline's collation, here one that sees no
/// difference between capitals and small letters.
#[test]
fn stages_compare_strings_under_the_collation() {
    let collation = parse(r#"{"locale":"en","strength":2}"#);
    let context = Context {
        collator: Collator::parse(&collation).unwrap(),
        ..Context::default()
    };
    let documents = ["a", "B", "A", "b"];
    let documents: Vec<_> = documents
        .iter()
        .zip(1..)
        .map(|(text, i)| parse(&format!(r#"{{"_id":{i},"s":"{text}"}}"#)))
        .collect();
    let others = [
        r#"{"_id":1,"w":"A","to":"b"}"#,
        r#"{"_id":2,"w":"a","to":"B"}"#,
        r#"{"_id":3,"w":"B","to":"A"}"#,
        r#"{"_id":4,"w":"c"}"#,
    ];
    let ids = r#"{"$project":{"m":"$m._id"}},{"$limit":2}"#;
    let lookup = r#""from":"other","as":"m""#;
    let each = [r#"{"_id":1,"m":[1,2]}"#, r#"{"_id":2,"m":[3]}"#];
    let cases = [
        // The conditions go before the stages.
        (
            r#"[{"$group":{"_id":"$s","n":{"$sum":1}}},{"$match":{"_id":"A"}}]"#.into(),
            vec![r#"{"_id":"a","n":2}"#],
        ),
        (
            r#"[{"$project":{"t":"$s","n":{"$add":["$_id",1]}}},{"$match":{"t":{"$in":["A","a"]},"n":{"$gt":2}}}]"#.into(),
            vec![r#"{"_id":3,"t":"A","n":4}"#],
        ),
        (
            r#"[{"$setWindowFields":{"partitionBy":"$s","sortBy":{"_id":1},"output":{
                "n":{"$documentNumber":{}},"x":{"$addToSet":"$s"},"t":{"$max":"$s"}}}}]"#.into(),
            vec![
                r#"{"_id":1,"s":"a","n":1,"x":["a"],"t":"a"}"#,
                r#"{"_id":3,"s":"A","n":2,"x":["a"],"t":"a"}"#,
                r#"{"_id":2,"s":"B","n":1,"x":["B"],"t":"B"}"#,
                r#"{"_id":4,"s":"b","n":2,"x":["B"],"t":"B"}"#,
            ],
        ),
        (
            r#"[{"$setWindowFields":{"sortBy":{"s":-1},"output":{"r":{"$rank":{}}}}}]"#.into(),
            vec![
                r#"{"_id":2,"s":"B","r":1}"#,
                r#"{"_id":4,"s":"b","r":1}"#,
                r#"{"_id":1,"s":"a","r":3}"#,
                r#"{"_id":3,"s":"A","r":3}"#,
            ],
        ),
        (
            r#"[{"$group":{"_id":null,"t":{"$topN":{"n":2,"sortBy":{"s":1,"_id":1},"output":"$s"}}}}]"#.into(),
            vec![r#"{"_id":null,"t":["a","A"]}"#],
        ),
        (
            format!(r#"[{{"$lookup":{{{lookup},"localField":"s","foreignField":"w"}}}},{ids}]"#),
            each.to_vec(),
        ),
        (
            format!(
                r#"[{{"$lookup":{{{lookup},"let":{{"s":"$s"}},
                "pipeline":[{{"$match":{{"$expr":{{"$eq":["$w","$$s"]}}}}}}]}}}},{ids}]"#
            ),
            each.to_vec(),
        ),
        (
            format!(
                r#"[{{"$lookup":{{{lookup},"let":{{"s":"$s"}},"pipeline":[{{"$match":{{
                "$and":[{{"$expr":{{"$gte":["$w","$$s"]}}}},{{"w":{{"$lt":"C"}}}}]}}}}]}}}},{ids}]"#
            ),
            vec![r#"{"_id":1,"m":[1,2,3]}"#, r#"{"_id":2,"m":[3]}"#],
        ),
        (
            format!(
                r#"[{{"$graphLookup":{{{lookup},"startWith":"$s","connectFromField":"to",
                "connectToField":"w","maxDepth":5}}}},{ids}]"#
            ),
            vec![r#"{"_id":1,"m":[1,2,3]}"#, r#"{"_id":2,"m":[3,1,2]}"#],
        ),
        (
            r#"[{"$limit":1},{"$unionWith":{"coll":"other","pipeline":[{"$match":{"w":"b"}},{"$project":{"w":1}}]}}]"#.into(),
            vec![r#"{"_id":1,"s":"a"}"#, r#"{"_id":3,"w":"B"}"#],
        ),
    ];
    for (text, expected) in cases {
        let wrapped = parse(&format!("{{\"p\":{text}}}"));
        let stages: Vec<_> = items(wrapped.get_array("p").unwrap())
            .map(|stage| stage.as_document().unwrap())
            .collect();
        let pipeline = Pipeline::parse(&stages, &context).unwrap();
        for is_indexed in [true, false] {
            let sources = Fixed::new(&others, is_indexed);
            let input = documents.iter().map(Ok::<_, QueryError>);
            let results: Vec<_> = pipeline
                .run(input, Some(sources))
                .unwrap()
                .map(|result| extjson::relaxed_text(&result.unwrap()).unwrap())
                .map(|text| text.replace(' ', ""))
                .collect();
            assert_eq!(results, expected, "{text}");
        }
    }
}

/// What a `$lookup` finds does not depend on how it finds it; how often it reads does.
#[test]
fn lookups_read_the_other_collection_once_without_an_index() {
    let values = [
        "1",
        "2",
        "null",
        "[]",
        "[1,2]",
        "[[1]]",
        "{\"b\":1}",
        "[{\"b\":1},{\"b\":[2,3]}]",
        "[null]",
        "\"x\"",
    ];
    let with = |field: &str| -> Vec<String> {
        let each = values.iter().enumerate();
        let mut all: Vec<_> = each
            .map(|(i, value)| format!("{{\"_id\":{i},\"{field}\":{value}}}"))
            .collect();
        all.push("{\"_id\":99}".into());
        all
    };
    let (documents, others) = (with("v"), with("w"));
    let documents: Vec<_> = documents.iter().map(|text| parse(text)).collect();
    let others: Vec<_> = others.iter().map(String::as_str).collect();
    let matching = |filter: &str, rest: &str| {
        format!(
            r#"[{{"$lookup":{{"from":"other","let":{{"x":"$v","i":"$_id"}},"as":"m",
            "pipeline":[{{"$match":{filter}}}{rest}]}}}},{{"$project":{{"m":"$m._id"}}}}]"#
        )
    };
    let cases = [
        (2, matching(r#"{"$expr":{"$eq":["$w","$$x"]}}"#, "")),
        (2, matching(r#"{"$expr":{"$eq":["$$x.b","$w.b"]}}"#, "")),
        (2, matching(r#"{"_id":{"$gt":1},"$expr":{"$and":[{"$eq":["$w","$$x"]},{"$lt":["$$i",9]}]}}"#, "")),
        (1, matching(r#"{"_id":{"$gt":1}}"#, r#",{"$match":{"$expr":{"$gt":["$w","$$x"]}}}"#)),
        (1, matching(r#"{"$expr":{"$gt":["$_id",3]}}"#, r#",{"$limit":3},{"$match":{"$expr":{"$ne":["$_id","$$i"]}}}"#)),
        (1, matching(r#"{"_id":{"$gt":1}}"#, r#",{"$group":{"_id":null,"n":{"$sum":"$$i"}}},{"$project":{"_id":"$n"}}"#)),
        (11, matching(r#"{"$expr":{"$gt":["$w","$$x"]}}"#, "")),
        (2, r#"[{"$lookup":{"from":"other","localField":"v.b","foreignField":"w","as":"m"}},{"$project":{"m":"$m._id"}}]"#.into()),
        (2, r#"[{"$lookup":{"from":"other","localField":"v","foreignField":"w.b","as":"m","pipeline":[{"$limit":2}]}},{"$project":{"m":"$m._id"}}]"#.into()),
    ];
    for (reads, text) in cases {
        let run = |is_indexed| {
            let sources = Fixed::new(&others, is_indexed);
            let input = documents.iter().map(Ok::<_, QueryError>);
            let results = pipeline(&text).unwrap().run(input, Some(sources.clone()));
            let results: Vec<_> = results
                .unwrap()
                .map(|result| extjson::relaxed_text(&result.unwrap()).unwrap())
                .collect();
            (results, sources.reads.load(Ordering::Relaxed))
        };
        let ((with_index, _), (without, read)) = (run(true), run(false));
        assert_eq!(with_index, without, "{text}");
        assert_eq!(read, reads, "{text}");
    }
}

fn run_with_others(text: &str) -> Vec<String> {
    let others = [
        "{\"_id\":10,\"k\":1}",
        "{\"_id\":11,\"k\":2}",
        "{\"_id\":12}",
    ];
    let sources = Fixed::new(&others, true);
    let documents = [
        "{\"_id\":1,\"k\":1}",
        "{\"_id\":2,\"k\":[1,2]}",
        "{\"_id\":3}",
    ]
    .map(parse);
    let input = documents.iter().map(Ok::<_, QueryError>);
    let results = pipeline(text).unwrap().run(input, Some(sources)).unwrap();
    results
        .map(|result| extjson::relaxed_text(&result.unwrap()).unwrap())
        .collect()
}

#[test]
fn reads_other_collections() {
    let lookup = r#"[{"$lookup":{"from":"other","localField":"k","foreignField":"k","as":"o"}},
        {"$project":{"o":"$o._id"}}]"#;
    let expected = [
        r#"{"_id":1,"o":[10]}"#,
        r#"{"_id":2,"o":[10,11]}"#,
        r#"{"_id":3,"o":[12]}"#,
    ];
    assert_eq!(run_with_others(lookup), expected);
    let correlated = r#"[{"$match":{"_id":1}},{"$lookup":{"from":"other","let":{"mine":"$k"},
        "pipeline":[{"$match":{"$expr":{"$gt":["$k","$$mine"]}}},{"$project":{"_id":1}}],
        "as":"o"}}]"#;
    assert_eq!(
        run_with_others(correlated),
        [r#"{"_id":1,"k":1,"o":[{"_id":11}]}"#]
    );
    let union = r#"[{"$unionWith":{"coll":"other","pipeline":[{"$match":{"k":2}}]}},
        {"$project":{"_id":1}}]"#;
    let expected = [
        r#"{"_id":1}"#,
        r#"{"_id":2}"#,
        r#"{"_id":3}"#,
        r#"{"_id":11}"#,
    ];
    assert_eq!(run_with_others(union), expected);
    let no_sources = pipeline(union).unwrap().start(None).err().unwrap();
    assert_eq!(no_sources.kind, ErrorKind::NotImplemented);
}

#[test]
fn memory_is_bounded() {
    let large = "x".repeat(1024 * 1024);
    let document = bson::rawdoc! {"k": 1, "large": large};
    for (code, stage) in [
        (146, r#"[{"$group":{"_id":"$k","all":{"$push":"$large"}}}]"#),
        (
            292,
            r#"[{"$group":{"_id":{"$rand":{}},"all":{"$last":"$large"}}}]"#,
        ),
        (292, r#"[{"$sort":{"k":1}}]"#),
        (292, r#"[{"$sample":{"size":1000}}]"#),
        (4_031_700, r#"[{"$facet":{"all":[{"$skip":0}]}}]"#),
    ] {
        let mut execution = pipeline(stage).unwrap().start(None).unwrap();
        let failed = (0..200)
            .find_map(|_| execution.push(&document).err())
            .unwrap();
        assert_eq!(failed.kind.code(), code, "{stage}");
    }
}

#[test]
fn a_sort_holds_what_is_read_behind_it() {
    let large = "x".repeat(1024 * 1024);
    let document = bson::rawdoc! {"k": 1, "large": large};
    let sorted = pipeline(r#"[{"$sort":{"k":1}},{"$group":{"_id":"$k"}}]"#).unwrap();
    let mut execution = sorted.start(None).unwrap();
    for _ in 0..200 {
        assert_eq!(execution.push(&document).unwrap(), Flow::Continue);
    }
}

/// Ends the operation at a look.
#[derive(Debug)]
struct EndsAt {
    look: usize,
    looks: AtomicUsize,
}

impl crate::Interrupt for EndsAt {
    fn check(&self) -> Result<(), QueryError> {
        match self.looks.fetch_add(1, Ordering::Relaxed) + 1 >= self.look {
            true => Err(QueryError::new(ErrorKind::Location(50), "time is over")),
            false => Ok(()),
        }
    }
}

fn in_budget(text: &str, budget: Budget) -> Pipeline {
    let wrapped = parse(&format!("{{\"p\":{text}}}"));
    let stages = wrapped.get_array("p").unwrap();
    let stages: Vec<_> = items(stages)
        .map(|stage| stage.as_document().unwrap())
        .collect();
    let context = Context {
        budget,
        ..Context::default()
    };
    Pipeline::parse(&stages, &context).unwrap()
}

fn with_arrays(length: usize) -> RawDocumentBuf {
    let numbers: Vec<String> = (0..length).map(|n| n.to_string()).collect();
    let numbers = numbers.join(",");
    parse(&format!(
        "{{\"x\":[{numbers}],\"y\":[{numbers}],\"z\":[{numbers}]}}"
    ))
}

/// One document that becomes a thousand million of them, whatever comes after.
#[test]
fn a_pipeline_ends_within_one_document() {
    let unwind = r#"{"$unwind":"$x"},{"$unwind":"$y"},{"$unwind":"$z"}"#;
    let document = with_arrays(1000);
    for text in [
        format!(r#"[{unwind},{{"$count":"n"}}]"#),
        format!(r#"[{unwind},{{"$sort":{{"x":1}}}},{{"$limit":5}}]"#),
        format!(r#"[{unwind},{{"$match":{{"x":-1}}}}]"#),
        format!(r#"[{{"$facet":{{"n":[{unwind},{{"$count":"n"}}]}}}}]"#),
        format!(r#"[{unwind},{{"$group":{{"_id":"$x","s":{{"$addToSet":"$y"}}}}}}]"#),
        format!(r#"[{{"$sort":{{"x":1}}}},{unwind},{{"$skip":100000000}}]"#),
    ] {
        let interrupt = Arc::new(EndsAt {
            look: 100,
            looks: AtomicUsize::new(0),
        });
        let budget = Budget::interruptible(interrupt.clone(), crate::Memory::detached());
        let failed = run(&in_budget(&text, budget), std::slice::from_ref(&document)).unwrap_err();
        assert_eq!(failed.kind, ErrorKind::Location(50), "{text}");
        assert_eq!(interrupt.looks.load(Ordering::Relaxed), 100, "{text}");
    }
}

/// What was unwound is made when it is asked for, not before.
#[test]
fn results_are_made_as_they_are_taken() {
    let text = r#"[{"$unwind":"$x"},{"$unwind":{"path":"$y","includeArrayIndex":"i"}},
        {"$unwind":"$z"}]"#;
    let mut execution = pipeline(text).unwrap().start(None).unwrap();
    execution.push(&with_arrays(300)).unwrap();
    let mut count = 0;
    while let Some(document) = execution.pop().unwrap() {
        let expected = format!(
            "{{\"x\":{},\"y\":{},\"z\":{},\"i\":{{\"$numberLong\":\"{}\"}}}}",
            count / 90_000,
            count / 300 % 300,
            count % 300,
            count / 300 % 300
        );
        if count % 9973 < 2 {
            assert_eq!(document, parse(&expected), "{count}");
        }
        count += 1;
        if count == 1_000_000 {
            break;
        }
    }
    assert_eq!(count, 1_000_000);
    // A limit behind it ends it early, wherever the results were full.
    for limit in [1, 255, 256, 257, 5000] {
        let text = format!(
            r#"[{{"$unwind":"$x"}},{{"$unwind":"$y"}},{{"$unwind":"$z"}},{{"$limit":{limit}}}]"#
        );
        let pipeline = pipeline(&text).unwrap();
        let results = run(&pipeline, &[with_arrays(20), with_arrays(20)]).unwrap();
        assert_eq!(results.len(), limit);
        assert!(results.last().unwrap().contains("\"z\""));
    }
}

#[test]
fn stops_reading_when_limits_are_reached() {
    let text = r#"[{"$unwind":"$t"},{"$project":{"t":1}},{"$limit":3}]"#;
    let mut read = 0;
    let input = std::iter::repeat_with(|| {
        read += 1;
        Ok::<_, QueryError>(parse("{\"t\":[1,2]}"))
    });
    let count = pipeline(text).unwrap().run(input, None).unwrap().count();
    assert_eq!((count, read), (3, 2));
}

#[test]
fn knows_which_fields_are_read() {
    let of = |text: &str| pipeline(text).unwrap().dependencies();
    let paths = |names: &[&str]| Dependencies::Paths(names.iter().map(|n| n.to_string()).collect());
    let group = r#"{"$group":{"_id":"$a.b","n":{"$sum":"$c"}}}"#;
    assert_eq!(of(&format!("[{group}]")), paths(&["a.b", "c"]));
    assert_eq!(
        of(&format!(
            r#"[{{"$match":{{"d":1}}}},{{"$unwind":"$c"}},{group}]"#
        )),
        paths(&["a.b", "c", "d"])
    );
    assert_eq!(of(r#"[{"$match":{"d":1}}]"#), Dependencies::Whole);
    assert_eq!(
        of(r#"[{"$group":{"_id":null,"r":{"$push":"$$ROOT"}}}]"#),
        Dependencies::Whole
    );
    assert_eq!(of(r#"[{"$count":"n"}]"#), paths(&[]));
}

/// The shape of the load that counts tags: fields that are not read must cost little.
#[test]
fn counts_tags() {
    let pipeline =
        pipeline(r#"[{"$unwind":"$tags"},{"$group":{"_id":"$tags","n":{"$sum":1}}}]"#).unwrap();
    let mut execution = pipeline.start(None).unwrap();
    for i in 0..1000 {
        let tags: Vec<String> = (0..(2 + i % 4))
            .map(|t| format!("tag{}", (i * 7 + t) % 43))
            .collect();
        let document = bson::rawdoc! {
            "_id": i, "content": format!("data for content {i}"),
            "tags": tags.into_iter().collect::<bson::RawArrayBuf>(),
        };
        execution.push(&document).unwrap();
    }
    while execution.drain().unwrap() {}
    let results: Vec<_> = std::iter::from_fn(|| execution.pop().unwrap()).collect();
    let total: i32 = results.iter().map(|r| r.get_i32("n").unwrap()).sum();
    assert_eq!((results.len(), total), (43, 3500));
}

/// Documents that swallow themselves, stage by stage or element by element, must end in an error
/// before they are too deep to be walked.
#[test]
fn depth_is_bounded() {
    let path = ["a"; 100].join(".");
    let stage = format!("{{\"$addFields\":{{\"{path}\":\"$$ROOT\"}}}}");
    let nested = [stage.as_str(); 5].join(",");
    let documents = [parse("{\"_id\":1}")];
    let failed = run(&pipeline(&format!("[{nested}]")).unwrap(), &documents).unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Overflow);
    let fold = r#"[{"$project":{"r":{"$reduce":{"input":{"$range":[0,1000]},"initialValue":{},
        "in":{"v":"$$value"}}}}}]"#;
    let failed = pipeline(fold)
        .and_then(|p| run(&p, &documents))
        .unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Overflow);
    let wrap = r#"{"$replaceWith":{"a":"$$ROOT"}}"#;
    let wraps = [wrap; 300].join(",");
    let failed = run(&pipeline(&format!("[{wraps}]")).unwrap(), &documents).unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Overflow);
}

#[test]
fn a_result_may_tell_a_little_about_the_largest_document() {
    let largest = bson::rawdoc! { "x": "x".repeat(banyan_document::MAX_DOCUMENT_BYTES - 13) };
    assert_eq!(
        largest.as_bytes().len(),
        banyan_document::MAX_DOCUMENT_BYTES
    );
    let with = |more: usize| {
        let more = "y".repeat(more);
        let added = pipeline(&format!("[{{\"$addFields\":{{\"y\":\"{more}\"}}}}]")).unwrap();
        let mut results = added
            .run([Ok::<_, QueryError>(&largest)].into_iter(), None)
            .unwrap();
        results
            .next()
            .unwrap()
            .map(|result| result.as_bytes().len())
    };
    assert!(with(1000).is_ok());
    assert_eq!(with(17_000).unwrap_err().kind.code(), 10334);
}
