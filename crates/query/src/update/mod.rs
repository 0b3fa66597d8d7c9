//! Updates: documents in, changed documents out.
//!
//! An update replaces the document, modifies it with operators (`$set`, `$inc`, ...), or runs it
//! through a pipeline. Operators are parsed (`operator.rs`, one `Modifier` per path: `modifier.rs`)
//! into a tree of the paths they touch (`tree.rs`), which refuses paths that would get into each
//! other's way. `apply.rs` walks a document and the tree together, and copies what no operator
//! touches as it lies; `array.rs` holds the operators on arrays. `upsert.rs` makes the document
//! that an upsert inserts.
//!
//! New fields are added in the order of their names, numbers by value, as MongoDB does.

mod apply;
mod array;
mod array_filter;
mod kind;
mod modifier;
mod operator;
mod parse;
mod rename;
mod replace;
mod show;
#[cfg(test)]
mod tests;
mod tree;
mod upsert;

use banyan_document::MAX_DOCUMENT_BYTES;
use banyan_document::compare;
use banyan_document::depth::is_too_deep_to_store;
use banyan_document::element::{elements, field};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::filter::Filter;

pub use kind::UpdateContext;
pub use replace::{lacks_timestamps, with_timestamps};
pub(crate) use tree::compare_names;

use kind::{Kind, Transformed, too_deep};
use parse::dollar_prefixed;

/// A parsed update.
#[derive(Clone, Debug)]
pub struct Update {
    kind: Kind,
    /// What no document may be replaced by, though one that has it may be inserted: a field of a
    /// replacement with such a name.
    dollar_prefixed: Option<Box<str>>,
}

impl Update {
    pub fn parse(
        update: RawBsonRef<'_>,
        array_filters: &[&RawDocument],
        context: &Context,
    ) -> Result<Update, QueryError> {
        let parse = || parse::parse(update, array_filters, context);
        let kind = context.folding.ignoring_failures(parse)?;
        let dollar_prefixed = match &kind {
            Kind::Replacement(replacement) => elements(replacement)
                .map(|element| element.name())
                .find(|name| name.starts_with('$'))
                .map(Into::into),
            Kind::Modifiers(_) | Kind::Pipeline(_) => None,
        };
        Ok(Update {
            kind,
            dollar_prefixed,
        })
    }

    pub fn is_replacement(&self) -> bool {
        matches!(self.kind, Kind::Replacement(_))
    }

    pub fn is_pipeline(&self) -> bool {
        matches!(self.kind, Kind::Pipeline(_))
    }

    /// The paths of operators whose result is best told as a whole and not by what differs within
    /// it, for those who describe the change later: where `$set` gave a document or an array, or
    /// elements of an array have moved. As they were written, so `$`, `$[]` and `$[identifier]`
    /// stand for any position. Where `$[]` or `$[identifier]` was written and more than one element
    /// has changed, the array is told as a whole; a path that is there for nothing else ends in a
    /// point. An array that items were put behind is told as a whole if it was empty; its path ends
    /// in two points.
    pub fn wholes(&self) -> &[String] {
        match &self.kind {
            Kind::Modifiers(modifiers) => &modifiers.wholes,
            Kind::Replacement(_) | Kind::Pipeline(_) => &[],
        }
    }

    /// Whether `apply` needs the position that the filter matched at.
    pub fn needs_position(&self) -> bool {
        matches!(&self.kind, Kind::Modifiers(modifiers) if modifiers.positional)
    }

    /// The document as it becomes; `None` if it stays as it is.
    pub fn apply(
        &self,
        document: &RawDocument,
        context: &UpdateContext,
    ) -> Result<Option<RawDocumentBuf>, QueryError> {
        if let Some(name) = &self.dollar_prefixed {
            return Err(dollar_prefixed(name, name));
        }
        let Transformed { after, is_written } = self.transform(document, context)?;
        if !is_written && after.as_bytes() == document.as_bytes() {
            return Ok(None);
        }
        self.check_id(document, &after, false)?;
        self.check_size(&after)?;
        Ok(Some(after))
    }

    /// The document that an upsert inserts when nothing matched: what the filter says it is equal
    /// to, updated, with an `_id`.
    pub fn upsert_document(
        &self,
        filter: &Filter,
        context: &UpdateContext,
    ) -> Result<RawDocumentBuf, QueryError> {
        let context = UpdateContext {
            position: None,
            is_upsert: true,
            ..context.clone()
        };
        let seed = match &self.kind {
            Kind::Replacement(_) => upsert::id_of(filter)?,
            Kind::Modifiers(_) | Kind::Pipeline(_) => upsert::equalities_of(filter)?,
        };
        let Transformed { after, is_written } = match &context.supplied {
            Some(supplied) => {
                refuse_array_id(supplied)?;
                Transformed {
                    after: replace::replace(&seed, supplied, &context),
                    is_written: true,
                }
            }
            None => self.transform(&seed, &context)?,
        };
        let is_judged = match &self.kind {
            Kind::Modifiers(_) => false,
            Kind::Replacement(_) => true,
            // One that changes nothing is judged as every document that is inserted.
            Kind::Pipeline(_) => is_written || after.as_bytes() != seed.as_bytes(),
        };
        if is_judged {
            refuse_array_id(&after)?;
        }
        self.check_id(&seed, &after, true)?;
        let after = upsert::with_id_first(&after, context.generated_id);
        self.check_size(&after)?;
        Ok(after)
    }

