//! The rows of the speed table.

use bson::{Bson, doc};

use super::commands::{
    aggregate, beyond, build_index, count, delete, drop_index, find, hinted, lookup_user,
    map_reduce, merge_tenth, one, quarter, scattered, search, spread, sums, tenth, update_tenth,
    updates, within,
};
use super::data;
use super::extras::{self, Extra};
use super::work::{Command, Work};
use crate::tag_count;

/// A kind of work.
pub struct Row {
    pub name: &'static str,
    pub work: Work,
    /// What is put in order before each run, without being measured.
    pub before: Vec<Command>,
    /// What shows the effect of a write: a cursor of both peers that is compared.
    pub effect: Option<Command>,
    /// What it needs beside the documents of all rows.
    pub extra: Option<Extra>,
}

pub fn all() -> Vec<Row> {
    let groups = [
        index_builds(),
        scans(),
        index_reads(),
        points(),
        sorts(),
        groups(),
        stages(),
        joins(),
        graph(),
        places(),
        texts(),
        distinct(),
        writes(),
        loads(),
        super::script_rows::all(),
        map_reduces(),
    ];
    groups.into_iter().flatten().collect()
}

fn row(name: &'static str, work: Work) -> Row {
    Row {
        name,
        work,
        before: Vec::new(),
        effect: None,
        extra: None,
    }
}

fn reply(name: &'static str, command: Command) -> Row {
    row(name, Work::Reply(command))
}

pub(super) fn cursor(name: &'static str, command: Command) -> Row {
    row(name, Work::Cursor(command))
}

fn ordered(name: &'static str, command: Command) -> Row {
    row(name, Work::Ordered(command))
}

impl Row {
    fn before(mut self, command: Command) -> Self {
        self.before.push(command);
        self
    }

    fn effect(mut self, command: Command) -> Self {
        self.effect = Some(command);
        self
    }

    fn with(mut self, extra: Extra) -> Self {
        self.extra = Some(extra);
        self
    }
}

fn index_builds() -> Vec<Row> {
    vec![
        reply("index build: single field", |_| {
            build_index(doc! { "user": 1 })
        })
        .before(|_| drop_index(doc! { "user": 1 }))
        .effect(|_| hinted("user_1")),
        reply("index build: compound", |_| {
            build_index(doc! { "section": 1, "amount": 1 })
        })
        .before(|_| drop_index(doc! { "section": 1, "amount": 1 }))
        .effect(|_| hinted("section_1_amount_1")),
        reply("index build: multikey", |_| build_index(doc! { "tags": 1 }))
            .before(|_| drop_index(doc! { "tags": 1 }))
            .effect(|_| hinted("tags_1")),
    ]
}

fn scans() -> Vec<Row> {
    vec![
        cursor("scan: regex, counted", |_| {
            count(doc! { "content": { "$regex": "7.*3" } })
        }),
        cursor("scan: nested range, counted", |_| {
            count(doc! { "place.zone": { "$gte": 20, "$lt": 40 } })
        }),
        cursor("scan: all documents, counted", |_| count(doc! {})),
        cursor("scan: read all", |_| find(doc! {}, doc! {})),
        cursor("scan: read all, 3 fields", |_| {
            let fields = doc! { "user": 1, "place.city": 1, "likes": 1 };
            find(doc! {}, doc! { "projection": fields })
        }),
        row(
            "scan: $sample of 1 in 200",
            Work::Random(|n| aggregate([doc! { "$sample": { "size": n.part(200) } }])),
        ),
    ]
}

