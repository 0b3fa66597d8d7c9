//! What reads and writes of documents need, where that depends on the request.

use banyan_security::Action;
use bson::{RawBsonRef, RawDocument};

use crate::check::{Access, Check, all_of, is_true};
use crate::pipelines;

/// What the command that `explain` explains needs. What cannot be explained is denied.
pub fn explained(check: &Check<'_>) -> bool {
    let Some(RawBsonRef::Document(body)) = banyan_document::first_value(check.body) else {
        return false;
    };
    let name = banyan_document::elements(body).next();
    let access = match name.as_ref().map(|element| element.name()) {
        Some("find" | "count" | "distinct") => Access::Collection(Action::Find),
        Some("aggregate") => Access::Checked(aggregate),
        Some("findAndModify" | "findandmodify") => Access::Checked(find_and_modify),
        Some("insert") => Access::Checked(insert),
        Some("update") => Access::Checked(update),
        Some("delete") => Access::Collection(Action::Remove),
        Some("mapReduce" | "mapreduce") => Access::Checked(map_reduce),
        _ => Access::Unnamed,
    };
    check.inner(body).meets(access)
}

/// Whether documents may go by a collection's validator, if the command wants them to.
fn bypasses(check: &Check<'_>) -> bool {
    !check.flag("bypassDocumentValidation") || check.collection(Action::BypassDocumentValidation)
}

pub fn insert(check: &Check<'_>) -> bool {
    check.collection(Action::Insert) && bypasses(check)
}

pub fn update(check: &Check<'_>) -> bool {
    let upserts = |statement: &RawDocument| all_of(statement, "upsert").any(is_true);
    let listed = check.all("updates").any(|updates| {
        let updates = updates.as_array().into_iter().flatten().flatten();
        let mut updates = updates.filter_map(|update| update.as_document());
        updates.any(upserts)
    });
    let sent = check.sequences.iter().flat_map(|sequence| sequence.docs());
    check.collection(Action::Update)
        && (!(listed || sent.into_iter().any(upserts)) || check.collection(Action::Insert))
        && bypasses(check)
}

/// Whether a command is an aggregation that writes its results somewhere.
pub fn writes_output(body: &RawDocument) -> bool {
    let Some(first) = banyan_document::elements(body).next() else {
        return false;
    };
    if first.name() != "aggregate" {
        return false;
    }
    let Some(RawBsonRef::Array(stages)) = banyan_document::field(body, "pipeline") else {
        return false;
    };
    let last = banyan_document::items(stages).last();
    let stage = last.and_then(|last| last.value().as_document());
    let output = stage.and_then(|stage| banyan_document::elements(stage).next());
    output.is_some_and(|stage| matches!(stage.name(), "$out" | "$merge"))
}

/// Whether a command is a map-reduce, or the last part of one over several shards, that writes its
/// results somewhere.
pub fn has_output(name: &str, body: &RawDocument) -> bool {
    matches!(name, "mapReduce" | "_shardMapReduceFinish")
        && match banyan_document::field(body, "out") {
            Some(RawBsonRef::Document(out)) => banyan_document::field(out, "inline").is_none(),
            other => other.is_some(),
        }
}

/// Whether a read ends after the time that `defaultMaxTimeMS` gives those that name none.
pub fn is_timed_read(name: &str, body: &RawDocument) -> bool {
    match name {
        "find" | "count" | "distinct" | "dbHash" => true,
        "aggregate" => !writes_output(body),
        _ => false,
    }
}

/// The collection is named with its database, whatever database the command is sent to.
pub fn data_size(check: &Check<'_>) -> bool {
    match check.named().and_then(|name| name.split_once('.')) {
        Some((database, collection)) => check.on(database, collection, Action::Find),
        // The command itself refuses it.
        None => check.identity.is_authenticated(),
    }
}

/// The chunks are read.
pub fn file_md5(check: &Check<'_>) -> bool {
    let mut roots = check.all("root").peekable();
    let reads = |root: &str| check.on(check.database, &format!("{root}.chunks"), Action::Find);
    if roots.peek().is_none() {
        return reads("fs");
    }
    roots.all(|root| root.as_str().is_none_or(reads))
}

