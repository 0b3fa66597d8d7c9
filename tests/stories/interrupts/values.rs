//! Expressions, patterns and paths that take long on large documents.

use banyan_diff::random::Random;
use bson::{Bson, Document, Regex, doc};

/// A list with something for each number.
pub fn each<T: Into<Bson>>(count: usize, mut make: impl FnMut(i32) -> T) -> Bson {
    let count = i32::try_from(count).expect("counts are small");
    Bson::Array((0..count).map(|number| make(number).into()).collect())
}

/// Fields with something at each name.
pub fn fields<T: Into<Bson>>(
    count: usize,
    name: impl Fn(i32) -> String,
    mut make: impl FnMut(i32) -> T,
) -> Document {
    let count = i32::try_from(count).expect("counts are small");
    (0..count)
        .map(|number| (name(number), make(number).into()))
        .collect()
}

/// Something inside itself, so many times.
pub fn nested(depth: usize, inner: Document, wrap: impl Fn(Document) -> Document) -> Document {
    (0..depth).fold(inner, |inner, _| wrap(inner))
}

const ARRAYS: &[&str] = &["$x", "$y", "$words", "$objects"];

/// A regular expression that is large or has many ways to fail.
pub fn pattern(random: &mut Random, size: usize) -> String {
    let size = size.min(30_000);
    match random.below(9) {
        0 => "(a*)*b".to_owned(),
        1 => "(a|aa)+$".to_owned(),
        2 => format!("{}[^a]", "(.*)".repeat(random.below(9) + 1)),
        3 => format!(
            "(a{{1,{}}}){{1,{}}}b",
            random.below(200) + 1,
            random.below(200) + 1
        ),
        4 => {
            let words: Vec<String> = (0..size / 8).map(|word| format!("w{word}x")).collect();
            words.join("|")
        }
        5 => "(a*)\\1\\1b".to_owned(),
        6 => format!("{}a{}", "(".repeat(200), ")".repeat(200)),
        7 => format!("(?i){}$", "a?".repeat(size / 4)),
        _ => format!("(?=(a+))a*{}b", "[a-z\\d]".repeat(size / 16)),
    }
}

pub fn regex(random: &mut Random, size: usize) -> Bson {
    let pattern = pattern(random, size);
    Bson::RegularExpression(Regex {
        pattern: bson::raw::CString::try_from(pattern).expect("patterns have no NUL"),
        options: bson::raw::CString::try_from("").expect("no NUL"),
    })
}

/// Something that is computed from the fields of a large document.
pub fn expression(random: &mut Random, size: usize) -> Bson {
    let array = *random.pick(ARRAYS);
    let other = *random.pick(ARRAYS);
    let range = doc! { "$range": [0, 20 * size as i32] };
    let found = match random.below(30) {
        0 => doc! { "$reduce": {
            "input": array, "initialValue": [], "in": { "$concatArrays": ["$$value", ["$$this"]] },
        } },
        1 => doc! { "$map": { "input": "$x", "as": "a", "in": { "$map": {
            "input": "$y", "as": "b", "in": { "$add": ["$$a", "$$b"] },
        } } } },
        2 => doc! { "$filter": { "input": array, "cond": { "$in": ["$$this", other] } } },
        3 => doc! { "$zip": { "inputs": [array, other, range], "useLongestLength": true } },
        4 => doc! { *random.pick(&["$setUnion", "$setIntersection", "$setDifference"]):
        [array, other] },
        5 => doc! { "$setEquals": [array, other, range] },
        6 => doc! { "$sortArray": { "input": array, "sortBy": -1 } },
        7 => doc! { "$sortArray": { "input": "$objects", "sortBy": { "k": -1, "v": 1 } } },
        8 => doc! { "$reverseArray": { "$concatArrays": each(size.min(500), |_| array) } },
        9 => doc! { "$arrayToObject": { "$map": {
            "input": array, "in": { "k": { "$toString": "$$this" }, "v": 1 },
        } } },
        10 => doc! { "$objectToArray": { "$mergeObjects": each(size.min(200), |_| "$wide") } },
        11 => doc! { "$split": ["$text", *random.pick(&["a", " ", "aaaa"])] },
        12 => doc! { "$replaceAll": {
            "input": "$text", "find": "a", "replacement": "b".repeat(random.below(40)),
        } },
        13 => doc! { *random.pick(&["$regexFindAll", "$regexMatch", "$regexFind"]):
        { "input": "$text", "regex": pattern(random, size) } },
        14 => doc! { "$indexOfArray": [range, -1] },
        15 => doc! { *random.pick(&["$indexOfCP", "$indexOfBytes"]):
        ["$text", format!("{}b", "a".repeat(size.min(10_000)))] },
        16 => doc! { "$substrCP": ["$text", 5, 400_000] },
        17 => doc! { *random.pick(&["$toUpper", "$toLower", "$strLenCP"]):
        { "$concat": each(14, |_| "$text") } },
        18 => doc! { "$trim": { "input": "$text", "chars": "xyza".repeat(size.min(20_000)) } },
        19 => doc! { *random.pick(&["$sum", "$avg", "$max", "$stdDevPop"]): range },
        20 => doc! { "$concat": each(size, |_| "ab") },
        21 => nested(80, doc! { "$add": ["$n", range] }, |inner| {
            doc! { "$cond": [{ "$gt": [inner, 1] }, 1, 2] }
        }),
        22 => doc! { "$switch": { "branches": each(size.min(50_000), |number| {
            doc! { "case": { "$eq": ["$n", -number - 1] }, "then": number }
        }) , "default": 0 } },
        23 => doc! { *random.pick(&["$cmp", "$eq", "$lt"]): ["$$ROOT", "$$CURRENT"] },
        24 => doc! { "$in": ["$n", each(size, |number| -number - 1)] },
        25 => doc! { *random.pick(&["$and", "$or", "$add", "$setUnion"]):
        each(size, |number| doc! { "$eq": ["$n", number] }) },
        26 => doc! { "$let": { "vars": fields(size.min(30_000), |n| format!("v{n}"), |n| n),
        "in": "$$v0" } },
        27 => doc! { "$reduce": { "input": range, "initialValue": {}, "in": { "$mergeObjects":
        ["$$value", { "$arrayToObject": [[{ "k": { "$toString": "$$this" }, "v": 1 }]] }] } } },
        28 => doc! { "$slice": [{ "$concatArrays": ["$x", "$y", "$x"] }, -(size.min(9) as i32)] },
        _ => doc! { "$size": { "$setUnion": each(40, |_| range.clone()) } },
    };
    found.into()
}
