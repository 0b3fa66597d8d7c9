//! Where collections live: a cache of what the config servers say, refreshed when a shard objects.
//!
//! Databases and collections are read when first asked for and kept until a shard says that a
//! version is stale. Collections that are not sharded are kept as well: requests for them carry
//! the marker for "unsharded", so a shard objects when that has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use banyan_sharding::{ChunkVersion, RoutingError, RoutingTable};
use banyan_wire::{CommandError, ErrorCode, ReplicaSet, RequestOptions};
use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::{Mutex, RwLock};
use tracing::{debug, info};

use crate::shards::{CONFIG, find_all};

/// Clients may ask for any number of collections that don't exist; it is only a cache.
const ROUTES_MAX: usize = 50_000;
/// A half-seen change of the chunks heals by reading again.
const LOAD_ATTEMPTS: u32 = 10;
const LOAD_AGAIN_AFTER: Duration = Duration::from_millis(20);

pub struct Database {
    pub name: String,
    /// The shard of its collections that are not sharded.
    pub primary: Arc<str>,
    version: Option<RawDocumentBuf>,
}

/// Where one collection's documents are, as of one reading.
pub struct Route {
    pub ns: String,
    pub database: Arc<Database>,
    pub table: Option<RoutingTable>,
    generation: u64,
}

impl Route {
    /// The fields that tell a shard what the router believes, to be added to a request.
    pub fn versions(&self, shard: &str) -> RawDocumentBuf {
        let mut out = RawDocumentBuf::new();
        if shard == CONFIG {
            return out;
        }
        match &self.table {
            Some(table) => {
                out.append(
                    cstr!("shardVersion"),
                    table.shard_version(shard).to_document(),
                );
            }
            None => {
                out.append(cstr!("shardVersion"), ChunkVersion::UNSHARDED.to_document());
                if let Some(version) = &self.database.version {
                    out.append(cstr!("databaseVersion"), version.clone());
                }
            }
        }
        out
    }

    pub fn is_sharded(&self) -> bool {
        self.table.is_some()
    }

    /// Every shard that may hold documents of the collection.
    pub fn shards(&self) -> Vec<Arc<str>> {
        match &self.table {
            Some(table) => table.shards().cloned().collect(),
            None => vec![self.database.primary.clone()],
        }
    }
}

