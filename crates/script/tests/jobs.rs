//! Jobs in real host processes. This test's own program serves as the host, see `host_entry`.

// The helpers of tests may panic as the tests do.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use banyan_script::hosts::{Counters, Interrupted, Session};
use banyan_script::{HostOptions, Hosts, JobError, MapReduceSpec};
use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};

/// The inside of a host: started by the other tests, in a process of its own.
#[test]
#[ignore = "not a test: the script hosts of the others"]
fn host_entry() {
    banyan_script::host_main();
}

fn options() -> HostOptions {
    let arguments = [
        "host_entry",
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    HostOptions {
        lanes: 2,
        ..HostOptions::new(
            std::env::current_exe().unwrap(),
            arguments.map(str::to_string).to_vec(),
            std::env::temp_dir(),
        )
    }
}

fn spec(map: &str, reduce: &str) -> MapReduceSpec {
    MapReduceSpec {
        map: Some(map.into()),
        reduce: reduce.into(),
        ..Default::default()
    }
}

fn never() -> Interrupted {
    Arc::new(|| false)
}

const SUM: &str = "function(key, values) { return Array.sum(values); }";

fn run(
    hosts: &Hosts,
    spec: &MapReduceSpec,
    documents: &[RawDocumentBuf],
    interrupted: Interrupted,
) -> Result<(Vec<Document>, Counters), JobError> {
    let mut job = hosts.map_reduce(spec, interrupted)?;
    let feeders = job.start_mapping()?;
    let share = documents.len().div_ceil(feeders.len()).max(1);
    std::thread::scope(|scope| {
        let mut parts = documents.chunks(share);
        for mut feeder in feeders {
            let part = parts.next().unwrap_or_default();
            scope.spawn(move || {
                for document in part {
                    if feeder.push(document).is_err() {
                        return;
                    }
                }
                // The reader of the lane reports what went wrong.
                let _ = feeder.finish();
            });
        }
    });
    let mapped = job.finish_mapping()?;
    let mut counters = mapped.counters;
    let inputs = mapped
        .runs
        .into_iter()
        .map(|run| Box::new(run.documents()) as _)
        .collect();
    let reduced: Result<Vec<RawDocumentBuf>, JobError> = job.reduce(inputs, true).collect();
    let results: Vec<Document> = reduced?
        .iter()
        .map(|raw| Document::try_from(raw).unwrap())
        .collect();
    counters.reduce += job.reduces();
    counters.output = results.len() as i64;
    job.done();
    Ok((results, counters))
}

fn numbers(count: i32) -> Vec<RawDocumentBuf> {
    (0..count)
        .map(|n| rawdoc! { "_id": n, "n": n, "tags": ["a", "b"] })
        .collect()
}

fn error_of(hosts: &Hosts, map: &str) -> (i32, String) {
    match run(hosts, &spec(map, SUM), &numbers(10), never()) {
        Err(JobError::Script { code, message }) => (code, message),
        other => panic!("{map}: {other:?}"),
    }
}

#[test]
fn tags_are_counted() {
    let hosts = Hosts::new(options());
    let map = "function() { for (var i in this.tags) { emit(this.tags[i], 1); } }";
    let (results, counters) = run(&hosts, &spec(map, SUM), &numbers(10_000), never()).unwrap();
    assert_eq!(
        results,
        [
            doc! { "_id": "a", "value": 10_000.0 },
            doc! { "_id": "b", "value": 10_000.0 }
        ]
    );
    assert_eq!(counters.input, 10_000);
    assert_eq!(counters.emit, 20_000);
    assert_eq!(counters.output, 2);
    // The host went back to the pool and serves again.
    assert_eq!(hosts.idle_process_ids().len(), 1);
    let before = hosts.idle_process_ids();
    run(&hosts, &spec(map, SUM), &numbers(10), never()).unwrap();
    assert_eq!(hosts.idle_process_ids(), before);
}

#[test]
fn keys_of_every_type_come_out_in_order() {
    let hosts = Hosts::new(options());
    let map = "function() {
        emit(this.n % 2 ? 1 : NumberLong(1), 1);
        emit(null, 1); emit(undefined, 1); emit('s', 1); emit({a: 1}, 1); emit({a: NumberInt(1)}, 1);
        emit([1], 1); emit(true, 1); emit(ObjectId('000000000000000000000001'), 1);
        emit(NaN, 1); emit(-0, 1); emit(0, 1); emit(NumberDecimal('1'), 1);
        emit(NumberLong('9223372036854775807'), 1); emit(MinKey, 1);
    }";
    let (results, _) = run(&hosts, &spec(map, SUM), &numbers(4), never()).unwrap();
    let counts: Vec<f64> = results
        .iter()
        .map(|r| r.get_f64("value").unwrap())
        .collect();
    assert_eq!(counts, [4., 8., 4., 8., 8., 4., 4., 8., 4., 4., 4.]);
    assert_eq!(results[0].get("_id"), Some(&Bson::MinKey));
    assert_eq!(results[1].get("_id"), Some(&Bson::Null));
    assert_eq!(
        results[4].get("_id").and_then(Bson::as_f64).unwrap_or(1.0),
        1.0
    );
    assert_eq!(results[5].get("_id"), Some(&Bson::Int64(i64::MAX)));
}