fn index_reads() -> Vec<Row> {
    vec![
        cursor("index: range of half, counted", |n| {
            count(doc! { "serial": { "$lt": n.part(2) } })
        }),
        reply(
            "index: range of half, count command",
            |n| doc! { "count": "posts", "query": { "serial": { "$lt": n.part(2) } } },
        ),
        cursor("index: multikey value, counted", |_| {
            count(doc! { "tags": "tag7" })
        }),
        cursor("index: $match + $count of half", |n| {
            let half = doc! { "$match": { "serial": { "$gte": n.part(2) } } };
            aggregate([half, doc! { "$count": "n" }])
        }),
        cursor("index: covered projection of half", |n| {
            let fields = doc! { "_id": 0, "serial": 1 };
            find(
                doc! { "serial": { "$lt": n.part(2) } },
                doc! { "projection": fields },
            )
        }),
        cursor("index: range of 1 in 10, fetched", |n| {
            find(tenth(n), doc! {})
        }),
        cursor("index: multikey value, fetched", |_| {
            find(doc! { "tags": "tag7" }, doc! {})
        }),
        cursor("index: $in of 1 in 200 by _id", |n| {
            find(doc! { "_id": { "$in": spread(n, 200) } }, doc! {})
        }),
        cursor("index: $in of 1 in 200 by field", |n| {
            find(doc! { "serial": { "$in": spread(n, 200) } }, doc! {})
        }),
        cursor("index: regex with a prefix", |_| {
            find(doc! { "user": { "$regex": "^user00.*7$" } }, doc! {})
        }),
        cursor("index: $or of two", |n| {
            let few = doc! { "serial": { "$lt": n.part(100) } };
            find(
                doc! { "$or": [few, { "section": "section03", "amount": { "$lt": 1_000 } }] },
                doc! {},
            )
        }),
        cursor("index: compound, sorted by it", |_| {
            let filter = doc! { "section": "section05", "amount": { "$gte": 2_000 } };
            find(filter, doc! { "sort": { "amount": 1 } })
        }),
        cursor("index: top 10 of eight sections", |_| {
            let sections: Vec<String> = (0..8).map(|at| format!("section{at:02}")).collect();
            let filter = doc! { "section": { "$in": sections } };
            find(filter, doc! { "sort": { "amount": -1 }, "limit": 10 })
        }),
        ordered("index: projection, skip half, limit", |n| {
            let rest = doc! {
                "projection": { "user": 1, "amount": 1 },
                "sort": { "serial": 1 },
                "skip": n.part(2),
                "limit": 100,
            };
            find(doc! {}, rest)
        }),
    ]
}

fn points() -> Vec<Row> {
    vec![
        row(
            "point: 1 in 100 read by _id",
            Work::Series(100, |n, at| one(doc! { "_id": scattered(n, at) })),
        ),
        row(
            "point: 1 in 100 read by index",
            Work::Series(100, |n, at| one(doc! { "serial": scattered(n, at) })),
        ),
    ]
}

fn sorts() -> Vec<Row> {
    vec![
        ordered("sort: all without index", |_| {
            find(doc! {}, doc! { "sort": { "at": 1 } })
        }),
        ordered("sort: top 10 without index", |_| {
            find(doc! {}, doc! { "sort": { "at": -1 }, "limit": 10 })
        }),
        cursor("sort: by two, first of each group", |_| {
            let sort = doc! { "$sort": { "place.city": 1, "at": 1 } };
            aggregate([
                sort,
                doc! { "$group": { "_id": "$place.city", "first": { "$first": "$_id" } } },
            ])
        }),
        cursor("sort: by index, first of each group", |_| {
            let sort = doc! { "$sort": { "section": 1, "amount": 1 } };
            aggregate([
                sort,
                doc! { "$group": { "_id": "$section", "first": { "$first": "$amount" } } },
            ])
        }),
    ]
}

fn groups() -> Vec<Row> {
    vec![
        cursor("group: $unwind of tags, 43 groups", |_| {
            let group = doc! { "$group": { "_id": "$tags", "n": { "$sum": 1 } } };
            aggregate([doc! { "$unwind": "$tags" }, group])
        }),
        cursor("group: four accumulators", |_| {
            aggregate([doc! { "$group": {
                "_id": "$section",
                "n": { "$sum": 1 },
                "mean": { "$avg": "$amount" },
                "least": { "$min": "$likes" },
                "last": { "$max": "$at" },
            } }])
        }),
        cursor("group: 1 group for 4 documents", |_| {
            aggregate([doc! { "$group": { "_id": "$user", "amount": { "$sum": "$amount" } } }])
        }),
        cursor("group: $match, $addFields with expressions", |_| {
            let added = doc! {
                "month": { "$month": "$at" },
                "worth": { "$add": [{ "$multiply": ["$amount", 2] }, "$likes"] },
                "busy": { "$cond": [{ "$gt": ["$likes", 500] }, "yes", "no"] },
            };
            aggregate([
                doc! { "$match": { "place.zone": { "$lt": 80 } } },
                doc! { "$addFields": added },
                doc! { "$group": {
                    "_id": { "month": "$month", "busy": "$busy" },
                    "worth": { "$sum": "$worth" },
                } },
            ])
        }),
    ]
}