pub struct Catalog {
    config: ReplicaSet,
    databases: RwLock<HashMap<String, Arc<Database>>>,
    routes: RwLock<HashMap<String, Arc<Route>>>,
    /// One task at a time reads a collection's entry; the others wait for what it finds.
    loading: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Catalog {
    pub fn new(config: ReplicaSet) -> Catalog {
        Catalog {
            config,
            databases: RwLock::default(),
            routes: RwLock::default(),
            loading: Mutex::default(),
        }
    }

    /// A database; `None` if there is none of that name.
    pub async fn database(&self, name: &str) -> Result<Option<Arc<Database>>, CommandError> {
        if let Some(known) = self.databases.read().get(name) {
            return Ok(Some(known.clone()));
        }
        self.load_database(name).await
    }

    async fn load_database(&self, name: &str) -> Result<Option<Arc<Database>>, CommandError> {
        let found = if matches!(name, "config" | "admin") {
            Some(Database {
                name: name.to_owned(),
                primary: CONFIG.into(),
                version: None,
            })
        } else {
            let filter = rawdoc! {"_id": name};
            let entries = find_all(&self.config, "databases", &filter, &rawdoc! {}).await?;
            entries
                .first()
                .map(|entry| parse_database(name, entry))
                .transpose()?
        };
        let Some(found) = found.map(Arc::new) else {
            self.databases.write().remove(name);
            return Ok(None);
        };
        self.databases
            .write()
            .insert(name.to_owned(), found.clone());
        Ok(Some(found))
    }

    /// A database that is made if there is none.
    pub async fn database_or_create(&self, name: &str) -> Result<Arc<Database>, CommandError> {
        if let Some(known) = self.database(name).await? {
            return Ok(known);
        }
        let command = rawdoc! {"_configsvrCreateDatabase": name};
        self.config
            .command(RequestOptions::write().idempotent(), "admin", &command)
            .await?;
        self.load_database(name).await?.ok_or_else(|| {
            let text = format!("database {name} was dropped while it was being created");
            CommandError::new(ErrorCode::NamespaceNotFound, text)
        })
    }

    /// The route of a collection; `None` if its database doesn't exist.
    pub async fn route(&self, ns: &str) -> Result<Option<Arc<Route>>, CommandError> {
        if let Some(known) = self.routes.read().get(ns) {
            return Ok(Some(known.clone()));
        }
        self.load(ns, 0).await
    }

    /// The route of a collection whose database is made if it doesn't exist.
    pub async fn route_or_create(&self, ns: &str) -> Result<Arc<Route>, CommandError> {
        if let Some(known) = self.route(ns).await? {
            return Ok(known);
        }
        let (database, _) = ns.split_once('.').unwrap_or((ns, ""));
        self.database_or_create(database).await?;
        self.route(ns).await?.ok_or_else(|| {
            let text = format!("database {database} was dropped while it was being used");
            CommandError::new(ErrorCode::NamespaceNotFound, text)
        })
    }

    /// Reads the route anew unless somebody has since this one was made.
    pub async fn refresh(&self, seen: &Route) -> Result<(), CommandError> {
        debug!(ns = seen.ns, "refreshing a stale route");
        self.load(&seen.ns, seen.generation).await?;
        Ok(())
    }

    async fn load(&self, ns: &str, seen: u64) -> Result<Option<Arc<Route>>, CommandError> {
        let turn = self
            .loading
            .lock()
            .entry(ns.to_owned())
            .or_default()
            .clone();
        let loaded = self.load_in_turn(ns, seen, &turn).await;
        let mut loading = self.loading.lock();
        // Nobody else waits: one handle is in the map, one is ours.
        if Arc::strong_count(&turn) <= 2 {
            loading.remove(ns);
        }
        loaded
    }

    async fn load_in_turn(
        &self,
        ns: &str,
        seen: u64,
        turn: &tokio::sync::Mutex<()>,
    ) -> Result<Option<Arc<Route>>, CommandError> {
        let _turn = turn.lock().await;
        let before = self.routes.read().get(ns).cloned();
        if let Some(known) = &before
            && known.generation > seen
        {
            return Ok(before);
        }
        let (name, _) = ns.split_once('.').unwrap_or((ns, ""));
        // A stale route may mean a database that moved or was dropped.
        let database = if seen == 0 {
            self.database(name).await?
        } else {
            self.load_database(name).await?
        };
        let Some(database) = database else {
            self.forget(ns);
            return Ok(None);
        };
        let is_config = &*database.primary == CONFIG;
        let table = if is_config {
            None
        } else {
            self.load_table(ns, before.as_deref()).await?
        };
        let generation = seen.max(before.map_or(0, |route| route.generation)) + 1;
        let route = Arc::new(Route {
            ns: ns.to_owned(),
            database,
            table,
            generation,
        });
        let mut routes = self.routes.write();
        if routes.len() >= ROUTES_MAX {
            routes.clear();
        }
        routes.insert(ns.to_owned(), route.clone());
        Ok(Some(route))
    }

    /// Reads the collection's entry and the chunks that changed since `before`; `None` if it isn't
    /// sharded.
    async fn load_table(
        &self,
        ns: &str,
        before: Option<&Route>,
    ) -> Result<Option<RoutingTable>, CommandError> {
        let mut known = before.and_then(|route| route.table.as_ref());
        let mut attempt = 0;
        loop {
            let filter = rawdoc! {"_id": ns};
            let entries = find_all(&self.config, "collections", &filter, &rawdoc! {}).await?;
            let entry = entries.first().filter(|entry| {
                !crate::fields::get_flag(entry, "dropped")
                    && !crate::fields::get_flag(entry, "unsplittable")
            });
            let Some(entry) = entry else { return Ok(None) };
            match self.read_chunks(entry, known).await? {
                Ok(table) => {
                    let version = table.version();
                    info!(ns, %version, chunks = table.chunks().len(), "route loaded");
                    return Ok(Some(table));
                }
                Err(error) => {
                    attempt += 1;
                    known = None;
                    if attempt == LOAD_ATTEMPTS {
                        let text = format!("cannot load the chunks of {ns}: {error}");
                        return Err(CommandError::new(
                            ErrorCode::ConflictingOperationInProgress,
                            text,
                        ));
                    }
                    tokio::time::sleep(LOAD_AGAIN_AFTER * attempt).await;
                }
            }
        }
    }

    async fn read_chunks(
        &self,
        entry: &RawDocument,
        known: Option<&RoutingTable>,
    ) -> Result<Result<RoutingTable, RoutingError>, CommandError> {
        let Some(uuid) = crate::fields::get(entry, "uuid") else {
            return Ok(Err(RoutingError::CollectionField("uuid")));
        };
        let mut filter = RawDocumentBuf::new();
        filter.append(cstr!("uuid"), uuid);
        if let Some(known) = known {
            filter.append(
                cstr!("lastmod"),
                rawdoc! {"$gte": known.version().lastmod()},
            );
        }
        let chunks = find_all(&self.config, "chunks", &filter, &rawdoc! {"lastmod": 1}).await?;
        let chunks = chunks.iter().map(|chunk| &**chunk);
        Ok(match known {
            Some(known) => known.refreshed(entry, chunks),
            None => RoutingTable::build(entry, chunks),
        })
    }

    /// Forgets one collection, so that the next request reads it again.
    pub fn forget(&self, ns: &str) {
        self.routes.write().remove(ns);
    }

    pub fn forget_database(&self, name: &str) {
        self.databases.write().remove(name);
        let prefix = format!("{name}.");
        self.routes.write().retain(|ns, _| !ns.starts_with(&prefix));
    }

    pub fn forget_everything(&self) {
        self.databases.write().clear();
        self.routes.write().clear();
    }
}

fn parse_database(name: &str, entry: &RawDocument) -> Result<Database, CommandError> {
    let primary = entry.get_str("primary").map_err(|error| {
        CommandError::new(
            ErrorCode::NoSuchKey,
            format!("entry of database {name}: {error}"),
        )
    })?;
    let version = entry
        .get_document("version")
        .ok()
        .map(|version| version.to_owned());
    Ok(Database {
        name: name.to_owned(),
        primary: primary.into(),
        version,
    })
}
