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
    // What a pattern that names no collection covers, it covers whatever a collection is called.
    let covers_any = |like: &str| {
        let mut own = identity.privileges().flat_map(|own| own.iter());
        own.any(|own| {
            own.resource.collection().is_none() && reaches_collection(&own.resource, database, like)
        })
    };
    let (all_system, all_others) = (covers_any("system.any"), covers_any("any"));
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

#[cfg(test)]
mod tests {
    use banyan_query::Context;
    use banyan_query::filter::Filter;
    use banyan_security::RoleName;

    use super::*;
    use crate::fixture::identity;

    #[test]
    fn the_filter_lets_through_what_is_reached() {
        let finds = |database: &str, collection: &str| {
            rawdoc! {
                "resource": { "db": database, "collection": collection }, "actions": ["find"],
            }
        };
        let cases = [
            identity(&[RoleName::new("readWrite", "t")], &[]),
            identity(&[RoleName::new("root", "admin")], &[]),
            identity(&[RoleName::new("__system", "admin")], &[]),
            identity(&[RoleName::new("readWrite", "other")], &[]),
            identity(&[], &[finds("t", "one"), finds("", "two"), finds("u", "c")]),
            identity(&[], &[finds("t", "any"), finds("t", "system.any")]),
            identity(&[], &[finds("t", ""), finds("t", "system.views")]),
        ];
        let names = [
            "one",
            "two",
            "c",
            "any",
            "system.any",
            "system.views",
            "system.js",
            "sys",
        ];
        for identity in &cases {
            let filter = reached_names(identity, "t");
            for name in names {
                let shown = match &filter {
                    Some(filter) => {
                        let filter = Filter::parse(filter, &Context::default()).unwrap();
                        filter.try_matches(&rawdoc! { "name": name }).unwrap()
                    }
                    None => true,
                };
                assert_eq!(shown, reaches(identity, "t", name), "{name}: {filter:?}");
            }
        }
    }
}
