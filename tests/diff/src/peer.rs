//! A connection that carries raw documents: nothing between the bytes of a reply and who compares.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bson::{Document, RawDocumentBuf};

/// A reply that takes longer counts as none. Programs that are not optimized take their time over half
/// a million documents.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 40 } else { 10 });
const OP_MSG: i32 = 2013;
const HEADER_BYTES: usize = 16;
/// Flags and the kind of the only section.
const PREFIX_BYTES: usize = 5;
const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// What became of a command.
#[derive(Clone, Debug)]
pub enum Answer {
    Reply(RawDocumentBuf),
    /// No reply in time.
    Hung,
    /// The connection broke, or could not be made.
    Closed,
}

/// One server, by its address.
pub struct Peer {
    address: String,
    stream: Option<TcpStream>,
}

impl Peer {
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            stream: None,
        }
    }

    pub fn run(&mut self, database: &str, command: &Document) -> Answer {
        match self.exchange(database, command) {
            Ok(reply) => Answer::Reply(reply),
            Err(error) => {
                self.stream = None;
                match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Answer::Hung,
                    _ => Answer::Closed,
                }
            }
        }
    }

    /// Runs what must succeed: the work around a case.
    pub fn must(&mut self, database: &str, command: &Document) -> Result<Document> {
        let Answer::Reply(reply) = self.run(database, command) else {
            bail!("{} gave no answer to {command}", self.address);
        };
        let reply = Document::try_from(&*reply).context("a reply that is BSON")?;
        if reply.get_f64("ok").ok() != Some(1.0) && reply.get_i32("ok").ok() != Some(1) {
            bail!("{} answered {reply} to {command}", self.address);
        }
        Ok(reply)
    }

    fn exchange(&mut self, database: &str, command: &Document) -> io::Result<RawDocumentBuf> {
        let mut body = RawDocumentBuf::try_from(command).map_err(io::Error::other)?;
        body.append(bson::cstr!("$db"), database);
        let stream = match &mut self.stream {
            Some(stream) => stream,
            vacant => vacant.insert(connect(&self.address)?),
        };
        stream.write_all(&message(body.as_bytes()))?;
        read_reply(stream)
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn message(body: &[u8]) -> Vec<u8> {
    let length = HEADER_BYTES + PREFIX_BYTES + body.len();
    let mut message = Vec::with_capacity(length);
    // Length, request id, response to, opcode, flags, kind of section.
    for word in [length as i32, 1, 0, OP_MSG, 0] {
        message.extend_from_slice(&word.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(body);
    message
}

fn read_reply(stream: &mut TcpStream) -> io::Result<RawDocumentBuf> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    let prefix = HEADER_BYTES + PREFIX_BYTES;
    if !(prefix..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::Error::other("a message of no sensible length"));
    }
    let mut rest = vec![0; length - 4];
    stream.read_exact(&mut rest)?;
    RawDocumentBuf::from_bytes(rest.split_off(prefix - 4)).map_err(io::Error::other)
}
