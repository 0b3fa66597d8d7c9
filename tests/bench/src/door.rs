//! How the bench's own connections come in: in the clear or encrypted, as nobody or as a user.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_security::scram::Mechanism;
use banyan_security::scram::client::{Client, ClientKeys};
use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A connection's bytes, whichever way they go.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Cloned, it is the same one.
#[derive(Clone, Default)]
pub struct Door {
    tls: Option<Arc<ClientConfig>>,
    user: Option<Arc<User>>,
}

struct User {
    name: String,
    password: String,
    /// Deriving them takes long, and has to be done once for each salt.
    keys: Mutex<Option<ClientKeys>>,
}

impl Door {
    /// Encrypts, and believes this authority.
    pub fn encrypted(mut self, authority: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots);
        self.tls = Some(Arc::new(config.with_no_client_auth()));
        Ok(self)
    }

    /// Logs in as a user of `admin`.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some(Arc::new(User {
            name: name.to_owned(),
            password: password.to_owned(),
            keys: Mutex::default(),
        }));
        self
    }

    pub fn open(&self, host: &str) -> Result<Box<dyn Stream>> {
        let socket = TcpStream::connect(host);
        let socket = socket.with_context(|| format!("no connection to {host}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(config) => {
                let name = ServerName::try_from("localhost")?;
                let session = ClientConnection::new(config.clone(), name)?;
                Box::new(StreamOwned::new(session, socket))
            }
        };
        if let Some(user) = &self.user {
            user.log_in(&mut *stream)?;
        }
        Ok(stream)
    }
}

impl User {
    fn log_in(&self, stream: &mut dyn Stream) -> Result<()> {
        let nonce = format!("{:032x}", rand::random::<u128>());
        let client = Client::new(&self.name, &nonce);
        let start = rawdoc! {
            "saslStart": 1, "mechanism": Mechanism::Sha256.name(),
            "payload": payload(client.first()), "options": { "skipEmptyExchange": true },
            "$db": "admin",
        };
        let reply = ask(stream, &start)?;
        let challenge = client.read(reply.get_binary_generic("payload")?)?;
        let keys = {
            let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            let fitting = known.take().filter(|keys| keys.fit(&challenge));
            let keys = fitting.unwrap_or_else(|| {
                let salt = challenge.salt.clone();
                ClientKeys::derive(
                    Mechanism::Sha256,
                    &self.password,
                    salt,
                    challenge.iterations,
                )
            });
            known.insert(keys).clone()
        };
        let (last, expected) = keys.answer(&client, &challenge);
        let conversation = reply.get_i32("conversationId")?;
        let go_on = rawdoc! {
            "saslContinue": 1, "conversationId": conversation, "payload": payload(last),
            "$db": "admin",
        };
        let reply = ask(stream, &go_on)?;
        ensure!(
            expected.is(reply.get_binary_generic("payload")?),
            "another server"
        );
        ensure!(reply.get_bool("done")?, "{reply}");
        Ok(())
    }
}

fn payload(text: String) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.into_bytes(),
    }
}

/// The reply to a command that has to go well.
pub fn ask(stream: &mut dyn Stream, command: &RawDocument) -> Result<Document> {
    let length = i32::try_from(21 + command.as_bytes().len())?;
    let mut message = [length, 1, 0, 2013, 0].map(i32::to_le_bytes).concat();
    message.push(0);
    message.extend_from_slice(command.as_bytes());
    stream.write_all(&message)?;
    let mut head = [0; 21];
    stream.read_exact(&mut head)?;
    let length = i32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let mut body = vec![0; usize::try_from(length)? - head.len()];
    stream.read_exact(&mut body)?;
    let reply = Document::try_from(&*RawDocumentBuf::from_bytes(body)?)?;
    ensure!(reply.get_f64("ok").is_ok_and(|ok| ok == 1.0), "{reply}");
    Ok(reply)
}

/// What drivers say first.
pub fn hello() -> RawDocumentBuf {
    let client = doc! {
        "application": { "name": "bench" },
        "driver": { "name": "a driver", "version": "1.0.0" },
        "os": { "type": "Linux", "architecture": "x86_64", "version": "6.1" },
    };
    let client = RawDocumentBuf::try_from(&client).unwrap_or_default();
    rawdoc! { "hello": 1, "helloOk": true, "client": client, "$db": "admin" }
}
