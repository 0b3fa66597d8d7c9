//! What managing a sharded cluster needs, as MongoDB's manual has it: who may write the documents
//! in which the cluster is described may run the commands that do.

use banyan_security::Action;

use super::check::Check;

const CONFIG: &str = "config";

/// The action on the collection whose full name is the command's own field.
fn on_named(check: &Check<'_>, action: Action) -> bool {
    let parts = check.named().and_then(|name| name.split_once('.'));
    parts.is_some_and(|(database, collection)| check.on(database, collection, action))
}

pub fn shard_collection(check: &Check<'_>) -> bool {
    on_named(check, Action::EnableSharding)
}

pub fn split(check: &Check<'_>) -> bool {
    on_named(check, Action::SplitChunk)
}

pub fn move_chunk(check: &Check<'_>) -> bool {
    on_named(check, Action::MoveChunk)
}

pub fn get_shard_version(check: &Check<'_>) -> bool {
    on_named(check, Action::GetShardVersion)
}

/// The database is the command's own field.
pub fn enable_sharding(check: &Check<'_>) -> bool {
    let database = check.named();
    database.is_some_and(|database| check.on_database(database, Action::EnableSharding))
}

pub fn control_balancer(check: &Check<'_>) -> bool {
    check.on(CONFIG, "settings", Action::Update)
}

pub fn balancer_status(check: &Check<'_>) -> bool {
    check.on(CONFIG, "settings", Action::Find)
}

pub fn add_shard_to_zone(check: &Check<'_>) -> bool {
    check.cluster(Action::EnableSharding) || check.on(CONFIG, "shards", Action::Update)
}

pub fn remove_shard_from_zone(check: &Check<'_>) -> bool {
    check.cluster(Action::EnableSharding)
        || (check.on(CONFIG, "shards", Action::Update) && check.on(CONFIG, "tags", Action::Find))
}

pub fn update_zone_key_range(check: &Check<'_>) -> bool {
    let tags = [Action::Find, Action::Update, Action::Remove];
    check.cluster(Action::EnableSharding)
        || (check.on(CONFIG, "shards", Action::Find)
            && tags.iter().all(|action| check.on(CONFIG, "tags", *action)))
}
