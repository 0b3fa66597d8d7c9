//! A connection that sends anything and waits for what comes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bson::{Document, RawDocumentBuf, doc};

use crate::message::{HEADER_BYTES, Message, OP_MSG, plain, with_database};

/// The request that is sent behind each message: its reply says that the message was dealt with.
const PING_ID: i32 = 0x5eed_0001;
/// A message that is not dealt with by then may wait for something: its connection is closed, and
/// what it does has to end.
const PATIENCE: Duration = Duration::from_secs(4);
/// So long a stream of replies is read.
const STREAM_READ: Duration = Duration::from_millis(60);
const REPLY_BYTES_MAX: usize = 48_000_000;

#[derive(Debug)]
pub enum Outcome {
    /// The reply, if there was one and it could be read.
    Answered(Option<Document>),
    /// The server closed the connection.
    Closed,
    /// Nothing came.
    Silent,
    /// Nobody listens.
    Refused(io::Error),
}

pub struct Sender {
    port: u16,
    stream: Option<TcpStream>,
}

impl Sender {
    pub fn new(port: u16) -> Self {
        Self { port, stream: None }
    }

    pub fn send(&mut self, message: &Message) -> Outcome {
        let mut stream = match self.stream.take().map_or_else(|| open(self.port), Ok) {
            Ok(stream) => stream,
            Err(error) => return Outcome::Refused(error),
        };
        match exchange(&mut stream, message) {
            Ok(Some(reply)) => {
                self.stream = Some(stream);
                Outcome::Answered(reply)
            }
            Ok(None) => Outcome::Closed,
            Err(error) if is_timeout(&error) => Outcome::Silent,
            Err(_) => Outcome::Closed,
        }
    }
}

fn open(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// `None`: the connection is over.
fn exchange(stream: &mut TcpStream, message: &Message) -> io::Result<Option<Option<Document>>> {
    stream.write_all(&message.bytes)?;
    if message.streams {
        stream.set_read_timeout(Some(STREAM_READ))?;
        let began = Instant::now();
        while began.elapsed() < STREAM_READ && matches!(read_reply(stream), Ok(Some(_))) {}
        return Ok(None);
    }
    let deadline = Instant::now() + PATIENCE;
    if !message.is_whole() {
        // Whatever the server takes it for, it ends here.
        stream.shutdown(Shutdown::Write)?;
        while reply_until(stream, deadline)?.is_some() {}
        return Ok(None);
    }
    let ping = with_database(&doc! { "ping": 1 }, "admin").unwrap_or_default();
    stream.write_all(&plain(PING_ID, &ping))?;
    let mut first = None;
    while let Some((response_to, opcode, body)) = reply_until(stream, deadline)? {
        if response_to == PING_ID {
            return Ok(Some(first.flatten()));
        }
        first.get_or_insert_with(|| document(opcode, &body));
    }
    Ok(None)
}

/// What a reply answers, its opcode and its body.
type Reply = (i32, i32, Vec<u8>);

/// A message that was changed may ask for a stream of replies as well, which need not end.
fn reply_until(stream: &mut TcpStream, deadline: Instant) -> io::Result<Option<Reply>> {
    match Instant::now() < deadline {
        true => read_reply(stream),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// `None` at the end of the stream.
fn read_reply(stream: &mut TcpStream) -> io::Result<Option<Reply>> {
    let mut header = [0; HEADER_BYTES];
    if let Err(error) = stream.read_exact(&mut header) {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(None),
            _ => Err(error),
        };
    }
    let number = |at: usize| i32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let length = usize::try_from(number(0)).unwrap_or(0);
    if !(HEADER_BYTES..=REPLY_BYTES_MAX).contains(&length) {
        return Err(io::Error::other(format!("a reply of {length} bytes")));
    }
    let mut body = vec![0; length - HEADER_BYTES];
    stream.read_exact(&mut body)?;
    Ok(Some((number(8), number(12), body)))
}

fn document(opcode: i32, body: &[u8]) -> Option<Document> {
    let bytes = (opcode == OP_MSG).then(|| body.get(5..))??;
    let raw = RawDocumentBuf::from_bytes(bytes.to_vec()).ok()?;
    Document::try_from(&*raw).ok()
}

/// Runs a command that must be answered within `limit`, on a connection of its own.
pub fn ask(port: u16, command: &Document, limit: Duration) -> Result<Document> {
    let mut stream = open(port).context("nobody listens")?;
    stream.set_read_timeout(Some(limit))?;
    let body = with_database(command, "admin").context("a command that can be written")?;
    stream.write_all(&plain(1, &body))?;
    match read_reply(&mut stream) {
        Ok(Some((_, opcode, body))) => document(opcode, &body).context("a reply that is BSON"),
        Ok(None) => bail!("the connection was closed"),
        Err(error) => bail!("no reply to {command} within {limit:?}: {error}"),
    }
}
