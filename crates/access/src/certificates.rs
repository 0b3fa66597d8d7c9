//! Logging in with the certificate of a TLS connection (`MONGODB-X509`): users of `$external`, whose
//! names are the subjects of their certificates, and members of the cluster.

use std::sync::Arc;

use banyan_security::UserName;
use banyan_security::user::EXTERNAL;
use banyan_wire::login::{self, Conversation, Login};
use banyan_wire::tls::operating;
use banyan_wire::{CommandError, Connection, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tracing::info;

use crate::audit;
use crate::control::AccessControl;
use crate::members::{MemberLogin, member};
use crate::users::Users;

pub const MECHANISM: &str = "MONGODB-X509";

/// What a client says beside its certificate.
pub struct Claim<'a> {
    pub database: &'a str,
    /// The subject, if it names itself at all.
    pub user: Option<&'a str>,
}

/// `authenticate` with a certificate.
///
/// # Errors
/// MongoDB's: `AuthenticationFailed`, `ProtocolError` in another database, `UserNotFound`.
pub fn log_in(
    access: &AccessControl,
    connection: &Connection,
    claim: &Claim<'_>,
    users: &dyn Users,
) -> Result<RawDocumentBuf, CommandError> {
    let entered = enter(access, connection, claim, users);
    let result = entered.as_ref().err().map_or(0, |error| error.code.code());
    audit::login(
        connection,
        claimed(connection, claim).as_ref(),
        MECHANISM,
        result,
    );
    if let Err(error) = &entered {
        info!(
            connection = connection.id,
            user = claim.user.map(|user| crate::shape::shortened(user).into_owned()),
            mechanism = MECHANISM,
            remote = %connection.peer,
            reason = error.message,
            "Authentication failed"
        );
    }
    let subject = entered?;
    Ok(rawdoc! { "dbname": EXTERNAL, "user": subject, "ok": 1.0 })
}

/// Whom a client says that it is, whether or not it is that.
fn claimed(connection: &Connection, claim: &Claim<'_>) -> Option<UserName> {
    let subject = connection.tls().and_then(|peer| peer.subject.as_deref());
    let named = claim.user.filter(|user| !user.is_empty()).or(subject)?;
    Some(UserName::new(
        &*crate::shape::shortened(named),
        claim.database,
    ))
}

fn failed(reason: &str) -> CommandError {
    CommandError::new(ErrorCode::AuthenticationFailed, reason)
}

/// Whom a certificate names.
enum Named<'a> {
    Member(&'a str),
    User(&'a str),
}

/// What the certificate of a connection says, if the claim fits it.
fn proved<'a>(connection: &'a Connection, claim: &Claim<'_>) -> Result<Named<'a>, CommandError> {
    let peer = connection.tls();
    let (Some(peer), Some(subject)) = (peer, peer.and_then(|peer| peer.subject.as_deref())) else {
        return Err(failed("No verified subject name available from client"));
    };
    if claim
        .user
        .is_some_and(|user| !user.is_empty() && user != subject)
    {
        return Err(failed(
            "There is no x.509 client certificate matching the user.",
        ));
    }
    if claim.database != EXTERNAL {
        return Err(CommandError::new(
            ErrorCode::ProtocolError,
            "X.509 authentication must always use the $external database.",
        ));
    }
    if !operating::is_cluster_member(peer) {
        return Ok(Named::User(subject));
    }
    match login::cluster_auth_mode().takes_certificates() {
        true => Ok(Named::Member(subject)),
        false => Err(failed(
            "The provided certificate can only be used for cluster authentication, not client \
             authentication. The current configuration does not allow x.509 cluster \
             authentication, check the --clusterAuthMode flag",
        )),
    }
}

/// The user that a claim is about, if it is one that the certificate proves.
pub fn named(connection: &Connection, claim: &Claim<'_>) -> Option<UserName> {
    match proved(connection, claim) {
        Ok(Named::User(subject)) => Some(UserName::new(subject, EXTERNAL)),
        Ok(Named::Member(_)) | Err(_) => None,
    }
}

fn enter<'a>(
    access: &AccessControl,
    connection: &'a Connection,
    claim: &Claim<'_>,
    users: &dyn Users,
) -> Result<&'a str, CommandError> {
    let subject = match proved(connection, claim)? {
        Named::User(subject) => subject,
        Named::Member(subject) => {
            access.enter(connection, Arc::new(member()));
            return Ok(subject);
        }
    };
    let name = UserName::new(subject, EXTERNAL);
    let user = users.authorized(&name)?.ok_or_else(|| {
        CommandError::new(
            ErrorCode::UserNotFound,
            format!("Could not find user \"{subject}\" for db \"{EXTERNAL}\""),
        )
    })?;
    if !user.may_come_by(connection) {
        return Err(failed("Authentication failed."));
    }
    access.enter(connection, user);
    info!(
        connection = connection.id,
        user = %name,
        mechanism = MECHANISM,
        remote = %connection.peer,
        "Successfully authenticated"
    );
    Ok(subject)
}

/// What a member proves on the connections that it opens: its certificate or its key, as
/// `--clusterAuthMode` says at the time.
pub struct ClusterLogin {
    pub keys: Option<MemberLogin>,
    /// `--transitionToAuth`: a peer that does not believe it is talked to all the same.
    pub optional: bool,
}

impl Login for ClusterLogin {
    fn begin(&self) -> Box<dyn Conversation> {
        match &self.keys {
            Some(keys) if !login::cluster_auth_mode().shows_certificate() => keys.begin(),
            _ => Box::new(Shown {
                optional: self.optional,
            }),
        }
    }
}

/// The certificate was shown in the handshake; what is left is to say that it is meant.
struct Shown {
    optional: bool,
}

impl Conversation for Shown {
    fn next(
        &mut self,
        reply: Option<&RawDocument>,
    ) -> Result<Option<(&'static str, RawDocumentBuf)>, String> {
        match reply.map(CommandError::from_reply) {
            None => Ok(Some((
                EXTERNAL,
                rawdoc! { "authenticate": 1, "mechanism": MECHANISM },
            ))),
            Some(Some(error)) if !self.optional => Err(format!(
                "the peer does not take this process's certificate for a member's: {error}"
            )),
            Some(_) => Ok(None),
        }
    }
}
