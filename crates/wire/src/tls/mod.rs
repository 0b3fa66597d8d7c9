//! Encrypted connections.
//!
//! [`Tls`] is what a process has of it: certificates, whom it trusts, the mode. [`handshake`]
//! makes a connection encrypted, and [`stream`] carries it; how MongoDB names certificates is in
//! [`certificate`], whom to believe in [`verifier`]; [`operating`] is for the commands.
//!
//! `rustls` is driven here without an adapter between it and the socket: what is sent in passing
//! (`Stream::try_write`), and looking whether a client is still there, need to reach both.

mod certificate;
mod context;
mod files;
mod handshake;
pub mod operating;
mod stream;
mod verifier;

pub use certificate::CertificateDetails;
pub use context::{Tls, TlsVersions, install, process};
pub use files::TlsError;
pub use handshake::TlsPeer;
pub(crate) use handshake::{
    Encryption, TELLING_BYTES, accept, begins_handshake, connect, may_begin_handshake,
};
pub(crate) use stream::{Directly, Look, TlsStream};