/// Every operation of a `bulkWrite` on its collection. One whose collection cannot be told is refused
/// by the command itself.
pub fn bulk_write(check: &Check<'_>) -> bool {
    let bypasses = check.flag("bypassDocumentValidation");
    let lists = sent_documents(check, "nsInfo");
    let allowed = |database: &str, collection: &str, op: &RawDocument, kind: &str| {
        let on = |action| check.on(database, collection, action);
        let writes = match kind {
            "insert" => on(Action::Insert),
            "update" => {
                on(Action::Update) && (!all_of(op, "upsert").any(is_true) || on(Action::Insert))
            }
            "delete" => on(Action::Remove),
            _ => true,
        };
        writes && (!bypasses || on(Action::BypassDocumentValidation))
    };
    sent_documents(check, "ops")
        .into_iter()
        .flatten()
        .all(|op| {
            let Some(first) = banyan_document::elements(op).next() else {
                return true;
            };
            let place = banyan_wire::params::number(first.value());
            let Some(place) = place.and_then(|place| usize::try_from(place).ok()) else {
                return true;
            };
            lists.iter().filter_map(|list| list.get(place)).all(|info| {
                all_of(info, "ns").all(|name| {
                    let split = name.as_str().and_then(|name| name.split_once('.'));
                    split.is_none_or(|(database, collection)| {
                        allowed(database, collection, op, first.name())
                    })
                })
            })
        })
}

/// The documents of a field, of each time that it is given, whichever way they were sent.
fn sent_documents<'a>(check: &Check<'a>, field: &'a str) -> Vec<Vec<&'a RawDocument>> {
    let sequences = check.sequences.iter().filter(|one| one.identifier == field);
    let mut lists: Vec<Vec<_>> = sequences.map(|one| one.docs().collect()).collect();
    for value in check.all(field) {
        if let RawBsonRef::Array(array) = value {
            let documents = array.into_iter().flatten();
            lists.push(documents.filter_map(|one| one.as_document()).collect());
        }
    }
    lists
}

pub fn find_and_modify(check: &Check<'_>) -> bool {
    let removes = check.flag("remove");
    let updates = !removes || check.all("remove").any(|value| !is_true(value));
    let changes = (!removes || check.collection(Action::Remove))
        && (!updates || check.collection(Action::Update));
    check.collection(Action::Find)
        && changes
        && (!check.flag("upsert") || check.collection(Action::Insert))
        && bypasses(check)
}

pub fn aggregate(check: &Check<'_>) -> bool {
    let collection = match banyan_document::first_value(check.body) {
        Some(RawBsonRef::String(name)) => Some(name),
        _ => None,
    };
    let mut pipelines = check.all("pipeline").peekable();
    pipelines.peek().is_some()
        && pipelines.all(|pipeline| match pipeline {
            RawBsonRef::Array(stages) => pipelines::allowed(check, collection, stages),
            _ => false,
        })
}

/// The input is read; an output is emptied, inserted into and changed.
pub fn map_reduce(check: &Check<'_>) -> bool {
    let mut outs = check.all("out").peekable();
    outs.peek().is_some()
        && check.collection(Action::Find)
        && outs.all(|out| map_reduce_out(check, out))
}

fn map_reduce_out(check: &Check<'_>, out: RawBsonRef<'_>) -> bool {
    const REPLACE: &[Action] = &[Action::Insert, Action::Remove];
    const CHANGE: &[Action] = &[Action::Insert, Action::Update];
    let (mut targets, mut databases, mut is_inline) = (Vec::new(), Vec::new(), false);
    match out {
        RawBsonRef::String(name) => targets.push((name, REPLACE)),
        RawBsonRef::Document(options) => {
            for element in banyan_document::elements(options) {
                match (element.name(), element.value()) {
                    ("replace", RawBsonRef::String(name)) => targets.push((name, REPLACE)),
                    ("merge" | "reduce", RawBsonRef::String(name)) => targets.push((name, CHANGE)),
                    ("db", RawBsonRef::String(name)) => databases.push(name),
                    ("inline", _) => is_inline = true,
                    _ => {}
                }
            }
        }
        _ => return false,
    }
    if databases.is_empty() {
        databases.push(check.database);
    }
    let bypass = check.flag("bypassDocumentValidation");
    let writes = |database: &str, name: &str, actions: &[Action]| {
        let all = || actions.iter().all(|one| check.on(database, name, *one));
        all() && (!bypass || check.on(database, name, Action::BypassDocumentValidation))
    };
    (is_inline || !targets.is_empty())
        && databases.iter().all(|database| {
            let mut all = targets.iter();
            all.all(|(name, actions)| writes(database, name, actions))
        })
}

