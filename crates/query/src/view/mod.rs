//! Views: a pipeline over a collection, under a name of its own.
//!
//! A definition is a document of its database's `system.views` ([`View`]). Who reads a view reads
//! the collection at the bottom, through the pipelines of all views on the way ([`Resolved`]): the
//! command becomes an `aggregate` of the collection ([`command`]), and is planned as one. Which views
//! may stand on which says [`graph`].

pub mod command;
pub mod graph;

use banyan_document::{Collator, DocumentWriter, elements};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};

/// The collection of a database that holds the definitions of its views.
pub const COLLECTION: &str = "system.views";

/// So many views may stand on each other.
pub const DEPTH_MAX: usize = 20;

/// A view as it is defined.
#[derive(Clone, Debug)]
pub struct View {
    /// The collection or view of the same database that it reads.
    pub on: String,
    pub stages: Vec<RawDocumentBuf>,
    /// How all that reads it compares strings; `None`: by their bytes.
    pub collator: Option<Collator>,
}

impl View {
    /// Of a document of `system.views`.
    pub fn parse(document: &RawDocument) -> Result<View, QueryError> {
        let invalid = || {
            QueryError::new(
                ErrorKind::InvalidViewDefinition,
                format!("invalid view definition detected: {document:?}"),
            )
        };
        let on = document.get_str("viewOn").map_err(|_| invalid())?;
        let pipeline = document.get_array("pipeline").map_err(|_| invalid())?;
        let stages = pipeline.into_iter().map(|stage| match stage {
            Ok(RawBsonRef::Document(stage)) => Ok(stage.to_owned()),
            _ => Err(invalid()),
        });
        let collator = match document.get("collation") {
            Ok(None) => None,
            Ok(Some(RawBsonRef::Document(named))) => {
                Collator::parse(named).map_err(|_| invalid())?
            }
            _ => return Err(invalid()),
        };
        Ok(View {
            on: on.to_owned(),
            stages: stages.collect::<Result<_, _>>()?,
            collator,
        })
    }

    /// The document of `system.views` for the view of this full name.
    pub fn to_document(&self, namespace: &str) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.append_str("_id", namespace);
        out.append_str("viewOn", &self.on);
        append_stages(&mut out, &self.stages);
        if let Some(collator) = &self.collator {
            out.append_doc("collation", &collator.collation().to_document());
        }
        out.finish()
    }

    /// The bytes that its pipeline counts for in the limit on all pipelines together.
    fn bytes(&self) -> usize {
        self.stages.iter().map(|stage| stage.as_bytes().len()).sum()
    }
}

/// What a listing shows of a definition: all but its name.
pub fn options(document: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(document).filter(|element| element.name() != "_id") {
        out.append_element(&element);
    }
    out.finish()
}

/// The view's own name within its database, of the `_id` of its definition.
pub fn name<'a>(document: &'a RawDocument, database: &str) -> Option<&'a str> {
    let id = document.get_str("_id").ok()?;
    id.strip_prefix(database)?.strip_prefix('.')
}

/// A view down to the collection that it reads.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Of the same database. It need not exist.
    pub collection: String,
    /// The pipelines of the views on the way, that of the lowest first.
    pub stages: Vec<RawDocumentBuf>,
    /// That of the view itself.
    pub collator: Option<Collator>,
}

impl Resolved {
    /// Follows a name to the collection below it. `None`: it is no view. `find` looks a definition
    /// up by its name.
    pub fn follow(
        name: &str,
        mut find: impl FnMut(&str) -> Result<Option<View>, QueryError>,
    ) -> Result<Option<Resolved>, QueryError> {
        let Some(first) = find(name)? else {
            return Ok(None);
        };
        let mut resolved = Resolved {
            collection: first.on,
            stages: first.stages,
            collator: first.collator,
        };
        for _ in 1..DEPTH_MAX {
            let Some(next) = find(&resolved.collection)? else {
                return Ok(Some(resolved));
            };
            let above = std::mem::replace(&mut resolved.stages, next.stages);
            resolved.stages.extend(above);
            resolved.collection = next.on;
        }
        Err(QueryError::new(
            ErrorKind::ViewDepthLimitExceeded,
            format!("View depth too deep or view cycle detected; maximum depth is {DEPTH_MAX}"),
        ))
    }

