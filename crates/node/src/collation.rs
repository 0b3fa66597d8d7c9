//! Which collation an operation has: the one that it names, or else that of its collection.

use banyan_document::{CollationError, Collator};
use banyan_replication::time_series;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

use crate::context::CommandContext;
use crate::params::Field;

/// What an operation says of its collation.
#[derive(Debug, Clone, Default)]
pub enum Asked {
    /// Nothing: it has that of its collection.
    #[default]
    Inherited,
    /// `None` is the simple collation.
    Named(Option<Collator>),
}

impl Asked {
    /// Of a command's field.
    pub fn parse(field: Field<'_>) -> Result<Asked, CommandError> {
        Asked::of(field.document_or_null()?)
    }

    /// As in MongoDB, an empty document names none.
    pub fn of(document: Option<&RawDocument>) -> Result<Asked, CommandError> {
        match document.filter(|document| !document.is_empty()) {
            None => Ok(Asked::Inherited),
            Some(document) => Collator::parse(document).map(Asked::Named).map_err(error),
        }
    }

    /// How the operation compares strings; `None`: by their bytes.
    pub fn collator(&self, ctx: &CommandContext<'_>, collection: &str) -> Option<Collator> {
        match self {
            Asked::Named(collator) => collator.clone(),
            Asked::Inherited => of_collection(ctx, collection),
        }
    }
}

/// The default collation of a collection.
pub fn of_collection(ctx: &CommandContext<'_>, collection: &str) -> Option<Collator> {
    let catalog = ctx.node.replica.store.catalog();
    match catalog.get(ctx.database(), collection) {
        Some(found) => found.collator.clone(),
        None => {
            let (buckets, _) = time_series::find(&catalog, ctx.database(), collection)?;
            buckets.collator.clone()
        }
    }
}

pub fn error(error: CollationError) -> CommandError {
    CommandError::new(ErrorCode::from_code(error.code()), error.to_string())
}
