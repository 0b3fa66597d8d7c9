//! What a stream is about.

use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};

use super::options::Options;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Collection(Namespace),
    Database(String),
    Deployment,
}

/// Databases of the server's own.
fn is_internal(database: &str) -> bool {
    matches!(database, "admin" | "config" | "local")
}

impl Scope {
    pub fn of(
        database: &str,
        collection: Option<&str>,
        options: &Options,
    ) -> Result<Scope, CommandError> {
        let shown = || format!("{database}.{}", collection.unwrap_or("$cmd.aggregate"));
        if options.all_changes {
            return match collection {
                None if database == "admin" => Ok(Scope::Deployment),
                _ => Err(CommandError::new(
                    ErrorCode::InvalidOptions,
                    format!(
                        "A $changeStream with 'allChangesForCluster:true' may only be opened on \
                         the 'admin' database, and with no collection name; found {}",
                        shown()
                    ),
                )),
            };
        }
        let internal = |what: String| {
            Err(CommandError::new(
                ErrorCode::InvalidNamespace,
                format!("$changeStream may not be opened on the internal {what}"),
            ))
        };
        match collection {
            _ if is_internal(database) => internal(format!("{database} database")),
            Some(name) if name.starts_with("system.") => {
                internal(format!("{} collection", shown()))
            }
            Some(name) => Ok(Scope::Collection(Namespace::new(database, name))),
            None => Ok(Scope::Database(database.to_owned())),
        }
    }

    pub fn is_collection(&self) -> bool {
        matches!(self, Scope::Collection(_))
    }

    /// Whether the stream shows what happens to this collection.
    pub fn shows(&self, namespace: &Namespace) -> bool {
        match self {
            Scope::Collection(own) => own == namespace,
            Scope::Database(database) => {
                namespace.database() == database && !namespace.collection().starts_with("system.")
            }
            Scope::Deployment => {
                !is_internal(namespace.database()) && !namespace.collection().starts_with("system.")
            }
        }
    }

    /// Whether the stream shows what happens to the views of this database.
    pub fn shows_views_of(&self, database: &str) -> bool {
        !self.is_collection() && self.shows_database(database)
    }

    pub fn shows_database(&self, name: &str) -> bool {
        match self {
            Scope::Collection(_) => false,
            Scope::Database(database) => database == name,
            Scope::Deployment => !is_internal(name),
        }
    }

    /// Whether the stream ends when this collection is dropped, renamed or replaced.
    pub fn ends_with(&self, namespace: &Namespace) -> bool {
        matches!(self, Scope::Collection(own) if own == namespace)
    }

    /// Whether the stream ends when this database is dropped.
    pub fn ends_with_database(&self, name: &str) -> bool {
        matches!(self, Scope::Database(database) if database == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_names_are_not_shown() {
        let shown = |scope: &Scope, text: &str| scope.shows(&Namespace::parse(text).unwrap());
        let all = Scope::Deployment;
        assert!(shown(&all, "db.posts"));
        assert!(!shown(&all, "config.chunks"));
        assert!(!shown(&all, "db.system.views"));
        let database = Scope::Database("db".to_owned());
        assert!(shown(&database, "db.posts"));
        assert!(!shown(&database, "other.posts"));
        let one = Scope::Collection(Namespace::new("db", "posts"));
        assert!(shown(&one, "db.posts"));
        assert!(!shown(&one, "db.posts2"));
    }

    #[test]
    fn streams_open_where_they_may() {
        let open = |database: &str, collection: Option<&str>, all_changes: bool| {
            let options = Options {
                all_changes,
                ..Options::default()
            };
            Scope::of(database, collection, &options).map_err(|error| error.code.code())
        };
        assert_eq!(open("admin", None, true), Ok(Scope::Deployment));
        assert_eq!(open("db", None, true), Err(72));
        assert_eq!(open("admin", Some("x"), true), Err(72));
        assert_eq!(open("admin", None, false), Err(73));
        assert_eq!(open("local", Some("oplog.rs"), false), Err(73));
        assert_eq!(open("db", Some("system.js"), false), Err(73));
        assert_eq!(
            open("db", None, false),
            Ok(Scope::Database("db".to_owned()))
        );
    }
}
