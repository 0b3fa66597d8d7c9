//! The conversation in which a client proves who it is, message by message.

use std::sync::Arc;

use banyan_security::UserName;
use banyan_security::scram::{ClientFirst, Credential, Exchange, Mechanism};
use banyan_wire::{CommandError, Connection, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocumentBuf, Uuid, rawdoc};
use tracing::info;

use crate::audit;
use crate::certificates;
use crate::control::{AccessControl, is_member_name};
use crate::conversation::{Conversation, Step, random_nonce};
use crate::identity::{AuthorizedUser, Client};
use crate::users::Users;

/// A connection carries one conversation at a time.
const CONVERSATION_ID: i32 = 1;
/// Longer messages are nobody's.
const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// What a process needs to hold a conversation.
pub struct Sasl<'a> {
    pub access: &'a AccessControl,
    pub users: &'a dyn Users,
    pub connection: &'a Connection,
    pub iterations: Iterations,
}

/// How often new passwords are hashed, and those of users that do not exist seem to be.
#[derive(Clone, Copy)]
pub struct Iterations {
    pub sha1: u32,
    pub sha256: u32,
}

impl Iterations {
    pub fn of(self, mechanism: Mechanism) -> u32 {
        match mechanism {
            Mechanism::Sha1 => self.sha1,
            Mechanism::Sha256 => self.sha256,
        }
    }
}

impl Default for Iterations {
    fn default() -> Iterations {
        Iterations {
            sha1: Mechanism::Sha1.iterations_default(),
            sha256: Mechanism::Sha256.iterations_default(),
        }
    }
}

/// Who a conversation is about that begins so, if that can be told.
pub fn named(start: &Start<'_>) -> Option<UserName> {
    if start.payload.len() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let first = ClientFirst::parse(start.payload).ok()?;
    Some(UserName::new(first.user(), start.database))
}

/// Who the conversation is about that a connection is in.
pub fn conversing(connection: &Connection) -> Option<UserName> {
    let conversation = Client::of(connection)?.conversation.lock();
    conversation
        .as_ref()
        .map(|conversation| conversation.name.clone())
}

/// The first message of a conversation.
pub struct Start<'a> {
    pub database: &'a str,
    pub mechanism: &'a str,
    pub payload: &'a [u8],
    pub skips_last: bool,
}

/// What a client hears of any failure.
fn failed() -> CommandError {
    CommandError::new(ErrorCode::AuthenticationFailed, "Authentication failed.")
}

