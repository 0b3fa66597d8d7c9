//! What a pipeline needs: every collection that it reads or writes, and what its stages tell.
//!
//! A field that is given twice counts each time, and a stage that is not named here is denied.

use banyan_document::elements;
use banyan_security::{Action, Resource, ResourcePattern};
use bson::{RawArray, RawBsonRef, RawDocument};

use crate::check::{Check, is_true};

/// Nested pipelines deeper than MongoDB's are refused later anyhow.
const DEPTH_MAX: usize = 64;

/// Whether a client may run the stages over a collection of the request's database; without one,
/// over what the first stage makes.
pub fn allowed(check: &Check<'_>, collection: Option<&str>, stages: &RawArray) -> bool {
    nested(check, check.database, collection, stages, 0)
}

/// What the first stage reads instead of documents of the collection.
enum Reads {
    Documents,
    /// Something else, which this client may.
    Else(bool),
}

fn nested(
    check: &Check<'_>,
    database: &str,
    collection: Option<&str>,
    stages: &RawArray,
    depth: usize,
) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    let mut is_first = true;
    let mut reads = Reads::Documents;
    for item in stages {
        let Ok(RawBsonRef::Document(stage)) = item else {
            return false;
        };
        for element in elements(stage) {
            let (name, argument) = (element.name(), element.value());
            if is_first {
                reads = first(check, database, collection, name, argument);
                is_first = false;
            }
            if !stage_allowed(check, database, name, argument, depth) {
                return false;
            }
        }
    }
    match reads {
        Reads::Else(allowed) => allowed,
        Reads::Documents => collection.is_some_and(|name| check.on(database, name, Action::Find)),
    }
}

fn first(
    check: &Check<'_>,
    database: &str,
    collection: Option<&str>,
    stage: &str,
    argument: RawBsonRef<'_>,
) -> Reads {
    let on = |action| collection.is_some_and(|name| check.on(database, name, action));
    Reads::Else(match stage {
        "$collStats" => on(Action::CollStats),
        "$indexStats" => on(Action::IndexStats),
        "$planCacheStats" => on(Action::PlanCacheRead),
        // Its documents are in the request; who may read nothing may not do so either.
        "$documents" => {
            let name = collection.unwrap_or("$cmd.aggregate");
            check.on(database, name, Action::Find)
        }
        // What it tells of others is settled with the stage.
        "$currentOp" | "$listLocalSessions" | "$listSessions" => check.identity.is_authenticated(),
        "$changeStream" => change_stream(check, database, collection, argument),
        "$listCatalog" => catalog(check, database, collection),
        "$listClusterCatalog" => cluster_catalog(check, database),
        "$shardedDataDistribution" => check.cluster(Action::ShardedDataDistribution),
        "$querySettings" => check.cluster(Action::QuerySettings),
        "$queryStats" => query_stats(check, argument),
        _ => return Reads::Documents,
    })
}

/// Who sees clients' names hashed only may see less.
fn query_stats(check: &Check<'_>, argument: RawBsonRef<'_>) -> bool {
    let is_transformed = argument.as_document().is_some_and(|options| {
        elements(options).any(|field| field.name() == "transformIdentifiers")
    });
    match is_transformed {
        true => check.cluster(Action::QueryStatsReadTransformed),
        false => check.cluster(Action::QueryStatsRead),
    }
}

/// What the catalog says of a collection, or of all that there are.
fn catalog(check: &Check<'_>, database: &str, collection: Option<&str>) -> bool {
    let both = [Action::ListCollections, Action::ListIndexes];
    let on =
        |database: &str, name: &str| both.iter().all(|action| check.on(database, name, *action));
    match collection {
        Some(name) => on(database, name),
        None => {
            check.cluster(Action::ListDatabases)
                && both.iter().all(|action| check.everywhere(*action))
                && on(database, "system.js")
                && on(database, "system.buckets.any")
        }
    }
}

/// What there is in a database, or in all of them.
fn cluster_catalog(check: &Check<'_>, database: &str) -> bool {
    match database {
        "admin" => {
            check.cluster(Action::ListDatabases) && check.everywhere(Action::ListCollections)
        }
        _ => check.on_database(database, Action::ListCollections),
    }
}

fn change_stream(
    check: &Check<'_>,
    database: &str,
    collection: Option<&str>,
    argument: RawBsonRef<'_>,
) -> bool {
    let whole_cluster = argument.as_document().is_some_and(|options| {
        elements(options)
            .any(|field| field.name() == "allChangesForCluster" && is_true(field.value()))
    });
    let both = [Action::ChangeStream, Action::Find];
    match collection {
        _ if whole_cluster => both.iter().all(|action| check.everywhere(*action)),
        Some(name) => both.iter().all(|action| check.on(database, name, *action)),
        // Of every collection of the database.
        None => both
            .iter()
            .all(|action| check.on_database(database, *action)),
    }
}