#[test]
fn scope_finalize_and_whole_documents() {
    let hosts = Hosts::new(options());
    let spec = MapReduceSpec {
        map: Some("function() { helper.call(this); }".into()),
        reduce: "(key, values) => ({n: Array.sum(values.map(v => v.n))})".into(),
        finalize: Some(
            "function(key, value) { value.key = key; value.x = x; return value; }".into(),
        ),
        scope: Some(
            RawDocumentBuf::try_from(&doc! {
                "x": 5,
                "helper": Bson::JavaScriptCode("function() { emit(this.n % 2, {n: 1}); }".into()),
            })
            .unwrap(),
        ),
        collator: None,
    };
    let (results, counters) = run(&hosts, &spec, &numbers(10), never()).unwrap();
    assert_eq!(
        results,
        [
            doc! { "_id": 0.0, "value": { "n": 5.0, "key": 0.0, "x": 5.0 } },
            doc! { "_id": 1.0, "value": { "n": 5.0, "key": 1.0, "x": 5.0 } },
        ]
    );
    assert!(counters.reduce >= 2);
}

#[test]
fn an_emitted_object_is_a_snapshot() {
    let hosts = Hosts::new(options());
    let map = "function() { var o = {n: 0}; for (var i = 0; i < 3; i++) { o.n = i; emit(1, o); } }";
    let reduce = "(key, values) => ({n: values.reduce((a, v) => a + v.n, 0)})";
    let (results, _) = run(&hosts, &spec(map, reduce), &numbers(1), never()).unwrap();
    assert_eq!(results, [doc! { "_id": 1.0, "value": { "n": 3.0 } }]);
}

