//! `listDatabases`: those of all shards, a database on several of them once.

use banyan_access::check::Access;
use banyan_access::listing;
use std::collections::BTreeMap;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_wire::params;
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::pass::GENERIC;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::errors::query_error;
use crate::fields;
use crate::shards::CONFIG;

pub const SPEC: CommandSpec = CommandSpec::new("listDatabases", "all databases", run!(run))
    .access(Access::LoggedIn)
    .aliases(&["listdatabases"])
    .admin_only();

const AUTHORIZED: &str = "authorizedDatabases";

#[derive(Default)]
struct Database {
    bytes: i64,
    by_shard: BTreeMap<Arc<str>, i64>,
}

async fn run(context: &Context<'_>) -> CommandResult {
    let router = context.router;
    let body = &context.request.body;
    let name_only = fields::get_flag(body, "nameOnly");
    let filter = match fields::document(body, "filter")? {
        Some(filter) => {
            let context = banyan_query::Context::default();
            Some(banyan_query::filter::Filter::parse(filter, &context).map_err(query_error)?)
        }
        None => None,
    };
    let asked = params::fields("listDatabases", body)
        .find(|field| field.name == AUTHORIZED && !field.is_null())
        .map(|field| field.strict_bool())
        .transpose()?;
    let only = match context.identity() {
        Some(identity) => listing::databases(identity, asked)?,
        None => None,
    };
    router.shards.reload().await?;
    let mut shards: Vec<Arc<str>> = router.shards.all().keys().cloned().collect();
    shards.push(CONFIG.into());
    let command = of_shards(body);
    let request_options = context.request_options(false);
    let answers = router
        .broadcast(&shards, request_options, "admin", &command)
        .await;
    let mut databases: BTreeMap<String, Database> = BTreeMap::new();
    for (shard, answer) in answers {
        let answer = answer?;
        let Some(RawBsonRef::Array(entries)) = fields::get(&answer, "databases") else {
            continue;
        };
        for entry in entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.as_document())
        {
            let Ok(name) = entry.get_str("name") else {
                continue;
            };
            // Each member has its own `local`, and only the config servers' `admin` and `config`
            // are the cluster's.
            let of_cluster = matches!(name, "admin" | "config");
            if name == "local" || of_cluster != (&*shard == CONFIG) {
                continue;
            }
            let bytes = fields::get_number(entry, "sizeOnDisk").unwrap_or(0);
            let database = databases.entry(name.to_owned()).or_default();
            database.bytes += bytes;
            database.by_shard.insert(shard.clone(), bytes);
        }
    }
    let mut out = DocumentWriter::new();
    let mut total = 0;
    out.begin_array("databases");
    let is_reached = |name: &str| match &only {
        Some(identity) => listing::reaches_into(identity, name),
        None => true,
    };
    for (name, database) in databases.iter().filter(|(name, _)| is_reached(name)) {
        let entry = database.entry(name, name_only);
        let wanted = match &filter {
            Some(filter) => filter.try_matches(&entry).map_err(query_error)?,
            None => true,
        };
        if wanted {
            total += database.bytes;
            out.push(RawBsonRef::Document(&entry));
        }
    }
    out.end();
    if !name_only {
        out.append_i64("totalSize", total);
        out.append_i64("totalSizeMb", total / (1024 * 1024));
    }
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}

/// What the shards are asked. They judge the fields of the client, too; what its filter and its rights
/// let through is decided here, where databases on several shards are one.
fn of_shards(body: &RawDocument) -> RawDocumentBuf {
    let mut command = DocumentWriter::new();
    for element in banyan_document::elements(body) {
        let name = element.name();
        if !GENERIC.contains(&name) && !matches!(name, "filter" | "maxTimeMS" | AUTHORIZED) {
            command.append_element(&element);
        }
    }
    command.finish()
}

impl Database {
    fn entry(&self, name: &str, name_only: bool) -> RawDocumentBuf {
        let mut entry = rawdoc! {"name": name};
        if name_only {
            return entry;
        }
        entry.append(cstr!("sizeOnDisk"), self.bytes);
        entry.append(cstr!("empty"), self.bytes == 0);
        let mut shards = DocumentWriter::new();
        for (shard, bytes) in &self.by_shard {
            shards.append_i64(shard, *bytes);
        }
        entry.append(cstr!("shards"), shards.finish());
        entry
    }
}
