//! Counting tags with map-reduce, and the same two functions in Node.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, doc};
use mongodb::Client;

pub const TAGS: usize = 43;

pub const MAP: &str = "function() { for (index in this.tags) { emit(this.tags[index], 1); } }";
pub const REDUCE: &str = "function(key, values) { var sum = 0; for (var i = 0; i < values.length; i++) { sum += values[i]; } return sum; }";

/// Seconds that the map-reduce over the bulk collection takes.
pub async fn map_reduce(client: &Client) -> Result<f64> {
    let database = client.database("bench");
    let command = doc! {
        "mapReduce": "bulk",
        "map": Bson::JavaScriptCode(MAP.to_owned()),
        "reduce": Bson::JavaScriptCode(REDUCE.to_owned()),
        "out": "tags",
    };
    let started = Instant::now();
    database.run_command(command).await?;
    let elapsed = started.elapsed();
    let rows = database
        .collection::<Document>("tags")
        .count_documents(doc! {})
        .await?;
    ensure!(rows == TAGS as u64, "{rows} rows for {TAGS} tags");
    Ok(elapsed.as_secs_f64())
}

/// Seconds that the same functions take in Node over as many documents already in memory.
pub fn node(documents: usize) -> Result<f64> {
    let script = format!(
        r"
        const posts = [];
        for (let i = 0; i < {documents}; i++) {{
          const tags = [];
          for (let t = 2 + Math.floor(Math.random() * 4); t > 0; t--) tags.push('tag' + Math.floor(Math.random() * {TAGS}));
          posts.push({{id: String(i), content: 'data for content ' + i, tags}});
        }}
        const map = {MAP}, reduce = {REDUCE};
        let values;
        globalThis.emit = (key, value) => {{ const list = values.get(key); if (list) list.push(value); else values.set(key, [value]); }};
        function count() {{
          values = new Map();
          for (const post of posts) map.call(post);
          const rows = new Map();
          for (const [key, list] of values) rows.set(key, reduce(key, list));
          return rows;
        }}
        const started = process.hrtime.bigint();
        const rows = count();
        if (rows.size !== {TAGS}) throw new Error('rows: ' + rows.size);
        console.log(Number(process.hrtime.bigint() - started) / 1e9);
        "
    );
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tag_count.js");
    fs::write(&path, script)?;
    let output = Command::new("node")
        .arg(&path)
        .output()
        .context("node does not start")?;
    ensure!(
        output.status.success(),
        "node: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