/// What the driver writes itself and what it leaves to others come to the same.
#[test]
fn keys_and_values_of_every_form_come_out_as_they_were_emitted() {
    let hosts = Hosts::new(options());
    let values = "[1.5, -0, 'text', 'ümlaut', '', 'a\\0b', true, false, null, [1, 'a', [{}]], \
        {}, {a: 1, b: {c: 'd', e: [null]}, 'ü': true, 7: 0}, {a: undefined}, NumberLong(5), \
        new Date(7), 'x'.repeat(20000), 'x'.repeat(70000), {s: 'y'.repeat(33000)}, /r/i]";
    let map = format!(
        "function() {{
            var values = {values};
            values.forEach(function(value, i) {{ emit('value ' + (100 + i), value); }});
            for (var i = 0; i < 3000; i++) {{ emit('many ' + (10000 + i), i); }}
            emit('ümlaut', 1); emit('zero \\0', 2); emit('long ' + 'z'.repeat(40000), 3); emit('', 4);
            emit({{a: 'b'}}, 5); emit(2.5, {{n: 6}}); emit(null, 'seven');
        }}"
    );
    let expected_values: Vec<Bson> = vec![
        Bson::Double(1.5),
        Bson::Double(-0.0),
        "text".into(),
        "ümlaut".into(),
        "".into(),
        "a\0b".into(),
        true.into(),
        false.into(),
        Bson::Null,
        vec![1.0.into(), "a".into(), Bson::Array(vec![doc! {}.into()])].into(),
        doc! {}.into(),
        doc! { "7": 0.0, "a": 1.0, "b": { "c": "d", "e": [Bson::Null] }, "ü": true }.into(),
        doc! { "a": Bson::Undefined }.into(),
        Bson::Int64(5),
        bson::DateTime::from_millis(7).into(),
        "x".repeat(20_000).into(),
        "x".repeat(70_000).into(),
        doc! { "s": "y".repeat(33_000) }.into(),
        Bson::RegularExpression(bson::Regex {
            pattern: bson::cstr!("r").into(),
            options: bson::cstr!("i").into(),
        }),
    ];
    // As they are reduced, finalized as they are, and made anew by finalize.
    for finalize in [
        None,
        Some("(key, value) => value"),
        Some("(key, value) => [value][0]"),
    ] {
        let spec = MapReduceSpec {
            finalize: finalize.map(str::to_owned),
            ..spec(&map, "(key, values) => values[0]")
        };
        let (results, _) = run(&hosts, &spec, &numbers(1), never()).unwrap();
        let value = |key: Bson| {
            let result = results
                .iter()
                .find(|result| result.get("_id") == Some(&key));
            result.and_then(|result| result.get("value")).cloned()
        };
        for (number, expected) in expected_values.iter().enumerate() {
            let found = value(format!("value {}", 100 + number).into());
            assert_eq!(found.as_ref(), Some(expected), "{number}");
        }
        let many = results.iter().filter(|result| {
            let key = result.get_str("_id");
            key.is_ok_and(|key| key.starts_with("many "))
        });
        let many: Vec<f64> = many.flat_map(|result| result.get_f64("value")).collect();
        assert!(many.into_iter().eq((0..3_000).map(f64::from)));
        assert_eq!(value("ümlaut".into()), Some(1.0.into()));
        assert_eq!(value("zero \0".into()), Some(2.0.into()));
        assert_eq!(
            value(format!("long {}", "z".repeat(40_000)).into()),
            Some(3.0.into())
        );
        assert_eq!(value("".into()), Some(4.0.into()));
        assert_eq!(value(doc! { "a": "b" }.into()), Some(5.0.into()));
        assert_eq!(value(2.5.into()), Some(doc! { "n": 6.0 }.into()));
        assert_eq!(value(Bson::Null), Some("seven".into()));
    }
}

/// A script that changes what the language brings spoils its own results at most.
#[test]
fn a_script_that_changes_prototypes_writes_no_broken_documents() {
    let hosts = Hosts::new(options());
    for change in [
        "String.prototype.charCodeAt = () => 0xf7 | 0x80 ^ 0x80;",
        "String.prototype.charCodeAt = () => -1;",
        "DataView.prototype.setInt32 = () => {};",
        "DataView.prototype.setInt32 = function() { throw 1; };",
        "Object.keys = () => ['a\\0b'];",
    ] {
        let map = format!("function() {{ {change} emit('key', 1); emit('other', {{a: 1}}); }}");
        let spec = spec(&map, "(key, values) => values[0]");
        if let Ok((results, _)) = run(&hosts, &spec, &numbers(1), never()) {
            for result in results {
                assert!(result.contains_key("_id") && result.contains_key("value"));
            }
        }
    }
}

#[test]
fn many_keys_spill_and_merge() {
    let mut options = options();
    options.heap_bytes_max = 48 << 20;
    options.spill_memory_bytes_max = 1 << 20;
    let hosts = Hosts::new(options);
    // Keys and values of some size, each key three times, far apart.
    let map = "function() {
        for (var i = 0; i < 100; i++) {
            emit('key ' + ((this.n * 100 + i) % 40000), 'v'.repeat(1000));
        }
    }";
    let reduce = "function(key, values) { return values[0]; }";
    let (results, counters) = run(&hosts, &spec(map, reduce), &numbers(1200), never()).unwrap();
    assert_eq!(results.len(), 40_000);
    assert_eq!(counters.emit, 120_000);
    let keys: Vec<&str> = results.iter().map(|r| r.get_str("_id").unwrap()).collect();
    assert!(keys.is_sorted());
}

