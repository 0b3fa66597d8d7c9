//! What operators see of encrypted connections and can change while a server or router runs.

use banyan_process::TlsMode;
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocumentBuf, rawdoc};
use tracing::info;

use super::certificate::ClusterName;
use super::context::process;
use super::handshake::TlsPeer;
use crate::codes::ErrorCode;
use crate::error::CommandError;

/// The parameters for the mode, today's and the one of old.
pub const PARAMETERS: [&str; 2] = ["sslMode", "tlsMode"];

fn mode() -> TlsMode {
    process().map_or(TlsMode::Disabled, |tls| tls.mode())
}

fn shown(parameter: &str, mode: TlsMode) -> &'static str {
    match parameter {
        "sslMode" => mode.old_name(),
        _ => mode.name(),
    }
}

/// The value of a parameter, if it is one of [`PARAMETERS`].
pub fn parameter(name: &str) -> Option<&'static str> {
    PARAMETERS.contains(&name).then(|| shown(name, mode()))
}

/// Changes one of [`PARAMETERS`] and answers what it was; `None`: it is another one's.
///
/// # Errors
/// `BadValue` for what is no mode, and for all ways but that from `allowTLS` over `preferTLS` to
/// `requireTLS`, step by step.
pub fn set_parameter(
    name: &str,
    value: RawBsonRef<'_>,
) -> Result<Option<&'static str>, CommandError> {
    if !PARAMETERS.contains(&name) {
        return Ok(None);
    }
    let bad = |text: String| CommandError::new(ErrorCode::BadValue, text);
    let wanted = value.as_str();
    let mut modes = TlsMode::ALL.into_iter();
    let Some(to) = modes.find(|&mode| Some(shown(name, mode)) == wanted) else {
        let [disabled, allow, prefer, require] = TlsMode::ALL.map(|mode| shown(name, mode));
        let given = wanted.map_or_else(|| format!("{value:?}"), str::to_owned);
        return Err(bad(format!(
            "Invalid {name} setting '{given}', expected one of: '{disabled}', '{allow}', \
             '{prefer}', or '{require}'"
        )));
    };
    let from = mode();
    if !process().is_some_and(|tls| tls.advance(to)) {
        let (from, to) = (shown(name, from), shown(name, to));
        return Err(bad(format!(
            "Illegal state transition for {name}, attempt to change from {from} to {to}"
        )));
    }
    info!(
        from = from.name(),
        to = to.name(),
        "the mode of TLS has changed"
    );
    Ok(Some(shown(name, from)))
}

/// Whether the other end of a connection has shown a certificate of this process's own cluster.
pub fn is_cluster_member(peer: &TlsPeer) -> bool {
    process().is_some_and(|tls| peer.cluster.is_that_of(&tls.certificate().cluster))
}

/// Whether a certificate with this subject would be one of this process's own cluster.
pub fn names_cluster_member(subject: &str) -> bool {
    let named = ClusterName::read(subject);
    process().is_some_and(|tls| named.is_that_of(&tls.certificate().cluster))
}

/// `rotateCertificates`: the files are read again. What is open goes on with what it has.
///
/// # Errors
/// `InvalidSSLConfiguration` if they cannot be used; all stays as it was.
pub fn rotate() -> Result<(), CommandError> {
    match process() {
        None => Ok(()),
        Some(tls) => tls.rotate().map_err(|error| {
            CommandError::new(ErrorCode::InvalidSSLConfiguration, error.to_string())
        }),
    }
}

/// `serverStatus().transportSecurity`: the connections that came in, by version.
pub fn transport_security() -> RawDocumentBuf {
    let versions = process().map_or_else(Default::default, |tls| tls.versions());
    let long = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    rawdoc! {
        "1.0": 0i64,
        "1.1": 0i64,
        "1.2": long(versions.v1_2),
        "1.3": long(versions.v1_3),
        "unknown": 0i64,
    }
}

/// What `serverStatus().security` says of the certificate.
pub fn append_security(section: &mut RawDocumentBuf) {
    let Some(tls) = process() else { return };
    let certificate = tls.certificate();
    section.append(cstr!("SSLServerSubjectName"), certificate.subject);
    section.append(
        cstr!("SSLServerHasCertificateAuthority"),
        tls.has_authority(),
    );
    section.append(
        cstr!("SSLServerCertificateExpirationDate"),
        bson::DateTime::from_system_time(certificate.not_after),
    );
}
