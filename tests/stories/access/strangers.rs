//! What a server grants before anybody has logged in, and to how many.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, eventually, program};
use bson::{Bson, doc};

use super::*;

/// A `ping` with so many bytes in it, as OP_MSG.
fn ping(bytes: usize) -> Result<Vec<u8>> {
    let body = doc! { "ping": 1, "$db": "admin", "comment": "x".repeat(bytes) };
    let body = bson::serialize_to_vec(&body)?;
    let length = i32::try_from(21 + body.len())?;
    let mut out = [length, 1, 0, 2013, 0].map(i32::to_le_bytes).concat();
    out.push(0);
    out.extend(body);
    Ok(out)
}

/// Whether it is answered; if not, the connection has ended.
fn is_answered(socket: &mut TcpStream, message: &[u8]) -> Result<bool> {
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut length = [0; 4];
    let outcome = socket
        .write_all(message)
        .and_then(|()| socket.read_exact(&mut length));
    match outcome {
        Ok(()) => {
            let rest = usize::try_from(i32::from_le_bytes(length))? - 4;
            socket.read_exact(&mut vec![0; rest])?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Err(error).context("neither answered nor refused")
        }
        Err(_) => Ok(false),
    }
}

fn connect_to(process: &Process) -> Result<TcpStream> {
    Ok(TcpStream::connect(process.host())?)
}

/// From whoever has not logged in.
pub(super) fn takes_small_messages_alone(guarded: &Process) -> Result<()> {
    ensure!(is_answered(&mut connect_to(guarded)?, &ping(16_000)?)?);
    ensure!(!is_answered(&mut connect_to(guarded)?, &ping(17_000)?)?);
    let said = "bytes from a client that has not logged in";
    ensure!(guarded.log().contains(said), "{}", guarded.log());
    Ok(())
}

#[tokio::test]
async fn only_who_has_logged_in_sends_large_messages() -> Result<()> {
    let guarded = standalone().await;
    takes_small_messages_alone(&guarded)?;
    let root = make_root(&guarded).await?;
    let large = doc! { "insert": "c", "documents": [{ "text": "x".repeat(2_000_000) }] };
    expect(&root, "test", large, 0).await?;

    let open = Launch::mongod().start().await;
    ensure!(is_answered(&mut connect_to(&open)?, &ping(2_000_000)?)?);
    Ok(())
}

#[tokio::test]
async fn more_connections_than_are_wanted_are_refused() -> Result<()> {
    const MOST: i64 = 8;
    let server = Launch::mongod().with(["--maxConns", "8"]).start().await;
    let connections = async || -> Result<bson::Document> {
        let admin = server.direct().await.database("admin");
        let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
        Ok(status.get_document("connections")?.clone())
    };
    let number = |counts: &bson::Document, name: &str| match counts.get(name) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        other => panic!("{name}: {other:?}"),
    };
    let before = connections().await?;
    ensure!(
        number(&before, "current") + number(&before, "available") == MOST,
        "{before}"
    );
    let mut open = Vec::new();
    let refused = loop {
        let mut socket = connect_to(&server)?;
        if !is_answered(&mut socket, &ping(1)?)? {
            break socket;
        }
        open.push(socket);
        ensure!(open.len() <= 8, "{} connections are served", open.len());
    };
    drop(refused);
    let said = "connection refused because there are too many open connections";
    ensure!(server.log().contains(said), "{}", server.log());
    drop(open);
    eventually("there is room again", || async {
        let after = connections().await?;
        ensure!(number(&after, "rejected") >= 1, "{after}");
        ensure!(number(&after, "available") > 0, "{after}");
        anyhow::Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn as_many_files_are_open_as_the_system_allows() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let wrapper = directory.path().join("limited");
    let mongod = program("mongod").display().to_string();
    let text = format!("#!/bin/sh\nulimit -S -n 500\nexec '{mongod}' \"$@\"\n");
    fs::write(&wrapper, text)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o700))?;
    let server = Launch::other(wrapper).start().await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid()))?;
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .context("a limit of open files")?;
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    ensure!(numbers[0] == numbers[1], "{files}");
    if numbers[0] == "500" {
        return Ok(());
    }
    ensure!(server.log().contains("more files may be open"));
    Ok(())
}
