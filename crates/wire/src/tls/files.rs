//! Reading PEM files: a mistake in one of them ends in a sentence that says what to do.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pkcs8::EncryptedPrivateKeyInfo;
use pkcs8::der::SecretDocument;
use rustls::RootCertStore;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs1KeyDer,
    PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};

use super::certificate::CertificateDetails;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the {what} file {}: {source}", path.display())]
    Read {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the {what} file {} is not PEM: {reason}", path.display())]
    Pem {
        what: &'static str,
        path: PathBuf,
        reason: String,
    },
    #[error("the {what} file {} holds no {missing}", path.display())]
    Missing {
        what: &'static str,
        path: PathBuf,
        missing: &'static str,
    },
    #[error(
        "the key in {} is encrypted: its password has to be given \
         (--tlsCertificateKeyFilePassword, --tlsClusterPassword)",
        .0.display()
    )]
    PasswordMissing(PathBuf),
    #[error("the key in {} cannot be decrypted: the password is wrong, or the key damaged", .0.display())]
    PasswordWrong(PathBuf),
    #[error(
        "the key in {} is encrypted in OpenSSL's own way of old; `openssl pkcs8 -topk8` makes \
         one of it that can be read",
        .0.display()
    )]
    OldEncryption(PathBuf),
    #[error("the certificate in {} cannot be used: {reason}", path.display())]
    Certificate { path: PathBuf, reason: String },
    #[error(
        "the certificate in {} is expired or not yet valid: it is valid from {} to {}",
        path.display(), rfc3339(*not_before), rfc3339(*not_after)
    )]
    NotValidNow {
        path: PathBuf,
        not_before: SystemTime,
        not_after: SystemTime,
    },
    #[error("the key in {} is not that of the certificate", .0.display())]
    OtherKey(PathBuf),
    #[error("the authorities in {} cannot be used: {reason}", path.display())]
    Authorities { path: PathBuf, reason: String },
    #[error("TLS cannot be set up: {0}")]
    Other(String),
}

pub(crate) fn rfc3339(time: SystemTime) -> String {
    bson::DateTime::from_system_time(time)
        .try_to_rfc3339_string()
        .unwrap_or_else(|_| format!("{time:?}"))
}

/// What a process shows to others, and proves with a key.
pub(crate) struct Identity {
    /// First its own certificate, then those between it and the authority.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub details: CertificateDetails,
    pub path: PathBuf,
}

const KEY_FILE: &str = "certificate key";
const AUTHORITIES: &str = "certificate authority";
const REVOCATIONS: &str = "revocation list";

const ENCRYPTED_BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";

/// A file with a certificate and its key.
pub(crate) fn identity(path: &Path, password: Option<&str>) -> Result<Identity, TlsError> {
    let text = read(KEY_FILE, path)?;
    let missing = |missing| TlsError::Missing {
        what: KEY_FILE,
        path: path.to_owned(),
        missing,
    };
    let plain = String::from_utf8_lossy(&text);
    if plain.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(TlsError::OldEncryption(path.to_owned()));
    }
    let (mut chain, mut key) = (Vec::new(), None);
    for (kind, der) in sections(KEY_FILE, path, &text)? {
        match kind {
            SectionKind::Certificate => chain.push(CertificateDer::from(der)),
            SectionKind::PrivateKey => key = Some(PrivatePkcs8KeyDer::from(der).into()),
            SectionKind::RsaPrivateKey => key = Some(PrivatePkcs1KeyDer::from(der).into()),
            SectionKind::EcPrivateKey => key = Some(PrivateSec1KeyDer::from(der).into()),
            _ => {}
        }
    }
    let key = match (key, encrypted(&plain)) {
        (Some(key), _) => key,
        (None, Some(encrypted)) => decrypt(encrypted, path, password)?,
        (None, None) => return Err(missing("private key")),
    };
    let own = chain.first().ok_or_else(|| missing("certificate"))?;
    let details = CertificateDetails::read(own).ok_or_else(|| TlsError::Certificate {
        path: path.to_owned(),
        reason: "it is malformed".to_owned(),
    })?;
    let now = SystemTime::now();
    if now < details.not_before || now > details.not_after {
        return Err(TlsError::NotValidNow {
            path: path.to_owned(),
            not_before: details.not_before,
            not_after: details.not_after,
        });
    }
    Ok(Identity {
        chain,
        key,
        details,
        path: path.to_owned(),
    })
}

/// The encrypted key of a file, from its first to its last line.
fn encrypted(text: &str) -> Option<&str> {
    let begin = text.find(ENCRYPTED_BEGIN)?;
    let length = text[begin..].find(ENCRYPTED_END)? + ENCRYPTED_END.len();
    Some(&text[begin..begin + length])
}

fn decrypt(
    pem: &str,
    path: &Path,
    password: Option<&str>,
) -> Result<PrivateKeyDer<'static>, TlsError> {
    let password = password.ok_or_else(|| TlsError::PasswordMissing(path.to_owned()))?;
    let malformed = |reason: String| TlsError::Pem {
        what: KEY_FILE,
        path: path.to_owned(),
        reason,
    };
    let (_, document) = SecretDocument::from_pem(pem).map_err(|e| malformed(e.to_string()))?;
    let encrypted = EncryptedPrivateKeyInfo::try_from(document.as_bytes())
        .map_err(|error| malformed(error.to_string()))?;
    let key = encrypted
        .decrypt(password)
        .map_err(|_| TlsError::PasswordWrong(path.to_owned()))?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

/// Whom to believe.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let text = read(AUTHORITIES, path)?;
    let mut store = RootCertStore::empty();
    for (kind, der) in sections(AUTHORITIES, path, &text)? {
        if kind == SectionKind::Certificate {
            let added = store.add(CertificateDer::from(der));
            added.map_err(|error| TlsError::Authorities {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        }
    }
    if store.is_empty() {
        return Err(TlsError::Missing {
            what: AUTHORITIES,
            path: path.to_owned(),
            missing: "certificate",
        });
    }
    Ok(store)
}

/// Whom not to believe any longer.
pub(crate) fn revocations(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let text = read(REVOCATIONS, path)?;
    let lists = sections(REVOCATIONS, path, &text)?.into_iter();
    let lists = lists.filter(|(kind, _)| *kind == SectionKind::Crl);
    let lists: Vec<_> = lists
        .map(|(_, der)| CertificateRevocationListDer::from(der))
        .collect();
    if lists.is_empty() {
        return Err(TlsError::Missing {
            what: REVOCATIONS,
            path: path.to_owned(),
            missing: "list",
        });
    }
    Ok(lists)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        what,
        path: path.to_owned(),
        source,
    })
}

fn sections(
    what: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<Vec<(SectionKind, Vec<u8>)>, TlsError> {
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(text);
    sections
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem {
            what,
            path: path.to_owned(),
            reason: error.to_string(),
        })
}
