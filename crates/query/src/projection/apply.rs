//! Walking a document and the tree of a projection together.

use banyan_document::element::{Element, RawFields, elements, field, items, raw_fields};
use banyan_document::writer::DocumentWriter;
use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use super::tree::{Fields, Mode, Projection, Rule, Slice};
use crate::error::{ErrorKind, QueryError};
use crate::expression::{Arena, Expression};
use crate::filter::{ArrayPosition, ItemFilter};
use crate::names::Finder;

pub(super) fn apply(
    projection: &Projection,
    document: &RawDocument,
    position: Option<ArrayPosition>,
    mut buffer: Vec<u8>,
) -> Result<RawDocumentBuf, QueryError> {
    let bytes = document.as_bytes().len();
    if projection.keeps_paths {
        buffer.reserve(bytes.min(128));
        let mut writer = DocumentWriter::over(buffer);
        keep(&projection.fields, raw_fields(document), &mut writer);
        return Ok(writer.finish());
    }
    buffer.reserve(bytes.min(4096));
    let mut applier = Applier {
        mode: projection.mode,
        root: document,
        position,
        writer: DocumentWriter::over(buffer),
    };
    match applier.document(&projection.fields, document, false) {
        Ok(()) => Ok(applier.writer.finish()),
        Err(error) => {
            let root = Some(RawBsonRef::Document(document));
            Err(first_error(&projection.fields, document, root).unwrap_or(error))
        }
    }
}

/// The fields that are named, as they lie in the document.
fn keep(fields: &Fields, mut all: RawFields<'_>, writer: &mut DocumentWriter) {
    let mut left = fields.rules.len();
    while left > 0
        && let Some((field, bytes)) = all.next_whole()
    {
        let Some((name, rule)) = fields.entry_of(field.name()) else {
            continue;
        };
        left -= 1;
        match (rule, field.inner()) {
            (Rule::Include, _) => writer.append_bytes(bytes),
            (Rule::Fields(below), Some(inner)) if field.is_array() => {
                writer.begin_array(name);
                keep_in_items(below, inner, writer);
                writer.end();
            }
            (Rule::Fields(below), Some(inner)) => {
                writer.begin_document(name);
                keep(below, inner, writer);
                writer.end();
            }
            // Of a value that is no document nothing is left.
            _ => {}
        }
    }
}

fn keep_in_items(fields: &Fields, items: RawFields<'_>, writer: &mut DocumentWriter) {
    for item in items {
        match item.inner() {
            Some(inner) if item.is_array() => {
                writer.push_array();
                keep_in_items(fields, inner, writer);
                writer.end();
            }
            Some(inner) => {
                writer.push_document();
                keep(fields, inner, writer);
                writer.end();
            }
            None => {}
        }
    }
}

/// MongoDB works out what is computed in the order in which it is written, and cuts arrays then.
/// `value` is where the fields are put: in an array without items nothing is computed.
#[cold]
fn first_error(
    fields: &Fields,
    root: &RawDocument,
    value: Option<RawBsonRef<'_>>,
) -> Option<QueryError> {
    if let Some(RawBsonRef::Array(array)) = value {
        return items(array).find_map(|item| first_error(fields, root, Some(item.value())));
    }
    let document = value.and_then(RawBsonRef::as_document);
    fields.rules.iter().find_map(|(name, rule)| match rule {
        Rule::Expression(expression) => expression.evaluate_owned(root).err(),
        Rule::Fields(below) => {
            let value = document.and_then(|document| field(document, name));
            first_error(below, root, value)
        }
        _ => None,
    })
}

struct Applier<'a> {
    mode: Mode,
    root: &'a RawDocument,
    position: Option<ArrayPosition>,
    writer: DocumentWriter,
}

