use bson::spec::BinarySubtype;
use bson::{Binary, Bson, RawDocumentBuf, Timestamp, doc, oid::ObjectId};

use super::*;
use crate::error::ScriptError;
use crate::evaluate::compile_function;
use crate::runtime::{Runtime, RuntimeOptions};

/// Calls the function `source` with the document and gives back its result's BSON.
fn call(source: &str, document: &RawDocumentBuf) -> Result<RawDocumentBuf, ScriptError> {
    let mut runtime = Runtime::new(&RuntimeOptions::default());
    let bindings = runtime.bindings();
    runtime.with_scope(|scope| {
        let function = compile_function(scope, "test", source)?;
        let argument = document_to_v8(scope, &bindings, document)?;
        let scope = &mut v8::TryCatch::new(scope);
        let receiver = v8::undefined(scope).into();
        match function.call(scope, receiver, &[argument.into()]) {
            Some(value) => Ok(value_from_v8(scope, &bindings, value)?),
            None => Err(crate::evaluate::caught(scope)),
        }
    })
}

fn raw(document: bson::Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(&document).unwrap()
}

fn regex(pattern: &str, options: &str) -> bson::Regex {
    bson::Regex {
        pattern: pattern.to_string().try_into().unwrap(),
        options: options.to_string().try_into().unwrap(),
    }
}

fn text(source: &str) -> String {
    let result = call(
        &format!("function() {{ return tojson({source}); }}"),
        &raw(doc! {}),
    );
    result.unwrap().get_str("").unwrap().to_string()
}

fn everything() -> RawDocumentBuf {
    raw(doc! {
        "double": 1.5, "whole_double": 3.0, "int": 7, "long": 7_i64, "max": i64::MAX,
        "string": "grün 🌳", "latin": "é", "empty": "", "true": true, "null": Bson::Null,
        "undefined": Bson::Undefined, "id": ObjectId::from_bytes([7; 12]),
        "date": bson::DateTime::from_millis(1_354_262_400_123),
        "far": bson::DateTime::from_millis(i64::MAX),
        "regex": Bson::RegularExpression(regex("^a/b", "im")),
        "pcre": Bson::RegularExpression(regex("(?<n>a(?P=n", "x")),
        "binary": Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 255, 1] },
        "old_binary": Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![1, 2] },
        "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: vec![9; 16] },
        "timestamp": Timestamp { time: u32::MAX, increment: 2 },
        "decimal": "1.50".parse::<bson::Decimal128>().unwrap(),
        "min": Bson::MinKey, "max_key": Bson::MaxKey,
        "code": Bson::JavaScriptCode("function() { return 1; }".into()),
        "scoped": bson::JavaScriptCodeWithScope { code: "x".into(), scope: doc! { "x": 1 } },
        "symbol": Bson::Symbol("s".into()),
        "reference": { "$ref": "c", "$id": 1 },
        "array": [1, 2, 3], "mixed": [1, 2.0, "a", [1_i64], { "a": 1 }], "none": [],
        "nested": { "int": 1, "double": 1.0 },
    })
}

#[test]
fn everything_returns_as_it_came() {
    let document = everything();
    let returned = call("x => x", &document).unwrap();
    let returned = returned.get_document("").unwrap();
    assert_eq!(
        bson::Document::try_from(returned).unwrap(),
        bson::Document::try_from(&document).unwrap()
    );
    assert_eq!(returned.as_bytes(), document.as_bytes());
}

#[test]
fn a_copy_of_an_object_keeps_its_integers() {
    let document = raw(doc! { "a": 1, "b": 2.0 });
    let returned = call("x => { x.b = 3; x.c = 4; return {...x}; }", &document).unwrap();
    let expected = raw(doc! { "": { "a": 1, "b": 3.0, "c": 4.0 } });
    assert_eq!(returned.as_bytes(), expected.as_bytes());
}

#[test]
fn an_integer_that_became_a_fraction_is_a_double() {
    let returned = call("x => { x.a += 0.5; return x; }", &raw(doc! { "a": 1 })).unwrap();
    assert_eq!(
        returned.as_bytes(),
        raw(doc! { "": { "a": 1.5 } }).as_bytes()
    );
}