#[test]
fn errors_of_functions_are_told() {
    let hosts = Hosts::new(options());
    let (code, message) = error_of(&hosts, "function() { throw new Error('boom'); }");
    assert_eq!(code, 139);
    assert!(message.starts_with("Error: boom"), "{message}");
    let (code, message) = error_of(&hosts, "function() { emit(1, ");
    assert_eq!(code, 139);
    assert!(message.starts_with("SyntaxError"), "{message}");
    let (code, _) = error_of(&hosts, "function() { emit(1); }");
    assert_eq!(code, 31220);
    let (code, _) = error_of(&hosts, "function() { emit(1, 'x'.repeat(17000000)); }");
    assert_eq!(code, 17260);
    let (code, _) = error_of(&hosts, "function() { var a = {}; a.a = a; emit(1, a); }");
    assert_eq!(code, 17279);
    let (code, message) = error_of(&hosts, "function() { throw {code: 11000}; }");
    assert_eq!(
        (code, message.as_str()),
        (139, "uncaught exception: {\"code\":11000}")
    );
}

#[test]
fn a_script_that_never_ends_is_interrupted() {
    let hosts = Hosts::new(options());
    let deadline = Instant::now() + Duration::from_millis(300);
    let interrupted: Interrupted = Arc::new(move || Instant::now() > deadline);
    let error = run(
        &hosts,
        &spec("function() { while (true); }", SUM),
        &numbers(10),
        interrupted,
    );
    assert_eq!(error.unwrap_err(), JobError::Interrupted);
    let ok = spec("function() { emit(1, 1); }", SUM);
    assert!(run(&hosts, &ok, &numbers(10), never()).is_ok());
}

#[test]
fn a_script_that_eats_memory_ends_its_job_only() {
    let mut options = options();
    options.heap_bytes_max = 64 << 20;
    let hosts = Hosts::new(options);
    for map in [
        "function() { var a = []; while (true) a.push('x'.repeat(9) + a.length); }",
        // Known to make V8 abort the process.
        "function() { let a = []; while (true) { a.push(new Array(1000).fill(1.5)); } }",
        // Outside of V8's heap: the operating system's limit holds.
        "function() { let a = []; while (true) { a.push(new Uint8Array(64 << 20).fill(1)); } }",
    ] {
        let error = run(&hosts, &spec(map, SUM), &numbers(10), never()).unwrap_err();
        match &error {
            JobError::Script { code, message } => {
                assert!(
                    *code == 146 || message.contains("allocation failed"),
                    "{error}"
                );
            }
            JobError::OutOfMemory | JobError::HostDied { .. } => {}
            other => panic!("{other:?}"),
        }
        let ok = spec("function() { emit(1, 1); }", SUM);
        assert!(run(&hosts, &ok, &numbers(10), never()).is_ok());
    }
}

#[test]
fn a_killed_host_ends_its_job_only() {
    let hosts = Hosts::new(options());
    let mut job = hosts
        .map_reduce(&spec("function() { emit(1, 1); }", SUM), never())
        .unwrap();
    let mut feeders = job.start_mapping().unwrap();
    feeders[0].push(&numbers(1)[0]).unwrap();
    let id = job.process_id().unwrap() as i32;
    // SAFETY: kill(2) on a child of this process that has not been waited for.
    assert_eq!(unsafe { libc::kill(id, libc::SIGKILL) }, 0);
    let error = job.finish_mapping().map(|_| ()).unwrap_err();
    assert_eq!(
        error,
        JobError::HostDied {
            how: "signal 9".into()
        }
    );
    drop(job);
    let ok = spec("function() { emit(1, 1); }", SUM);
    assert!(run(&hosts, &ok, &numbers(10), never()).is_ok());
}

