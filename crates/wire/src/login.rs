//! How this process proves who it is on the connections that it opens.
//!
//! A process is one member of one cluster, whoever it talks to: it is told once, at its start.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use banyan_process::{ClusterAuthMode, TlsMode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::codes::ErrorCode;
use crate::error::CommandError;

/// A command with which a client proves who it is.
pub fn is_step(command: &str) -> bool {
    matches!(command, "saslStart" | "saslContinue" | "authenticate")
}

/// Begins a conversation on a new connection.
pub trait Login: Send + Sync {
    fn begin(&self) -> Box<dyn Conversation>;
}

/// One proof on one connection.
pub trait Conversation: Send {
    /// The next command and its database, after the reply to the one before, whatever that says.
    /// `None`: the proof is made. May take long.
    ///
    /// # Errors
    /// Why the connection must not be used.
    fn next(
        &mut self,
        reply: Option<&RawDocument>,
    ) -> Result<Option<(&'static str, RawDocumentBuf)>, String>;
}

/// How members prove who they are, if the process was told; as a number, so that it can be changed
/// while it runs.
static MODE: AtomicU8 = AtomicU8::new(UNDEFINED);
const UNDEFINED: u8 = u8::MAX;

pub const MODE_PARAMETER: &str = "clusterAuthMode";

/// How members prove to each other that they are that.
pub fn cluster_auth_mode() -> ClusterAuthMode {
    given_mode().unwrap_or_default()
}

fn given_mode() -> Option<ClusterAuthMode> {
    let at = usize::from(MODE.load(Ordering::Relaxed));
    ClusterAuthMode::ALL.get(at).copied()
}

pub fn set_cluster_auth_mode(mode: ClusterAuthMode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// The value of [`MODE_PARAMETER`].
pub fn shown_mode() -> &'static str {
    given_mode().map_or("undefined", ClusterAuthMode::name)
}

/// Changes [`MODE_PARAMETER`], and answers what it was.
///
/// # Errors
/// `BadValue` for what is no mode, and for all ways but that from `sendKeyFile` over `sendX509` to
/// `x509`, step by step.
pub fn change_mode(value: RawBsonRef<'_>, tls: TlsMode) -> Result<&'static str, CommandError> {
    let bad = |text: String| CommandError::new(ErrorCode::BadValue, text);
    let wanted = value.as_str();
    let mut modes = ClusterAuthMode::ALL.into_iter();
    let Some(to) = modes.find(|mode| Some(mode.name()) == wanted) else {
        let given = wanted.map_or_else(|| format!("{value:?}"), str::to_owned);
        return Err(bad(format!(
            "Unrecognized value for {MODE_PARAMETER}, '{given}': expected one of 'keyFile', \
             'sendKeyFile', 'sendX509', or 'x509'"
        )));
    };
    let from = shown_mode();
    if to == ClusterAuthMode::SendX509 && tls <= TlsMode::Allow {
        return Err(bad(format!(
            "Illegal state transition for {MODE_PARAMETER}, need to enable SSL for outgoing \
             connections"
        )));
    }
    let before = match to {
        ClusterAuthMode::SendX509 => Some(ClusterAuthMode::SendKeyFile),
        ClusterAuthMode::X509 => Some(ClusterAuthMode::SendX509),
        ClusterAuthMode::KeyFile | ClusterAuthMode::SendKeyFile => None,
    };
    let advanced = before.is_some_and(|before| {
        let (before, to) = (before as u8, to as u8);
        let relaxed = Ordering::Relaxed;
        MODE.compare_exchange(before, to, relaxed, relaxed).is_ok()
    });
    match advanced {
        true => Ok(from),
        false => Err(bad(format!(
            "Illegal state transition for {MODE_PARAMETER}, change from {from} to {}",
            to.name()
        ))),
    }
}

static LOGIN: OnceLock<Arc<dyn Login>> = OnceLock::new();

/// From now on every connection that this process opens begins with such a conversation. Only the
/// first call counts.
pub fn prove_by(login: Arc<dyn Login>) {
    let _ = LOGIN.set(login);
}

pub(crate) fn known() -> Option<Arc<dyn Login>> {
    LOGIN.get().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_goes_from_a_key_to_certificates_step_by_step() {
        let change = |to: &str, tls| {
            let changed = change_mode(RawBsonRef::String(to), tls);
            changed.map_err(|error| error.message)
        };
        assert_eq!(shown_mode(), "undefined");
        assert_eq!(cluster_auth_mode(), ClusterAuthMode::KeyFile);
        let refused = change("x509", TlsMode::Require).unwrap_err();
        assert_eq!(
            refused,
            "Illegal state transition for clusterAuthMode, change from undefined to x509"
        );
        set_cluster_auth_mode(ClusterAuthMode::SendKeyFile);
        assert!(change("sendX509", TlsMode::Allow).is_err());
        assert!(change("x509", TlsMode::Prefer).is_err());
        assert!(change("X.509", TlsMode::Prefer).is_err());
        assert_eq!(change("sendX509", TlsMode::Prefer), Ok("sendKeyFile"));
        assert!(change("sendKeyFile", TlsMode::Require).is_err());
        assert_eq!(change("x509", TlsMode::Require), Ok("sendX509"));
        assert_eq!(cluster_auth_mode(), ClusterAuthMode::X509);
    }
}
