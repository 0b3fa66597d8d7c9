//! Data directories whose files are damaged: the server ends with a reason, or serves what was
//! written, and does not panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use banyan_diff::random::Random;
use banyan_tests::{Launch, Process};
use bson::{Bson, Document, doc};
use tempfile::TempDir;

use crate::connection::ask;

const DOCUMENTS: i32 = 400;
const STARTING_MAX: Duration = Duration::from_secs(60);

/// A directory as a server left it.
pub struct Template {
    folder: TempDir,
}

fn content(id: i32) -> Document {
    doc! { "_id": id, "v": id.wrapping_mul(7919), "text": format!("document {id} ").repeat(8) }
}

impl Template {
    /// `killed`: the server was not asked to end.
    pub async fn make(killed: bool) -> Result<Template> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        fs::create_dir(&data)?;
        let mut process = Launch::mongod().prepare_on(data);
        process.start().await;
        let collection = process.direct().await.database("fuzz").collection("c");
        for chunk in 0..DOCUMENTS / 100 {
            let documents = (chunk * 100..(chunk + 1) * 100).map(content);
            // Acknowledged when they are on the disk.
            let concern = mongodb_concern();
            collection
                .insert_many(documents)
                .write_concern(concern)
                .await?;
        }
        let index =
            doc! { "createIndexes": "c", "indexes": [{ "key": { "v": 1 }, "name": "v_1" }] };
        process
            .direct()
            .await
            .database("fuzz")
            .run_command(index)
            .await?;
        match killed {
            true => process.kill(),
            false => process.stop().await,
        }
        Ok(Template { folder })
    }

    fn copy(&self, to: &Path) -> Result<()> {
        copy(&self.folder.path().join("data"), to)
    }
}

fn mongodb_concern() -> mongodb::options::WriteConcern {
    mongodb::options::WriteConcern::builder()
        .journal(true)
        .build()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => drop(fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

fn files(folder: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        match entry.file_type()?.is_dir() {
            true => files(&entry.path(), out)?,
            false => out.push(entry.path()),
        }
    }
    Ok(())
}

/// Damages one file, and says how.
fn damage(random: &mut Random, folder: &Path) -> Result<String> {
    let mut all = Vec::new();
    files(folder, &mut all)?;
    let path = random.pick(&all).clone();
    let mut bytes = fs::read(&path)?;
    let name = path.strip_prefix(folder)?.display().to_string();
    // Log files are allocated ahead: what was written lies before the zeros.
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let at = if used == 0 { 0 } else { random.below(used) };
    let what = match random.below(6) {
        0 => {
            fs::remove_file(&path)?;
            return Ok(format!("{name} is gone"));
        }
        1 => {
            bytes.truncate(at);
            format!("{name} ends after {at} bytes")
        }
        2 => {
            let end = (at + 512).min(bytes.len());
            bytes[at..end].fill(0);
            format!("{name} has zeros at {at}")
        }
        3 => {
            bytes.extend((0..random.below(4096)).map(|_| random.draw() as u8));
            format!("{name} has more at its end")
        }
        _ => {
            let flips = random.between(1, 4);
            for _ in 0..flips {
                let at = if used == 0 { 0 } else { random.below(used) };
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            format!("{name} has {flips} bits flipped")
        }
    };
    fs::write(&path, bytes)?;
    Ok(what)
}

/// Starts a server on a damaged copy; what was wrong with how it took that.
pub async fn round(template: &Template, seed: u64, number: u64) -> Result<(Vec<String>, String)> {
    let mut random = Random::new(seed, number);
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    template.copy(&data)?;
    let what = damage(&mut random, &data)?;
    let mut process = Launch::mongod().prepare_on(data);
    process.spawn();
    let outcome = judge(&mut process).await;
    let log = process.log();
    let mut problems = Vec::new();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(problem) => {
            problems.push(format!(
                "seed {seed}, directory {number}, {what}: {problem:#}"
            ));
            "failed".to_owned()
        }
    };
    // The engine asserts what it expects of its files, and is caught: ours is the reason that follows.
    let own = log
        .lines()
        .find(|line| line.contains("panicked at") && !line.contains("/registry/"));
    if let Some(line) = own {
        problems.push(format!("seed {seed}, directory {number}, {what}: {line}"));
    }
    Ok((problems, format!("{what}: {outcome}")))
}

/// Starts a server on a copy of which one file was changed; what came of it.
pub async fn with(template: &Template, change: impl FnOnce(&Path) -> Result<()>) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    template.copy(&data)?;
    change(&data)?;
    let mut process = Launch::mongod().prepare_on(data);
    process.spawn();
    judge(&mut process).await
}

async fn judge(process: &mut Process) -> Result<String> {
    let began = Instant::now();
    loop {
        if let Err(status) = process.is_running() {
            return refusal(process, status);
        }
        let ping = ask(process.port, &doc! { "ping": 1 }, Duration::from_secs(5));
        if ping.is_ok() {
            break;
        }
        if began.elapsed() > STARTING_MAX {
            bail!("it neither serves nor ends:\n{}", process.log());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (filter, sort) in [
        (doc! {}, doc! { "_id": 1 }),
        (doc! { "v": { "$gte": i32::MIN } }, doc! { "v": 1 }),
    ] {
        let find = doc! { "find": "c", "filter": filter, "sort": sort, "batchSize": DOCUMENTS * 2 };
        let reply = crate::batch::answer(process.port, "fuzz", &find);
        let Ok(reply) = reply else {
            // Damage that is met later ends the process, with what was found.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return match process.is_running() {
                Err(status) => refusal(process, status),
                Ok(()) => bail!("it does not answer a find"),
            };
        };
        if !reply.get_f64("ok").is_ok_and(|ok| ok == 1.0) {
            return Ok(format!(
                "a find is refused: {}",
                reply.get_str("errmsg").unwrap_or("")
            ));
        }
        let cursor = reply.get_document("cursor").context("a cursor")?;
        let batch = cursor.get_array("firstBatch").context("a batch")?;
        let mut found: Vec<&Document> = batch.iter().filter_map(Bson::as_document).collect();
        found.sort_by_key(|document| document.get_i32("_id").unwrap_or(-1));
        if found.len() != DOCUMENTS as usize {
            bail!(
                "it serves {} documents of {DOCUMENTS}:\n{}",
                found.len(),
                process.log()
            );
        }
        for (id, document) in (0..).zip(found) {
            if *document != content(id) {
                bail!("it serves {document} for the document {id}");
            }
        }
    }
    Ok("served".to_owned())
}

/// It ended by itself: with an exit code of its own, and a reason.
fn refusal(process: &Process, status: Option<std::process::ExitStatus>) -> Result<String> {
    let log = process.log();
    let code = status.and_then(|status| status.code());
    let Some(code) = code.filter(|code| !matches!(code, 0 | 101)) else {
        bail!("it ended with {status:?}:\n{log}");
    };
    let reason = log
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty() && !line.starts_with("note:"));
    match reason {
        Some(reason) => Ok(format!("ended with {code}: {reason}")),
        None => bail!("it ended with {code} and said nothing"),
    }
}