fn stage_allowed(
    check: &Check<'_>,
    database: &str,
    stage: &str,
    argument: RawBsonRef<'_>,
    depth: usize,
) -> bool {
    match (stage, argument) {
        ("$lookup" | "$graphLookup" | "$unionWith", RawBsonRef::String(name)) => {
            check.on(database, name, Action::Find)
        }
        ("$lookup" | "$graphLookup" | "$unionWith", RawBsonRef::Document(fields)) => {
            foreign(check, database, fields, depth)
        }
        ("$facet", RawBsonRef::Document(facets)) => {
            elements(facets).all(|facet| match facet.value() {
                RawBsonRef::Array(stages) => inner(check, database, stages, depth),
                _ => false,
            })
        }
        ("$out", target) => output(check, database, target, &[Action::Insert, Action::Remove]),
        ("$merge", RawBsonRef::String(_)) => {
            output(check, database, argument, &[Action::Insert, Action::Update])
        }
        ("$merge", RawBsonRef::Document(fields)) => merge(check, database, fields),
        ("$currentOp", RawBsonRef::Document(options)) => {
            !asks_for_all(options) || check.cluster(Action::Inprog)
        }
        ("$listSessions" | "$listLocalSessions", RawBsonRef::Document(options)) => {
            lists_sessions(check, options)
        }
        _ => is_harmless(stage),
    }
}

/// These see nothing but what the stages before them hand on, or were settled by [`first`].
pub fn is_harmless(stage: &str) -> bool {
    matches!(
        stage,
        "$_internalDensify"
            | "$_internalDropMetadata"
            | "$_internalDropTextScore"
            | "$_internalUnpackBucket"
            | "$addFields"
            | "$bucket"
            | "$bucketAuto"
            | "$changeStream"
            | "$changeStreamSplitLargeEvent"
            | "$collStats"
            | "$count"
            | "$densify"
            | "$documents"
            | "$fill"
            | "$geoNear"
            | "$group"
            | "$indexStats"
            | "$limit"
            | "$listCatalog"
            | "$listClusterCatalog"
            | "$match"
            | "$planCacheStats"
            | "$project"
            | "$querySettings"
            | "$queryStats"
            | "$redact"
            | "$replaceRoot"
            | "$replaceWith"
            | "$sample"
            | "$set"
            | "$setWindowFields"
            | "$shardedDataDistribution"
            | "$skip"
            | "$sort"
            | "$sortByCount"
            | "$unset"
            | "$unwind"
    )
}

/// The stages of a `$facet` read what came before it.
fn inner(check: &Check<'_>, database: &str, stages: &RawArray, depth: usize) -> bool {
    depth < DEPTH_MAX
        && stages.into_iter().all(|item| match item {
            Ok(RawBsonRef::Document(stage)) => elements(stage).all(|element| {
                stage_allowed(check, database, element.name(), element.value(), depth + 1)
            }),
            _ => false,
        })
}

/// The collection that a stage reads beside its own, and the pipeline that runs over it.
fn foreign(check: &Check<'_>, database: &str, fields: &RawDocument, depth: usize) -> bool {
    let mut names = Vec::new();
    let mut databases = vec![database];
    let mut pipelines = Vec::new();
    for field in elements(fields) {
        match (field.name(), field.value()) {
            ("from" | "coll", RawBsonRef::String(name)) => names.push(name),
            ("from" | "coll", RawBsonRef::Document(target)) => {
                for part in elements(target) {
                    match (part.name(), part.value()) {
                        ("coll", RawBsonRef::String(name)) => names.push(name),
                        ("db", RawBsonRef::String(name)) => databases.push(name),
                        _ => return false,
                    }
                }
            }
            ("from" | "coll", _) => return false,
            ("db", RawBsonRef::String(name)) => databases.push(name),
            ("pipeline", RawBsonRef::Array(stages)) => pipelines.push(stages),
            _ => {}
        }
    }
    // The last one named is meant; the request's own counts only where no other is.
    let databases = match databases.len() {
        1 => &databases[..],
        _ => &databases[1..],
    };
    let over = |database: &str, name: Option<&str>| {
        pipelines
            .iter()
            .all(|stages| nested(check, database, name, stages, depth + 1))
    };
    if names.is_empty() {
        return !pipelines.is_empty() && over(database, None);
    }
    databases.iter().all(|database| {
        names
            .iter()
            .all(|name| check.on(database, name, Action::Find) && over(database, Some(name)))
    })
}

fn output(check: &Check<'_>, database: &str, target: RawBsonRef<'_>, actions: &[Action]) -> bool {
    let mut names = Vec::new();
    let mut databases = Vec::new();
    match target {
        RawBsonRef::String(name) => names.push(name),
        RawBsonRef::Document(target) => {
            for part in elements(target) {
                match (part.name(), part.value()) {
                    ("coll", RawBsonRef::String(name)) => names.push(name),
                    // Without a name it is the pipeline's own.
                    ("db", RawBsonRef::String("")) => databases.push(database),
                    ("db", RawBsonRef::String(name)) => databases.push(name),
                    _ => {}
                }
            }
        }
        _ => return false,
    }
    if databases.is_empty() {
        databases.push(database);
    }
    let bypass = check.flag("bypassDocumentValidation");
    !names.is_empty()
        && databases.iter().all(|database| {
            names.iter().all(|name| {
                actions
                    .iter()
                    .all(|action| check.on(database, name, *action))
                    && (!bypass || check.on(database, name, Action::BypassDocumentValidation))
            })
        })
}