impl Sasl<'_> {
    /// `saslStart`.
    pub fn start(&self, start: &Start<'_>) -> Result<RawDocumentBuf, CommandError> {
        let Some(client) = Client::of(self.connection) else {
            return Err(failed());
        };
        *client.conversation.lock() = None;
        let Some(mechanism) = Mechanism::from_name(start.mechanism) else {
            let error = unavailable(start);
            let asked = crate::shape::shortened(start.mechanism);
            audit::login(self.connection, None, &asked, error.code.code());
            return Err(error);
        };
        if start.payload.len() > PAYLOAD_BYTES_MAX {
            self.note_failure(None, start.mechanism, "a message that is too long");
            return Err(failed());
        }
        let first = ClientFirst::parse(start.payload).map_err(|error| {
            self.note_failure(None, start.mechanism, &error.to_string());
            failed()
        })?;
        let name = UserName::new(first.user(), start.database);
        let (exchange, user) = self.challenge(first, &name, mechanism)?;
        let payload = exchange.server_first().to_owned();
        *client.conversation.lock() = Some(Conversation {
            name,
            user,
            mechanism,
            skips_last: start.skips_last,
            step: Step::Challenged(Box::new(exchange)),
        });
        Ok(reply(false, payload))
    }

    /// Asks for the proof of the user's password, whether or not there is such a user.
    fn challenge(
        &self,
        first: ClientFirst,
        name: &UserName,
        mechanism: Mechanism,
    ) -> Result<(Exchange, Option<Uuid>), CommandError> {
        let random = random_nonce();
        if is_member_name(name) {
            if let Some(keys) = self.access.member_keys()
                && keys
                    .accepted()
                    .iter()
                    .all(|key| key.mechanism() == mechanism)
            {
                let exchange = first.answer_any(keys.accepted(), &random);
                return Ok((exchange.ok_or_else(failed)?, None));
            }
        } else if let Some(user) = self.users.definition(name)?
            && let Some(credential) = user.credentials.get(mechanism)
        {
            return Ok((first.answer(credential, &random), Some(user.id)));
        }
        let iterations = self.iterations.of(mechanism);
        let secret = &self.access.secret;
        let made_up = Credential::made_up(mechanism, &name.to_string(), secret, iterations);
        Ok((first.answer(&made_up, &random), None))
    }

    /// `saslContinue`.
    pub fn proceed(
        &self,
        conversation_id: i32,
        payload: &[u8],
    ) -> Result<RawDocumentBuf, CommandError> {
        let client = Client::of(self.connection);
        let known = client.and_then(|client| client.conversation.lock().take());
        let (Some(client), Some(conversation)) = (client, known) else {
            return Err(no_conversation("No SASL session state found"));
        };
        if conversation_id != CONVERSATION_ID {
            return Err(no_conversation("sasl: Mismatched conversation id"));
        }
        let Conversation {
            name,
            user: challenged,
            mechanism,
            skips_last,
            step,
        } = conversation;
        let exchange = match step {
            Step::Challenged(exchange) => exchange,
            Step::Proved => return Ok(reply(true, String::new())),
        };
        let refuse = |reason: &str| {
            self.note_failure(Some(&name), mechanism.name(), reason);
            failed()
        };
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(refuse("a message that is too long"));
        }
        let verified = exchange
            .finish(payload)
            .map_err(|error| refuse(&error.to_string()))?;
        let user = self
            .admitted(&name, challenged)
            .map_err(|reason| refuse(&reason))?;
        self.access.enter(self.connection, user);
        audit::login(self.connection, Some(&name), mechanism.name(), 0);
        if !is_member_name(&name) {
            info!(
                connection = self.connection.id,
                user = %name,
                mechanism = mechanism.name(),
                remote = %self.connection.peer,
                "Successfully authenticated"
            );
        }
        let payload = verified.server_final().to_owned();
        if !skips_last {
            *client.conversation.lock() = Some(Conversation {
                name,
                user: challenged,
                mechanism,
                skips_last,
                step: Step::Proved,
            });
        }
        Ok(reply(skips_last, payload))
    }

    /// The user, if it may log in from where it is.
    fn admitted(
        &self,
        name: &UserName,
        challenged: Option<Uuid>,
    ) -> Result<Arc<AuthorizedUser>, String> {
        if is_member_name(name) {
            let keys = self.access.member_keys();
            return keys
                .map(|keys| keys.user().clone())
                .ok_or_else(|| "there is no key file".to_owned());
        }
        let user = self
            .users
            .authorized(name)
            .map_err(|error| error.to_string())?
            .filter(|user| user.id == challenged)
            .ok_or_else(|| "no such user".to_owned())?;
        match user.may_come_by(self.connection) {
            true => Ok(user),
            false => Err("its authentication restrictions are not met".to_owned()),
        }
    }

    fn note_failure(&self, name: Option<&UserName>, mechanism: &str, reason: &str) {
        let code = ErrorCode::AuthenticationFailed.code();
        audit::login(self.connection, name, mechanism, code);
        let name = name.map(|name| crate::shape::shortened(&name.to_string()).into_owned());
        info!(
            connection = self.connection.id,
            user = name,
            mechanism,
            remote = %self.connection.peer,
            reason,
            "Authentication failed"
        );
    }
}

fn unavailable(start: &Start<'_>) -> CommandError {
    let mechanism = crate::shape::shortened(start.mechanism);
    let message = match start.mechanism {
        // It is no conversation: `authenticate` is all there is to it.
        certificates::MECHANISM => format!(
            "Unsupported mechanism '{mechanism}' on authentication database '{}'",
            start.database
        ),
        _ => format!("Received authentication for mechanism {mechanism} which is not enabled"),
    };
    CommandError::new(ErrorCode::MechanismUnavailable, message)
}

fn no_conversation(message: &str) -> CommandError {
    CommandError::new(ErrorCode::ProtocolError, message)
}

fn reply(done: bool, payload: String) -> RawDocumentBuf {
    let payload = Binary {
        subtype: BinarySubtype::Generic,
        bytes: payload.into_bytes(),
    };
    rawdoc! { "conversationId": CONVERSATION_ID, "done": done, "payload": payload, "ok": 1.0 }
}
