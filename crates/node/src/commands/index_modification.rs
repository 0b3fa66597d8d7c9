//! The `index` of a `collMod`: which index is to change, and how.

use std::sync::Arc;

use banyan_document::compare;
use banyan_document::key::KeyPattern;
use banyan_storage::{Collection, Index};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::clustered::{self, EXPIRE};
use super::index_expiry;
use crate::context::CommandContext;
use crate::errors;
use crate::index_changes;
use crate::params::{self, Field};
use crate::role::IndexLoss;

/// Refuses to hide what the role cannot do without.
fn check_hiding(
    ctx: &CommandContext<'_>,
    collection: &Collection,
    index: &Index,
    hidden: bool,
) -> Result<(), CommandError> {
    let Some(rules) = ctx.node.index_rules(&collection.namespace) else {
        return Ok(());
    };
    if !hidden {
        return Ok(());
    }
    let others: Vec<&Index> = collection
        .indexes
        .iter()
        .filter(|other| other.id != index.id)
        .map(|other| &**other)
        .collect();
    rules.check_loss(index, &others, IndexLoss::Hidden)
}

/// What errors call the `index` of a `collMod`.
const PARSER: &str = "collMod.index";

const PREPARE: &str = "prepareUnique";

/// Which index is to be hidden or shown, given another time after which its documents go, prepared to
/// become unique, or made unique.
pub struct IndexOption<'a> {
    name: Option<&'a str>,
    pub pattern: Option<&'a RawDocument>,
    hidden: Option<bool>,
    pub expires: Option<Field<'a>>,
    pub unique: Option<bool>,
    prepare_unique: Option<bool>,
}

impl<'a> IndexOption<'a> {
    pub fn parse(field: Field<'a>) -> Result<IndexOption<'a>, CommandError> {
        let (mut name, mut pattern, mut hidden, mut expires) = (None, None, None, None);
        let (mut unique, mut prepare_unique) = (None, None);
        for field in params::fields(PARSER, field.document()?) {
            match field.name {
                "name" | "keyPattern" | "hidden" | EXPIRE | "unique" | "prepareUnique"
                    if field.is_null() => {}
                "name" => name = Some(field.str()?),
                "keyPattern" => pattern = Some(field.document()?),
                "hidden" => hidden = Some(field.bool()?),
                EXPIRE => {
                    field.i64()?;
                    expires = Some(field);
                }
                "unique" => unique = Some(field.bool()?),
                "prepareUnique" => prepare_unique = Some(field.bool()?),
                other => return Err(params::unknown_field(PARSER, other)),
            }
        }
        Ok(IndexOption {
            name,
            pattern,
            hidden,
            expires,
            unique,
            prepare_unique,
        })
    }

    /// With another pattern of the index.
    pub fn of_pattern(self, pattern: &'a RawDocument) -> IndexOption<'a> {
        IndexOption {
            pattern: Some(pattern),
            ..self
        }
    }

    /// Whether it names an index, as it may be named, and something about it.
    fn check(&self) -> Result<(), CommandError> {
        let refuse = |message: &str| Err(CommandError::new(ErrorCode::InvalidOptions, message));
        self.expires.map(index_expiry::of_change).transpose()?;
        if self.name.is_some() == self.pattern.is_some() {
            return refuse("Must specify either index name or key pattern, and not both");
        }
        let says_nothing = self.hidden.is_none() && self.expires.is_none();
        if says_nothing && self.unique.is_none() && self.prepare_unique.is_none() {
            return refuse("no expireAfterSeconds, hidden, unique, or prepareUnique field");
        }
        Ok(())
    }

    /// An index becomes unique only where it was prepared for that, and is prepared for it by a
    /// change of its own.
    fn check_unique(&self, index: &Index) -> Result<(), CommandError> {
        let refuse = |message: &str| Err(CommandError::new(ErrorCode::InvalidOptions, message));
        // That it is not to be prepared goes with everything.
        let prepares = self.prepare_unique.filter(|prepares| *prepares);
        let changes_else = self.hidden.is_some() || self.expires.is_some() || self.unique.is_some();
        match (self.unique, prepares) {
            (Some(false), _) => Err(CommandError::new(
                ErrorCode::BadValue,
                "Cannot make index non-unique",
            )),
            (Some(true), Some(true)) if self.hidden.is_none() && self.expires.is_none() => {
                self.check_prepared(index)
            }
            (_, Some(_)) if changes_else => {
                refuse("prepareUnique cannot be combined with any other modification.")
            }
            (Some(true), _) => self.check_prepared(index),
            _ => Ok(()),
        }
    }

    fn check_prepared(&self, index: &Index) -> Result<(), CommandError> {
        if index.unique || index.prepares_unique {
            return Ok(());
        }
        Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Cannot make index unique with 'prepareUnique=false'. Run collMod to set it first.",
        ))
    }

    /// Whether the index is to be made unique that is not.
    pub fn converts(&self, index: &Index) -> bool {
        self.unique == Some(true) && !index.unique
    }