#[test]
fn a_host_has_nothing_but_its_sockets() {
    let hosts = Hosts::new(options());
    hosts.warm_up().unwrap();
    let ok = spec("function() { emit(1, 1); }", SUM);
    run(&hosts, &ok, &numbers(10), never()).unwrap();
    let id = hosts.idle_process_ids()[0];
    let open: Vec<String> = std::fs::read_dir(format!("/proc/{id}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| !target.starts_with("socket:") && target != "/dev/null")
        .collect();
    assert!(open.is_empty(), "{open:?}");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"));
}

/// What the sandbox says it takes, the kernel says is taken, of every thread.
#[test]
fn a_host_has_no_privileges() {
    let hosts = Hosts::new(options());
    // A host that has done something has put its sandbox up.
    let ok = spec("function() { emit(1, 1); }", SUM);
    run(&hosts, &ok, &numbers(10), never()).unwrap();
    let id = hosts.idle_process_ids()[0];
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let user = if user == 0 { 65534 } else { user };
    let mut threads = 0;
    for thread in std::fs::read_dir(format!("/proc/{id}/task")).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..]
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(field("Seccomp:"), "2");
        assert_eq!(field("NoNewPrivs:"), "1");
        assert_eq!(field("Uid:"), vec![user.to_string(); 4].join(" "));
        threads += 1;
    }
    assert!(threads > options().lanes, "{threads} threads");
}

/// The time zone is known before its files are out of reach; what could measure or share memory is
/// not there.
#[test]
fn scripts_know_the_time_and_little_else() {
    let hosts = Hosts::new(options());
    let session = hosts.session();
    let offset = "function() { return new Date(2026, 0, 1).getTimezoneOffset(); }";
    let date = Command::new("date")
        .args(["-d", "2026-01-01", "+%z"])
        .env_clear()
        .output();
    let zone: i32 = String::from_utf8(date.unwrap().stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let minutes = zone / 100 * 60 + zone % 100;
    assert_eq!(number(&session, offset), Some(f64::from(0 - minutes)));
    let others = ["SharedArrayBuffer", "Atomics", "WebAssembly", "Intl"];
    for name in others {
        let absent = format!("function() {{ return typeof {name} == 'undefined' ? 1 : 0; }}");
        assert_eq!(number(&session, &absent), Some(1.0), "{name}");
    }
}

#[test]
fn jobs_wait_for_their_turn() {
    let mut options = options();
    options.hosts_max = 1;
    let hosts = Hosts::new(options);
    let slow = spec(
        "function() { var t = Date.now(); while (Date.now() < t + 5); emit(1, 1); }",
        SUM,
    );
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| run(&hosts, &slow, &numbers(20), never()).unwrap());
        }
    });
    let given_up = Arc::new(AtomicBool::new(true));
    let job = hosts.map_reduce(&slow, never()).unwrap();
    let interrupted: Interrupted = Arc::new(move || given_up.load(Ordering::Relaxed));
    assert_eq!(
        hosts
            .map_reduce(&slow, interrupted)
            .map(|_| ())
            .unwrap_err(),
        JobError::Interrupted
    );
    drop(job);
}

/// What a call without a `this` of its own gives.
fn call(session: &Session, source: &str) -> Result<RawDocumentBuf, JobError> {
    let request = rawdoc! { "source": source, "this": { "a": 1 }, "arguments": [2.0, "x"] };
    session.call(&request, never())
}

fn number(session: &Session, source: &str) -> Option<f64> {
    let answer = call(session, source).unwrap();
    answer.get("value").unwrap().unwrap().as_f64()
}

#[test]
fn functions_can_be_called() {
    let hosts = Hosts::new(options());
    let session = hosts.session();
    let answer = call(&session, "function(n, s) { return this.a + n + s; }").unwrap();
    assert_eq!(answer.get_str("value").unwrap(), "3x");
    assert!(matches!(
        call(&session, "function() { throw 1; }"),
        Err(JobError::Script { code: 8, .. })
    ));
    assert!(matches!(
        call(&session, "function() { throw {code: 8}; }"),
        Err(JobError::Script { code: 139, .. })
    ));
    assert_eq!(hosts.idle_process_ids().len(), 1);
    let is = |source: &str| {
        let request = rawdoc! {
            "source": source, "expression": true, "this": { "a": 1 }, "arguments": [],
            "scope": { "limit": 5.0 },
        };
        let answer = session.call(&request, never()).unwrap();
        answer.get_bool("value").unwrap()
    };
    assert!(is("this.a == 1"));
    assert!(is("function() { return this.a < limit; }"));
    assert!(is("var a = this.a; return a === 1;"));
    assert!(!is("this.a > limit"));
}