    /// As a shard tells a router of it.
    pub fn to_document(&self, database: &str) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.append_str("ns", &format!("{database}.{}", self.collection));
        append_stages(&mut out, &self.stages);
        out.append_doc("collation", &self.explicit_collation());
        out.finish()
    }

    /// Reads what [`Resolved::to_document`] has written.
    pub fn from_document(document: &RawDocument) -> Option<Resolved> {
        let (_, collection) = document.get_str("ns").ok()?.split_once('.')?;
        let stages = document.get_array("pipeline").ok()?.into_iter();
        let stages = stages.map(|stage| Some(stage.ok()?.as_document()?.to_owned()));
        Some(Resolved {
            collection: collection.to_owned(),
            stages: stages.collect::<Option<_>>()?,
            collator: Collator::parse(document.get_document("collation").ok()?).ok()?,
        })
    }

    fn explicit_collation(&self) -> RawDocumentBuf {
        match &self.collator {
            Some(collator) => collator.collation().to_document(),
            None => bson::rawdoc! { "locale": "simple" },
        }
    }

    /// Whether its stages do no more than match: what an index of the collection finds is found in
    /// the view as well.
    pub fn only_matches(&self) -> bool {
        let is_match = |stage: &RawDocumentBuf| {
            let mut names = elements(stage).map(|element| element.name() == "$match");
            names.next() == Some(true) && names.next().is_none()
        };
        self.stages.iter().all(is_match)
    }
}

fn append_stages(out: &mut DocumentWriter, stages: &[RawDocumentBuf]) {
    out.begin_array("pipeline");
    for stage in stages {
        out.push(RawBsonRef::Document(stage));
    }
    out.end();
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bson::rawdoc;

    use super::*;

    fn follow(
        views: &[(&str, RawDocumentBuf)],
        name: &str,
    ) -> Result<Option<Resolved>, QueryError> {
        let views: HashMap<_, _> = views.iter().map(|(name, view)| (*name, view)).collect();
        Resolved::follow(name, |name| {
            views.get(name).map(|view| View::parse(view)).transpose()
        })
    }

    #[test]
    fn the_lowest_pipeline_comes_first() {
        let views = [
            (
                "v",
                rawdoc! { "viewOn": "c", "pipeline": [{ "$limit": 1 }] },
            ),
            (
                "w",
                rawdoc! { "viewOn": "v", "pipeline": [{ "$skip": 2 }, { "$limit": 3 }] },
            ),
        ];
        let resolved = follow(&views, "w").unwrap().unwrap();
        assert_eq!(resolved.collection, "c");
        let expected = [
            rawdoc! { "$limit": 1 },
            rawdoc! { "$skip": 2 },
            rawdoc! { "$limit": 3 },
        ];
        assert_eq!(resolved.stages, expected);
        assert!(follow(&views, "c").unwrap().is_none());
    }

    #[test]
    fn a_chain_that_is_too_long_is_refused() {
        let names: Vec<String> = (0..=DEPTH_MAX).map(|n| format!("v{n}")).collect();
        let on = |n: usize| rawdoc! { "viewOn": format!("v{n}"), "pipeline": [] };
        let views: Vec<_> = (1..=DEPTH_MAX)
            .map(|n| (names[n].as_str(), on(n - 1)))
            .collect();
        assert!(follow(&views, &names[DEPTH_MAX - 1]).unwrap().is_some());
        let refused = follow(&views, &names[DEPTH_MAX]).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::ViewDepthLimitExceeded);
    }

    #[test]
    fn what_a_shard_tells_is_read_by_its_router() {
        let collation = rawdoc! { "locale": "en", "strength": 2 };
        let view = rawdoc! { "viewOn": "c", "pipeline": [{ "$match": { "a": 1 } }], "collation": collation };
        let resolved = follow(&[("v", view)], "v").unwrap().unwrap();
        assert!(resolved.only_matches());
        let read = Resolved::from_document(&resolved.to_document("db")).unwrap();
        assert_eq!(read.collection, "c");
        assert_eq!(read.stages, resolved.stages);
        assert_eq!(read.collator, resolved.collator);
    }

    #[test]
    fn a_definition_lists_what_it_was_made_with() {
        let view = rawdoc! { "_id": "db.v.w", "viewOn": "c", "pipeline": [{ "$limit": 1 }] };
        assert_eq!(View::parse(&view).unwrap().to_document("db.v.w"), view);
        assert_eq!(name(&view, "db"), Some("v.w"));
        assert_eq!(name(&view, "d"), None);
        assert_eq!(
            options(&view),
            rawdoc! { "viewOn": "c", "pipeline": [{ "$limit": 1 }] }
        );
        assert!(View::parse(&rawdoc! { "viewOn": 1, "pipeline": [] }).is_err());
    }
}
