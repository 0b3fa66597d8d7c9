//! Places: what is near comes first, by either kind of index, through views and other stages, from
//! one server and by a router from several shards.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::Database;

/// What a command with a small first batch comes to in the end.
async fn found(test: &Database, mut command: Document) -> Result<Vec<Document>> {
    match command.contains_key("aggregate") {
        true => command.insert("cursor", doc! { "batchSize": 2 }),
        false => command.insert("batchSize", 2),
    };
    let cursor = test.run_cursor_command(command).await?;
    Ok(cursor.try_collect().await?)
}

fn ids(found: &[Document]) -> Vec<i32> {
    let ids = found.iter().map(|document| document.get_i32("_id"));
    ids.filter_map(Result::ok).collect()
}

fn code(outcome: mongodb::error::Result<Document>) -> Option<i32> {
    match *outcome.err()?.kind {
        mongodb::error::ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

fn point(x: f64, y: f64) -> Document {
    doc! { "type": "Point", "coordinates": [x, y] }
}

/// Restaurants on a line to the east, in no order; the larger the `_id` the farther away. What is on
/// the plane is in `flat`.
async fn load(test: &Database) -> Result<()> {
    let documents = (0..40_i32).map(|number| {
        let id = number * 7 % 40;
        let x = f64::from(id) / 100.0;
        doc! {
            "_id": id, "location": point(x, 0.0), "flat": [x, 0.0],
            "cuisine": if id % 2 == 0 { "thai" } else { "other" },
        }
    });
    let restaurants = test.collection("restaurants");
    restaurants.insert_many(documents).await?;
    for (key, name) in [
        (doc! { "location": "2dsphere" }, "sphere"),
        (doc! { "flat": "2d", "cuisine": 1 }, "plane"),
    ] {
        let index = doc! { "key": key, "name": name };
        test.run_command(doc! { "createIndexes": "restaurants", "indexes": [index] })
            .await?;
    }
    Ok(())
}

/// Meters of so many hundredths of a degree along the equator.
fn meters(hundredths: i32) -> f64 {
    (f64::from(hundredths) / 100.0).to_radians() * 6_378_100.0
}

async fn ask(test: &Database) -> Result<()> {
    let all: Vec<i32> = (0..40).collect();
    for (path, near) in [
        (
            "location",
            doc! { "$near": { "$geometry": point(0.0, 0.0) } },
        ),
        ("location", doc! { "$nearSphere": [0.0, 0.0] }),
        ("flat", doc! { "$near": [0.0, 0.0] }),
        ("flat", doc! { "$nearSphere": [0.0, 0.0] }),
    ] {
        let find = |filter: Document| doc! { "find": "restaurants", "filter": filter };
        let whole = found(test, find(doc! { path: near.clone() })).await?;
        ensure!(ids(&whole) == all, "{near}: {:?}", ids(&whole));
        ensure!(whole.iter().all(|one| one.len() == 4), "{near}");
        let mut some = find(doc! { path: near.clone(), "cuisine": "thai" });
        some.extend(doc! { "skip": 2, "limit": 3, "projection": { "cuisine": 1 } });
        let expected = [4, 6, 8].map(|id| doc! { "_id": id, "cuisine": "thai" });
        ensure!(found(test, some).await? == expected, "{near}");
        let mut sorted = find(doc! { path: near });
        sorted.extend(doc! { "sort": { "_id": -1 }, "limit": 2 });
        ensure!(ids(&found(test, sorted).await?) == [39, 38]);
    }
    for (path, within, expected) in [
        (
            "flat",
            doc! { "$box": [[0.02, -1], [0.04, 1]] },
            vec![2, 3, 4],
        ),
        ("flat", doc! { "$center": [[0, 0], 0.015] }, vec![0, 1]),
        (
            "flat",
            doc! { "$polygon": [[0.1, -1], [0.1, 1], [0.115, 0]] },
            vec![10, 11],
        ),
        (
            "flat",
            doc! { "$centerSphere": [[0, 0], 0.0002] },
            vec![0, 1],
        ),
        (
            "location",
            doc! { "$centerSphere": [[0, 0], 0.0002] },
            vec![0, 1],
        ),
    ] {
        let filter = doc! { path: { "$geoWithin": within.clone() } };
        let find = doc! { "find": "restaurants", "filter": filter, "sort": { "_id": 1 } };
        ensure!(ids(&found(test, find).await?) == expected, "{within}");
    }
    let aggregate = |stages: Vec<Document>| doc! { "aggregate": "restaurants", "pipeline": stages };
    let near = |options: Document| {
        let mut near = doc! {
            "near": point(0.0, 0.0), "distanceField": "far.meters", "key": "location",
        };
        near.extend(options);
        doc! { "$geoNear": near }
    };
    let options = doc! {
        "maxDistance": meters(21), "minDistance": meters(9), "query": { "cuisine": "thai" },
        "includeLocs": "far.place", "spherical": true,
    };
    let stages = vec![
        near(options),
        doc! { "$limit": 3 },
        doc! { "$project": { "far": 1 } },
    ];
    let closest = found(test, aggregate(stages)).await?;
    ensure!(ids(&closest) == [10, 12, 14], "{closest:?}");
    let told = closest[1].get_document("far")?;
    ensure!(
        (told.get_f64("meters")? - meters(12)).abs() < 1e-6,
        "{told}"
    );
    ensure!(*told.get_document("place")? == point(0.12, 0.0));
    let flat = doc! {
        "near": [0.39, 0.0], "distanceField": "d", "key": "flat", "distanceMultiplier": 100.0,
    };
    let stages = vec![
        doc! { "$geoNear": flat },
        doc! { "$match": { "d": { "$gt": 0.5 } } },
    ];
    let reversed: Vec<i32> = (0..39).rev().collect();
    ensure!(ids(&found(test, aggregate(stages)).await?) == reversed);
    let nearest = doc! { "$group": { "_id": "$cuisine", "d": { "$min": "$far.meters" } } };
    let stages = vec![near(doc! {}), nearest, doc! { "$sort": { "_id": 1 } }];
    let groups = found(test, aggregate(stages)).await?;
    ensure!(groups.len() == 2 && groups[1] == doc! { "_id": "thai", "d": 0.0 });

    // Inside of other stages: of another collection, for each document.
    let inner = doc! { "near": "$$from", "distanceField": "d", "key": "location" };
    let lookup = doc! { "$lookup": {
        "from": "restaurants", "let": { "from": "$location" }, "as": "neighbours",
        "pipeline": [{ "$geoNear": inner }, { "$limit": 2 }, { "$project": { "_id": 1 } }],
    } };
    let stages = vec![doc! { "$match": { "_id": { "$in": [0, 39] } } }, lookup];
    let mut joined = found(test, aggregate(stages)).await?;
    joined.sort_by_key(|one| one.get_i32("_id").unwrap_or_default());
    let neighbours = |one: &Document| -> Result<Vec<i32>> {
        let all = one.get_array("neighbours")?.iter();
        let all: Vec<Document> = all.filter_map(Bson::as_document).cloned().collect();
        Ok(ids(&all))
    };
    ensure!(neighbours(&joined[0])? == [0, 1], "{joined:?}");
    ensure!(neighbours(&joined[1])? == [39, 38], "{joined:?}");
    let union = doc! { "$unionWith": {
        "coll": "restaurants", "pipeline": [near(doc! {}), { "$limit": 2 }],
    } };
    let stages = vec![doc! { "$match": { "_id": 5 } }, union];
    ensure!(ids(&found(test, aggregate(stages)).await?) == [5, 0, 1]);
    Ok(())
}

async fn refuse(test: &Database) -> Result<()> {
    let near = doc! { "near": point(0.0, 0.0), "distanceField": "d" };
    let aggregate = |collection: &str, near: &Document| {
        doc! { "aggregate": collection, "pipeline": [{ "$geoNear": near.clone() }], "cursor": {} }
    };
    let coded = async |command: Document| code(test.run_command(command).await);
    ensure!(coded(aggregate("nothing", &near)).await == Some(26));
    test.create_collection("bare").await?;
    ensure!(coded(aggregate("bare", &near)).await == Some(27));
    // Of two indexes that over the plane is taken, which knows no meters.
    ensure!(coded(aggregate("restaurants", &near)).await == Some(291));
    let outside = doc! { "find": "restaurants", "filter": { "flat": { "$near": [200, 0] } } };
    ensure!(coded(outside).await == Some(16433));
    let geo = doc! { "flat": { "$near": { "$geometry": point(0.0, 0.0) } } };
    ensure!(coded(doc! { "find": "restaurants", "filter": geo }).await == Some(291));
    let create = |options: Document| {
        let mut index = doc! { "key": { "p": "2d" }, "name": "p" };
        index.extend(options);
        doc! { "createIndexes": "bare", "indexes": [index] }
    };
    ensure!(coded(create(doc! { "bits": 33 })).await == Some(72));
    ensure!(coded(create(doc! { "min": 1, "max": 1 })).await == Some(72));
    ensure!(coded(create(doc! { "key": { "k": 1, "p": "2d" } })).await == Some(16801));
    ensure!(coded(create(doc! { "key": { "o": "2d", "p": "2d" } })).await == Some(16800));
    ensure!(coded(create(doc! { "collation": { "locale": "en" } })).await == Some(67));
    let haystack = doc! { "key": { "p": "geoHaystack", "k": 1 } };
    ensure!(coded(create(haystack)).await == Some(67));
    ensure!(
        coded(create(doc! { "min": -10, "max": 10.5, "bits": 20 }))
            .await
            .is_none()
    );
    let bare = test.collection::<Document>("bare");
    for outside in [
        doc! { "p": [10.6, 0] },
        doc! { "p": [1] },
        doc! { "p": ["a", "b"] },
    ] {
        ensure!(bare.insert_one(outside).await.is_err());
    }
    bare.insert_one(doc! { "_id": 1, "p": [10.5, -10] }).await?;
    bare.insert_one(doc! { "_id": 2, "p": [[0, 0], { "x": 1, "y": 1 }] })
        .await?;
    let near = doc! { "find": "bare", "filter": { "p": { "$near": [1, 1] } } };
    ensure!(ids(&found(test, near).await?) == [2, 1]);
    ensure!(coded(doc! { "geoSearch": "bare", "near": [1, 1] }).await == Some(59));
    let validated = test.run_command(doc! { "validate": "bare" }).await?;
    ensure!(validated.get_bool("valid")?, "{validated}");
    Ok(())
}

#[tokio::test]
async fn the_nearest_come_first() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    load(&test).await?;
    ask(&test).await?;
    refuse(&test).await?;
    server.kill();
    server.start().await;
    let test = server.direct().await.database("test");
    ask(&test).await?;
    for (path, near, stage) in [
        ("flat", doc! { "$near": [0, 0] }, "GEO_NEAR_2D"),
        (
            "location",
            doc! { "$nearSphere": [0, 0] },
            "GEO_NEAR_2DSPHERE",
        ),
    ] {
        let find = doc! { "find": "restaurants", "filter": { path: near } };
        let explained = test.run_command(doc! { "explain": find }).await?;
        let plan = explained.get_document("queryPlanner")?;
        let plan = plan.get_document("winningPlan")?;
        ensure!(plan.get_str("stage")? == stage, "{plan}");
    }
    // A view of what is near; one that matches has no first stage left for it.
    let near = doc! { "$geoNear": {
        "near": point(0.0, 0.0), "distanceField": "d", "key": "location",
    } };
    for (view, stages) in [
        ("close", vec![near.clone()]),
        ("thai", vec![doc! { "$match": { "cuisine": "thai" } }]),
    ] {
        test.run_command(doc! { "create": view, "viewOn": "restaurants", "pipeline": stages })
            .await?;
    }
    let find = doc! { "find": "close", "filter": { "cuisine": "thai" }, "limit": 2 };
    ensure!(ids(&found(&test, find).await?) == [0, 2]);
    let aggregate = doc! { "aggregate": "thai", "pipeline": [near], "cursor": {} };
    ensure!(code(test.run_command(aggregate).await) == Some(40603));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_merges_by_distance() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    for command in [
        doc! { "enableSharding": "test" },
        doc! { "shardCollection": "test.restaurants", "key": { "cuisine": 1 } },
        doc! { "split": "test.restaurants", "middle": { "cuisine": "thai" } },
        doc! { "moveChunk": "test.restaurants", "find": { "cuisine": "a" }, "to": "shard1" },
        doc! { "moveChunk": "test.restaurants", "find": { "cuisine": "thai" }, "to": "shard0" },
    ] {
        let outcome = admin.run_command(command.clone()).await;
        outcome.with_context(|| command.to_string())?;
    }
    load(&test).await?;
    ask(&test).await
}

/// A polygon of so many corners, each as far from its middle as `radius` says.
fn round(corners: u32, radius: impl Fn(u32) -> f64) -> Document {
    let corner = |at: u32| {
        let angle = std::f64::consts::TAU * f64::from(at) / f64::from(corners);
        let radius = radius(at);
        vec![radius * angle.cos(), radius * angle.sin()]
    };
    let ring: Vec<Vec<f64>> = (0..corners).chain([0]).map(corner).collect();
    doc! { "type": "Polygon", "coordinates": [ring] }
}

/// One document cannot hold up those beside it for long, whatever its shape.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shape_as_large_as_a_document_takes_little_time() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let index = doc! { "key": { "l": "2dsphere" }, "name": "l" };
    test.run_command(doc! { "createIndexes": "c", "indexes": [index] })
        .await?;
    let places = test.collection::<Document>("c");
    let points = (0..400_000_u32).map(|at| vec![f64::from(at % 360) - 180.0, f64::from(at / 5000)]);
    let points: Vec<Vec<f64>> = points.collect();
    let holes = (0..40_000_u32).map(|at| {
        let (x, y) = (f64::from(at % 200) / 10.0, f64::from(at / 200) / 10.0);
        vec![vec![x, y], vec![x + 0.05, y], vec![x, y + 0.05], vec![x, y]]
    });
    let corners = [
        (-1.0, -1.0),
        (30.0, -1.0),
        (30.0, 30.0),
        (-1.0, 30.0),
        (-1.0, -1.0),
    ];
    let shell = corners.map(|(x, y)| vec![x, y]).to_vec();
    let rings: Vec<Vec<Vec<f64>>> = [shell].into_iter().chain(holes).collect();
    let shapes = [
        ("circle", round(300_000, |_| 10.0)),
        (
            "star",
            round(300_000, |at| if at % 2 == 0 { 10.0 } else { 1.0 }),
        ),
        (
            "points",
            doc! { "type": "MultiPoint", "coordinates": points.clone() },
        ),
        ("line", doc! { "type": "LineString", "coordinates": points }),
        ("holes", doc! { "type": "Polygon", "coordinates": rings }),
    ];
    for (name, shape) in shapes {
        let began = std::time::Instant::now();
        let outcome = places.insert_one(doc! { "_id": name, "l": shape }).await;
        let took = began.elapsed();
        println!(
            "{name}: {took:?} {:?}",
            outcome.as_ref().err().map(ToString::to_string)
        );
        // A debug build is some tens of times slower than one that is served from.
        ensure!(took.as_secs() < 60, "{name}: {took:?}");
        let pinged = std::time::Instant::now();
        test.run_command(doc! { "ping": 1 }).await?;
        ensure!(pinged.elapsed().as_secs() < 5);
    }
    Ok(())
}
