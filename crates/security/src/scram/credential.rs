//! What is kept of a password: enough to check a proof of it, and not enough to make one.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bson::{RawDocument, RawDocumentBuf};
use md5::{Digest, Md5};

use super::Mechanism;
use crate::field::{self, DefinitionError};

/// A password that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    #[error("Password cannot be empty")]
    Empty,
    /// SASLprep (RFC 4013) forbids a character in it.
    #[error("password has a character that SASLprep forbids")]
    Forbidden,
}

/// Salt, iteration count and the keys of RFC 5802.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    mechanism: Mechanism,
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Credential {
    /// Derives the keys of a password, which takes as long as `iterations` ask for. `salt` comes
    /// from a source of randomness and has [`Mechanism::salt_bytes`].
    ///
    /// # Errors
    /// An empty password, or one that SASLprep refuses.
    pub fn new(
        mechanism: Mechanism,
        user: &str,
        password: &str,
        salt: Vec<u8>,
        iterations: u32,
    ) -> Result<Credential, PasswordError> {
        if password.is_empty() {
            return Err(PasswordError::Empty);
        }
        let password = match mechanism {
            Mechanism::Sha1 => digest(user, password),
            Mechanism::Sha256 => stringprep::saslprep(password)
                .map_err(|_| PasswordError::Forbidden)?
                .into_owned(),
        };
        Ok(Credential::derive(
            mechanism,
            password.as_bytes(),
            salt,
            iterations,
        ))
    }

    fn derive(mechanism: Mechanism, password: &[u8], salt: Vec<u8>, iterations: u32) -> Credential {
        let salted = mechanism.salted_password(password, &salt, iterations);
        Credential::of_salted(mechanism, &salted, salt, iterations)
    }

    pub(super) fn of_salted(
        mechanism: Mechanism,
        salted: &[u8],
        salt: Vec<u8>,
        iterations: u32,
    ) -> Credential {
        let client_key = mechanism.hmac(salted, b"Client Key");
        Credential {
            mechanism,
            iterations,
            salt,
            stored_key: mechanism.hash(&client_key),
            server_key: mechanism.hmac(salted, b"Server Key"),
        }
    }

    /// As [`Credential::new`], for a password that the client has digested as MongoDB's tools of
    /// old did: of SCRAM-SHA-1.
    ///
    /// # Errors
    /// An empty password.
    pub fn digested(
        digest: &str,
        salt: Vec<u8>,
        iterations: u32,
    ) -> Result<Credential, PasswordError> {
        if digest.is_empty() {
            return Err(PasswordError::Empty);
        }
        let digest = digest.as_bytes();
        Ok(Credential::derive(
            Mechanism::Sha1,
            digest,
            salt,
            iterations,
        ))
    }

    /// A credential for a user that does not exist, so that a conversation about it looks like any
    /// other. The salt depends on the name and on a secret of the process, and no proof fits.
    pub fn made_up(mechanism: Mechanism, user: &str, secret: &[u8], iterations: u32) -> Credential {
        let mut salt = mechanism.hmac(secret, user.as_bytes());
        salt.truncate(mechanism.salt_bytes());
        Credential {
            mechanism,
            iterations,
            stored_key: mechanism.hmac(secret, b"no such stored key"),
            server_key: mechanism.hmac(secret, b"no such server key"),
            salt,
        }
    }

    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    pub(super) fn stored_key(&self) -> &[u8] {
        &self.stored_key
    }

    pub(super) fn server_key(&self) -> &[u8] {
        &self.server_key
    }

    fn parse(mechanism: Mechanism, document: &RawDocument) -> Result<Credential, DefinitionError> {
        let damaged = |name: &str| {
            DefinitionError::Invalid(format!(
                "credentials.{}.{name} is damaged",
                mechanism.name()
            ))
        };
        let bytes = |name: &str, length: usize| {
            let text = document.get_str(name).map_err(|_| damaged(name))?;
            match BASE64_STANDARD.decode(text) {
                Ok(bytes) if bytes.len() == length => Ok(bytes),
                _ => Err(damaged(name)),
            }
        };
        let iterations = document
            .get_i32("iterationCount")
            .ok()
            .and_then(|count| u32::try_from(count).ok())
            .filter(|count| *count > 0)
            .ok_or_else(|| damaged("iterationCount"))?;
        Ok(Credential {
            mechanism,
            iterations,
            salt: bytes("salt", mechanism.salt_bytes())?,
            stored_key: bytes("storedKey", mechanism.hash_bytes())?,
            server_key: bytes("serverKey", mechanism.hash_bytes())?,
        })
    }

    fn to_document(&self) -> RawDocumentBuf {
        bson::rawdoc! {
            "iterationCount": i32::try_from(self.iterations).unwrap_or(i32::MAX),
            "salt": BASE64_STANDARD.encode(&self.salt),
            "storedKey": BASE64_STANDARD.encode(&self.stored_key),
            "serverKey": BASE64_STANDARD.encode(&self.server_key),
        }
    }
}

/// Keys do not belong into a log.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("mechanism", &self.mechanism)
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

/// MongoDB's SCRAM-SHA-1 takes this digest, of the time of MONGODB-CR, for the password.
fn digest(user: &str, password: &str) -> String {
    let hash = Md5::digest(format!("{user}:mongo:{password}"));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The `credentials` of a user: one for each mechanism, or that it authenticates elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    sha1: Option<Credential>,
    sha256: Option<Credential>,
    external: bool,
}

impl Credentials {
    /// Of a user of `$external`.
    pub fn external() -> Credentials {
        Credentials {
            external: true,
            ..Credentials::default()
        }
    }

    pub fn get(&self, mechanism: Mechanism) -> Option<&Credential> {
        match mechanism {
            Mechanism::Sha1 => self.sha1.as_ref(),
            Mechanism::Sha256 => self.sha256.as_ref(),
        }
    }

    pub fn set(&mut self, mechanism: Mechanism, credential: Credential) {
        match mechanism {
            Mechanism::Sha1 => self.sha1 = Some(credential),
            Mechanism::Sha256 => self.sha256 = Some(credential),
        }
    }

    /// # Errors
    /// An unknown mechanism, or a credential that is damaged.
    pub fn parse(document: &RawDocument) -> Result<Credentials, DefinitionError> {
        let mut credentials = Credentials::default();
        for item in field::fields(document) {
            let (name, value) = item?;
            match Mechanism::from_name(name) {
                Some(mechanism) => {
                    let document = field::document(name, value)?;
                    credentials.set(mechanism, Credential::parse(mechanism, document)?);
                }
                None if name == "external" => credentials.external = true,
                None => return Err(field::unknown("credentials", name)),
            }
        }
        Ok(credentials)
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        if let Some(credential) = &self.sha1 {
            document.append(bson::cstr!("SCRAM-SHA-1"), credential.to_document());
        }
        if let Some(credential) = &self.sha256 {
            document.append(bson::cstr!("SCRAM-SHA-256"), credential.to_document());
        }
        if self.external {
            document.append(bson::cstr!("external"), true);
        }
        document
    }
}