fn stages() -> Vec<Row> {
    vec![
        cursor("stage: $facet of three", |_| {
            let boundaries = [0, 2_500, 5_000, 10_000];
            let bucket = doc! { "groupBy": "$amount", "boundaries": boundaries.to_vec() };
            aggregate([doc! { "$facet": {
                "zones": [{ "$group": { "_id": "$place.zone" } }, { "$count": "n" }],
                "amounts": [{ "$bucket": bucket }],
                "top": [{ "$sort": { "at": -1 } }, { "$limit": 5 }, { "$project": { "at": 1 } }],
            } }])
        }),
        cursor("stage: $bucketAuto", |_| {
            aggregate([doc! { "$bucketAuto": { "groupBy": "$amount", "buckets": 20 } }])
        }),
        cursor("stage: $setWindowFields, running sum", |_| {
            let window = doc! { "documents": ["unbounded", "current"] };
            let running = doc! { "$sum": "$amount", "window": window };
            aggregate([
                doc! { "$setWindowFields": {
                    "partitionBy": "$section",
                    "sortBy": { "at": 1 },
                    "output": { "running": running },
                } },
                doc! { "$group": { "_id": "$section", "sum": { "$sum": "$running" } } },
            ])
        }),
        cursor("stage: $setWindowFields, sliding sum and rank", |_| {
            let window = doc! { "documents": [-50, 50] };
            aggregate([
                doc! { "$setWindowFields": {
                    "partitionBy": "$section",
                    "sortBy": { "at": 1 },
                    "output": {
                        "around": { "$sum": "$amount", "window": window.clone() },
                        "most": { "$max": "$likes", "window": window },
                        "rank": { "$rank": {} },
                    },
                } },
                doc! { "$group": {
                    "_id": "$section",
                    "around": { "$sum": "$around" },
                    "most": { "$sum": "$most" },
                    "rank": { "$sum": { "$multiply": ["$rank", "$likes"] } },
                } },
            ])
        }),
        cursor("stage: $unionWith, grouped", |_| {
            aggregate([
                doc! { "$unionWith": "edits" },
                doc! { "$group": { "_id": "$section", "n": { "$sum": 1 } } },
            ])
        }),
        cursor("stage: $out of all", |_| {
            aggregate([doc! { "$out": "copied" }])
        })
        .effect(|_| doc! { "find": "copied" }),
        cursor("stage: $merge of 1 in 10", merge_tenth).effect(|_| sums("edits")),
    ]
}

fn joins() -> Vec<Row> {
    vec![
        cursor("$lookup: 1 in 100 by _id", |n| {
            aggregate([
                doc! { "$match": { "_id": { "$lt": n.part(100) } } },
                lookup_user(),
            ])
        }),
        cursor("$lookup: 1 in 1,000 by let and pipeline", |n| {
            let same = doc! { "$match": { "$expr": { "$eq": ["$user", "$$user"] } } };
            aggregate([
                doc! { "$match": { "_id": { "$lt": n.part(1_000) } } },
                doc! { "$lookup": {
                    "from": "posts",
                    "let": { "user": "$user" },
                    "pipeline": [same],
                    "as": "others",
                } },
                doc! { "$project": { "sum": { "$sum": "$others.amount" } } },
            ])
        }),
        cursor("$lookup: all in a collection of users", |_| {
            aggregate([
                lookup_user(),
                doc! { "$group": { "_id": "$section", "n": { "$sum": { "$size": "$by" } } } },
            ])
        }),
        cursor("$graphLookup: 1 in 1,000, depth of 4", |n| {
            aggregate([
                doc! { "$match": { "_id": { "$lt": n.part(1_000) } } },
                doc! { "$graphLookup": {
                    "from": "users",
                    "startWith": "$user",
                    "connectFromField": "friend",
                    "connectToField": "_id",
                    "maxDepth": 4,
                    "as": "friends",
                } },
                doc! { "$project": { "n": { "$size": "$friends" } } },
            ])
        }),
    ]
}

