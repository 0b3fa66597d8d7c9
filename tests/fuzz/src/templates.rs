//! Commands as clients send them, before anything is changed about them.

use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, Timestamp, doc};

/// The database that everything is done to.
pub const DATABASE: &str = "fuzz";
/// The collection of [`Generator::command`].
const COLLECTION: &str = "c";

/// Names that mean something in filters, updates, expressions and pipelines.
pub const OPERATORS: &[&str] = &[
    "$eq",
    "$gt",
    "$in",
    "$nin",
    "$not",
    "$and",
    "$or",
    "$nor",
    "$exists",
    "$type",
    "$expr",
    "$jsonSchema",
    "$mod",
    "$regex",
    "$options",
    "$text",
    "$where",
    "$geoWithin",
    "$near",
    "$nearSphere",
    "$geoIntersects",
    "$all",
    "$elemMatch",
    "$size",
    "$bitsAllSet",
    "$bitsAnyClear",
    "$comment",
    "$rand",
    "$set",
    "$unset",
    "$inc",
    "$mul",
    "$min",
    "$max",
    "$rename",
    "$setOnInsert",
    "$currentDate",
    "$push",
    "$addToSet",
    "$pop",
    "$pull",
    "$pullAll",
    "$each",
    "$slice",
    "$sort",
    "$position",
    "$bit",
    "$match",
    "$group",
    "$project",
    "$limit",
    "$skip",
    "$unwind",
    "$lookup",
    "$graphLookup",
    "$facet",
    "$bucket",
    "$bucketAuto",
    "$sortByCount",
    "$addFields",
    "$replaceRoot",
    "$replaceWith",
    "$count",
    "$sample",
    "$out",
    "$merge",
    "$unionWith",
    "$setWindowFields",
    "$densify",
    "$fill",
    "$geoNear",
    "$redact",
    "$indexStats",
    "$collStats",
    "$currentOp",
    "$listSessions",
    "$listLocalSessions",
    "$planCacheStats",
    "$changeStream",
    "$documents",
    "$sum",
    "$avg",
    "$first",
    "$last",
    "$topN",
    "$bottomN",
    "$firstN",
    "$percentile",
    "$stdDevPop",
    "$accumulator",
    "$function",
    "$map",
    "$filter",
    "$reduce",
    "$zip",
    "$let",
    "$cond",
    "$switch",
    "$ifNull",
    "$concat",
    "$substrCP",
    "$split",
    "$regexMatch",
    "$regexFindAll",
    "$dateToString",
    "$dateFromString",
    "$dateAdd",
    "$dateTrunc",
    "$dateDiff",
    "$dateFromParts",
    "$toDate",
    "$convert",
    "$toDecimal",
    "$toObjectId",
    "$pow",
    "$log",
    "$mod",
    "$divide",
    "$range",
    "$arrayElemAt",
    "$arrayToObject",
    "$objectToArray",
    "$setUnion",
    "$sortArray",
    "$getField",
    "$setField",
    "$literal",
    "$meta",
    "$strcasecmp",
    "$trim",
    "$replaceAll",
    "$indexOfCP",
    "$bsonSize",
    "$binarySize",
    "$tsSecond",
    "$rank",
    "$shift",
    "$derivative",
    "$integral",
    "$expMovingAvg",
    "$linearFill",
    "$locf",
    "$$ROOT",
    "$_internalInhibitOptimization",
    "$natural",
    "$db",
    "$clusterTime",
    "$readPreference",
];