impl Applier<'_> {
    /// `cut`: an array above was already narrowed to the item that matched.
    fn document(
        &mut self,
        fields: &Fields,
        document: &RawDocument,
        cut: bool,
    ) -> Result<(), QueryError> {
        // Of what is included nothing comes behind the last one.
        let mut left = match self.mode {
            Mode::Inclusion => fields.rules.len(),
            Mode::Exclusion => usize::MAX,
        };
        for element in elements(document) {
            match fields.rule_of(element.name_bytes()) {
                Some(rule) => {
                    self.element(rule, &element, fields.positional && !cut)?;
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
                None if self.mode == Mode::Exclusion => self.writer.append_element(&element),
                None => {}
            }
        }
        match fields.adds {
            true => self.computed(fields, Some(document)),
            false => Ok(()),
        }
    }

    fn element(
        &mut self,
        rule: &Rule,
        element: &Element<'_>,
        cuts: bool,
    ) -> Result<(), QueryError> {
        match rule {
            Rule::Include => self.writer.append_element(element),
            // What is computed comes after what is there, except where most of it stays.
            Rule::Exclude | Rule::Expression(_) | Rule::Meta(_) => {}
            Rule::ElemMatch(_) if self.mode == Mode::Inclusion => {}
            Rule::ElemMatch(filter) => self.elem_match(filter, element)?,
            Rule::Slice(slice) => match element.value() {
                RawBsonRef::Array(array) => self.slice(*slice, element.name(), array),
                _ => self.writer.append_element(element),
            },
            Rule::Positional => match element.value() {
                RawBsonRef::Array(array) if cuts => {
                    let item = self.matched(array)?;
                    self.writer.begin_array(element.name());
                    self.writer.push_element(&item);
                    self.writer.end();
                }
                _ => self.writer.append_element(element),
            },
            Rule::Fields(fields) => match element.value() {
                RawBsonRef::Document(inner) => {
                    self.writer.begin_document(element.name());
                    self.document(fields, inner, !cuts)?;
                    self.writer.end();
                }
                RawBsonRef::Array(array) => {
                    self.writer.begin_array(element.name());
                    if fields.positional && cuts {
                        let item = self.matched(array)?;
                        let may_hold =
                            matches!(item.value(), RawBsonRef::Document(_) | RawBsonRef::Array(_));
                        // Of a scalar nothing is left, unless a computed field makes a document of it.
                        if !may_hold && !fields.computes {
                            return Err(mismatch());
                        }
                        self.item(fields, &item, true)?;
                    } else {
                        self.items(fields, array, !cuts)?;
                    }
                    self.writer.end();
                }
                _ => self.scalar(fields, element)?,
            },
        }
        Ok(())
    }

    fn items(&mut self, fields: &Fields, array: &RawArray, cut: bool) -> Result<(), QueryError> {
        for item in items(array) {
            self.item(fields, &item, cut)?;
        }
        Ok(())
    }

    fn item(&mut self, fields: &Fields, item: &Element<'_>, cut: bool) -> Result<(), QueryError> {
        match item.value() {
            RawBsonRef::Document(inner) => {
                self.writer.push_document();
                self.document(fields, inner, cut)?;
                self.writer.end();
            }
            RawBsonRef::Array(inner) => {
                self.writer.push_array();
                self.items(fields, inner, cut)?;
                self.writer.end();
            }
            _ if fields.computes => {
                self.writer.push_document();
                self.computed(fields, None)?;
                self.writer.end();
            }
            _ if self.mode == Mode::Exclusion => self.writer.push_element(item),
            _ => {}
        }
        Ok(())
    }

    /// A value where the projection expects a document.
    fn scalar(&mut self, fields: &Fields, element: &Element<'_>) -> Result<(), QueryError> {
        if fields.computes {
            self.writer.begin_document(element.name());
            self.computed(fields, None)?;
            self.writer.end();
        } else if self.mode == Mode::Exclusion {
            self.writer.append_element(element);
        }
        Ok(())
    }

    /// The computed fields, and the documents that only exist to hold some.
    fn computed(
        &mut self,
        fields: &Fields,
        document: Option<&RawDocument>,
    ) -> Result<(), QueryError> {
        // An exclusion computes nothing but `$meta`.
        if self.mode == Mode::Exclusion && !fields.computes {
            return Ok(());
        }
        let root = self.root;
        let present = document.map(Finder::new);
        for (name, rule) in fields.rules.iter() {
            let existing = || present.as_ref()?.element(name);
            match rule {
                Rule::Expression(expression) | Rule::Meta(expression) => {
                    self.expression(name, expression, root)?;
                }
                Rule::ElemMatch(filter) if self.mode == Mode::Inclusion => {
                    if let Some(element) = existing() {
                        self.elem_match(filter, &element)?;
                    }
                }
                Rule::Fields(inner) if inner.computes && existing().is_none() => {
                    self.writer.begin_document(name);
                    self.computed(inner, None)?;
                    self.writer.end();
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn expression(
        &mut self,
        name: &str,
        expression: &Expression,
        root: &RawDocument,
    ) -> Result<(), QueryError> {
        let arena = Arena::new();
        if let Some(value) = expression.evaluate(root, &arena)? {
            self.writer.append(name, value);
        }
        Ok(())
    }

    fn elem_match(&mut self, filter: &ItemFilter, element: &Element<'_>) -> Result<(), QueryError> {
        let RawBsonRef::Array(array) = element.value() else {
            return Ok(());
        };
        for item in items(array) {
            if filter.matches(item.value())? {
                self.writer.begin_array(element.name());
                self.writer.push_element(&item);
                self.writer.end();
                break;
            }
        }
        Ok(())
    }

    fn slice(&mut self, slice: Slice, name: &str, array: &RawArray) {
        let length = items(array).count() as i64;
        let (start, end) = slice.bounds(length);
        self.writer.begin_array(name);
        let count = (end - start).max(0) as usize;
        for item in items(array).skip(start as usize).take(count) {
            self.writer.push_element(&item);
        }
        self.writer.end();
    }

    fn matched<'b>(&self, array: &'b RawArray) -> Result<Element<'b>, QueryError> {
        let Some(ArrayPosition(index)) = self.position else {
            return Err(QueryError::new(
                ErrorKind::Location(51246),
                "positional operator '.$' couldn't find a matching element in the array",
            ));
        };
        items(array).nth(index).ok_or_else(mismatch)
    }
}

fn mismatch() -> QueryError {
    let message = "positional operator '.$' element mismatch";
    QueryError::new(ErrorKind::Location(51247), message)
}

impl Slice {
    /// Where the slice of an array of `length` starts and ends.
    fn bounds(self, length: i64) -> (i64, i64) {
        match self.limit {
            None if self.skip < 0 => (length.saturating_add(self.skip).max(0), length),
            None => (0, self.skip.min(length)),
            Some(limit) => {
                let start = if self.skip < 0 {
                    length.saturating_add(self.skip).max(0)
                } else {
                    self.skip.min(length)
                };
                (start, start.saturating_add(limit).min(length))
            }
        }
    }
}