fn merge(check: &Check<'_>, database: &str, fields: &RawDocument) -> bool {
    let mut into = None;
    let (mut matched, mut not_matched) = ("merge", "insert");
    for field in elements(fields) {
        match (field.name(), field.value()) {
            ("into", value) if into.is_none() => into = Some(value),
            ("into", _) => return false,
            ("whenMatched", RawBsonRef::String(mode)) => matched = mode,
            ("whenMatched", _) => matched = "pipeline",
            ("whenNotMatched", RawBsonRef::String(mode)) => not_matched = mode,
            _ => {}
        }
    }
    let actions: &[Action] = match (matched, not_matched) {
        ("fail", "insert") => &[Action::Insert],
        (_, "insert") => &[Action::Insert, Action::Update],
        _ => &[Action::Update],
    };
    into.is_some_and(|target| output(check, database, target, actions))
}

fn asks_for_all(options: &RawDocument) -> bool {
    elements(options).any(|field| field.name() == "allUsers" && is_true(field.value()))
}

/// One's own sessions anybody may list.
fn lists_sessions(check: &Check<'_>, options: &RawDocument) -> bool {
    let own = |user: RawBsonRef<'_>| {
        let user = user.as_document();
        let part = |name| user.and_then(|user| banyan_document::field(user, name)?.as_str());
        match (part("user"), part("db")) {
            (Some(user), Some(database)) => {
                let mut users = check.identity.users.iter();
                users.any(|own| own.name.user == user && own.name.database == database)
            }
            _ => false,
        }
    };
    let only_own = !asks_for_all(options)
        && elements(options).all(|field| match (field.name(), field.value()) {
            ("users", RawBsonRef::Array(users)) => {
                users.into_iter().all(|user| user.is_ok_and(own))
            }
            ("users", _) => false,
            _ => true,
        });
    only_own || check.cluster(Action::ListSessions)
}

/// Whether a privilege on the pattern reaches the collection.
pub fn reaches_collection(pattern: &ResourcePattern, database: &str, collection: &str) -> bool {
    pattern.covers(Resource::Collection {
        database,
        collection,
    })
}

#[cfg(test)]
mod tests {
    use banyan_query::pipeline::stage_names;
    use banyan_security::RoleName;
    use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

    use super::*;
    use crate::fixture::identity;
    use crate::identity::Identity;

    fn may(identity: &Identity, stages: RawArrayBuf) -> bool {
        let body = rawdoc! { "aggregate": "c" };
        let check = Check {
            identity,
            localhost: false,
            database: "t",
            body: &body,
            sequences: &[],
        };
        allowed(&check, Some("c"), &stages)
    }

    #[test]
    fn every_stage_that_can_be_run_is_judged() {
        let member = identity(&[RoleName::new("__system", "admin")], &[]);
        for name in stage_names() {
            let argument: bson::RawBson = match name {
                "$facet" => rawdoc! {}.into(),
                "$out" | "$merge" | "$unionWith" => "d".into(),
                "$lookup" | "$graphLookup" => rawdoc! { "from": "d" }.into(),
                _ => rawdoc! {}.into(),
            };
            let mut stage = RawDocumentBuf::new();
            stage.append(bson::raw::CString::try_from(name).unwrap(), argument);
            assert!(may(&member, RawArrayBuf::from_iter([stage])), "{name}");
        }
        let unknown = RawArrayBuf::from_iter([rawdoc! { "$unheardOf": {} }]);
        assert!(!may(&member, unknown));
    }

    #[test]
    fn a_field_that_is_given_twice_counts_twice() {
        let own = rawdoc! {
            "resource": { "db": "t", "collection": "c" }, "actions": ["find"],
        };
        let reader = identity(&[], &[own]);
        let lookup = |names: [&str; 2]| {
            let mut fields = RawDocumentBuf::new();
            for name in names {
                fields.append(bson::cstr!("from"), name);
            }
            RawArrayBuf::from_iter([rawdoc! { "$lookup": fields }])
        };
        assert!(may(&reader, lookup(["c", "c"])));
        assert!(!may(&reader, lookup(["c", "secret"])));
        assert!(!may(&reader, lookup(["secret", "c"])));
        let mut two = RawDocumentBuf::new();
        two.append(bson::cstr!("$match"), rawdoc! {});
        two.append(bson::cstr!("$unionWith"), "secret");
        assert!(!may(&reader, RawArrayBuf::from_iter([two])));
    }

    #[test]
    fn nesting_has_an_end() {
        let member = identity(&[RoleName::new("__system", "admin")], &[]);
        let mut stages = RawArrayBuf::from_iter([rawdoc! { "$match": {} }]);
        for _ in 0..=DEPTH_MAX + 1 {
            let facet = rawdoc! { "$facet": { "a": stages } };
            stages = RawArrayBuf::from_iter([facet]);
        }
        assert!(!may(&member, stages));
    }
}