/// Names of fields that commands read.
pub const FIELDS: &[&str] = &[
    "a",
    "b",
    "c",
    "_id",
    "a.x",
    "filter",
    "query",
    "q",
    "u",
    "sort",
    "hint",
    "limit",
    "skip",
    "batchSize",
    "cursor",
    "pipeline",
    "collation",
    "let",
    "min",
    "max",
    "key",
    "update",
    "upsert",
    "multi",
    "arrayFilters",
    "remove",
    "new",
    "fields",
    "projection",
    "ordered",
    "documents",
    "updates",
    "deletes",
    "readConcern",
    "writeConcern",
    "maxTimeMS",
    "lsid",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "comment",
    "explain",
    "verbosity",
    "tailable",
    "awaitData",
    "singleBatch",
    "returnKey",
    "showRecordId",
    "allowDiskUse",
    "resumeAfter",
    "startAfter",
    "startAtOperationTime",
    "fullDocument",
    "from",
    "localField",
    "foreignField",
    "as",
    "input",
    "in",
    "vars",
    "cond",
    "then",
    "else",
    "branches",
    "default",
    "unit",
    "timezone",
    "format",
    "date",
    "startDate",
    "endDate",
    "onError",
    "onNull",
    "to",
    "into",
    "on",
    "whenMatched",
    "coll",
    "db",
    "output",
    "partitionBy",
    "sortBy",
    "window",
    "range",
    "bounds",
    "step",
    "near",
    "args",
    "lang",
    "body",
    "init",
    "accumulate",
    "merge",
    "boundaries",
    "groupBy",
    "buckets",
    "depthField",
    "maxDepth",
    "connectFromField",
    "connectToField",
    "startWith",
    "restrictSearchWithMatch",
    "level",
    "afterClusterTime",
    "atClusterTime",
    "w",
    "j",
    "wtimeout",
    "shardVersion",
    "databaseVersion",
    "locale",
    "strength",
    "name",
    "unique",
    "sparse",
    "expireAfterSeconds",
    "partialFilterExpression",
    "wildcardProjection",
    "weights",
    "2dsphereIndexVersion",
    "capped",
    "size",
    "validator",
    "timeseries",
    "clusteredIndex",
    "roles",
    "pwd",
    "privileges",
    "resource",
];

/// What was learned from replies, and makes requests that go on from there.
#[derive(Default)]
pub struct Learned {
    cursors: Vec<(i64, String)>,
    tokens: Vec<Document>,
}

impl Learned {
    pub fn take_in(&mut self, reply: &Document) {
        let Ok(cursor) = reply.get_document("cursor") else {
            return;
        };
        if let (Ok(id), Ok(namespace)) = (cursor.get_i64("id"), cursor.get_str("ns"))
            && id != 0
        {
            let collection = namespace.split_once('.').map_or("c", |(_, name)| name);
            self.cursors.insert(0, (id, collection.to_owned()));
            self.cursors.truncate(16);
        }
        if let Ok(token) = cursor.get_document("postBatchResumeToken") {
            self.tokens.insert(0, token.clone());
            self.tokens.truncate(4);
        }
    }

    pub fn cursor(&self, random: &mut Random) -> (i64, String) {
        if self.cursors.is_empty() || random.percent(15) {
            let id = *random.pick(&[0, 1, -1, i64::MAX, i64::MIN, 123_456_789]);
            return (id, COLLECTION.to_owned());
        }
        random.pick(&self.cursors).clone()
    }

    /// A resume token: one that was given, or one that looks like it.
    fn token(&self, random: &mut Random) -> Document {
        match self.tokens.first() {
            Some(token) if random.percent(70) => {
                let mut token = token.clone();
                if random.percent(60)
                    && let Some(Bson::String(data)) = token.get_mut("_data")
                {
                    *data = hex(random, data);
                }
                token
            }
            _ => doc! { "_data": hex(random, "8263F1A2B3000000012B0229296E1404") },
        }
    }
}