/// Within a database its own privilege will do, unless the new name would let the client read
/// what it could not read before, or either is a name that the server has given a meaning.
pub fn rename(check: &Check<'_>) -> bool {
    let (Some(from), Some(RawBsonRef::String(to))) = (check.named(), check.get("to")) else {
        return false;
    };
    let (Some((from_database, from)), Some((to_database, to))) =
        (from.split_once('.'), to.split_once('.'))
    else {
        return false;
    };
    let is_system = |name: &str| name.starts_with("system.");
    if from_database == to_database
        && !is_system(from)
        && !is_system(to)
        && check.on_database(from_database, Action::RenameCollectionSameDB)
    {
        let reads_source = check.on(from_database, from, Action::Find);
        let reads_target = check.on(to_database, to, Action::Find);
        if reads_source || !reads_target {
            return true;
        }
    }
    let source = [Action::Find, Action::DropCollection];
    let target = [Action::Insert, Action::CreateIndex];
    source
        .iter()
        .all(|action| check.on(from_database, from, *action))
        && target
            .iter()
            .all(|action| check.on(to_database, to, *action))
        && (!check.flag("dropTarget") || check.on(to_database, to, Action::DropCollection))
}

/// Whoever may insert may begin a collection by it, but no view.
pub fn create(check: &Check<'_>) -> bool {
    if check.get("viewOn").is_some() {
        return check.collection(Action::CreateCollection)
            && (!check.flag("capped") || check.collection(Action::ConvertToCapped))
            && defines_view(check);
    }
    check.collection(Action::CreateCollection)
        || (!check.flag("capped") && check.collection(Action::Insert))
}

/// What takes the collection's place is no copy for others to read.
pub fn convert_to_capped(check: &Check<'_>) -> bool {
    check.collection(Action::ConvertToCapped)
}

/// The source is read, the target written.
pub fn clone_as_capped(check: &Check<'_>) -> bool {
    let Some(RawBsonRef::String(to)) = check.get("toCollection") else {
        return check.collection(Action::Find);
    };
    let target = [Action::Insert, Action::CreateIndex, Action::ConvertToCapped];
    let mut target = target.iter();
    check.collection(Action::Find) && target.all(|action| check.on(check.database, to, *action))
}

/// A view whose definition is changed must not show what its owner may not read. That can be judged
/// only where all of it is named; the command refuses to change a part of it.
pub fn coll_mod(check: &Check<'_>) -> bool {
    let is_defined = check.get("viewOn").is_some() && check.get("pipeline").is_some();
    check.collection(Action::CollMod) && (!is_defined || defines_view(check))
}

/// Who may read a view must be allowed to read all that it is made of, to define it so.
fn defines_view(check: &Check<'_>) -> bool {
    if !check.collection(Action::Find) {
        return true;
    }
    let none = bson::RawArrayBuf::new();
    let mut pipelines: Vec<_> = check.all("pipeline").collect();
    if pipelines.is_empty() {
        pipelines.push(RawBsonRef::Array(&none));
    }
    let may_read = |on: RawBsonRef<'_>| {
        pipelines.iter().all(|pipeline| match (on, pipeline) {
            (RawBsonRef::String(on), RawBsonRef::Array(stages)) => {
                pipelines::allowed(check, Some(on), stages)
            }
            // It is refused for what it is.
            _ => true,
        })
    };
    check.all("viewOn").all(may_read)
}

/// Setting the profiler; to look at it takes less.
pub fn profile(check: &Check<'_>) -> bool {
    let level = banyan_document::first_value(check.body).and_then(banyan_wire::params::number);
    check.on_database(check.database, Action::EnableProfiler)
        || (level == Some(-1)
            && check.get("slowms").is_none()
            && check.get("sampleRate").is_none()
            && check.get("filter").is_none()
            && check.on(check.database, "system.profile", Action::Find))
}

/// On the database that is named, or on all.
pub fn validate_metadata(check: &Check<'_>) -> bool {
    match check.get("db") {
        Some(RawBsonRef::String(database)) => check.on_database(database, Action::Validate),
        _ => check.everywhere(Action::Validate),
    }
}

/// One's own operations anybody may see.
pub fn current_op(check: &Check<'_>) -> bool {
    check.cluster(Action::Inprog) || (check.flag("$ownOps") && check.identity.is_authenticated())
}

/// Without the privilege for all of them, names alone are told of those on which something may be
/// done.
pub fn list_collections(check: &Check<'_>) -> bool {
    check.on_database(check.database, Action::ListCollections)
        || (check.flag("authorizedCollections")
            && check.flag("nameOnly")
            && reaches_into(check, check.database))
}

/// Whether something may be done in a database.
pub fn reaches_into(check: &Check<'_>, database: &str) -> bool {
    let all = banyan_security::ActionSet::of(Action::ALL);
    let mut own = check.identity.privileges();
    own.any(|privileges| privileges.allow_something_in(database, all))
}