    fn transform(
        &self,
        document: &RawDocument,
        context: &UpdateContext,
    ) -> Result<Transformed, QueryError> {
        match &self.kind {
            Kind::Replacement(replacement) => Ok(Transformed {
                after: replace::replace(document, replacement, context),
                is_written: replacement.as_bytes() != document.as_bytes(),
            }),
            Kind::Modifiers(modifiers) => apply::apply(modifiers, document, context),
            Kind::Pipeline(pipeline) => replace::run(pipeline, document),
        }
    }

    /// `_id` may be given its own value, and one where there was none. What replaces the whole
    /// document may give it an equal number of another type.
    fn check_id(
        &self,
        before: &RawDocument,
        after: &RawDocument,
        is_upsert: bool,
    ) -> Result<(), QueryError> {
        let Some(old) = field(before, "_id") else {
            return Ok(());
        };
        let new = field(after, "_id");
        let keeps = |new| match &self.kind {
            Kind::Modifiers(_) => new == old || is_same_nan(new, old),
            Kind::Replacement(_) | Kind::Pipeline(_) => compare(new, old).is_eq(),
        };
        if new.is_some_and(keeps) {
            return Ok(());
        }
        if let (Kind::Replacement(_) | Kind::Pipeline(_), Some(new)) = (&self.kind, new) {
            // An upsert's was looked at.
            if !is_upsert {
                refuse_id(new)?;
            }
        }
        let message = match (&self.kind, new) {
            (Kind::Modifiers(modifiers), _) => format!(
                "Performing an update on the path '{}' would modify the immutable field '_id'",
                modifiers.fields.path_below("_id")
            ),
            (_, Some(new)) => format!(
                "After applying the update, the (immutable) field '_id' was found to have been \
                 altered to _id: {}",
                show::value(new)
            ),
            (_, None) => "After applying the update, the (immutable) field '_id' was found to \
                          have been removed"
                .to_string(),
        };
        Err(QueryError::new(ErrorKind::ImmutableField, message))
    }

    fn check_size(&self, after: &RawDocument) -> Result<(), QueryError> {
        if after.as_bytes().len() > MAX_DOCUMENT_BYTES {
            let kind = match &self.kind {
                Kind::Modifiers(_) => ErrorKind::BsonObjectTooLarge,
                Kind::Replacement(_) | Kind::Pipeline(_) => ErrorKind::Location(17419),
            };
            let message =
                format!("Resulting document after update is larger than {MAX_DOCUMENT_BYTES}");
            return Err(QueryError::new(kind, message));
        }
        let deepens = match &self.kind {
            Kind::Replacement(_) => false,
            Kind::Modifiers(modifiers) => modifiers.may_deepen,
            Kind::Pipeline(_) => true,
        };
        if deepens && is_too_deep_to_store(after) {
            return Err(too_deep());
        }
        Ok(())
    }
}

/// No such number is equal to itself.
fn is_same_nan(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    matches!((a, b), (RawBsonRef::Double(a), RawBsonRef::Double(b)) if a.is_nan() && b.is_nan())
}

/// A document that an upsert is given has no array as its `_id`.
fn refuse_array_id(document: &RawDocument) -> Result<(), QueryError> {
    match field(document, "_id") {
        Some(RawBsonRef::Array(_)) => Err(QueryError::new(
            ErrorKind::NotSingleValueField,
            "After applying the update to the document, the (immutable) field '_id' was found to \
             be an array or array descendant.",
        )),
        _ => Ok(()),
    }
}

/// What no document may have as its `_id`.
fn refuse_id(id: RawBsonRef<'_>) -> Result<(), QueryError> {
    let starts = |(name, _): (&bson::raw::CStr, RawBsonRef<'_>)| name.as_str().starts_with('$');
    match id {
        RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_) | RawBsonRef::Undefined => {
            let kind = banyan_document::kind::name(&id);
            let message = format!("The '_id' value cannot be of type {kind}");
            Err(QueryError::new(ErrorKind::InvalidIdField, message))
        }
        RawBsonRef::Document(inner) if inner.iter().flatten().any(starts) => {
            let message = "_id fields may not contain '$'-prefixed fields";
            Err(QueryError::new(ErrorKind::DollarPrefixedFieldName, message))
        }
        _ => Ok(()),
    }
}