/// Digits of a token with one of them changed, some gone, or more of them.
fn hex(random: &mut Random, data: &str) -> String {
    let mut bytes = data.as_bytes().to_vec();
    crate::places::any_bytes(random, &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A database and a command for it.
pub fn command(
    random: &mut Random,
    generator: &mut Generator,
    learned: &Learned,
) -> (&'static str, Document) {
    if random.percent(45) {
        return (DATABASE, generator.command(24));
    }
    if random.percent(35) {
        return on_server(random);
    }
    (DATABASE, on_data(random, generator, learned))
}

fn identity(number: u8) -> Document {
    let bytes = vec![number; 16];
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
}

/// What reads or writes documents, beside what the generator makes.
fn on_data(random: &mut Random, generator: &mut Generator, learned: &Learned) -> Document {
    let collection = *random.pick(&["c", "c", "d", "capped", "clustered", "text"]);
    let mut command = match random.below(24) {
        0 | 1 => {
            let documents: Vec<Document> = (0..random.between(1, 4))
                .map(|_| generator.object(3))
                .collect();
            doc! { "insert": collection, "documents": documents, "ordered": random.percent(50) }
        }
        2 | 3 => {
            let (id, of) = learned.cursor(random);
            doc! { "getMore": id, "collection": of, "batchSize": random.between(0, 5) }
        }
        4 => {
            let (id, of) = learned.cursor(random);
            doc! { "killCursors": of, "cursors": [id] }
        }
        5 => {
            let filter = generator.filter(2);
            doc! { "find": collection, "filter": filter, "batchSize": random.between(0, 3) as i32,
            "sort": generator.sort(), "tailable": collection == "capped" }
        }
        6 => {
            let stage = match random.below(3) {
                0 => doc! { "$changeStream": {} },
                1 => doc! { "$changeStream": { "resumeAfter": learned.token(random) } },
                _ => doc! { "$changeStream": { "startAfter": learned.token(random),
                "fullDocument": "updateLookup" } },
            };
            doc! { "aggregate": collection, "pipeline": [stage], "cursor": { "batchSize": 0 } }
        }
        7 => create_indexes(random, collection),
        8 => doc! { "dropIndexes": collection, "index": *random.pick(&["a_1", "*", "t", "none"]) },
        9 => create(random, generator, collection),
        10 => doc! { "collMod": collection, "validator": generator.filter(1),
        "index": { "name": "a_1", "hidden": true } },
        11 => doc! { "drop": collection },
        12 => scripted(random, generator, collection),
        13 => doc! { "explain": generator.command(24),
        "verbosity": *random.pick(&["queryPlanner", "executionStats", "allPlansExecution"]) },
        14 => doc! { "count": collection, "query": generator.filter(2), "skip": 1, "limit": 2 },
        15 => doc! { "validate": collection, "full": random.percent(50) },
        16 => doc! { "listIndexes": collection },
        17 => doc! { "listCollections": 1, "filter": generator.filter(1) },
        18 => doc! { *random.pick(&["dbStats", "dbHash", "collStats"]): collection },
        19 => doc! { "planCacheSetFilter": collection, "query": generator.filter(1),
        "indexes": [{ "a": 1 }] },
        20 => doc! { *random.pick(&["planCacheClear", "planCacheClearFilters",
        "planCacheListFilters"]): collection },
        21 => {
            doc! { "distinct": collection, "key": generator.path(), "query": generator.filter(1) }
        }
        22 => doc! { "profile": random.between(-1, 3) as i32, "slowms": random.between(-1, 200) },
        _ => pipeline(random, generator, collection),
    };
    if random.percent(25) {
        add_generic(random, &mut command);
    }
    command
}

fn pipeline(random: &mut Random, generator: &mut Generator, collection: &str) -> Document {
    let near = doc! { "type": "Point", "coordinates": [1, 2] };
    let special = match random.below(13) {
        0 => doc! { "$lookup": { "from": "d", "let": { "v": "$a" }, "as": "r",
        "pipeline": generator.pipeline(2) } },
        1 => doc! { "$graphLookup": { "from": "c", "startWith": "$a", "connectFromField": "a",
        "connectToField": "b", "as": "r", "maxDepth": random.between(0, 4) } },
        2 => doc! { "$facet": { "x": generator.pipeline(3), "y": generator.pipeline(2) } },
        3 => doc! { "$merge": { "into": "d", "on": "_id", "whenMatched": "merge" } },
        4 => doc! { "$out": "d" },
        5 => doc! { "$setWindowFields": { "partitionBy": "$a", "sortBy": { "b": 1 },
        "output": { "v": { "$sum": "$c", "window": { "documents": [-1, 1] } } } } },
        6 => doc! { "$densify": { "field": "a",
        "range": { "step": random.between(1, 3), "bounds": [0, 50] } } },
        7 => doc! { "$geoNear": { "near": near, "distanceField": "far", "key": "g" } },
        8 => doc! { "$unionWith": { "coll": "d", "pipeline": generator.pipeline(2) } },
        9 => doc! { "$bucketAuto": { "groupBy": "$a", "buckets": random.between(1, 5) } },
        10 => doc! { "$redact": { "$cond": [generator.expression(2), "$$KEEP", "$$PRUNE"] } },
        11 => doc! { "$sample": { "size": random.between(1, 5) } },
        _ => doc! { *random.pick(&["$collStats", "$indexStats", "$planCacheStats", "$currentOp"]):
        Document::new() },
    };
    let mut stages = generator.pipeline(3);
    stages.insert(random.below(stages.len() + 1), special);
    doc! { "aggregate": collection, "pipeline": stages,
    "cursor": { "batchSize": random.between(0, 3) as i32 }, "allowDiskUse": true }
}

fn create_indexes(random: &mut Random, collection: &str) -> Document {
    let (key, name) = match random.below(8) {
        0 => (doc! { "a": 1, "b": -1 }, "a_1_b_-1"),
        1 => (doc! { "a": "hashed" }, "a_hashed"),
        2 => (doc! { "$**": 1 }, "all"),
        3 => (doc! { "b": "text" }, "t"),
        4 => (doc! { "g": "2dsphere" }, "g"),
        5 => (doc! { "g": "2d" }, "g2"),
        6 => (doc! { "a.x": 1, "c": 1 }, "x"),
        _ => (doc! { "a": 1 }, "a_1"),
    };
    let mut index = doc! { "key": key, "name": name };
    match random.below(6) {
        0 => drop(index.insert("unique", true)),
        1 => drop(index.insert("sparse", true)),
        2 => drop(index.insert("expireAfterSeconds", random.between(-1, 100_000))),
        3 => drop(index.insert("partialFilterExpression", doc! { "a": { "$gt": 1 } })),
        4 => drop(index.insert("collation", doc! { "locale": "sv", "strength": 2 })),
        _ => {}
    }
    doc! { "createIndexes": collection, "indexes": [index] }
}

fn create(random: &mut Random, generator: &mut Generator, collection: &str) -> Document {
    match random.below(6) {
        0 => doc! { "create": "capped", "capped": true, "size": random.between(1, 1 << 16) },
        1 => doc! { "create": "clustered",
        "clusteredIndex": { "key": { "_id": 1 }, "unique": true } },
        2 => doc! { "create": "view", "viewOn": collection, "pipeline": generator.pipeline(2) },
        3 => doc! { "create": collection, "validator": generator.filter(2),
        "validationAction": "warn" },
        4 => doc! { "create": collection, "validator": { "$jsonSchema": { "bsonType": "object",
        "properties": { "a": { "type": "number", "minimum": 1 } }, "required": ["a"] } } },
        _ => doc! { "create": collection, "collation": { "locale": "en", "strength": 1 } },
    }
}

fn scripted(random: &mut Random, generator: &mut Generator, collection: &str) -> Document {
    let code = *random.pick(&[
        "function() { return this.a > 1; }",
        "this.a == 1",
        "function() { throw new Error('x'); }",
        "function() { emit(this.a, 1); }",
        "function() { print('p'); return [1, {}, NumberLong(3)]; }",
        "function( {",
        "",
    ]);
    match random.below(3) {
        0 => doc! { "find": collection, "filter": { "$where": code }, "maxTimeMS": 500 },
        1 => doc! { "mapReduce": collection, "map": code, "query": generator.filter(1),
        "reduce": "function(k, v) { return Array.sum(v); }", "maxTimeMS": 1000,
        "out": *random.pick(&["d", "c"]) },
        _ => {
            let function = doc! { "$function": { "body": code, "args": ["$a"], "lang": "js" } };
            doc! { "aggregate": collection, "pipeline": [{ "$project": { "v": function } }],
            "cursor": {}, "maxTimeMS": 500 }
        }
    }
}

/// What every command may carry.
fn add_generic(random: &mut Random, command: &mut Document) {
    let time = Timestamp {
        time: 1_700_000_000,
        increment: 1,
    };
    match random.below(9) {
        0 => {
            command.insert("lsid", identity(random.below(4) as u8));
            command.insert("txnNumber", random.between(0, 5));
        }
        1 => drop(command.insert(
            "readConcern",
            doc! { "level": *random.pick(&["local", "majority",
            "snapshot", "linearizable", "available", "none"]) },
        )),
        2 => drop(command.insert("readConcern", doc! { "afterClusterTime": time })),
        3 => drop(command.insert(
            "writeConcern",
            doc! { "w": random.between(0, 4) as i32,
            "wtimeout": 50 },
        )),
        4 => drop(command.insert("maxTimeMS", random.between(0, 100))),
        5 => drop(command.insert(
            "$clusterTime",
            doc! { "clusterTime": time,
            "signature": { "hash": Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] },
                "keyId": 1_i64 } },
        )),
        6 => drop(command.insert(
            "$readPreference",
            doc! { "mode": *random.pick(&["nearest", "secondaryPreferred", "none"]),
            "tags": [{ "a": "b" }, {}] },
        )),
        7 => drop(command.insert(
            "collation",
            doc! { "locale": *random.pick(&["en", "sv", "zh@x"]),
            "strength": random.between(0, 6) },
        )),
        _ => {
            command.insert(
                "shardVersion",
                vec![
                    Bson::Timestamp(time),
                    Bson::ObjectId(ObjectId::from_bytes([1; 12])),
                ],
            );
        }
    }
}

