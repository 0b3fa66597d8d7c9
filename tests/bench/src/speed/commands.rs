//! The commands that the rows of the speed table are made of, on `posts` where none is named.

use bson::{Bson, Document, RawDocumentBuf, doc};

use super::data::{self, Sizes};
use crate::tag_count;

/// `find` with this filter and these other fields of the command.
pub fn find(filter: Document, rest: Document) -> Document {
    let mut command = doc! { "find": "posts", "filter": filter };
    command.extend(rest);
    command
}

/// A point read.
pub fn one(filter: Document) -> Document {
    find(filter, doc! { "limit": 1, "singleBatch": true })
}

pub fn aggregate<const N: usize>(stages: [Document; N]) -> Document {
    doc! { "aggregate": "posts", "pipeline": stages.to_vec(), "cursor": {} }
}

/// What drivers send for `countDocuments`.
pub fn count(filter: Document) -> Document {
    let group = doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } };
    aggregate([doc! { "$match": filter }, group])
}

pub fn build_index(keys: Document) -> Document {
    data::create_indexes("posts", &[keys])
}

pub fn drop_index(keys: Document) -> Document {
    doc! { "dropIndexes": "posts", "index": keys }
}

/// The documents that an index leads to.
pub fn hinted(index: &str) -> Document {
    find(doc! {}, doc! { "hint": index, "projection": { "_id": 1 } })
}

/// Joins a document of `posts` with its user.
pub fn lookup_user() -> Document {
    doc! { "$lookup": {
        "from": "users",
        "localField": "user",
        "foreignField": "_id",
        "as": "by",
    } }
}

/// What lies in a polygon.
pub fn within(ring: &[[f64; 2]]) -> Document {
    let ring: Vec<Bson> = ring.iter().map(|point| point.to_vec().into()).collect();
    let rings = vec![Bson::from(ring)];
    doc! { "$geoWithin": { "$geometry": { "type": "Polygon", "coordinates": rings } } }
}

/// A search in `writings`.
pub fn search(words: &str, rest: Document) -> Document {
    let mut command = doc! { "find": "writings", "filter": { "$text": { "$search": words } } };
    command.extend(rest);
    command
}

/// One `update` of `edits` with a statement for each value of the field: a driver's bulk write.
pub fn updates(values: Vec<i32>, field: &str, upsert: bool) -> Document {
    let statement = |value: i32| {
        let update = doc! { "$inc": { "steps": 1 } };
        doc! { "q": { field: value }, "u": update, "upsert": upsert }
    };
    let statements: Vec<Document> = values.into_iter().map(statement).collect();
    doc! { "update": "edits", "updates": statements }
}

/// `updateMany` of one in ten of `edits`.
pub fn update_tenth(sizes: Sizes, update: impl Into<Bson>) -> Document {
    let update: Bson = update.into();
    let statement = doc! { "q": tenth(sizes), "u": update, "multi": true };
    doc! { "update": "edits", "updates": [statement] }
}

/// `deleteMany` of `edits`.
pub fn delete(filter: Document) -> Document {
    doc! { "delete": "edits", "deletes": [{ "q": filter, "limit": 0 }] }
}

/// Brings one in ten of `edits` back to what it was.
pub fn merge_tenth(sizes: Sizes) -> Document {
    let merge = doc! { "$merge": { "into": "edits" } };
    aggregate([doc! { "$match": tenth(sizes) }, merge])
}

pub fn tenth(sizes: Sizes) -> Document {
    doc! { "serial": { "$lt": sizes.part(10) } }
}

/// Shows what writes did to a collection.
pub fn sums(collection: &str) -> Document {
    let sums = doc! {
        "_id": "$section",
        "n": { "$sum": 1 },
        "steps": { "$sum": "$steps" },
        "amount": { "$sum": "$amount" },
    };
    doc! { "aggregate": collection, "pipeline": [{ "$group": sums }], "cursor": {} }
}

pub fn map_reduce(map: &str) -> Document {
    doc! {
        "mapReduce": "posts",
        "map": Bson::JavaScriptCode(map.to_owned()),
        "reduce": Bson::JavaScriptCode(tag_count::REDUCE.to_owned()),
        "out": "reduced",
    }
}

/// One in four of the documents, made by the client.
pub fn quarter(sizes: Sizes) -> Vec<RawDocumentBuf> {
    (0..sizes.documents / 4)
        .map(|at| data::post(at, sizes))
        .collect()
}

/// Numbers that no document has yet, one for each `divisor` documents.
pub fn beyond(sizes: Sizes, divisor: usize) -> Vec<i32> {
    let first = sizes.part(1);
    (first..first + sizes.part(divisor)).collect()
}

/// The numbers of one in `divisor` documents, all over the collection.
pub fn spread(sizes: Sizes, divisor: usize) -> Vec<i32> {
    (0..sizes.part(divisor))
        .map(|at| scattered(sizes, at))
        .collect()
}

/// The number of a document anywhere in the collection.
pub fn scattered(sizes: Sizes, at: i32) -> i32 {
    const STRIDE: i64 = 7_919;
    let number = i64::from(at) * STRIDE % i64::from(sizes.part(1));
    i32::try_from(number).unwrap_or_default()
}
