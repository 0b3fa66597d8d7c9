//! Which databases and collections a client is told of.

use std::sync::Arc;

use banyan_document::is_true;
use banyan_security::{Action, ActionSet, Resource};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use crate::identity::Identity;
use crate::pipelines::reaches_collection;

/// Who must not see all databases, or does not want to, sees those in which it may find something.
/// `asked`: `authorizedDatabases`. `None`: all are shown.
pub fn databases(
    identity: Arc<Identity>,
    asked: Option<bool>,
) -> Result<Option<Arc<Identity>>, CommandError> {
    let may_see_all = identity.allows(Action::ListDatabases, Resource::Cluster);
    match asked {
        Some(false) if !may_see_all => Err(CommandError::new(
            ErrorCode::Unauthorized,
            "Insufficient permissions to list all databases",
        )),
        Some(true) => Ok(Some(identity)),
        _ if may_see_all => Ok(None),
        _ => Ok(Some(identity)),
    }
}

pub fn reaches_into(identity: &Identity, database: &str) -> bool {
    let find = ActionSet::of(&[Action::Find]);
    identity
        .privileges()
        .any(|privileges| privileges.allow_something_in(database, find))
}

/// Who must not list the database, or does not want to, sees collections with which it may do
/// something. `None`: all are shown.
pub fn collections(
    identity: Arc<Identity>,
    database: &str,
    request: &RawDocument,
) -> Option<Arc<Identity>> {
    let asked = |name| banyan_document::field(request, name).is_some_and(is_true);
    let may_see_all = identity.allows(Action::ListCollections, Resource::Database(database));
    let wants_own = asked("authorizedCollections") && asked("nameOnly");
    (wants_own || !may_see_all).then_some(identity)
}

pub fn reaches(identity: &Identity, database: &str, collection: &str) -> bool {
    identity.privileges().any(|privileges| {
        let mut own = privileges.iter();
        own.any(|own| reaches_collection(&own.resource, database, collection))
    })
}

/// A filter on names that lets those through which [`reaches`] does, for a process that does not
/// know the collections. `None`: all of them.
pub fn reached_names(identity: &Identity, database: &str) -> Option<RawDocumentBuf> {
    /// No privilege names a collection so, as no collection can be called that.
    const ANY: &str = "\u{1}";
    const ANY_SYSTEM: &str = "system.\u{1}";
    let all_system = reaches(identity, database, ANY_SYSTEM);
    let all_others = reaches(identity, database, ANY);
    if all_system && all_others {
        return None;
    }
    let mut names = bson::RawArrayBuf::new();
    let named = identity.privileges().flat_map(|own| own.iter());
    for name in named.filter_map(|privilege| privilege.resource.collection()) {
        if reaches(identity, database, name) {
            names.push(name);
        }
    }
    let mut any = bson::RawArrayBuf::from_iter([rawdoc! { "name": { "$in": names } }]);
    let system = bson::Regex {
        pattern: bson::cstr!("^system\\.").into(),
        options: bson::cstr!("").into(),
    };
    if all_others {
        any.push(rawdoc! { "name": { "$not": system } });
    } else if all_system {
        any.push(rawdoc! { "name": system });
    }
    Some(rawdoc! { "$or": any })
}