/// What is about the process, its users and its sessions.
fn on_server(random: &mut Random) -> (&'static str, Document) {
    let user = *random.pick(&["u", "v", "nobody"]);
    let payload = |text: &str| Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.as_bytes().to_vec(),
    };
    let command = match random.below(30) {
        0 => doc! { "createUser": user, "pwd": "p", "roles": [{ "role": "read", "db": "fuzz" }] },
        1 => doc! { "updateUser": user, "roles": ["root"], "pwd": "q" },
        2 => doc! { *random.pick(&["dropUser", "usersInfo"]): user },
        3 => doc! { "createRole": "r", "roles": [], "privileges": [{ "resource": { "db": "fuzz",
        "collection": "" }, "actions": ["find", "insert"] }] },
        4 => doc! { *random.pick(&["dropRole", "rolesInfo"]): "r" },
        5 => doc! { *random.pick(&["grantRolesToUser", "revokeRolesFromUser"]): user,
        "roles": ["read"] },
        6 => doc! { *random.pick(&["grantPrivilegesToRole", "revokePrivilegesFromRole"]): "r",
        "privileges": [{ "resource": { "cluster": true }, "actions": ["inprog"] }] },
        7 | 8 => doc! { "saslStart": 1, "mechanism": *random.pick(&["SCRAM-SHA-256", "SCRAM-SHA-1",
        "PLAIN"]), "payload": payload("n,,n=u,r=abcdefgh"), "options":
        { "skipEmptyExchange": true } },
        9 => doc! { "saslContinue": 1, "conversationId": random.between(0, 2) as i32,
        "payload": payload("c=biws,r=abcdefgh,p=AAAA") },
        10 => doc! { "authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=x" },
        11 => doc! { "hello": 1, "saslSupportedMechs": "fuzz.u", "compression": ["zlib", "x"],
        "client": { "application": { "name": "f" }, "driver": { "name": "d", "version": "1" },
        "os": { "type": "L" } } },
        12 => doc! { "hello": 1, "maxAwaitTimeMS": random.between(0, 200), "topologyVersion":
        { "processId": ObjectId::from_bytes([1; 12]), "counter": 0_i64 } },
        13 => doc! { "serverStatus": 1 },
        14 => doc! { "currentOp": 1, "$all": true },
        15 => doc! { "killOp": 1, "op": random.between(1, 100_000) },
        16 => doc! { "getLog": *random.pick(&["global", "startupWarnings", "*", "x"]) },
        17 => doc! { "getParameter": *random.pick(&["*", "logLevel", "x"]) },
        18 => doc! { "top": 1 },
        19 => doc! { "startSession": 1 },
        20 => doc! { *random.pick(&["refreshSessions", "endSessions", "killSessions"]):
        [identity(random.below(4) as u8)] },
        21 => doc! { "killAllSessionsByPattern": [{ "lsid": identity(1) }] },
        22 => doc! { "listDatabases": 1, "filter": { "name": "fuzz" } },
        23 => doc! { "renameCollection": "fuzz.d", "to": "fuzz.e", "dropTarget": true },
        24 => doc! { "connectionStatus": 1, "showPrivileges": true },
        25 => doc! { "aggregate": 1, "cursor": {}, "pipeline": [{ *random.pick(&["$currentOp",
        "$listLocalSessions", "$changeStream"]): {} }] },
        26 => doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": "local" } },
        27 => doc! { "listCommands": 1 },
        28 => doc! { "getLastError": 1, "w": random.between(0, 3) as i32, "wtimeout": 20 },
        _ => doc! { *random.pick(&["buildInfo", "hostInfo", "getCmdLineOpts", "whatsmyuri",
        "getShardMap", "listShards", "balancerStatus", "isdbgrid", "features", "availableQueryOptions",
        "replSetGetStatus", "replSetGetConfig", "getnonce", "logout"]): 1 },
    };
    let database = *random.pick(&["admin", "admin", "admin", "fuzz", "config"]);
    (database, command)
}
