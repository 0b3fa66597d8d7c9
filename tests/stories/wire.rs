//! What goes over the wire: legacy messages of 2012, and bytes that lie.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::Launch;
use bson::{Document, doc};

use crate::opcodes::{
    OP_DELETE, OP_GET_MORE, OP_INSERT, OP_KILL_CURSORS, OP_MSG, OP_QUERY, OP_UPDATE, RawClient,
    bytes, text, word,
};

#[tokio::test]
async fn a_driver_of_2012_reads_and_writes() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let mut driver = RawClient::connect(&mongod)?;
    let hello = driver.command(&doc! { "ismaster": 1 })?;
    ensure!(
        hello.get_bool("ismaster")? && hello.get_i32("minWireVersion")? == 0,
        "{hello}"
    );

    let posts: Vec<u8> = (0..150)
        .flat_map(|n| bytes(&doc! { "_id": n, "n": n }))
        .collect();
    driver.send(OP_INSERT, &[word(0), text("test.posts"), posts])?;
    let outcome = driver.command(&doc! { "getlasterror": 1 })?;
    ensure!(outcome.get("err") == Some(&bson::Bson::Null), "{outcome}");

    driver.send(
        OP_INSERT,
        &[word(0), text("test.posts"), bytes(&doc! { "_id": 7 })],
    )?;
    let outcome = driver.command(&doc! { "getlasterror": 1 })?;
    ensure!(outcome.get_i32("code")? == 11_000, "{outcome}");
    ensure!(outcome.get_str("err")?.contains("E11000"), "{outcome}");

    let change = [
        bytes(&doc! { "n": { "$lt": 10 } }),
        bytes(&doc! { "$set": { "small": true } }),
    ];
    let multi = word(2);
    driver.send(
        OP_UPDATE,
        &[word(0), text("test.posts"), multi, change.concat()],
    )?;
    let outcome = driver.command(&doc! { "getlasterror": 1 })?;
    ensure!(
        outcome.get_i32("n")? == 10 && outcome.get_bool("updatedExisting")?,
        "{outcome}"
    );

    driver.send(
        OP_DELETE,
        &[
            word(0),
            text("test.posts"),
            word(0),
            bytes(&doc! { "n": { "$gte": 140 } }),
        ],
    )?;
    let outcome = driver.command(&doc! { "getLastError": 1, "j": true })?;
    ensure!(outcome.get_i32("n")? == 10, "{outcome}");

    let first = driver.query(
        "test.posts",
        &doc! { "$query": {}, "$orderby": { "n": -1 } },
        40,
    )?;
    ensure!(first.documents.len() == 40 && first.documents[0].get_i32("n")? == 139);
    ensure!(first.cursor != 0 && first.flags & 2 == 0);
    let more = [
        word(0),
        text("test.posts"),
        word(50),
        first.cursor.to_le_bytes().to_vec(),
    ];
    let sent = driver.send(OP_GET_MORE, &more)?;
    let second = driver.reply(sent)?;
    ensure!(second.documents.len() == 50 && second.documents[0].get_i32("n")? == 99);
    driver.send(
        OP_KILL_CURSORS,
        &[word(0), word(1), first.cursor.to_le_bytes().to_vec()],
    )?;
    let sent = driver.send(OP_GET_MORE, &more)?;
    let gone = driver.reply(sent)?;
    ensure!(gone.flags & 1 == 1, "the cursor is not found");

    let wrong = driver.query("test.posts", &doc! { "n": { "$nope": 1 } }, 0)?;
    ensure!(
        wrong.flags & 2 == 2 && wrong.documents[0].contains_key("$err"),
        "a failed query"
    );
    // A wrapper is one wherever the query stands in it, and what cannot be explained is a failed query.
    let wrapped = doc! { "$orderby": { "n": -1 }, "$query": { "n": { "$lt": 30 } } };
    let found = driver.query("test.posts", &wrapped, -1)?;
    ensure!(found.documents[0].get_i32("n")? == 29, "a wrapped query");
    let hint = doc! { "$query": {}, "$hint": { "nope": 1 }, "$explain": true };
    let wrong = driver.query("test.posts", &hint, 0)?;
    ensure!(
        wrong.flags & 2 == 2 && wrong.documents[0].contains_key("$err"),
        "an explained query that fails"
    );

    // A cursor that the client drains is sent as a whole, and the connection is free again.
    let replies = driver.exhaust("test.posts", &doc! {})?;
    let found = replies.iter().flat_map(|reply| &reply.documents);
    let found: Vec<_> = found
        .map(|post| post.get_i32("n"))
        .collect::<Result<_, _>>()?;
    ensure!(replies.len() > 1, "{} batches", replies.len());
    ensure!(found == (0..140).collect::<Vec<_>>(), "{found:?}");
    ensure!(driver.command(&doc! { "ping": 1 })?.get_f64("ok")? == 1.0);
    Ok(())
}