#[test]
fn scripts_see_the_values() {
    let checks = [
        "x.int + 1 === 8",
        "x.long + 1 === 8",
        "x.long instanceof NumberLong",
        "x.max.toString() === 'NumberLong(\"9223372036854775807\")'",
        "x.id.str === '070707070707070707070707'",
        "x.date.getTime() === 1354262400123",
        "x.regex.test('A/b')",
        "x.timestamp.t === 4294967295 && x.timestamp.i === 2",
        "x.reference instanceof DBRef && x.reference.$id === 1",
        "x.code instanceof Code && x.scoped.scope.x === 1",
        "Array.isArray(x.array) && x.array.length === 3",
        "Object.keys(x.nested).join() === 'int,double'",
        "(() => { let n = ''; for (var i in x.array) n += i; return n === '012'; })()",
        "!('undefined' in {}) && x.undefined === undefined && 'undefined' in x",
        "Object.bsonsize({a: NumberInt(1)}) === 12",
        "bsonWoCompare({a: 1}, {a: 2}) < 0",
        "hex_md5('a') === '0cc175b9c0f1b6a831c399e269772661'",
        "Array.unique([1, 2, 1]).length === 2 && Array.sum([1, 2]) === 3",
    ];
    for check in checks {
        let returned = call(&format!("x => ({check})"), &everything()).unwrap();
        assert!(returned.get_bool("").unwrap(), "{check}");
    }
}

#[test]
fn constructors_make_bson_types() {
    let cases: [(&str, Bson); 18] = [
        ("ObjectId('0102030405060708090a0b0c')", {
            Bson::ObjectId(ObjectId::from_bytes([
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
            ]))
        }),
        ("NumberLong('-5')", Bson::Int64(-5)),
        ("new NumberLong(5)", Bson::Int64(5)),
        ("NumberInt(5)", Bson::Int32(5)),
        ("5", Bson::Double(5.0)),
        ("5n", Bson::Int64(5)),
        (
            "NumberDecimal('1E+3')",
            Bson::Decimal128("1E+3".parse().unwrap()),
        ),
        (
            "Timestamp(1, 2)",
            Bson::Timestamp(Timestamp {
                time: 1,
                increment: 2,
            }),
        ),
        ("MinKey", Bson::MinKey),
        ("MaxKey()", Bson::MaxKey),
        ("ISODate('2012-11-30T08:00:00Z')", {
            Bson::DateTime(bson::DateTime::from_millis(1_354_262_400_000))
        }),
        ("ISODate('2012-11-30T09:00:00+01:00')", {
            Bson::DateTime(bson::DateTime::from_millis(1_354_262_400_000))
        }),
        ("HexData(0, 'ff00')", {
            Bson::Binary(Binary {
                subtype: BinarySubtype::Generic,
                bytes: vec![255, 0],
            })
        }),
        ("BinData(5, '/wA=')", {
            Bson::Binary(Binary {
                subtype: BinarySubtype::Md5,
                bytes: vec![255, 0],
            })
        }),
        ("undefined", Bson::Undefined),
        ("new String('a')", Bson::String("a".into())),
        ("/a/gi", Bson::RegularExpression(regex("a", "i"))),
        ("function(){}", Bson::JavaScriptCode("function(){}".into())),
    ];
    for (source, expected) in cases {
        let returned = call(&format!("() => ({source})"), &raw(doc! {})).unwrap();
        assert_eq!(
            Bson::try_from(returned.get("").unwrap().unwrap()).unwrap(),
            expected,
            "{source}"
        );
    }
}

#[test]
fn tojson_writes_the_shells_notation() {
    let cases = [
        (
            "{a: 1, b: 'x\"y', c: [1, {d: null}]}",
            r#"{ "a" : 1, "b" : "x\"y", "c" : [ 1, { "d" : null } ] }"#,
        ),
        ("{}", "{ }"),
        ("[]", "[ ]"),
        (
            "ObjectId('0102030405060708090a0b0c')",
            "ObjectId(\"0102030405060708090a0b0c\")",
        ),
        ("NumberLong(5)", "NumberLong(5)"),
        (
            "NumberLong('1354262400000')",
            "NumberLong(\"1354262400000\")",
        ),
        ("NumberInt(5)", "NumberInt(5)"),
        ("NumberDecimal('1.50')", "NumberDecimal(\"1.50\")"),
        ("ISODate('2012-11-30')", "ISODate(\"2012-11-30T00:00:00Z\")"),
        ("new Date(1)", "ISODate(\"1970-01-01T00:00:00.001Z\")"),
        ("BinData(0, 'AQI=')", "BinData(0,\"AQI=\")"),
        (
            "UUID('01020304-0506-0708-090a-0b0c0d0e0f10')",
            "UUID(\"01020304-0506-0708-090a-0b0c0d0e0f10\")",
        ),
        ("Timestamp(1, 2)", "Timestamp(1, 2)"),
        ("DBRef('c', 1)", "DBRef(\"c\", 1)"),
        ("MinKey", "{ \"$minKey\" : 1 }"),
        ("/a\\/b/i", "/a\\/b/i"),
        ("undefined", "undefined"),
        ("-0", "-0"),
    ];
    for (source, expected) in cases {
        assert_eq!(text(source), expected, "{source}");
    }
    let long = text("{name: 'x'.repeat(70), list: [1, 2], empty: {}}");
    let name = "x".repeat(70);
    let expected = format!(
        "{{\n\t\"name\" : \"{name}\",\n\t\"list\" : [\n\t\t1,\n\t\t2\n\t],\n\t\"empty\" : {{\n\t\t\n\t}}\n}}"
    );
    assert_eq!(long, expected);
}

