//! Messages by hand: those of a driver of 2012, and commands in each form that a message can have.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::Process;
use bson::Document;

pub const OP_REPLY: i32 = 1;
pub const OP_UPDATE: i32 = 2001;
pub const OP_INSERT: i32 = 2002;
pub const OP_QUERY: i32 = 2004;
pub const OP_GET_MORE: i32 = 2005;
pub const OP_DELETE: i32 = 2006;
pub const OP_KILL_CURSORS: i32 = 2007;
pub const OP_COMPRESSED: i32 = 2012;
pub const OP_MSG: i32 = 2013;

/// A client that writes its messages itself.
pub struct RawClient {
    socket: TcpStream,
    last_id: i32,
    /// What the server calls the last message that it sent.
    received_id: i32,
}

pub struct RawReply {
    pub flags: i32,
    pub cursor: i64,
    pub documents: Vec<Document>,
}

pub fn bytes(document: &Document) -> Vec<u8> {
    bson::serialize_to_vec(document).expect("a document serializes")
}

pub fn text(value: &str) -> Vec<u8> {
    [value.as_bytes(), &[0]].concat()
}

pub fn word(value: i32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

impl RawClient {
    pub fn connect(process: &Process) -> Result<Self> {
        let socket = TcpStream::connect(process.host())?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            socket,
            last_id: 0,
            received_id: 0,
        })
    }

    pub fn send(&mut self, operation: i32, parts: &[Vec<u8>]) -> Result<i32> {
        let body = parts.concat();
        self.last_id += 1;
        let length = i32::try_from(16 + body.len())?;
        let header = [length, self.last_id, 0, operation]
            .map(i32::to_le_bytes)
            .concat();
        self.socket.write_all(&[header, body].concat())?;
        Ok(self.last_id)
    }

    /// What comes next: its opcode, and its bytes behind the header.
    fn receive(&mut self, to: i32) -> Result<(i32, Vec<u8>)> {
        let mut header = [0; 16];
        self.socket.read_exact(&mut header)?;
        let at = |at: usize| {
            i32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        ensure!(at(8) == to, "a reply to {to}");
        self.received_id = at(4);
        let mut body = vec![0; usize::try_from(at(0))? - 16];
        self.socket.read_exact(&mut body)?;
        Ok((at(12), body))
    }

    /// A command of which no reply is wanted.
    pub fn tell(&mut self, command: &Document) -> Result<()> {
        const MORE_TO_COME: i32 = 2;
        self.send(OP_MSG, &[word(MORE_TO_COME), vec![0], bytes(command)])
            .map(drop)
    }

    /// A command whose documents follow its body, as drivers send bulks.
    pub fn sequence(
        &mut self,
        command: &Document,
        field: &str,
        documents: &[Document],
    ) -> Result<Document> {
        let rest = [text(field), documents.iter().flat_map(bytes).collect()].concat();
        let size = word(i32::try_from(4 + rest.len())?);
        let parts = [word(0), vec![0], bytes(command), vec![1], size, rest];
        let sent = self.send(OP_MSG, &parts)?;
        let (opcode, body) = self.receive(sent)?;
        ensure!(opcode == OP_MSG, "opcode {opcode}");
        Ok(Document::from_reader(&body[5..])?)
    }

    /// A command as drivers of today send it.
    pub fn message(&mut self, command: &Document) -> Result<Document> {
        let sent = self.send(OP_MSG, &[word(0), vec![0], bytes(command)])?;
        let (opcode, body) = self.receive(sent)?;
        ensure!(opcode == OP_MSG, "opcode {opcode}");
        Ok(Document::from_reader(&body[5..])?)
    }

    /// The same in OP_COMPRESSED, by the compressor that changes nothing.
    pub fn compressed(&mut self, command: &Document) -> Result<Document> {
        let plain = [word(0), vec![0], bytes(command)].concat();
        let size = word(i32::try_from(plain.len())?);
        let sent = self.send(OP_COMPRESSED, &[word(OP_MSG), size, vec![0], plain])?;
        let (opcode, body) = self.receive(sent)?;
        match opcode {
            OP_MSG => Ok(Document::from_reader(&body[5..])?),
            OP_COMPRESSED => Ok(Document::from_reader(&body[9 + 5..])?),
            other => anyhow::bail!("opcode {other}"),
        }
    }

    pub fn reply(&mut self, to: i32) -> Result<RawReply> {
        let (opcode, body) = self.receive(to)?;
        ensure!(opcode == OP_REPLY, "opcode {opcode}");
        let flags = i32::from_le_bytes(body[0..4].try_into()?);
        let cursor = i64::from_le_bytes(body[4..12].try_into()?);
        let mut rest = &body[20..];
        let mut documents = Vec::new();
        while !rest.is_empty() {
            documents.push(Document::from_reader(&mut rest)?);
        }
        Ok(RawReply {
            flags,
            cursor,
            documents,
        })
    }

    pub fn query(&mut self, namespace: &str, filter: &Document, count: i32) -> Result<RawReply> {
        let parts = [
            word(0),
            text(namespace),
            word(0),
            word(count),
            bytes(filter),
        ];
        let sent = self.send(OP_QUERY, &parts)?;
        self.reply(sent)
    }

    /// A query whose cursor is sent as a whole, batch after batch, without being asked for.
    pub fn exhaust(&mut self, namespace: &str, filter: &Document) -> Result<Vec<RawReply>> {
        const EXHAUST: i32 = 64;
        let parts = [
            word(EXHAUST),
            text(namespace),
            word(0),
            word(0),
            bytes(filter),
        ];
        let sent = self.send(OP_QUERY, &parts)?;
        let mut replies = vec![self.reply(sent)?];
        while replies.last().is_some_and(|last| last.cursor != 0) {
            // Each answers the one before it.
            replies.push(self.reply(self.received_id)?);
        }
        Ok(replies)
    }

    pub fn command(&mut self, command: &Document) -> Result<Document> {
        self.command_on("test", command)
    }

    pub fn command_on(&mut self, database: &str, command: &Document) -> Result<Document> {
        let mut reply = self.query(&format!("{database}.$cmd"), command, -1)?;
        reply.documents.pop().context("one document")
    }
}
