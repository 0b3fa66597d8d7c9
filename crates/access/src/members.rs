//! Members of a set or cluster prove to each other that they share a key file: as the user
//! `__system` of `local`, with SCRAM-SHA-256.

use std::path::Path;
use std::sync::Arc;

use banyan_security::key_file::KeyFile;
use banyan_security::role::Roles;
use banyan_security::scram::client::{Challenge, Client, ClientKeys, Expected};
use banyan_security::scram::{Credential, Mechanism};
use banyan_security::{Restrictions, RoleName, UserName};
use banyan_wire::CommandError;
use banyan_wire::login::{Conversation, Login};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use rand::RngCore;

use crate::conversation::random_nonce;
use crate::identity::{AuthorizedUser, MEMBER_DATABASE, MEMBER_USER};

const MECHANISM: Mechanism = Mechanism::Sha256;

/// What the keys of a key file come to.
pub struct MemberKeys {
    keys: KeyFile,
    /// One for each key that others may prove, of one salt.
    accepted: Vec<Credential>,
    /// The one in whose name they come.
    user: Arc<AuthorizedUser>,
    /// `--transitionToAuth`: a peer that does not know the keys is talked to all the same.
    optional: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("Error reading file {path}: {reason}")]
pub struct KeyFileProblem {
    path: String,
    reason: String,
}

impl MemberKeys {
    /// Reads a key file, which nobody but its owner may touch, and derives what proves each key.
    pub fn read(path: &Path, optional: bool) -> Result<MemberKeys, KeyFileProblem> {
        let problem = |reason: String| KeyFileProblem {
            path: path.display().to_string(),
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
        check_permissions(path).map_err(problem)?;
        let keys = KeyFile::parse(&text).map_err(|error| problem(error.to_string()))?;
        let mut salt = vec![0; MECHANISM.salt_bytes()];
        rand::rng().fill_bytes(&mut salt);
        let accepted = keys.accepted().iter().map(|key| {
            let iterations = MECHANISM.iterations_default();
            let derived = ClientKeys::derive(MECHANISM, key, salt.clone(), iterations);
            derived.credential().clone()
        });
        Ok(MemberKeys {
            accepted: accepted.collect(),
            keys,
            user: Arc::new(member()),
            optional,
        })
    }

    pub fn accepted(&self) -> &[Credential] {
        &self.accepted
    }

    pub fn user(&self) -> &Arc<AuthorizedUser> {
        &self.user
    }
}

/// The one user that is not stored anywhere.
pub fn member() -> AuthorizedUser {
    let role = RoleName::new(MEMBER_USER, "admin");
    AuthorizedUser {
        name: UserName::new(MEMBER_USER, MEMBER_DATABASE),
        id: None,
        granted: Roles::default().granted(std::slice::from_ref(&role)),
        roles: vec![role],
        restrictions: Restrictions::default(),
    }
}

fn check_permissions(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.mode() & 0o077 != 0 {
        return Err("permissions are too open".to_owned());
    }
    Ok(())
}

/// The other side: what this process proves on the connections that it opens.
pub struct MemberLogin {
    keys: Arc<MemberKeys>,
    /// The last few that were derived: a peer keeps its salt while it lives.
    derived: Arc<Mutex<Vec<(usize, ClientKeys)>>>,
}

/// Peers times keys that are kept derived.
const DERIVED_MAX: usize = 64;

impl MemberLogin {
    pub fn new(keys: Arc<MemberKeys>) -> MemberLogin {
        MemberLogin {
            keys,
            derived: Arc::default(),
        }
    }
}

impl Login for MemberLogin {
    fn begin(&self) -> Box<dyn Conversation> {
        Box::new(Proof {
            keys: self.keys.clone(),
            derived: self.derived.clone(),
            key: 0,
            step: Step::Begin,
        })
    }
}

enum Step {
    Begin,
    /// `client-first-message` is on its way.
    Greeted(Client),
    Proved(Expected),
    Done,
}

struct Proof {
    keys: Arc<MemberKeys>,
    derived: Arc<Mutex<Vec<(usize, ClientKeys)>>>,
    /// Which of the keys is tried.
    key: usize,
    step: Step,
}

impl Proof {
    fn greet(&mut self) -> (&'static str, RawDocumentBuf) {
        let client = Client::new(MEMBER_USER, &random_nonce());
        let message = rawdoc! {
            "saslStart": 1,
            "mechanism": MECHANISM.name(),
            "payload": binary(client.first()),
            "options": { "skipEmptyExchange": true },
        };
        self.step = Step::Greeted(client);
        (MEMBER_DATABASE, message)
    }

    fn keys_for(&self, challenge: &Challenge) -> ClientKeys {
        let key = self.key;
        let known = |(of, keys): &&(usize, ClientKeys)| *of == key && keys.fit(challenge);
        if let Some((_, keys)) = self.derived.lock().iter().find(known) {
            return keys.clone();
        }
        let (salt, iterations) = (challenge.salt.clone(), challenge.iterations);
        let password = &self.keys.keys.accepted()[key];
        let keys = ClientKeys::derive(MECHANISM, password, salt, iterations);
        let mut derived = self.derived.lock();
        if derived.len() >= DERIVED_MAX {
            derived.remove(0);
        }
        derived.push((key, keys.clone()));
        keys
    }
}

impl Conversation for Proof {
    fn next(
        &mut self,
        reply: Option<&RawDocument>,
    ) -> Result<Option<(&'static str, RawDocumentBuf)>, String> {
        let Some(reply) = reply else {
            return Ok(Some(self.greet()));
        };
        if let Some(error) = CommandError::from_reply(reply) {
            // While keys are exchanged for others, a peer may know only the other one.
            if self.key + 1 < self.keys.keys.accepted().len() {
                self.key += 1;
                return Ok(Some(self.greet()));
            }
            if self.keys.optional {
                return Ok(None);
            }
            return Err(format!(
                "the peer does not share a key with this process: {error}"
            ));
        }
        let payload = match reply.get("payload") {
            Ok(Some(RawBsonRef::Binary(binary))) => binary.bytes,
            _ => return Err("a SASL reply without a payload".to_owned()),
        };
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Greeted(client) => {
                let challenge = client.read(payload).map_err(|error| error.to_string())?;
                let (message, expected) = self.keys_for(&challenge).answer(&client, &challenge);
                self.step = Step::Proved(expected);
                let conversation = reply.get_i32("conversationId").unwrap_or(1);
                let message = rawdoc! {
                    "saslContinue": 1,
                    "conversationId": conversation,
                    "payload": binary(message),
                };
                Ok(Some((MEMBER_DATABASE, message)))
            }
            Step::Proved(expected) if expected.is(payload) => Ok(None),
            Step::Proved(_) => Err("the peer cannot prove that it knows the key".to_owned()),
            Step::Begin | Step::Done => Err("a SASL reply out of turn".to_owned()),
        }
    }
}

fn binary(text: String) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.into_bytes(),
    }
}