#[test]
fn many_steps_of_a_state_are_one_request() {
    let hosts = Hosts::new(options());
    let session = hosts.session();
    let value = |request: RawDocumentBuf| session.call(&request, never());
    let rows: Vec<_> = (1..=500).map(|n| rawdoc! { "row": [n, 1] }).collect();
    let mut with = bson::RawArrayBuf::new();
    for row in &rows {
        with.push(row.get_array("row").unwrap().to_owned());
    }
    let answer = value(rawdoc! {
        "fold": { "init": "function(a) { return {sum: a}; }", "arguments": [10] },
        "step": "function(s, n, m) { s.sum += n * m; return s; }", "with": with,
        "finalize": "s => NumberInt(s.sum)",
    });
    assert_eq!(answer.unwrap().get_i32("value").unwrap(), 125_260);
    // A state that was kept meanwhile, and nothing to do with it.
    let answer = value(rawdoc! { "fold": { "state": { "a": "b" } }, "step": "", "with": [] });
    let answer = answer.unwrap();
    let state = answer.get_document("value").unwrap();
    assert_eq!(state.get_str("a").unwrap(), "b");
    let answer = value(rawdoc! {
        "fold": { "init": "function() {}", "arguments": [] },
        "step": "function(s) { return s === null; }", "with": [[]],
    });
    assert!(answer.unwrap().get_bool("value").unwrap());
    let broken = value(rawdoc! {
        "fold": { "state": 1 }, "step": "function() { throw new Error('no'); }", "with": [[]],
    });
    assert!(matches!(broken, Err(JobError::Script { code: 139, .. })));
    let body = |source: &str| {
        let request = rawdoc! { "source": source, "body": true, "arguments": [2] };
        value(request).unwrap().get_f64("value").unwrap()
    };
    for source in [
        "function(a) { return a + 1; }",
        "a => a + 1",
        "3",
        "return 3",
    ] {
        assert_eq!(body(source), 3.0, "{source}");
    }
}

#[test]
fn calls_of_one_session_share_variables_and_those_of_others_never_do() {
    let mut options = options();
    options.hosts_max = 1;
    let hosts = Hosts::new(options);
    let sessions: Vec<Session> = (0..4).map(|_| hosts.session()).collect();
    let count = "function() { Array.sum = () => 7; return count = (globalThis.count || 0) + 1; }";
    for round in 1..=3 {
        for session in &sessions {
            assert_eq!(number(session, count), Some(f64::from(round)));
        }
    }
    let another = hosts.session();
    assert_eq!(
        number(&another, "function() { return typeof count; }"),
        None
    );
    assert_eq!(
        number(&another, "function() { return Array.sum([1, 2]); }"),
        Some(3.0)
    );
}

/// Every other script of this host spoils what the next one would compute with.
#[test]
fn a_job_starts_clean_whatever_ran_before() {
    let mut options = options();
    options.hosts_max = 1;
    let hosts = Hosts::new(options);
    let spoil = "Array.sum = () => -1; Object.prototype.x = 1; Array.prototype.push = () => 0; \
                 Map.prototype.get = () => undefined; globalThis.tojson = 1; emit = 0;";
    let count = spec(
        "function() { for (var k in {}) emit(k, 1); emit('n', 1); }",
        SUM,
    );
    for _ in 0..5 {
        // Their own results are what they have made of them.
        let session = hosts.session();
        let _ = call(&session, &format!("function() {{ {spoil} }}"));
        let _ = run(
            &hosts,
            &spec(&format!("function() {{ emit(1, 1); {spoil} }}"), SUM),
            &numbers(2),
            never(),
        );
        let (results, _) = run(&hosts, &count, &numbers(10), never()).unwrap();
        assert_eq!(results, [doc! { "_id": "n", "value": 10.0 }]);
        assert_eq!(
            number(
                &hosts.session(),
                "function() { return Object.keys({}).length; }"
            ),
            Some(0.0)
        );
    }
}