#[test]
fn what_bson_cannot_hold_is_an_error() {
    let nested = call("() => { var a = {}; a.a = a; return a; }", &raw(doc! {})).unwrap_err();
    assert!(
        matches!(nested, ScriptError::Convert(ConvertError::TooDeep)),
        "{nested}"
    );
    let zero = call("() => ({'a\\0b': 1})", &raw(doc! {})).unwrap_err();
    assert!(
        matches!(zero, ScriptError::Convert(ConvertError::ZeroInName)),
        "{zero}"
    );
    let date = call("() => new Date('x')", &raw(doc! {})).unwrap_err();
    assert!(
        matches!(date, ScriptError::Convert(ConvertError::InvalidDate)),
        "{date}"
    );
    let id = call("() => ObjectId('x')", &raw(doc! {})).unwrap_err();
    assert_eq!(id.to_string(), "Error: invalid object id: length");
}

#[test]
fn a_script_that_eats_its_heap_ends_with_an_error() {
    let mut runtime = Runtime::new(&RuntimeOptions {
        heap_bytes_max: Some(32 << 20),
        ..Default::default()
    });
    let source = "var a = []; while (true) { a.push('x'.repeat(10) + a.length); }";
    let error = runtime.evaluate("test", source).unwrap_err();
    assert!(matches!(error, ScriptError::OutOfMemory { .. }), "{error}");
    drop(runtime.renew());
    assert!(runtime.evaluate("test", "1 + 1").is_ok());
}

#[test]
fn another_thread_can_end_a_script() {
    let mut runtime = Runtime::new(&RuntimeOptions::default());
    let terminator = runtime.terminator();
    let (started, wait) = std::sync::mpsc::channel();
    let ender = std::thread::spawn(move || {
        wait.recv().unwrap();
        // The script may not have begun: asked again until it ends.
        loop {
            terminator.terminate();
            if wait
                .recv_timeout(std::time::Duration::from_millis(20))
                .is_ok()
            {
                break;
            }
        }
    });
    started.send(()).unwrap();
    let error = runtime.evaluate("test", "while (true) {}").unwrap_err();
    started.send(()).unwrap();
    ender.join().unwrap();
    assert!(matches!(error, ScriptError::Terminated), "{error}");
}

#[test]
fn errors_say_what_was_thrown() {
    let thrown = |source: &str| call(source, &raw(doc! {})).unwrap_err().to_string();
    assert_eq!(thrown("() => { throw new Error('boom'); }"), "Error: boom");
    assert_eq!(
        thrown("() => { throw {code: 5}; }"),
        "uncaught exception: {\"code\":5}"
    );
    assert_eq!(
        thrown("() => nothing.here"),
        "ReferenceError: nothing is not defined"
    );
    assert!(matches!(
        call("function( {", &raw(doc! {})).unwrap_err(),
        ScriptError::Syntax { .. }
    ));
    let body = call("return 5", &raw(doc! {})).unwrap();
    assert_eq!(body.get_f64("").unwrap(), 5.0);
}

#[test]
fn what_other_engines_ask_intl_for_has_the_forms_of_the_c_locale() {
    let at = "new Date(2020, 0, 5, 7, 8, 9)";
    for (source, expected) in [
        (format!("{at}.toLocaleString()"), "Sun Jan  5 07:08:09 2020"),
        (format!("{at}.toLocaleDateString()"), "01/05/2020"),
        (format!("{at}.toLocaleTimeString()"), "07:08:09"),
        ("new Date(NaN).toLocaleString()".into(), "Invalid Date"),
        ("new Date(NaN).toString()".into(), "Invalid Date"),
        ("(1234.5).toLocaleString()".into(), "1234.5"),
        ("[1, 2n].toLocaleString()".into(), "1,2"),
        (
            "['c', 'B', 'a'].sort((x, y) => x.localeCompare(y)).join()".into(),
            "B,a,c",
        ),
        ("typeof Intl + typeof Temporal".into(), "undefinedundefined"),
    ] {
        assert_eq!(text(&source), format!("{expected:?}"), "{source}");
    }
}

#[test]
fn a_date_as_text_names_its_zone() {
    let shown = text("new Date(1590000000000).toString()");
    let offset = text("new Date(1590000000000).getTimezoneOffset()");
    let zone = shown.rsplit_once(" GMT").unwrap().1.trim_end_matches('"');
    assert!(!zone.contains("()"), "{shown}");
    if offset == "0" {
        assert!(zone.starts_with("+0000 ("), "{shown}");
    }
    assert_eq!(text("String(new Date(1590000000000))"), shown);
    assert!(shown.ends_with(&format!(
        "{} GMT{zone}\"",
        text("new Date(1590000000000).toLocaleTimeString()").trim_matches('"')
    )));
}