fn graph() -> Vec<Row> {
    vec![
        row(
            "$graphLookup: fewer than 3 steps away",
            Work::Series(2_000, |n, at| {
                let start = scattered(n, at) / 2;
                let walk = doc! {
                    "from": "nodes",
                    "startWith": "$to",
                    "connectFromField": "to",
                    "connectToField": "_id",
                    "maxDepth": 1,
                    "as": "near",
                };
                let told = doc! { "n": { "$size": "$near" }, "sum": { "$sum": "$near._id" } };
                let stages = [
                    doc! { "$match": { "_id": start } },
                    doc! { "$graphLookup": walk },
                    doc! { "$project": told },
                ];
                doc! { "aggregate": "nodes", "pipeline": stages.to_vec(), "cursor": {} }
            }),
        )
        .with(Extra::Graph),
    ]
}

fn places() -> Vec<Row> {
    let rows = vec![
        reply("index build: 2dsphere", |_| extras::places_index())
            .before(|_| extras::drop_index("places", "at")),
        cursor("places: $geoWithin a polygon, counted", |_| {
            let within = doc! { "$match": { "at": within(&POLYGON) } };
            let pipeline = [within, doc! { "$count": "n" }];
            doc! { "aggregate": "places", "pipeline": pipeline.to_vec(), "cursor": {} }
        }),
        cursor("places: $geoWithin a polygon, fetched", |_| {
            doc! { "find": "places", "filter": { "at": within(&POLYGON) } }
        }),
        row(
            "places: the closest 20 by $near",
            Work::Series(2_000, |n, at| {
                let (east, north) = (scattered(n, at) % 180, scattered(n, at) % 90);
                let point = [
                    -9.0 + f64::from(east) / 10.0,
                    40.5 + f64::from(north) / 10.0,
                ];
                let point = doc! { "type": "Point", "coordinates": point.to_vec() };
                let near = doc! { "at": { "$near": { "$geometry": point } } };
                doc! { "find": "places", "filter": near, "limit": 20 }
            }),
        ),
    ];
    let with = |row: Row| row.with(Extra::Places);
    rows.into_iter().map(with).collect()
}

/// About a tenth of all places lie in it.
const POLYGON: [[f64; 2]; 6] = [
    [-4.0, 42.0],
    [3.0, 41.5],
    [5.0, 44.0],
    [1.0, 46.5],
    [-3.0, 45.0],
    [-4.0, 42.0],
];

fn texts() -> Vec<Row> {
    let rows = vec![
        reply("index build: text", |_| extras::writings_index())
            .before(|_| extras::drop_index("writings", "text")),
        cursor("text: one word, fetched", |_| {
            search(&extras::word(300), doc! {})
        }),
        ordered("text: best 10 of two words", |_| {
            let score = doc! { "$meta": "textScore" };
            let words = format!("{} {}", extras::word(20), extras::word(40));
            search(
                &words,
                doc! {
                    "projection": { "score": score.clone() },
                    "sort": { "score": score, "_id": 1 },
                    "limit": 10,
                },
            )
        }),
        cursor("text: a phrase, and a word that is not there", |_| {
            let (one, two, not) = (extras::word(2), extras::word(5), extras::word(11));
            search(&format!("\"{one} {two}\" -{not}"), doc! {})
        }),
    ];
    let with = |row: Row| row.with(Extra::Writings);
    rows.into_iter().map(with).collect()
}

