//! How many collections and indexes of which kind there are, for `serverStatus`.

use banyan_document::time_series;
use banyan_query::view;
use banyan_storage::{Catalog, Collection, Index};
use bson::raw::CStr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

fn is_own(database: &str) -> bool {
    matches!(database, "admin" | "config" | "local")
}

/// `catalogStats`. Those of the server's databases, and others that it keeps for itself, are told apart.
pub fn collections(catalog: &Catalog) -> RawDocumentBuf {
    let (mut users, mut capped, mut clustered, mut series) = (0, 0, 0, 0);
    let (mut views, mut internal, mut internal_views) = (0_i64, 0, 0_i64);
    for collection in catalog.collections() {
        let namespace = &collection.namespace;
        let own = is_own(namespace.database());
        if namespace.collection() == view::COLLECTION {
            // Each definition is a document.
            let count = i64::try_from(collection.documents()).unwrap_or(i64::MAX);
            let sum = if own { &mut internal_views } else { &mut views };
            *sum = sum.saturating_add(count);
        }
        if !own && time_series::visible_name(namespace.collection()).is_some() {
            series += 1;
        }
        if own || namespace.collection().starts_with("system.") {
            internal += 1;
            continue;
        }
        users += 1;
        capped += i32::from(collection.is_capped);
        clustered += i32::from(collection.clustered_index.is_some());
    }
    rawdoc! {
        "collections": users,
        "capped": capped,
        "clustered": clustered,
        "timeseries": series,
        "views": views,
        "internalCollections": internal,
        "internalViews": internal_views,
    }
}

/// A kind of indexes, and whether one is of it.
type Feature = (&'static CStr, fn(&Index) -> bool);

/// An index may have several.
static FEATURES: &[Feature] = &[
    (cstr!("2d"), |index| is_kind(index, "2d")),
    (cstr!("2dsphere"), |index| is_kind(index, "2dsphere")),
    (cstr!("2dsphere_bucket"), |index| {
        is_kind(index, "2dsphere_bucket")
    }),
    (cstr!("collation"), |index| index.pattern.collator.is_some()),
    (cstr!("compound"), |index| {
        !index.is_id() && fields(index) > 1
    }),
    (cstr!("hashed"), |index| is_kind(index, "hashed")),
    (cstr!("id"), Index::is_id),
    (cstr!("normal"), |index| !index.is_id() && is_normal(index)),
    (cstr!("partial"), |index| index.partial_filter.is_some()),
    (cstr!("single"), |index| {
        !index.is_id() && fields(index) == 1
    }),
    (cstr!("sparse"), |index| index.sparse),
    (cstr!("text"), |index| is_kind(index, "text")),
    (cstr!("ttl"), |index| index.expire_after_seconds.is_some()),
    (cstr!("unique"), |index| !index.is_id() && index.unique),
    (cstr!("wildcard"), is_wildcard),
];

fn key(index: &Index) -> Option<&RawDocument> {
    index.spec.get_document("key").ok()
}

fn fields(index: &Index) -> usize {
    key(index).map_or(0, |key| key.iter().flatten().count())
}

fn is_kind(index: &Index, kind: &str) -> bool {
    let mut fields = key(index).into_iter().flat_map(|key| key.iter().flatten());
    fields.any(|(_, value)| value == RawBsonRef::String(kind))
}

fn is_wildcard(index: &Index) -> bool {
    let mut fields = key(index).into_iter().flat_map(|key| key.iter().flatten());
    fields.any(|(name, _)| name.as_str() == "$**" || name.as_str().ends_with(".$**"))
}

fn is_normal(index: &Index) -> bool {
    let mut fields = key(index).into_iter().flat_map(|key| key.iter().flatten());
    !is_wildcard(index) && !fields.any(|(_, value)| matches!(value, RawBsonRef::String(_)))
}

/// `indexStats`: what indexes users have, and how often they were used.
pub fn indexes(catalog: &Catalog) -> RawDocumentBuf {
    let is_users =
        |collection: &&std::sync::Arc<Collection>| !is_own(collection.namespace.database());
    let collections = catalog.collections().filter(is_users);
    let indexes: Vec<_> = collections
        .flat_map(|collection| &collection.indexes)
        .collect();
    let long = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let mut features = RawDocumentBuf::new();
    for (name, has) in FEATURES {
        let (mut count, mut accesses) = (0, 0_u64);
        for index in indexes.iter().filter(|index| has(index)) {
            count += 1;
            accesses = accesses.saturating_add(index.uses().0);
        }
        features.append(
            *name,
            rawdoc! { "count": long(count), "accesses": long(accesses) },
        );
    }
    rawdoc! { "count": long(indexes.len() as u64), "features": features }
}
