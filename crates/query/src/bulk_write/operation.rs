//! One operation of a `bulkWrite`.

use banyan_document::{DocumentWriter, Element, elements, is_true};
use bson::{RawBsonRef, RawDocument};

use crate::error::{ErrorKind, QueryError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    /// The command that does it.
    pub fn command(self) -> &'static str {
        match self {
            Kind::Insert => "insert",
            Kind::Update => "update",
            Kind::Delete => "delete",
        }
    }

    /// The command's field that holds its statements.
    pub(super) fn statements(self) -> &'static str {
        match self {
            Kind::Insert => "documents",
            Kind::Update => "updates",
            Kind::Delete => "deletes",
        }
    }

    /// What errors call an operation.
    fn parser(self) -> &'static str {
        match self {
            Kind::Insert => "BulkWriteInsertOp",
            Kind::Update => "BulkWriteUpdateOp",
            Kind::Delete => "BulkWriteDeleteOp",
        }
    }

    /// The fields that it has to have.
    fn required(self) -> &'static [&'static str] {
        match self {
            Kind::Insert => &["document"],
            Kind::Update => &["filter", "updateMods"],
            Kind::Delete => &["filter"],
        }
    }

    /// The fields that it may have, and what the write command calls them.
    fn optional(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::Insert => &[],
            Kind::Update => &[
                ("arrayFilters", "arrayFilters"),
                ("collation", "collation"),
                ("constants", "c"),
                ("hint", "hint"),
                ("sort", "sort"),
                ("upsert", "upsert"),
                ("upsertSupplied", "upsertSupplied"),
            ],
            Kind::Delete => &[("collation", "collation"), ("hint", "hint")],
        }
    }
}

pub(super) struct Operation<'a> {
    pub kind: Kind,
    /// A place in `nsInfo`.
    pub namespace: usize,
    document: &'a RawDocument,
}

impl<'a> Operation<'a> {
    pub fn parse(document: &'a RawDocument) -> Result<Operation<'a>, QueryError> {
        let unclear = || {
            let text = "BulkWrite operation must begin with insert, update or delete";
            QueryError::new(ErrorKind::FailedToParse, text)
        };
        let first = elements(document).next().ok_or_else(unclear)?;
        let kind = match first.name() {
            "insert" => Kind::Insert,
            "update" => Kind::Update,
            "delete" => Kind::Delete,
            _ => return Err(unclear()),
        };
        let place = match first.value() {
            RawBsonRef::Int32(place) => i64::from(place),
            RawBsonRef::Int64(place) => place,
            RawBsonRef::Double(place) => place as i64,
            _ => {
                let text = format!(
                    "BSON field '{}.{}' is the wrong type, expected types '[long, int, decimal, \
                     double]'",
                    kind.parser(),
                    kind.command()
                );
                return Err(QueryError::new(ErrorKind::TypeMismatch, text));
            }
        };
        let namespace = usize::try_from(place).map_err(|_| {
            QueryError::bad_value(format!(
                "BSON field '{}' value must be >= 0, actual value '{place}'",
                kind.command()
            ))
        })?;
        check_fields(kind, document)?;
        Ok(Operation {
            kind,
            namespace,
            document,
        })
    }

    /// Appends it as a statement of its command.
    pub fn write(&self, out: &mut DocumentWriter) {
        let fields = || elements(self.document).skip(1);
        let named = |name: &str| fields().find(|one| one.name() == name);
        if self.kind == Kind::Insert {
            if let Some(document) = named("document") {
                out.push_element(&document);
            }
            return;
        }
        out.push_document();
        let renamed = |out: &mut DocumentWriter, from: &str, to: &str| {
            if let Some(element) = named(from) {
                out.append_element_as(to, &element);
            }
        };
        renamed(out, "filter", "q");
        let multi = named("multi").is_some_and(|multi| is_true(multi.value()));
        match self.kind {
            Kind::Insert => {}
            Kind::Update => {
                renamed(out, "updateMods", "u");
                out.append_bool("multi", multi);
            }
            Kind::Delete => out.append_i32("limit", i32::from(!multi)),
        }
        for (from, to) in self.kind.optional() {
            renamed(out, from, to);
        }
        out.end();
    }
}

fn check_fields(kind: Kind, document: &RawDocument) -> Result<(), QueryError> {
    let parser = kind.parser();
    let is_known = |one: &Element<'_>| {
        let name = one.name();
        let more = kind != Kind::Insert && matches!(name, "multi" | "sampleId");
        more || kind.required().contains(&name)
            || kind
                .optional()
                .iter()
                .any(|(optional, _)| *optional == name)
    };
    if let Some(unknown) = elements(document).skip(1).find(|one| !is_known(one)) {
        return Err(QueryError::new(
            ErrorKind::Location(40_415),
            format!(
                "BSON field '{parser}.{}' is an unknown field.",
                unknown.name()
            ),
        ));
    }
    for required in kind.required() {
        let Some(value) = banyan_document::field(document, required) else {
            return Err(QueryError::new(
                ErrorKind::Location(40_414),
                format!("BSON field '{parser}.{required}' is missing but a required field"),
            ));
        };
        if *required != "updateMods" && value.as_document().is_none() {
            return Err(QueryError::new(
                ErrorKind::TypeMismatch,
                format!(
                    "BSON field '{parser}.{required}' is the wrong type '{}', expected type \
                     'object'",
                    banyan_document::kind::name(&value)
                ),
            ));
        }
    }
    Ok(())
}
