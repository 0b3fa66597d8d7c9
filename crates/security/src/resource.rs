//! Resources, and the patterns by which a privilege names them.
//!
//! What a pattern covers follows MongoDB: a name that begins with `system.`, and `replset.` in
//! `local`, is a system collection, which only its own name, the pattern for all collections of
//! that name, and `anyResource` cover. `local` and `config` are not covered by the pattern for
//! all databases.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::field::{self, DefinitionError};

const BUCKETS: &str = "system.buckets.";

/// What a command wants to do something to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource<'a> {
    Cluster,
    Database(&'a str),
    Collection {
        database: &'a str,
        collection: &'a str,
    },
}

/// What a privilege speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourcePattern {
    /// `{anyResource: true}`
    AnyResource,
    /// `{cluster: true}`
    Cluster,
    /// `{db: "", collection: ""}`: databases but `local` and `config`, and their collections but
    /// `system.*`.
    AnyNormal,
    /// `{db: "d", collection: ""}`: the database and its collections but `system.*`.
    Database(String),
    /// `{db: "", collection: "c"}`: collections of that name in all databases.
    CollectionName(String),
    /// `{db: "d", collection: "c"}`
    Collection {
        database: String,
        collection: String,
    },
    /// `{system_buckets: ""}`, and with a database or a collection: the buckets of time series.
    Buckets {
        database: Option<String>,
        collection: Option<String>,
    },
}

impl ResourcePattern {
    /// Reads the `resource` of a privilege.
    ///
    /// # Errors
    /// [`DefinitionError::Resource`] where the fields are not those of one kind of pattern.
    pub fn parse(document: &RawDocument) -> Result<ResourcePattern, DefinitionError> {
        let mut given = Given::default();
        for item in field::fields(document) {
            let (name, value) = item?;
            match name {
                "anyResource" => given.any_resource = true_only(name, value)?,
                "cluster" => given.cluster = true_only(name, value)?,
                "db" => given.database = Some(field::string(name, value)?),
                "collection" => given.collection = Some(field::string(name, value)?),
                "system_buckets" => given.buckets = Some(field::string(name, value)?),
                _ => {}
            }
        }
        given.pattern()
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        match self {
            ResourcePattern::AnyResource => document.append(cstr!("anyResource"), true),
            ResourcePattern::Cluster => document.append(cstr!("cluster"), true),
            ResourcePattern::AnyNormal => append_namespace(&mut document, "", ""),
            ResourcePattern::Database(database) => append_namespace(&mut document, database, ""),
            ResourcePattern::CollectionName(name) => append_namespace(&mut document, "", name),
            ResourcePattern::Collection {
                database,
                collection,
            } => append_namespace(&mut document, database, collection),
            ResourcePattern::Buckets {
                database,
                collection,
            } => {
                if let Some(database) = database {
                    document.append(cstr!("db"), database.as_str());
                }
                let collection = collection.as_deref().unwrap_or_default();
                document.append(cstr!("system_buckets"), collection);
            }
        }
        document
    }

    pub fn covers(&self, resource: Resource<'_>) -> bool {
        match (self, resource) {
            (ResourcePattern::AnyResource, _) | (ResourcePattern::Cluster, Resource::Cluster) => {
                true
            }
            (_, Resource::Cluster) => false,
            (ResourcePattern::AnyNormal, Resource::Database(name)) => is_normal_database(name),
            (ResourcePattern::Database(database), Resource::Database(name)) => database == name,
            (_, Resource::Database(_)) => false,
            (
                pattern,
                Resource::Collection {
                    database,
                    collection,
                },
            ) => pattern.covers_collection(database, collection),
        }
    }

    fn covers_collection(&self, db: &str, coll: &str) -> bool {
        match self {
            ResourcePattern::AnyResource => true,
            ResourcePattern::Cluster => false,
            ResourcePattern::AnyNormal => is_normal_database(db) && !is_system(db, coll),
            ResourcePattern::Database(database) => database == db && !is_system(db, coll),
            ResourcePattern::CollectionName(name) => name == coll,
            ResourcePattern::Collection {
                database,
                collection,
            } => database == db && collection == coll,
            ResourcePattern::Buckets {
                database,
                collection,
            } => coll.strip_prefix(BUCKETS).is_some_and(|measured| {
                database.as_ref().is_none_or(|database| database == db)
                    && collection.as_ref().is_none_or(|name| name == measured)
            }),
        }
    }

    /// The database whose administrator may give this pattern away; none for patterns that reach
    /// beyond one database.
    pub fn database(&self) -> Option<&str> {
        match self {
            ResourcePattern::Database(database)
            | ResourcePattern::Collection { database, .. }
            | ResourcePattern::Buckets {
                database: Some(database),
                ..
            } => Some(database),
            _ => None,
        }
    }
}

