//! `$listClusterCatalog`: what the collections of a cluster are, and where.

use std::sync::Arc;

use banyan_document::elements;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::error::{ErrorKind, QueryError};
use crate::expression::value::type_name;

pub const STAGE: &str = "$listClusterCatalog";

/// What is told beyond the collection itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    shards: bool,
    tracked: bool,
    balancing: bool,
}

impl Options {
    /// # Errors
    /// An option that there is not, or that is no boolean.
    pub fn parse(argument: &RawDocument) -> Result<Options, QueryError> {
        let mut options = Options::default();
        for option in elements(argument) {
            let name = option.name();
            let known = match name {
                "shards" => &mut options.shards,
                "tracked" => &mut options.tracked,
                "balancingConfiguration" => &mut options.balancing,
                _ => {
                    return Err(QueryError::new(
                        ErrorKind::Location(40415),
                        format!("BSON field '{STAGE}.{name}' is an unknown field."),
                    ));
                }
            };
            let RawBsonRef::Boolean(flag) = option.value() else {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    format!(
                        "BSON field '{STAGE}.{name}' is the wrong type '{}', expected type 'bool'",
                        type_name(Some(option.value()))
                    ),
                ));
            };
            *known = flag;
        }
        Ok(options)
    }
}

/// What the cluster keeps of a sharded collection.
#[derive(Debug, Clone)]
pub struct Sharding {
    pub key: RawDocumentBuf,
    pub is_balanced: bool,
    /// Of a large chunk.
    pub chunk_megabytes: i32,
}

/// Where a collection is.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Those that hold documents of it; none outside of a cluster.
    pub shards: Vec<Arc<str>>,
    /// `None`: it is not sharded.
    pub sharding: Option<Sharding>,
}

/// A document of the stage. `described`: the collection as `listCollections` has it.
pub fn document(
    database: &str,
    described: &RawDocument,
    placement: &Placement,
    options: Options,
) -> RawDocumentBuf {
    let name = described.get_str("name").unwrap_or_default();
    let mut shown = rawdoc! { "ns": format!("{database}.{name}"), "db": database };
    for field in [
        cstr!("type"),
        cstr!("idIndex"),
        cstr!("options"),
        cstr!("info"),
    ] {
        if let Some(value) = banyan_document::field(described, field.as_str()) {
            shown.append(field, value);
        }
    }
    let sharding = placement.sharding.as_ref();
    shown.append(cstr!("sharded"), sharding.is_some());
    if options.tracked {
        shown.append(cstr!("tracked"), sharding.is_some());
    }
    if let Some(sharding) = sharding {
        shown.append(cstr!("shardKey"), sharding.key.clone());
    }
    if options.shards {
        let names: RawArrayBuf = placement.shards.iter().map(|shard| &**shard).collect();
        shown.append(cstr!("shards"), names);
    }
    if let Some(sharding) = sharding.filter(|_| options.balancing) {
        shown.append(cstr!("balancingEnabled"), sharding.is_balanced);
        // Nothing but `noBalance` keeps chunks where they are.
        let reason = rawdoc! { "enableBalancing": sharding.is_balanced, "allowMigrations": true };
        shown.append(cstr!("balancingEnabledReason"), reason);
        // The balancer merges no chunks.
        shown.append(cstr!("autoMergingEnabled"), false);
        shown.append(cstr!("chunkSize"), sharding.chunk_megabytes);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_flags() {
        let parse = |argument: RawDocumentBuf| Options::parse(&argument);
        assert_eq!(parse(rawdoc! {}).unwrap(), Options::default());
        let all = rawdoc! { "shards": true, "tracked": true, "balancingConfiguration": true };
        let options = parse(all).unwrap();
        assert!(options.shards && options.tracked && options.balancing);
        assert!(parse(rawdoc! { "shards": 1 }).is_err());
        assert!(parse(rawdoc! { "more": true }).is_err());
    }

    #[test]
    fn what_is_not_sharded_has_no_balancing() {
        let described = rawdoc! { "name": "items", "type": "collection", "options": {} };
        let all = Options {
            shards: true,
            tracked: true,
            balancing: true,
        };
        let mut placement = Placement {
            shards: vec!["a".into()],
            sharding: None,
        };
        let shown =
            |placement: &Placement, options| document("shop", &described, placement, options);
        assert_eq!(
            shown(&placement, all),
            rawdoc! { "ns": "shop.items", "db": "shop", "type": "collection", "options": {},
            "sharded": false, "tracked": false, "shards": ["a"] }
        );
        placement.sharding = Some(Sharding {
            key: rawdoc! { "_id": 1 },
            is_balanced: false,
            chunk_megabytes: 64,
        });
        assert_eq!(
            shown(&placement, Options::default()),
            rawdoc! { "ns": "shop.items", "db": "shop", "type": "collection", "options": {},
            "sharded": true, "shardKey": { "_id": 1 } }
        );
        let balanced = shown(&placement, all);
        assert!(!balanced.get_bool("balancingEnabled").unwrap());
        assert_eq!(balanced.get_i32("chunkSize").unwrap(), 64);
    }
}
