//! Changes to a document as a tree: values of other types, extremes, names out of place, depth.

use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document, Timestamp, doc};

use crate::templates::{FIELDS, OPERATORS};

/// Deeper than any document may be.
const DEPTH_MAX: usize = 220;

pub fn count(value: &Bson) -> usize {
    1 + match value {
        Bson::Document(inner) => inner.values().map(count).sum(),
        Bson::Array(values) => values.iter().map(count).sum(),
        _ => 0,
    }
}

/// Changes one to four things about it. What it is by its first field stays in most cases.
pub fn mutate(random: &mut Random, generator: &mut Generator, document: &mut Document) {
    for _ in 0..random.between(1, 4) {
        let total: usize = document.values().map(count).sum();
        if total == 0 {
            return;
        }
        let mut at = random.below(total);
        in_document(random, generator, document, &mut at);
    }
}

/// Changes the value that is `at` values from here, in the order of the tree. True once it has.
fn in_document(
    random: &mut Random,
    generator: &mut Generator,
    document: &mut Document,
    at: &mut usize,
) -> bool {
    let names: Vec<String> = document.keys().cloned().collect();
    for name in names {
        if *at == 0 {
            field(random, generator, document, &name);
            return true;
        }
        *at -= 1;
        let Some(value) = document.get_mut(&name) else {
            continue;
        };
        if inside(random, generator, value, at) {
            return true;
        }
    }
    false
}

fn inside(
    random: &mut Random,
    generator: &mut Generator,
    value: &mut Bson,
    at: &mut usize,
) -> bool {
    match value {
        Bson::Document(inner) => in_document(random, generator, inner, at),
        Bson::Array(values) => {
            for value in values {
                if *at == 0 {
                    *value = changed(random, generator, value.clone());
                    return true;
                }
                *at -= 1;
                if inside(random, generator, value, at) {
                    return true;
                }
            }
            false
        }
        _ => false,
    }
}

/// Changes a field: mostly its value, sometimes its name, its place or whether it is there.
fn field(random: &mut Random, generator: &mut Generator, document: &mut Document, name: &str) {
    match random.below(10) {
        0 => drop(document.remove(name)),
        1 => {
            let value = document.remove(name).unwrap_or(Bson::Null);
            document.insert(any_name(random), value);
        }
        2 => {
            let value = generator.value(2);
            document.insert(any_name(random), value);
        }
        3 => {
            // To the end: order counts in a sort, an index and a command.
            let value = document.remove(name).unwrap_or(Bson::Null);
            document.insert(name, value);
        }
        _ => {
            if let Some(value) = document.get_mut(name) {
                *value = changed(random, generator, value.clone());
            }
        }
    }
}

fn any_name(random: &mut Random) -> String {
    match random.below(6) {
        0 => (*random.pick(OPERATORS)).to_owned(),
        1 | 2 => (*random.pick(FIELDS)).to_owned(),
        3 => random
            .pick(&["", "$", ".", "a.", ".a", "a..b", "$$ROOT", "\u{0}"])
            .replace('\0', ""),
        4 => "a.".repeat(random.below(300)) + "b",
        _ => random
            .pick(&[
                "a.$",
                "a.$[]",
                "a.$[x]",
                "a.99999999999",
                "0",
                "_id",
                "$db",
                "__proto__",
            ])
            .to_string(),
    }
}

fn changed(random: &mut Random, generator: &mut Generator, value: Bson) -> Bson {
    match random.below(12) {
        0 => generator.value(3),
        1 => Bson::Array(vec![value]),
        2 => Bson::Array(Vec::new()),
        3 => Bson::Document(doc! { *random.pick(OPERATORS): value }),
        4 => Bson::Document(Document::new()),
        5 => nested(random, value),
        6 => many(random, value),
        7 => Bson::Document(doc! { *random.pick(OPERATORS): generator.expression(2) }),
        _ => similar(random, generator, value),
    }
}

/// Another value of its kind, mostly.
fn similar(random: &mut Random, generator: &mut Generator, value: Bson) -> Bson {
    match value {
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => {
            match random.below(3) {
                0 => extreme(random),
                1 => Bson::Int32(random.between(-2, 3) as i32),
                _ => generator.number(),
            }
        }
        Bson::String(text) => Bson::String(string(random, text)),
        Bson::Binary(mut binary) => {
            crate::places::any_bytes(random, &mut binary.bytes);
            Bson::Binary(binary)
        }
        Bson::Boolean(flag) => match random.percent(70) {
            true => Bson::Boolean(!flag),
            false => generator.value(1),
        },
        Bson::Timestamp(_) => Bson::Timestamp(Timestamp {
            time: *random.pick(&[0, 1, u32::MAX, 1 << 31]),
            increment: *random.pick(&[0, 1, u32::MAX]),
        }),
        Bson::Document(mut inner) => {
            inner.insert(any_name(random), generator.value(1));
            Bson::Document(inner)
        }
        Bson::Array(mut values) => {
            let more = generator.value(2);
            values.insert(random.below(values.len() + 1), more);
            Bson::Array(values)
        }
        _ => generator.value(2),
    }
}

fn extreme(random: &mut Random) -> Bson {
    random
        .pick(&[
            Bson::Int32(i32::MAX),
            Bson::Int32(i32::MIN),
            Bson::Int32(-1),
            Bson::Int32(0),
            Bson::Int64(i64::MAX),
            Bson::Int64(i64::MIN),
            Bson::Int64(1 << 53),
            Bson::Int64(1 << 32),
            Bson::Double(f64::NAN),
            Bson::Double(f64::INFINITY),
            Bson::Double(-1e300),
            Bson::Double(0.5),
            Bson::DateTime(DateTime::MAX),
            Bson::DateTime(DateTime::MIN),
            Bson::MinKey,
            Bson::MaxKey,
            Bson::Binary(Binary {
                subtype: BinarySubtype::Uuid,
                bytes: vec![1, 2, 3],
            }),
        ])
        .clone()
}

fn string(random: &mut Random, text: String) -> String {
    match random.below(9) {
        0 => String::new(),
        1 => text.repeat(1 + random.below(200)),
        2 => (*random.pick(OPERATORS)).to_owned(),
        3 => (*random.pick(FIELDS)).to_owned(),
        4 => text + "\u{0}x",
        5 => "\u{10ffff}\u{feff}\u{301}".to_owned() + &text,
        6 => text.chars().rev().collect(),
        7 => "(".repeat(random.below(400)) + "a*" + &")+".repeat(random.below(400)),
        _ => random
            .pick(&[
                "$$NOW", "$", "$$", "a.b", "admin", "config", "local", "%Y-%m-%d", "UTC",
            ])
            .to_string(),
    }
}

/// The value inside of documents inside of documents.
fn nested(random: &mut Random, value: Bson) -> Bson {
    let most = if random.percent(20) { DEPTH_MAX } else { 12 };
    let depth = 1 + random.below(most);
    let name = *random.pick(OPERATORS);
    let in_array = random.percent(40);
    (0..depth).fold(value, |inner, _| {
        let inner = if in_array {
            Bson::Array(vec![inner])
        } else {
            inner
        };
        Bson::Document(doc! { name: inner })
    })
}

/// The value over and over.
fn many(random: &mut Random, value: Bson) -> Bson {
    let most = if count(&value) > 20 { 8 } else { 400 };
    let times = 1 + random.below(most);
    if random.percent(60) {
        return Bson::Array(vec![value; times]);
    }
    let fields = (0..times).map(|at| (format!("f{at}"), value.clone()));
    Bson::Document(fields.collect())
}