#[test]
fn calls_do_not_wait_for_jobs() {
    let mut options = options();
    options.hosts_max = 1;
    let hosts = Hosts::new(options);
    let job = hosts
        .map_reduce(&spec("function() { emit(1, 1); }", SUM), never())
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let request = rawdoc! { "source": "function() { return 1; }", "arguments": [] };
    let interrupted: Interrupted = Arc::new(move || Instant::now() > deadline);
    assert!(hosts.session().call(&request, interrupted).is_ok());
    drop(job);
}

#[test]
fn a_script_that_never_ends_keeps_only_its_own_host() {
    let mut options = options();
    options.hosts_max = 2;
    let hosts = Hosts::new(options);
    let [endless, first, second] = [hosts.session(), hosts.session(), hosts.session()];
    assert_eq!(number(&endless, "function() { return 1; }"), Some(1.0));
    assert_eq!(number(&first, "function() { return 1; }"), Some(1.0));
    assert_eq!(number(&second, "function() { return 1; }"), Some(1.0));
    let ended = Arc::new(AtomicBool::new(false));
    let interrupted: Interrupted = {
        let ended = ended.clone();
        Arc::new(move || ended.load(Ordering::Relaxed))
    };
    std::thread::scope(|scope| {
        let request = rawdoc! { "source": "function() { while (true); }", "arguments": [] };
        let endless = scope.spawn(move || endless.call(&request, interrupted));
        for session in [&first, &second] {
            for _ in 0..3 {
                assert_eq!(number(session, "function() { return 1; }"), Some(1.0));
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(endless.join().unwrap(), Err(JobError::Interrupted));
    });
    assert_eq!(number(&first, "function() { return 1; }"), Some(1.0));
}

/// While it is read what a script prints, nobody sees that its time is over.
#[test]
fn a_script_that_prints_without_end_is_interrupted() {
    let hosts = Hosts::new(options());
    let deadline = Instant::now() + Duration::from_millis(300);
    let interrupted: Interrupted = Arc::new(move || Instant::now() > deadline);
    let map = "function() { while (true) print('x'); }";
    let error = run(&hosts, &spec(map, SUM), &numbers(10), interrupted.clone());
    assert_eq!(error.unwrap_err(), JobError::Interrupted);
    let request = rawdoc! { "source": map, "arguments": [] };
    let error = hosts.session().call(&request, interrupted);
    assert_eq!(error.unwrap_err(), JobError::Interrupted);
}

#[test]
#[ignore = "measures; run by hand with --no-capture"]
fn what_a_clean_realm_costs() {
    let hosts = Hosts::new(options());
    let time = |what: &str, n: u32, work: &mut dyn FnMut()| {
        work();
        let begun = Instant::now();
        (0..n).for_each(|_| work());
        println!("{what}: {:?}", begun.elapsed() / n);
    };
    let one = "function() { return 1; }";
    let session = hosts.session();
    time("a call of a known session", 1000, &mut || {
        call(&session, one).unwrap();
    });
    let sessions: Vec<Session> = (0..8).map(|_| hosts.session()).collect();
    time("a call each of 8 sessions", 500, &mut || {
        for session in &sessions {
            call(session, one).unwrap();
        }
    });
    time("a session of one call", 1000, &mut || {
        call(&hosts.session(), one).unwrap();
    });
    let small = spec("function() { emit(1, 1); }", SUM);
    time("a map-reduce of 10 documents", 200, &mut || {
        run(&hosts, &small, &numbers(10), never()).unwrap();
    });
    let large = "function() { for (var i in this.tags) { emit(this.tags[i], 1); } }";
    let documents = numbers(50_000);
    time("a map-reduce of 50,000 documents", 4, &mut || {
        run(&hosts, &spec(large, SUM), &documents, never()).unwrap();
    });
}