#[tokio::test]
async fn bytes_that_lie_end_their_connection_and_nothing_else() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let message = |length: i32, operation: i32, body: &[u8]| {
        [
            [length, 1, 0, operation].map(i32::to_le_bytes).concat(),
            body.to_vec(),
        ]
        .concat()
    };
    let ping = bytes(&doc! { "ping": 1, "$db": "admin" });
    let section = |body: &[u8]| [&word(0)[..], &[0], body].concat();
    let mut lying_document = ping.clone();
    lying_document[0] = 0xff;
    let mut unterminated = ping.clone();
    *unterminated.last_mut().expect("not empty") = 1;
    let attacks: Vec<(&str, Vec<u8>)> = vec![
        ("a length below a header", message(3, OP_MSG, &[])),
        ("a negative length", message(-1, OP_MSG, &[])),
        ("a length over the limit", message(i32::MAX, OP_MSG, &[])),
        ("an unknown operation", message(20, 4242, &word(0))),
        ("a document longer than its message", {
            let body = section(&lying_document);
            message(16 + body.len() as i32, OP_MSG, &body)
        }),
        ("a document without an end", {
            let body = section(&unterminated);
            message(16 + body.len() as i32, OP_MSG, &body)
        }),
        (
            "a query without an end to its name",
            message(24, OP_QUERY, b"\0\0\0\0abcd"),
        ),
        (
            "a compressed message that is none",
            message(25, 2012, b"\xdd\x07\0\0\xff\xff\xff\x7f\x01"),
        ),
        ("noise", vec![0x5a; 4_096]),
    ];
    for (what, attack) in attacks {
        let mut socket = TcpStream::connect(mongod.host())?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.write_all(&attack)?;
        // An error reply may come first; the end of the connection must.
        let mut left = Vec::new();
        match socket.read_to_end(&mut left) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => bail!("{what}: the connection stays open: {error}"),
        }
        mongod
            .direct()
            .await
            .database("admin")
            .run_command(doc! { "ping": 1 })
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn documents_over_the_limits_are_refused_with_their_codes() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    let large =
        doc! { "insert": "c", "documents": [{ "_id": 1, "x": "x".repeat(16 * 1024 * 1024) }] };
    let refused = test.run_command(large).await;
    let code = match refused {
        Ok(reply) => reply.get_array("writeErrors")?[0]
            .as_document()
            .context("an error")?
            .get_i32("code")?,
        Err(error) => match *error.kind {
            mongodb::error::ErrorKind::Command(ref error) => error.code,
            _ => bail!("{error}"),
        },
    };
    ensure!(matches!(code, 2 | 10_334), "{code}");

    let mut deep = doc! { "leaf": 1 };
    for _ in 0..200 {
        deep = doc! { "d": deep };
    }
    let refused = test
        .run_command(doc! { "insert": "c", "documents": [deep] })
        .await;
    ensure!(refused.is_err() || refused.is_ok_and(|reply| reply.contains_key("writeErrors")));
    ensure!(
        test.collection::<Document>("c")
            .count_documents(doc! {})
            .await?
            == 0
    );

    let posts = test.collection::<Document>("posts");
    posts.insert_one(doc! { "_id": 1, "name": "a" }).await?;
    let unique = mongodb::options::IndexOptions::builder()
        .unique(true)
        .build();
    posts
        .create_index(
            mongodb::IndexModel::builder()
                .keys(doc! { "name": 1 })
                .options(unique)
                .build(),
        )
        .await?;
    let reply = test
        .run_command(doc! { "insert": "posts", "documents": [{ "_id": 2, "name": "a" }] })
        .await?;
    let error = reply.get_array("writeErrors")?[0]
        .as_document()
        .context("an error")?
        .clone();
    ensure!(error.get_i32("code")? == 11_000, "{error}");
    ensure!(
        error.get_document("keyPattern")? == &doc! { "name": 1 },
        "{error}"
    );
    ensure!(
        error.get_document("keyValue")? == &doc! { "name": "a" },
        "{error}"
    );
    Ok(())
}