fn distinct() -> Vec<Row> {
    vec![
        reply(
            "distinct: index, 1 value for 4 documents",
            |_| doc! { "distinct": "posts", "key": "user" },
        ),
        reply(
            "distinct: multikey index, 43 values",
            |_| doc! { "distinct": "posts", "key": "tags" },
        ),
        reply(
            "distinct: without index",
            |_| doc! { "distinct": "posts", "key": "place.city" },
        ),
    ]
}

fn writes() -> Vec<Row> {
    vec![
        reply("write: 1 in 40 updated by _id, one bulk", |n| {
            updates(spread(n, 40), "_id", false)
        })
        .effect(|_| sums("edits")),
        reply("write: 1 in 100 updated by index, one bulk", |n| {
            updates(spread(n, 100), "serial", false)
        })
        .effect(|_| sums("edits")),
        reply("write: 1 in 40 upserted, one bulk", |n| {
            updates(beyond(n, 40), "_id", true)
        })
        .before(|n| delete(doc! { "_id": { "$gte": n.part(1) } }))
        .effect(|_| sums("edits")),
        reply("write: updateMany of 1 in 10", |n| {
            update_tenth(n, doc! { "$inc": { "steps": 1 } })
        })
        .effect(|_| sums("edits")),
        reply("write: updateMany of 1 in 10, indexed field", |n| {
            update_tenth(n, doc! { "$inc": { "amount": 0.25 } })
        })
        .effect(|_| sums("edits")),
        reply("write: updateMany of 1 in 10, by pipeline", |n| {
            let steps =
                doc! { "$add": [{ "$ifNull": ["$steps", 0] }, { "$mod": ["$likes", 7] }, 1] };
            update_tenth(n, vec![Bson::from(doc! { "$set": { "steps": steps } })])
        })
        .effect(|_| sums("edits")),
        row(
            "write: 1 in 100 by findOneAndUpdate",
            Work::Series(100, |n, at| {
                doc! {
                    "findAndModify": "edits",
                    "query": { "_id": scattered(n, at) },
                    "update": { "$inc": { "steps": 1 } },
                    "new": true,
                }
            }),
        )
        .effect(|_| sums("edits")),
        reply("write: deleteMany of 1 in 10", |n| delete(tenth(n)))
            .before(merge_tenth)
            .effect(|_| sums("edits")),
        row("write: all of 1 in 4 expire", Work::Expiry("expiring"))
            .before(|_| doc! { "drop": "expiring" })
            .before(|n| {
                let some = doc! { "$match": { "serial": { "$lt": n.part(4) } } };
                let past = bson::DateTime::from_millis(0);
                let dated = doc! { "$set": { "at": past } };
                aggregate([some, dated, doc! { "$out": "expiring" }])
            })
            .before(|_| {
                let index = doc! { "key": { "at": 1 }, "name": "at", "expireAfterSeconds": 1 };
                doc! { "createIndexes": "expiring", "indexes": [index] }
            }),
    ]
}

fn loads() -> Vec<Row> {
    vec![
        row(
            "load: insertMany of 1 in 4",
            Work::Insert("loaded", quarter),
        )
        .before(|_| doc! { "drop": "loaded" })
        .effect(|_| sums("loaded")),
        row(
            "load: insertMany of 1 in 4, four indexes",
            Work::Insert("loaded", quarter),
        )
        .before(|_| doc! { "drop": "loaded" })
        .before(|_| data::create_indexes("loaded", &data::indexes()))
        .effect(|_| sums("loaded")),
        row(
            "load: documents of 4 MB in",
            Work::Insert("stored", data::large_documents),
        )
        .before(|_| doc! { "drop": "stored" })
        .effect(|_| doc! { "find": "stored" }),
        cursor("load: documents of 4 MB out", |_| doc! { "find": "large" }),
    ]
}

fn map_reduces() -> Vec<Row> {
    vec![
        reply("mapReduce: 43 keys", |_| map_reduce(tag_count::MAP))
            .effect(|_| doc! { "find": "reduced" }),
        reply("mapReduce: 1 key for 4 documents", |_| {
            map_reduce("function() { emit(this.user, this.likes); }")
        })
        .effect(|_| doc! { "find": "reduced" }),
    ]
}
