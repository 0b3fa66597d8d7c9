//! `$listCatalog`: what the catalog of this member says of collections, their indexes, and views.

use banyan_query::view;
use banyan_storage::{Collection, Index};
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawBson, RawDocumentBuf, cstr, rawdoc};

use crate::context::CommandContext;
use crate::params;
use crate::views;

/// Of one collection, or without one of all databases.
pub fn documents(
    ctx: &CommandContext<'_>,
    collection: Option<&str>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let (catalog, snapshot) = ctx.node.replica.view();
    if let Some(name) = collection {
        let found = catalog.get(ctx.database(), name);
        return Ok(found
            .map(|found| of_collection(found))
            .into_iter()
            .collect());
    }
    if ctx.database() != "admin" {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            "Collectionless $listCatalog must be run against the 'admin' database with \
             {aggregate: 1}",
        ));
    }
    let mut listed = Vec::new();
    for database in catalog.databases() {
        listed.extend(database.collections().map(|found| of_collection(found)));
        for definition in views::definitions(&catalog, &snapshot, &database.name, ctx.slot())? {
            if let Some(name) = view::name(&definition, &database.name) {
                let mut document = head(&database.name, name, "view");
                document.append(cstr!("ns"), format!("{}.{name}", database.name));
                for (name, value) in definition.iter().flatten() {
                    document.append(name, value);
                }
                listed.push(document);
            }
        }
    }
    Ok(listed)
}

fn head(database: &str, name: &str, kind: &str) -> RawDocumentBuf {
    rawdoc! { "db": database, "name": name, "type": kind }
}

fn of_collection(collection: &Collection) -> RawDocumentBuf {
    let namespace = &collection.namespace;
    let mut options = rawdoc! { "uuid": params::uuid(&collection.uuid) };
    for (name, value) in collection.options.iter().flatten() {
        options.append(name, value);
    }
    let (mut indexes, mut idents) = (RawArrayBuf::new(), RawDocumentBuf::new());
    let shown = collection
        .all_indexes()
        .filter(|index| !index.is_clustered());
    let building = collection.building_indexes().map(|index| (index, false));
    for (index, ready) in shown.map(|index| (index, true)).chain(building) {
        indexes.push(of_index(index, ready));
        // A name holds no zero byte.
        if let Ok(name) = bson::raw::CString::try_from(index.name.as_str()) {
            idents.append(name, format!("index-{}", index.id));
        }
    }
    let mut document = head(namespace.database(), namespace.collection(), "collection");
    document.append(
        cstr!("md"),
        rawdoc! { "ns": namespace.as_str(), "options": options, "indexes": indexes },
    );
    document.append(cstr!("idxIdent"), idents);
    document.append(cstr!("ns"), namespace.as_str());
    document.append(cstr!("ident"), format!("collection-{}", collection.id));
    document
}

fn of_index(index: &Index, ready: bool) -> RawDocumentBuf {
    let mut document = rawdoc! {
        "spec": index.spec.clone(),
        "ready": ready,
        "multikey": index.is_multikey(),
    };
    // Of those of other kinds the paths of the pattern are not those of the documents.
    let fields = &index.pattern.fields;
    if !index.pattern.is_wildcard() && fields.iter().all(|(_, order)| order.is_of_values()) {
        document.append(cstr!("multikeyPaths"), multikey_paths(index));
    }
    document.append(cstr!("head"), 0_i64);
    document.append(cstr!("backgroundSecondary"), false);
    document
}

/// Of each field of the pattern a byte for each part of its path: whether there are arrays.
fn multikey_paths(index: &Index) -> RawDocumentBuf {
    let arrays = index.arrays();
    let mut paths = RawDocumentBuf::new();
    for (path, _) in &index.pattern.fields {
        let depths = arrays.depths(path);
        let bytes = (1..=path.parts().len()).map(|depth| u8::from(depths.contains(&depth)));
        let bytes = RawBson::Binary(Binary {
            subtype: BinarySubtype::Generic,
            bytes: bytes.collect(),
        });
        if let Ok(path) = bson::raw::CString::try_from(path.to_string()) {
            paths.append(path, bytes);
        }
    }
    paths
}