impl ResourcePattern {
    /// The name of the collections that it names one by one.
    pub fn collection(&self) -> Option<&str> {
        match self {
            ResourcePattern::CollectionName(collection)
            | ResourcePattern::Collection { collection, .. } => Some(collection),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Given<'a> {
    any_resource: bool,
    cluster: bool,
    database: Option<&'a str>,
    collection: Option<&'a str>,
    buckets: Option<&'a str>,
}

impl Given<'_> {
    fn pattern(self) -> Result<ResourcePattern, DefinitionError> {
        let owned = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let namespace = self.database.is_some() || self.collection.is_some();
        match (self.any_resource, self.cluster, self.buckets) {
            (true, false, None) if !namespace => Ok(ResourcePattern::AnyResource),
            (false, true, None) if !namespace => Ok(ResourcePattern::Cluster),
            (false, false, Some(buckets)) if self.collection.is_none() => {
                Ok(ResourcePattern::Buckets {
                    database: self.database.and_then(owned),
                    collection: owned(buckets),
                })
            }
            (false, false, None) => match (self.database, self.collection) {
                (Some(database), Some(collection)) => {
                    Ok(match (owned(database), owned(collection)) {
                        (None, None) => ResourcePattern::AnyNormal,
                        (Some(database), None) => ResourcePattern::Database(database),
                        (None, Some(name)) => ResourcePattern::CollectionName(name),
                        (Some(database), Some(collection)) => ResourcePattern::Collection {
                            database,
                            collection,
                        },
                    })
                }
                (None, None) => Err(DefinitionError::Resource(
                    "resource must have exactly db and collection set, or have only cluster set  \
                     or have only anyResource set"
                        .to_owned(),
                )),
                _ => Err(DefinitionError::Resource(
                    "resource must set both db and collection or neither, but not exactly one."
                        .to_owned(),
                )),
            },
            _ => Err(DefinitionError::Resource(
                "resource names more than one kind of resource".to_owned(),
            )),
        }
    }
}

fn true_only(name: &str, value: RawBsonRef<'_>) -> Result<bool, DefinitionError> {
    match value.as_bool() {
        Some(true) => Ok(true),
        Some(false) => Err(DefinitionError::Resource(format!(
            "{name} must be true when specified"
        ))),
        None => Err(field::wrong_type(name, "a boolean", value)),
    }
}

fn append_namespace(document: &mut RawDocumentBuf, database: &str, collection: &str) {
    document.append(cstr!("db"), database);
    document.append(cstr!("collection"), collection);
}

pub(crate) fn is_normal_database(name: &str) -> bool {
    !matches!(name, "local" | "config")
}

pub(crate) fn is_system(database: &str, collection: &str) -> bool {
    collection.starts_with("system.") || (database == "local" && collection.starts_with("replset."))
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    /// What a `mongod` 6.0 let a user with `find` on the pattern read of these.
    const NAMESPACES: &[&str] = &[
        "t.c",
        "t.d",
        "u.c",
        "local.c",
        "local.replset.minvalid",
        "local.oplog.rs",
        "local.system.replset",
        "config.c",
        "config.system.js",
        "admin.c",
        "admin.system.users",
        "t.system.js",
        "t.system.buckets.c",
        "u.system.buckets.c",
        "u.system.buckets.d",
    ];

    fn covered(document: RawDocumentBuf) -> Vec<&'static str> {
        let pattern = ResourcePattern::parse(&document).expect("a pattern");
        assert_eq!(pattern.to_document(), document);
        let covers = |name: &&str| {
            let (database, collection) = name.split_once('.').expect("a namespace");
            pattern.covers(Resource::Collection {
                database,
                collection,
            })
        };
        NAMESPACES.iter().copied().filter(covers).collect()
    }

    #[test]
    fn patterns_cover_what_they_cover_in_mongodb() {
        assert_eq!(covered(rawdoc! { "anyResource": true }), NAMESPACES);
        assert!(covered(rawdoc! { "cluster": true }).is_empty());
        assert_eq!(
            covered(rawdoc! { "db": "", "collection": "" }),
            ["t.c", "t.d", "u.c", "admin.c"]
        );
        assert_eq!(
            covered(rawdoc! { "db": "t", "collection": "" }),
            ["t.c", "t.d"]
        );
        assert_eq!(
            covered(rawdoc! { "db": "local", "collection": "" }),
            ["local.c", "local.oplog.rs"]
        );
        assert_eq!(
            covered(rawdoc! { "db": "", "collection": "c" }),
            ["t.c", "u.c", "local.c", "config.c", "admin.c"]
        );
        assert_eq!(
            covered(rawdoc! { "db": "", "collection": "system.js" }),
            ["config.system.js", "t.system.js"]
        );
        assert_eq!(
            covered(rawdoc! { "system_buckets": "" }),
            [
                "t.system.buckets.c",
                "u.system.buckets.c",
                "u.system.buckets.d"
            ]
        );
        assert_eq!(
            covered(rawdoc! { "db": "t", "system_buckets": "" }),
            ["t.system.buckets.c"]
        );
        assert_eq!(
            covered(rawdoc! { "system_buckets": "c" }),
            ["t.system.buckets.c", "u.system.buckets.c"]
        );
    }

    #[test]
    fn databases_and_the_cluster_are_covered_by_their_own_patterns() {
        let normal = ResourcePattern::AnyNormal;
        assert!(normal.covers(Resource::Database("t")));
        assert!(!normal.covers(Resource::Database("config")));
        assert!(!normal.covers(Resource::Cluster));
        assert!(ResourcePattern::Cluster.covers(Resource::Cluster));
        let named = ResourcePattern::CollectionName("t".to_owned());
        assert!(!named.covers(Resource::Database("t")));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for document in [
            rawdoc! {},
            rawdoc! { "db": "t" },
            rawdoc! { "collection": "c" },
            rawdoc! { "cluster": false },
            rawdoc! { "cluster": 1 },
            rawdoc! { "cluster": true, "anyResource": true },
            rawdoc! { "cluster": true, "db": "t", "collection": "c" },
            rawdoc! { "db": "t", "collection": "c", "system_buckets": "c" },
            rawdoc! { "db": "t", "collection": 1 },
        ] {
            ResourcePattern::parse(&document).expect_err("no pattern");
        }
        // Fields that it does not know say nothing.
        let document = rawdoc! { "db": "t", "collection": "c", "more": 1 };
        ResourcePattern::parse(&document).expect("a pattern");
    }
}
