//! Other collections that a pipeline reads.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::foreign_query::ForeignQuery;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, show, type_name};
use crate::text::TextContext;

/// Documents of a collection, as the caller reads them.
pub type Documents = Box<dyn Iterator<Item = Result<RawDocumentBuf, QueryError>> + Send>;

/// How a running pipeline reads other collections.
pub trait Sources: Send + Sync {
    /// The documents of a collection that match the query; of the pipeline's own database unless
    /// one is named. A collection that does not exist is empty.
    fn documents(
        &self,
        database: Option<&str>,
        collection: &str,
        query: &ForeignQuery,
    ) -> Result<Documents, QueryError>;

    /// Whether some index finds documents by their values at `path` faster than reading the whole
    /// collection does.
    fn is_indexed(
        &self,
        database: Option<&str>,
        collection: &str,
        path: &str,
    ) -> Result<bool, QueryError>;
}

/// A collection as a stage names it.
#[derive(Clone, Debug)]
pub(super) struct From {
    /// The pipeline's own unless it is named.
    pub database: Option<String>,
    pub collection: String,
}

impl From {
    /// `from`/`coll`: a name, or a name with its database.
    pub fn parse(value: RawBsonRef<'_>, stage: &str) -> Result<From, QueryError> {
        match value {
            RawBsonRef::String("") => Err(QueryError::new(
                ErrorKind::InvalidNamespace,
                format!("invalid {stage} namespace: the collection has no name"),
            )),
            RawBsonRef::String(name) => {
                From::check_name(name)?;
                Ok(From {
                    database: None,
                    collection: name.into(),
                })
            }
            RawBsonRef::Document(document) => {
                let text = |name| document.get_str(name).ok();
                match (text("db"), text("coll")) {
                    (Some(database), Some(collection)) => Ok(From {
                        database: Some(database.into()),
                        collection: collection.into(),
                    }),
                    _ => Err(QueryError::new(
                        ErrorKind::FailedToParse,
                        format!("{stage} needs 'db' and 'coll' in: {}", show(value)),
                    )),
                }
            }
            other => Err(QueryError::new(
                ErrorKind::FailedToParse,
                format!(
                    "{stage} argument 'from' must be a string or an object, is type {}",
                    type_name(Some(other))
                ),
            )),
        }
    }
}

impl From {
    /// Refuses what is the name of no collection, whether or not there is one.
    pub fn check_name(name: &str) -> Result<(), QueryError> {
        let refuse = |message: String| Err(QueryError::new(ErrorKind::InvalidNamespace, message));
        if name.starts_with('.') {
            return refuse(format!("Collection names cannot start with '.': {name}"));
        }
        if name.contains('\0') {
            return refuse("namespaces cannot have embedded null characters".to_owned());
        }
        Ok(())
    }

    /// Whether a document names a collection and its database.
    pub fn is_complete(document: &RawDocument) -> bool {
        let mut names = ["db", "coll"].into_iter();
        names.all(|name| document.get_str(name).is_ok())
    }

    /// Whether a document has nothing but a name and a database, both of them texts.
    pub fn check_form(document: &RawDocument) -> Result<(), QueryError> {
        for (name, value) in document.iter().map_while(Result::ok) {
            match (name.as_str(), value) {
                ("db" | "coll", RawBsonRef::String(_)) => {}
                (name @ ("db" | "coll"), other) => {
                    let found = type_name(Some(other));
                    return Err(QueryError::new(
                        ErrorKind::TypeMismatch,
                        format!(
                            "BSON field 'from.{name}' is the wrong type '{found}', expected type \
                             'string'"
                        ),
                    ));
                }
                (other, _) => {
                    return error(
                        40415,
                        format!("BSON field 'from.{other}' is an unknown field."),
                    );
                }
            }
        }
        Ok(())
    }

    /// What the pipeline over this collection is parsed in.
    pub fn inner_text(&self, context: &Context) -> Option<TextContext> {
        let text = context.text.as_ref()?;
        Some(text.of_other(self.database.as_deref(), &self.collection))
    }

    pub fn serialize(&self, name: &str, out: &mut DocumentWriter) {
        match &self.database {
            None => out.append_str(name, &self.collection),
            Some(database) => {
                out.begin_document(name);
                out.append_str("db", database);
                out.append_str("coll", &self.collection);
                out.end();
            }
        }
    }
}

/// What a stage reads from: a collection, or nothing for a pipeline that brings its own documents.
pub(super) struct Reader {
    from: Option<(From, Arc<dyn Sources>)>,
    /// For the stages of the pipeline inside.
    pub sources: Option<Arc<dyn Sources>>,
}

impl Reader {
    pub fn new(
        from: Option<&From>,
        sources: Option<&Arc<dyn Sources>>,
        stage: &str,
    ) -> Result<Reader, QueryError> {
        let sources = sources.cloned();
        let from = match (from, &sources) {
            (None, _) => None,
            (Some(from), Some(sources)) => Some((from.clone(), sources.clone())),
            (Some(_), None) => {
                return Err(QueryError::new(
                    ErrorKind::NotImplemented,
                    format!("{stage} cannot read other collections here"),
                ));
            }
        };
        Ok(Reader { from, sources })
    }

    pub fn documents(&self, query: &ForeignQuery) -> Result<Documents, QueryError> {
        match &self.from {
            Some((from, sources)) => {
                sources.documents(from.database.as_deref(), &from.collection, query)
            }
            None => Ok(Box::new(std::iter::empty())),
        }
    }

    pub fn is_indexed(&self, path: &str) -> Result<bool, QueryError> {
        match &self.from {
            Some((from, sources)) => {
                sources.is_indexed(from.database.as_deref(), &from.collection, path)
            }
            None => Ok(false),
        }
    }
}
