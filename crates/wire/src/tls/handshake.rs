//! How a connection becomes an encrypted one.
//!
//! To prove who one is takes a core about a millisecond, and hundreds of clients may come at once:
//! the proofs take turns, so many at once as there are cores, and away from the threads that serve
//! connections. Waiting for a peer holds nobody up.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConnection, Connection, ProtocolVersion, ServerConnection};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use super::certificate::{CertificateDetails, ClusterName};
use super::context::{ClientNames, Tls};
use super::stream::{AtOnce, TlsStream};

/// How a listener takes encrypted connections.
pub(crate) struct Encryption {
    pub tls: Arc<Tls>,
    /// What a client has for its handshake.
    pub patience: Duration,
}

/// What is known of the other end of an encrypted connection.
#[derive(Clone, Debug)]
pub struct TlsPeer {
    /// `TLSv1_3`.
    pub version: Option<ProtocolVersion>,
    /// The name in the certificate that it has shown and proved, as RFC 2253 writes it. One that
    /// was let in with an invalid certificate has none.
    pub subject: Option<String>,
    /// What of it tells members of a cluster from others.
    pub cluster: ClusterName,
    /// How many certificates it has shown: that one, and those between it and the authority.
    pub certificates: usize,
    /// The host that it has asked for.
    pub server_name: Option<String>,
}

const HANDSHAKE_RECORD: u8 = 0x16;
/// So many bytes tell a handshake from a message for certain.
pub(crate) const TELLING_BYTES: usize = 12;

/// Whether what a client begins with may be a handshake, as far as its first byte tells.
pub(crate) fn may_begin_handshake(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE_RECORD)
}

/// Whether a client begins with a handshake rather than with a message: no message answers another
/// one there, and where that would be said a handshake has something else.
pub(crate) fn begins_handshake(bytes: &[u8]) -> bool {
    const MAJOR_VERSION: u8 = 3;
    let Some(answers) = bytes.get(8..TELLING_BYTES) else {
        return false;
    };
    bytes[0] == HANDSHAKE_RECORD
        && bytes[1] == MAJOR_VERSION
        && answers != [0; 4]
        && answers != [0xff; 4]
}

/// The server's part; `first` has been read already.
pub(crate) async fn accept(
    tls: &Tls,
    tcp: TcpStream,
    first: &[u8],
    patience: Duration,
) -> io::Result<(TlsStream, TlsPeer)> {
    let material = tls.material();
    let session = ServerConnection::new(material.inbound.clone()).map_err(io::Error::other)?;
    let mut session = Connection::Server(session);
    let handshake = shake(&mut session, &tcp, first, Some(&tls.computing));
    match tokio::time::timeout(patience, handshake).await {
        Ok(shaken) => shaken?,
        Err(_) => {
            let late = "the TLS handshake took too long";
            return Err(io::Error::new(ErrorKind::TimedOut, late));
        }
    }
    let peer = peer(&session, &material.client_names);
    tls.count(peer.version);
    Ok((TlsStream::new(tcp, session), peer))
}

/// The client's part, which its caller bounds in time.
pub(crate) async fn connect(tls: &Tls, tcp: TcpStream, host: &str) -> io::Result<TlsStream> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(ErrorKind::InvalidInput, format!("{host}: {error}")))?;
    let session = ClientConnection::new(tls.material().outbound.clone(), name);
    let mut session = Connection::Client(session.map_err(io::Error::other)?);
    shake(&mut session, &tcp, &[], None).await?;
    Ok(TlsStream::new(tcp, session))
}

async fn shake(
    session: &mut Connection,
    tcp: &TcpStream,
    mut first: &[u8],
    computing: Option<&Semaphore>,
) -> io::Result<()> {
    loop {
        while session.wants_write() {
            match session.write_tls(&mut AtOnce(tcp)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => tcp.writable().await?,
                Err(error) => return Err(error),
            }
        }
        if !session.is_handshaking() {
            return Ok(());
        }
        let read = match first {
            [] => session.read_tls(&mut AtOnce(tcp)),
            _ => session.read_tls(&mut first),
        };
        match read {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                tcp.readable().await?;
                continue;
            }
            Err(error) => return Err(error),
        }
        let processed = match computing {
            None => session.process_new_packets(),
            Some(turns) => {
                // It is never closed.
                let _turn = turns.acquire().await;
                aside(|| session.process_new_packets())
            }
        };
        if let Err(error) = processed {
            // The peer is told what was wrong, if it can be without waiting.
            let _ = session.write_tls(&mut AtOnce(tcp));
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("SSLHandshakeFailed: {error}"),
            ));
        }
    }
}

/// Where it holds up none of the connections that share this thread.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

fn peer(session: &Connection, names: &ClientNames) -> TlsPeer {
    let certificates = session.peer_certificates().unwrap_or_default();
    let believed = match (names, certificates) {
        (ClientNames::NotAsked, _) | (_, []) => false,
        (ClientNames::Proved, _) => true,
        (ClientNames::ToCheck(strict), [own, between @ ..]) => strict
            .verify_client_cert(own, between, UnixTime::now())
            .is_ok(),
    };
    let own = certificates.first().filter(|_| believed);
    let details = own.and_then(|own| CertificateDetails::read(own));
    let server_name = match session {
        Connection::Server(server) => server.server_name().map(str::to_owned),
        Connection::Client(_) => None,
    };
    TlsPeer {
        version: session.protocol_version(),
        subject: details.as_ref().map(|details| details.subject.clone()),
        cluster: details.map_or_else(ClusterName::default, |details| details.cluster),
        certificates: certificates.len(),
        server_name,
    }
}

#[cfg(test)]
mod tests {
    use super::begins_handshake;

    #[test]
    fn handshakes_are_told_from_messages() {
        let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x55];
        assert!(begins_handshake(&hello));
        assert!(!begins_handshake(&hello[..11]));
        assert!(!begins_handshake(&[]));
        // A message of 66,326 bytes has the same first ones.
        for answers in [0i32, -1] {
            let mut message = [0x16, 3, 1, 0, 5, 1, 0, 0, 0, 0, 0, 0];
            message[8..].copy_from_slice(&answers.to_le_bytes());
            assert!(!begins_handshake(&message));
        }
        assert!(!begins_handshake(&[0x3a, 0, 0, 0, 1, 0, 0, 0, 9, 9, 9, 9]));
    }
}
