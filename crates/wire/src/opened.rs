//! A connection to another process, ready for requests.

use std::io;
use std::time::Duration;

use bson::RawDocumentBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::behalf;
use crate::frame::{HEADER_BYTES, MESSAGE_BYTES_MAX};
use crate::login::{self, Login};
use crate::message::{self, Header};
use crate::outgoing::Outgoing;
use crate::stream::{Stream, connect};
use crate::tls::Tls;

pub(crate) enum ExchangeError {
    Io(io::Error),
    Protocol(&'static str),
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> ExchangeError {
        ExchangeError::Io(error)
    }
}

pub(crate) struct ClientConnection {
    stream: Stream,
    buffer: Vec<u8>,
}

/// Where a reply's body begins: header, flags, section kind.
const BODY_AT: usize = HEADER_BYTES + 5;
const REPLY_BYTES_START: usize = 4 * 1024;

impl ClientConnection {
    /// Connects, encrypted if `tls` says so, and proves who this process is if it has been told how
    /// (see [`login`]).
    pub async fn open(
        address: &str,
        timeout: Duration,
        tls: Option<&Tls>,
    ) -> io::Result<ClientConnection> {
        let stream = connect(address, timeout, tls).await?;
        let mut connection = ClientConnection {
            stream,
            buffer: Vec::with_capacity(REPLY_BYTES_START),
        };
        if let Some(login) = login::known() {
            // Whoever this task works for, it is the process itself that logs in.
            let proof = behalf::on_behalf_of(None, connection.prove(&*login));
            let proven = tokio::time::timeout(timeout, proof).await;
            proven.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "login timed out"))??;
        }
        Ok(connection)
    }

    async fn prove(&mut self, login: &dyn Login) -> io::Result<()> {
        let refused = |reason: String| io::Error::new(io::ErrorKind::PermissionDenied, reason);
        let mut conversation = login.begin();
        let mut reply: Option<RawDocumentBuf> = None;
        loop {
            // To derive keys takes long, and others share this thread.
            let step = tokio::task::spawn_blocking(move || {
                let step = conversation.next(reply.as_deref());
                (conversation, step)
            });
            let step = step.await.map_err(io::Error::other)?;
            conversation = step.0;
            let (database, body) = match step.1 {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                Err(reason) => return Err(refused(reason)),
            };
            let request = Outgoing::command(database, &body);
            reply = match self.exchange(&request).await {
                Ok(reply) => Some(reply),
                Err(ExchangeError::Io(error)) => return Err(error),
                Err(ExchangeError::Protocol(what)) => return Err(io::Error::other(what)),
            };
        }
    }

    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// Nothing to read, not even the end: the connection can be used again.
    pub fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }

    pub async fn exchange(&mut self, request: &Outgoing) -> Result<RawDocumentBuf, ExchangeError> {
        self.stream.write_all(request.bytes()).await?;
        self.stream.flush().await?;
        self.buffer.clear();
        while self.buffer.len() < BODY_AT + 5 {
            self.read().await?;
        }
        let length = self.check_head(request.request_id())?;
        let mut body = Vec::with_capacity(length - BODY_AT);
        let have = self.buffer.len().min(length);
        if self.buffer.len() > length {
            return Err(ExchangeError::Protocol("more than one reply"));
        }
        body.extend_from_slice(&self.buffer[BODY_AT..have]);
        // What did not fit the buffer goes straight to where it belongs.
        let mut rest = (&mut self.stream).take((length - have) as u64);
        while rest.limit() > 0 {
            if rest.read_buf(&mut body).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        RawDocumentBuf::from_bytes(body)
            .map_err(|_| ExchangeError::Protocol("a reply that is not one document"))
    }

    async fn read(&mut self) -> Result<(), ExchangeError> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "connection closed by the server",
            )
            .into());
        }
        Ok(())
    }

    /// Checks the reply's head and returns the length of the whole reply.
    fn check_head(&self, request_id: i32) -> Result<usize, ExchangeError> {
        let header = Header::read(&self.buffer).ok_or(ExchangeError::Protocol("no header"))?;
        let length = usize::try_from(header.length).unwrap_or(0);
        if !(BODY_AT + 5..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(ExchangeError::Protocol(
                "a reply that lies about its length",
            ));
        }
        if header.opcode != message::OP_MSG || header.response_to != request_id {
            return Err(ExchangeError::Protocol("not the reply to this request"));
        }
        // No flag is expected in answer to a request without flags, and only a body section.
        if self.buffer[HEADER_BYTES..BODY_AT] != [0; 5] {
            return Err(ExchangeError::Protocol(
                "unexpected flags or sections in a reply",
            ));
        }
        Ok(length)
    }
}
