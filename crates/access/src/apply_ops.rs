//! What the operations of an `applyOps` need, each by itself.

use banyan_security::{Action, ResourcePattern};
use bson::{RawBsonRef, RawDocument};

use crate::check::Check;
use crate::reads_and_writes;

pub fn apply_ops(check: &Check<'_>) -> bool {
    let rules = Rules {
        upserts: !check
            .all("alwaysUpsert")
            .any(|flag| flag == RawBsonRef::Boolean(false)),
        bypasses: check.flag("bypassDocumentValidation"),
    };
    check.all("applyOps").all(|list| rules.all(check, list))
        && check
            .all("preCondition")
            .all(|list| conditions(check, list))
}

/// What documents have to be is found out by reading them.
fn conditions(check: &Check<'_>, list: RawBsonRef<'_>) -> bool {
    let RawBsonRef::Array(list) = list else {
        // The command itself refuses it.
        return true;
    };
    let mut conditions = list.into_iter().flatten();
    conditions.all(|condition| {
        let condition = condition.as_document();
        let ns = condition.and_then(|condition| banyan_document::field(condition, "ns"));
        let ns = ns
            .and_then(|ns| ns.as_str())
            .and_then(|ns| ns.split_once('.'));
        ns.is_none_or(|(database, collection)| check.on(database, collection, Action::Find))
    })
}

struct Rules {
    upserts: bool,
    bypasses: bool,
}

/// Whether the client may do anything at all.
fn may_do_anything(check: &Check<'_>) -> bool {
    check.identity.privileges().any(|privileges| {
        privileges.iter().any(|own| {
            own.resource == ResourcePattern::AnyResource && own.actions.allows(Action::AnyAction)
        })
    })
}

impl Rules {
    fn all(&self, check: &Check<'_>, list: RawBsonRef<'_>) -> bool {
        match list {
            RawBsonRef::Array(list) if list.is_empty() => may_do_anything(check),
            RawBsonRef::Array(list) => {
                check.cluster(Action::ApplyOps)
                    && list.into_iter().flatten().all(|item| match item {
                        RawBsonRef::Document(operation) => self.one(check, operation),
                        // The command itself refuses it.
                        _ => true,
                    })
            }
            _ => check.cluster(Action::ApplyOps),
        }
    }

    fn one(&self, check: &Check<'_>, operation: &RawDocument) -> bool {
        let get = |name| banyan_document::field(operation, name);
        if let Some(RawBsonRef::Binary(_)) = get("ui")
            && !check.cluster(Action::UseUUID)
        {
            return false;
        }
        let namespace = get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
        let (database, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
        let on = |action| check.on(database, collection, action);
        let writes =
            |action| on(action) && (!self.bypasses || on(Action::BypassDocumentValidation));
        // An update says for itself, too, that it inserts.
        let upserts = self.upserts || get("b") == Some(RawBsonRef::Boolean(true));
        match get("op").and_then(|op| op.as_str()) {
            Some("n") => check.cluster(Action::AppendOplogNote),
            Some("i") => writes(Action::Insert),
            Some("u") => writes(Action::Update) && (!upserts || on(Action::Insert)),
            Some("d") => on(Action::Remove),
            Some("c") => match get("o") {
                Some(RawBsonRef::Document(o)) => command(check, database, o),
                // The command itself refuses it.
                _ => true,
            },
            _ => true,
        }
    }
}

/// What the command needs that an entry holds.
fn command(check: &Check<'_>, database: &str, o: &RawDocument) -> bool {
    let inner = Check {
        database,
        ..check.inner(o)
    };
    let first = banyan_document::elements(o).next();
    match first.as_ref().map_or("", |first| first.name()) {
        "create" => reads_and_writes::create(&inner),
        "collMod" => reads_and_writes::coll_mod(&inner),
        "drop" => inner.collection(Action::DropCollection),
        "dropDatabase" => check.on_database(database, Action::DropDatabase),
        "deleteIndex" | "deleteIndexes" | "dropIndexes" => inner.collection(Action::DropIndex),
        "renameCollection" => reads_and_writes::rename(&inner),
        _ => may_do_anything(check),
    }
}
