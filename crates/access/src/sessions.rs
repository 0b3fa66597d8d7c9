//! Whose a logical session is, and which ones `killSessions` and its relatives are about.
//!
//! A session belongs to the user that names it: its `uid` is the digest of `user@database`, and the
//! same `id` of another user is another session. Members name the user, as they speak for others.

use banyan_security::{Action, Resource, UserName};
use banyan_wire::session_id::{Lsid, Uid, parse_in, parse_uid};
use banyan_wire::{CommandError, ErrorCode, SessionId, params};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::identity::{Identity, Owner};

/// What may name another user's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Who may speak for others.
    Members,
    /// As well who may end any session.
    Killers,
}

/// The user whose sessions the owner's are; `None` where users do not count, and for who has not
/// logged in.
pub fn user_of(owner: Option<&Owner>) -> Option<Uid> {
    let somebody = owner.filter(|owner| !owner.is_nobody());
    somebody.map(Owner::digest)
}

/// The owner's session of that id.
pub fn own(id: [u8; 16], owner: Option<&Owner>) -> SessionId {
    let user = user_of(owner);
    SessionId { id, user }
}

/// The session that a client means.
///
/// # Errors
/// It names another user, and may not.
pub fn resolve(
    lsid: Lsid,
    owner: Option<&Owner>,
    identity: &Identity,
    naming: Naming,
) -> Result<SessionId, CommandError> {
    let own = user_of(owner);
    let user = match lsid.uid {
        None => own,
        Some(uid) if uid == own || owner.is_none() => uid,
        Some(uid) if may_name(identity, naming) => uid,
        Some(_) => {
            return Err(CommandError::new(
                ErrorCode::Unauthorized,
                "Unauthorized to set user digest in LogicalSessionId",
            ));
        }
    };
    Ok(SessionId { id: lsid.id, user })
}

fn may_name(identity: &Identity, naming: Naming) -> bool {
    let may = |action| identity.allows(action, Resource::Cluster);
    may(Action::Impersonate) || (naming == Naming::Killers && may(Action::KillAnySession))
}

/// The sessions in the array of a command; `place` is how messages name the array's elements.
pub fn named(field: params::Field<'_>, place: &str) -> Result<Vec<Lsid>, CommandError> {
    let documents = params::documents(field)?;
    let parse = |lsid| parse_in(lsid, place);
    documents.into_iter().map(parse).collect()
}

/// Which sessions are meant; without a part, whatever it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pattern {
    pub session: Option<SessionId>,
    pub user: Option<Option<Uid>>,
}

impl Pattern {
    pub fn of_session(session: SessionId) -> Pattern {
        Pattern {
            session: Some(session),
            user: None,
        }
    }

    pub fn of_user(user: Option<Uid>) -> Pattern {
        Pattern {
            session: None,
            user: Some(user),
        }
    }

    pub fn matches(&self, session: &SessionId) -> bool {
        self.session.is_none_or(|meant| meant == *session)
            && self.user.is_none_or(|user| user == session.user)
    }

    /// As `killAllSessionsByPattern` takes it.
    pub fn document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        if let Some(session) = &self.session {
            document.append(bson::cstr!("lsid"), session.document());
        }
        if let Some(user) = self.user {
            let somebody = SessionId { id: [0; 16], user };
            document.append(bson::cstr!("uid"), somebody.uid());
        }
        document
    }
}

/// The command by which one process tells another which sessions to end.
pub fn kill_command(patterns: &[Pattern]) -> RawDocumentBuf {
    let patterns: bson::RawArrayBuf = patterns.iter().map(Pattern::document).collect();
    rawdoc! { "killAllSessionsByPattern": patterns }
}

const PATTERN_COMMAND: &str = "KillAllSessionsByPatternCmd";
const PATTERN: &str = "KillAllSessionsByPatternCmd.killAllSessionsByPattern";
const PATTERN_LSID: &str = "KillAllSessionsByPatternCmd.killAllSessionsByPattern.lsid";

/// The patterns of `killAllSessionsByPattern`. None means all sessions. `identity`: who asks, if users
/// count.
///
/// # Errors
/// A pattern cannot be read, or names users to speak for, and the client is no member.
pub fn patterns(
    value: RawBsonRef<'_>,
    identity: Option<&Identity>,
) -> Result<Vec<Pattern>, CommandError> {
    let documents = params::documents(params::Field {
        command: PATTERN_COMMAND,
        name: "killAllSessionsByPattern",
        value,
    })?;
    let read = |document| pattern(document, identity);
    let mut patterns: Vec<Pattern> = documents.into_iter().map(read).collect::<Result<_, _>>()?;
    if patterns.is_empty() {
        patterns.push(Pattern::default());
    }
    Ok(patterns)
}

fn pattern(document: &RawDocument, identity: Option<&Identity>) -> Result<Pattern, CommandError> {
    let mut pattern = Pattern::default();
    for field in params::once(PATTERN, document) {
        let field = field?;
        match field.name {
            "lsid" | "uid" if field.is_null() => {}
            "lsid" => {
                let lsid = parse_in(field.document()?, PATTERN_LSID)?;
                let missing = || params::missing_field(PATTERN_LSID, "uid");
                pattern.session = Some(SessionId {
                    id: lsid.id,
                    user: lsid.uid.ok_or_else(missing)?,
                });
            }
            "uid" => pattern.user = Some(parse_uid(field.value, PATTERN)?),
            // They say whom it is done for, and narrow nothing.
            "users" | "roles" => {
                params::documents(field)?;
                if identity.is_some_and(|identity| !may_name(identity, Naming::Members)) {
                    return Err(CommandError::new(
                        ErrorCode::Unauthorized,
                        "Not authorized to impersonate in killAllSessionsByPattern",
                    ));
                }
            }
            other => return Err(params::unknown_field(PATTERN, other)),
        }
    }
    Ok(pattern)
}