    /// What changes `unique`, as a collection cannot be asked for that has many copies of an index.
    pub fn changes_uniqueness(&self) -> bool {
        self.unique.is_some() || self.prepare_unique.is_some()
    }

    /// The specification as it becomes, but for `unique`; `reply` tells what was changed.
    pub fn change(
        &self,
        ctx: &CommandContext<'_>,
        collection: &Collection,
        index: &Index,
        reply: &mut RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        let mut spec = index.spec.clone();
        let asked = self.expires.map(index_expiry::of_change).transpose()?;
        if let Some(seconds) = asked {
            index_expiry::check_change(collection, index)?;
            if let Some(old) = index.expire_after_seconds {
                reply.append(cstr!("expireAfterSeconds_old"), old);
            }
            reply.append(cstr!("expireAfterSeconds_new"), seconds);
        }
        let expires = asked.or(index.expire_after_seconds);
        if let Some(hidden) = self.hidden.filter(|hidden| *hidden != index.hidden) {
            check_hiding(ctx, collection, index, hidden)?;
            spec = index_changes::with_hidden(&spec, hidden);
            reply.append(cstr!("hidden_old"), !hidden);
            reply.append(cstr!("hidden_new"), hidden);
        }
        if spec != index.spec || expires != index.expire_after_seconds {
            spec = index_expiry::with(&spec, expires);
        }
        let prepared = self
            .prepare_unique
            .filter(|_| !index.unique && self.unique.is_none());
        if let Some(prepare) = prepared.filter(|prepare| *prepare != index.prepares_unique) {
            spec = with_prepared(&spec, prepare);
            reply.append(cstr!("prepareUnique_old"), !prepare);
            reply.append(cstr!("prepareUnique_new"), prepare);
        }
        Ok(spec)
    }

    pub fn find(&self, collection: &Collection) -> Result<Arc<Index>, CommandError> {
        self.check()?;
        if self.expires.is_some() && collection.is_capped {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "TTL indexes are not supported for capped collections.",
            ));
        }
        let pattern = self.pattern.and_then(|key| KeyPattern::parse(key).ok());
        let is_series = banyan_replication::time_series::of(collection).is_some();
        if self.hidden.is_some()
            && !is_series
            && self
                .name
                .is_some_and(|name| clustered::is_named(collection, name))
        {
            return Err(clustered::location(
                6011800,
                "The 'hidden' option is not supported for a clusteredIndex",
            ));
        }
        let same_orders = |index: &Index| {
            let own = index.spec.get_document("key").ok();
            own.zip(self.pattern).is_some_and(|(own, asked)| {
                let (own, asked) = (RawBsonRef::Document(own), RawBsonRef::Document(asked));
                compare(own, asked).is_eq()
            })
        };
        let is_asked_for = |index: &&Arc<Index>| match (self.name, &pattern) {
            (Some(name), _) => index.name == name,
            (None, Some(_)) => same_orders(index),
            (None, None) => false,
        };
        let mut matching = collection.indexes.iter().filter(is_asked_for);
        let found = matching.next();
        if let (Some(_), Some(key)) = (matching.next(), self.pattern) {
            return Err(CommandError::new(
                ErrorCode::AmbiguousIndexKeyPattern,
                format!(
                    "index keyPattern {} matches several indexes, must use index name",
                    errors::shown(RawBsonRef::Document(key))
                ),
            ));
        }
        let Some(index) = found else {
            let asked = match (self.name, self.pattern) {
                (None, Some(key)) => errors::shown(RawBsonRef::Document(key)),
                (name, _) => name.unwrap_or_default().to_owned(),
            };
            return Err(CommandError::new(
                ErrorCode::IndexNotFound,
                format!("cannot find index {asked} for ns {}", collection.namespace),
            ));
        };
        if index.is_id() && self.hidden.is_some() {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "can't hide _id index",
            ));
        }
        self.check_unique(index)?;
        Ok(index.clone())
    }
}

/// A specification that prepares its index to become unique, or does not.
fn with_prepared(spec: &RawDocument, prepare: bool) -> RawDocumentBuf {
    let mut changed = without_prepared(spec);
    if prepare {
        changed.append(cstr!("prepareUnique"), true);
    }
    changed
}

fn without_prepared(spec: &RawDocument) -> RawDocumentBuf {
    let mut changed = RawDocumentBuf::new();
    for (name, value) in spec.iter().flatten() {
        if name.as_str() != PREPARE {
            changed.append(name, value);
        }
    }
    changed
}

/// The specification of the unique index that one becomes.
pub fn made_unique(spec: &RawDocument) -> RawDocumentBuf {
    let mut unique = RawDocumentBuf::new();
    for (name, value) in without_prepared(spec).iter().flatten() {
        unique.append(name, value);
        if name.as_str() == "name" {
            unique.append(cstr!("unique"), true);
        }
    }
    unique
}
