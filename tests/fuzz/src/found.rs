//! What has failed: kept as a file, made small, and sent again.
//!
//! A file is messages one after the other: to which process (one byte), how many bytes (four), the
//! bytes. Its name begins with the server's shape.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::batch::{self, Sent};
use crate::message::Message;
use crate::server::{Server, Shape};

/// Where those are that failed once: tests send them again.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("found")
}

pub fn write(path: &Path, messages: &[Sent]) -> Result<()> {
    let mut bytes = Vec::new();
    for sent in messages {
        bytes.push(sent.to);
        let length = u32::try_from(sent.message.bytes.len())?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&sent.message.bytes);
    }
    fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
}

pub fn read(path: &Path) -> Result<Vec<Sent>> {
    let bytes = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut rest = &bytes[..];
    let mut messages = Vec::new();
    while let Some((&to, after)) = rest.split_first() {
        let Some((length, after)) = after.split_first_chunk::<4>() else {
            bail!("{} ends in a length", path.display());
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some((bytes, after)) = after.split_at_checked(length) else {
            bail!("{} ends in a message", path.display());
        };
        rest = after;
        messages.push(Sent {
            to,
            message: Message {
                bytes: bytes.to_vec(),
                streams: false,
            },
        });
    }
    Ok(messages)
}

/// Sends the messages of a file to a server of the shape that its name says; what does not hold.
pub async fn replay(path: &Path) -> Result<Vec<String>> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let shape = name.split('-').next().and_then(Shape::of_name);
    let shape = shape.with_context(|| format!("{name} does not begin with a shape"))?;
    let messages = read(path)?;
    Ok(sent_again(shape, &messages).await)
}

async fn sent_again(shape: Shape, messages: &[Sent]) -> Vec<String> {
    let mut server = Server::start(shape).await;
    batch::replay(&server, messages);
    server.problems()
}

/// The fewest messages that still fail, found by leaving out halves, quarters and so on.
pub async fn smaller(shape: Shape, messages: Vec<Sent>) -> Vec<Sent> {
    let mut kept = messages;
    let mut size = kept.len().div_ceil(2);
    if sent_again(shape, &kept).await.is_empty() {
        return kept;
    }
    while size > 0 && kept.len() > 1 {
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            drop(fewer.drain(at..(at + size).min(kept.len())));
            if !fewer.is_empty() && !sent_again(shape, &fewer).await.is_empty() {
                kept = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    kept
}