const ALL_COMMAND: &str = "KillAllSessionsCmd";
const ALL: &str = "KillAllSessionsCmd.killAllSessions";

/// The users of `killAllSessions`. None means everybody.
pub fn users(value: RawBsonRef<'_>) -> Result<Vec<UserName>, CommandError> {
    let documents = params::documents(params::Field {
        command: ALL_COMMAND,
        name: "killAllSessions",
        value,
    })?;
    documents.into_iter().map(user).collect()
}

fn user(document: &RawDocument) -> Result<UserName, CommandError> {
    let (mut user, mut database) = (None, None);
    for field in params::given(ALL, document, &["user", "db"]) {
        let field = field?;
        match field.name {
            "user" => user = Some(field.str()?),
            _ => database = Some(field.str()?),
        }
    }
    let missing = |name| params::missing_field(ALL, name);
    Ok(UserName::new(
        user.ok_or_else(|| missing("user"))?,
        database.ok_or_else(|| missing("db"))?,
    ))
}

/// A user whose sessions cannot be ended, as there is none of that name.
pub fn no_user(name: &UserName) -> CommandError {
    CommandError::new(
        ErrorCode::UserNotFound,
        format!(
            "Could not find user \"{}\" for db \"{}\"",
            name.user, name.database
        ),
    )
}

#[cfg(test)]
mod tests {
    use banyan_security::RoleName;
    use bson::RawBson;

    use super::*;
    use crate::fixture;
    use crate::identity::digest_of;

    fn user_with(role: &str) -> Identity {
        fixture::identity(&[RoleName::new(role, "admin")], &[])
    }

    fn lsid(uid: Option<Option<Uid>>) -> Lsid {
        Lsid { id: [1; 16], uid }
    }

    #[test]
    fn a_session_is_its_users_own() {
        let (plain, killer, member) = (
            user_with("read"),
            user_with("hostManager"),
            user_with("__system"),
        );
        let own = digest_of(&UserName::new("a", "admin"));
        let other = Some([9; 32]);
        let mean = |uid, identity: &Identity, naming| {
            let found = resolve(lsid(uid), Some(identity.owner()), identity, naming);
            found.map(|found| found.user).map_err(|error| error.code)
        };
        let refused = Err(ErrorCode::Unauthorized);
        for identity in [&plain, &killer, &member] {
            assert_eq!(mean(None, identity, Naming::Members), Ok(Some(own)));
            let named = mean(Some(Some(own)), identity, Naming::Members);
            assert_eq!(named, Ok(Some(own)));
        }
        assert_eq!(mean(Some(other), &plain, Naming::Killers), refused);
        assert_eq!(mean(Some(other), &killer, Naming::Members), refused);
        assert_eq!(mean(Some(other), &killer, Naming::Killers), Ok(other));
        assert_eq!(mean(Some(other), &member, Naming::Members), Ok(other));
        assert_eq!(mean(Some(None), &plain, Naming::Members), refused);
        // Users do not count.
        let nobody = Identity::default();
        for uid in [None, Some(None)] {
            let found = resolve(lsid(uid), None, &nobody, Naming::Members).unwrap();
            assert_eq!(found, SessionId::shared([1; 16]));
        }
    }

    #[test]
    fn patterns_are_read_as_they_are_told() {
        let (mine, theirs) = (
            SessionId {
                id: [1; 16],
                user: Some([2; 32]),
            },
            SessionId {
                id: [1; 16],
                user: Some([3; 32]),
            },
        );
        let both = Pattern {
            session: Some(mine),
            user: Some(theirs.user),
        };
        let told = [
            Pattern::of_session(mine),
            Pattern::of_user(theirs.user),
            Pattern::default(),
            both,
        ];
        let command = kill_command(&told);
        let array = banyan_document::first_value(&command).unwrap();
        assert_eq!(patterns(array, None).unwrap(), told);
        let matched = told.map(|pattern| [mine, theirs].map(|one| pattern.matches(&one)));
        let expected = [[true, false], [false, true], [true, true], [false, false]];
        assert_eq!(matched, expected);
        let none: RawBson = bson::RawArrayBuf::new().into();
        let all = patterns(none.as_raw_bson_ref(), None).unwrap();
        assert_eq!(all, [Pattern::default()]);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let killer = user_with("hostManager");
        let id = params::uuid(&[1; 16]);
        for (wrong, code) in [
            (rawdoc! { "x": 1 }, 40415),
            (rawdoc! { "uid": 1 }, 14),
            (rawdoc! { "lsid": 1 }, 14),
            (rawdoc! { "lsid": { "id": id } }, 40414),
            (rawdoc! { "users": [], "roles": [] }, 13),
        ] {
            let array: RawBson = bson::RawArrayBuf::from_iter([wrong]).into();
            let error = patterns(array.as_raw_bson_ref(), Some(&killer)).unwrap_err();
            assert_eq!(error.code.code(), code, "{array:?}");
        }
        for (wrong, code) in [
            (rawdoc! { "user": "a" }, 40414),
            (rawdoc! { "user": 1, "db": "b" }, 14),
            (rawdoc! { "user": "a", "db": "b", "c": 1 }, 40415),
        ] {
            let array: RawBson = bson::RawArrayBuf::from_iter([wrong]).into();
            let error = users(array.as_raw_bson_ref()).unwrap_err();
            assert_eq!(error.code.code(), code, "{array:?}");
        }
    }
}
