//! Walking a document and the tree of an update together.

use std::borrow::Cow;
use std::cmp::Ordering;

use banyan_document::compare::{compare, compare_collated};
use banyan_document::element::{Element, elements, items};
use banyan_document::kind;
use banyan_document::number::Number;
use banyan_document::path::{Path, position};
use banyan_document::writer::DocumentWriter;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::array::{ValueSet, write_set, write_without};
use super::kind::{Modifiers, Transformed, UpdateContext};
use super::modifier::{BitOperation, Modifier};
use super::parse::dollar_prefixed;
use super::show;
use super::tree::{Fields, Items, Leaf, Tree, join};
use crate::error::{ErrorKind, QueryError};
use crate::filter::ArrayPosition;
use crate::names::Finder;

pub(super) fn apply(
    modifiers: &Modifiers,
    document: &RawDocument,
    context: &UpdateContext,
) -> Result<Transformed, QueryError> {
    let finder = Finder::new(document);
    let mut renames = modifiers.renames.iter();
    if let Some(error) = renames.find_map(|rename| rename.check(&finder).err()) {
        return Err(first_error(modifiers, document, context).unwrap_or(error));
    }
    let mut applier = Applier::new(modifiers, document, context, finder);
    if let Err(error) = applier.document(&modifiers.fields, Some(document)) {
        return Err(first_error(modifiers, document, context).unwrap_or(error));
    }
    // It is missing even where nothing is written there.
    if modifiers.positional && context.position.is_none() {
        return Err(no_position());
    }
    Ok(Transformed {
        after: applier.writer.finish(),
        is_written: applier.is_written,
    })
}

/// An update of more paths names the error that is met first.
const PATHS_TRIED_MAX: usize = 32;

/// The error of the first path, in their order, that has one by itself: MongoDB goes over the paths
/// and not over the document.
#[cold]
fn first_error(
    modifiers: &Modifiers,
    document: &RawDocument,
    context: &UpdateContext,
) -> Option<QueryError> {
    let paths = modifiers.fields.paths();
    if paths.len() > PATHS_TRIED_MAX {
        return None;
    }
    let error_at = |fields: &Fields| {
        if context.position.is_none() && meets_position(&modifiers.fields, fields) {
            return Some(no_position());
        }
        let finder = Finder::new(document);
        let mut applier = Applier {
            names_first: true,
            ..Applier::new(modifiers, document, context, finder)
        };
        applier.document(fields, Some(document)).err()
    };
    let path_of = |fields: &Fields| fields.first_path().map(str::to_owned);
    paths.iter().find_map(|fields| {
        let path = path_of(fields)?;
        let mut renames = modifiers.renames.iter();
        // A rename is looked at where it leads to.
        if renames
            .clone()
            .any(|rename| rename.from.to_string() == path)
        {
            return None;
        }
        let Some(rename) = renames.find(|rename| rename.to.to_string() == path) else {
            return error_at(fields);
        };
        let from = Some(rename.from.to_string());
        let mut sources = paths.iter().filter(|fields| path_of(fields) == from);
        let refused = rename.check(&Finder::new(document)).err();
        refused
            .or_else(|| sources.find_map(error_at))
            .or_else(|| error_at(fields))
    })
}

/// Whether a path leads through where the update has a `$`, at or beside it.
fn meets_position(all: &Fields, path: &Fields) -> bool {
    if all.get("$").is_some() {
        return true;
    }
    path.children
        .iter()
        .any(|(name, below)| match (all.get(name), below) {
            (Some(Tree::Fields(all)), Tree::Fields(path)) => meets_position(all, path),
            _ => false,
        })
}

fn no_position() -> QueryError {
    QueryError::bad_value("The positional operator did not find the match needed from the query.")
}

struct Applier<'a> {
    root: &'a RawDocument,
    /// For what is read elsewhere in the document.
    finder: Finder<'a>,
    modifiers: &'a Modifiers,
    context: &'a UpdateContext,
    writer: DocumentWriter,
    /// The names from the root to where the walk is, for messages.
    path: Vec<String>,
    /// Something is written anew, whether or not it is other than before.
    is_written: bool,
    /// An error within an item is that of the first path that has one there.
    names_first: bool,
}

/// Where a value is written: under a name, or as the next item of an array.
#[derive(Clone, Copy)]
enum Slot<'n> {
    Field(&'n str),
    Item,
}

/// How many nulls may be written to reach a position beyond the end of an array.
const BACKFILL_MAX: usize = 1_500_000;

impl<'a> Applier<'a> {
    fn new(
        modifiers: &'a Modifiers,
        root: &'a RawDocument,
        context: &'a UpdateContext,
        finder: Finder<'a>,
    ) -> Applier<'a> {
        Applier {
            root,
            finder,
            modifiers,
            context,
            writer: DocumentWriter::with_capacity(root.as_bytes().len() + 64),
            path: Vec::new(),
            is_written: false,
            names_first: false,
        }
    }

    /// Writes the fields of a document, or of a new one.
    fn document(
        &mut self,
        fields: &Fields,
        document: Option<&RawDocument>,
    ) -> Result<(), QueryError> {
        let fields = self.resolve(fields)?;
        let mut seen = vec![false; fields.children.len()];
        let is_root = self.path.is_empty();
        for element in document.into_iter().flat_map(elements) {
            self.modifiers.budget.spend_bytes(element.bytes().len())?;
            let found = fields.position(element.name());
            match found {
                // Of fields with the same name, the first one is meant.
                Some(at) if !seen[at] => {
                    seen[at] = true;
                    let slot = Slot::Field(element.name());
                    let before = self.writer.len();
                    self.child(fields.children.at(at), slot, Some(&element))?;
                    if is_root && self.writer.written_since(before) != element.bytes() {
                        self.check_written(element.name(), before)?;
                    }
                }
                _ => self.writer.append_element(&element),
            }
        }
        for (child, _) in fields.children.iter().zip(seen).filter(|(_, seen)| !seen) {
            self.modifiers.budget.spend(1)?;
            let before = self.writer.len();
            self.child(child, Slot::Field(&child.0), None)?;
            if is_root {
                self.check_written(&child.0, before)?;
            }
        }
        Ok(())
    }

    /// A field of the document whose name begins with `$` may be inserted and removed, but not be
    /// given another value.
    fn check_written(&self, name: &str, before: usize) -> Result<(), QueryError> {
        let is_reference = matches!(name, "$id" | "$ref" | "$db");
        if !name.starts_with('$') || is_reference || self.context.is_upsert {
            return Ok(());
        }
        match self.writer.len() > before {
            true => Err(dollar_prefixed(name, name)),
            false => Ok(()),
        }
    }

    /// Writes the items of an array, some of them updated by position.
    fn array(&mut self, fields: &Fields, element: &Element<'_>) -> Result<(), QueryError> {
        let RawBsonRef::Array(array) = element.value() else {
            return Ok(());
        };
        let fields = self.resolve(fields)?;
        let mut updates = Vec::with_capacity(fields.children.len());
        for child in fields.children.iter() {
            match position(&child.0) {
                Some(at) => updates.push((at, child)),
                None => self.not_viable(child, element)?,
            }
        }
        // Children are in the order of their positions.
        let mut updates = updates.into_iter().peekable();
        let mut length = 0;
        for (index, item) in items(array).enumerate() {
            self.modifiers.budget.spend_bytes(item.bytes().len())?;
            match updates.next_if(|(at, _)| *at == index) {
                Some((_, child)) => self.child(child, Slot::Item, Some(&item))?,
                None => self.writer.push_element(&item),
            }
            length = index + 1;
        }
        for (at, child) in updates {
            if let Some(below) = child.1.path_of_items() {
                let path = if below.is_empty() {
                    child.0.to_string()
                } else {
                    join(&child.0, &below)
                };
                return Err(self.must_exist(&path));
            }
            if !self.creates(&child.1) {
                continue;
            }
            if at - length > BACKFILL_MAX {
                let message = format!("can't backfill more than {BACKFILL_MAX} elements");
                return Err(QueryError::new(ErrorKind::CannotBackfillArray, message));
            }
            for _ in length..at {
                self.writer.push(RawBsonRef::Null);
            }
            self.child(child, Slot::Item, None)?;
            length = at + 1;
        }
        Ok(())
    }

    fn child(
        &mut self,
        (name, tree): &(Box<str>, Tree),
        slot: Slot<'_>,
        existing: Option<&Element<'_>>,
    ) -> Result<(), QueryError> {
        self.path.push(name.to_string());
        let result = self.value(tree, slot, existing);
        self.path.pop();
        result
    }

    fn value(
        &mut self,
        tree: &Tree,
        slot: Slot<'_>,
        existing: Option<&Element<'_>>,
    ) -> Result<(), QueryError> {
        match tree {
            Tree::Leaf(leaf) => self.leaf(leaf, slot, existing),
            Tree::Items(items) => self.items(items, slot, existing),
            Tree::Fields(fields) => {
                let Some(element) = existing else {
                    if let Some(path) = tree.path_of_items() {
                        return Err(self.must_exist(&path));
                    }
                    if self.creates(tree) {
                        self.begin_document(slot);
                        self.document(fields, None)?;
                        self.writer.end();
                    }
                    return Ok(());
                };
                match element.value() {
                    RawBsonRef::Document(inner) => {
                        self.begin_document(slot);
                        self.document(fields, Some(inner))?;
                        self.writer.end();
                    }
                    RawBsonRef::Array(_) => {
                        self.begin_array(slot);
                        self.array(fields, element)?;
                        self.writer.end();
                    }
                    _ => {
                        for child in self.resolve(fields)?.children.iter() {
                            self.not_viable(child, element)?;
                        }
                        self.keep(slot, existing);
                    }
                }
                Ok(())
            }
        }
    }

    /// Writes an array whose items are updated where their filters match.
    fn items(
        &mut self,
        children: &Items,
        slot: Slot<'_>,
        existing: Option<&Element<'_>>,
    ) -> Result<(), QueryError> {
        let Some(element) = existing else {
            return Err(self.must_exist(""));
        };
        let RawBsonRef::Array(array) = element.value() else {
            return Err(QueryError::bad_value(format!(
                "Cannot apply array updates to non-array element {}",
                show::element(element)
            )));
        };
        self.begin_array(slot);
        for (index, item) in items(array).enumerate() {
            match self.merged(children, &item, index)? {
                Some(tree) => {
                    self.path.push(index.to_string());
                    let depth = self.path.len();
                    if let Err(error) = self.value(&tree, Slot::Item, Some(&item)) {
                        self.path.truncate(depth);
                        return Err(self.first_error_in(&tree, &item).unwrap_or(error));
                    }
                    self.path.pop();
                }
                None => self.writer.push_element(&item),
            }
        }
        self.writer.end();
        Ok(())
    }

    /// The error of the first path into this item that has one by itself: MongoDB goes over the items,
    /// and in each of them over the paths.
    #[cold]
    fn first_error_in(&self, tree: &Tree, item: &Element<'_>) -> Option<QueryError> {
        if !self.names_first {
            return None;
        }
        let paths = tree.paths();
        if !(2..=PATHS_TRIED_MAX).contains(&paths.len()) {
            return None;
        }
        paths.iter().find_map(|path| {
            let finder = Finder::new(self.root);
            let mut alone = Applier::new(self.modifiers, self.root, self.context, finder);
            alone.path.clone_from(&self.path);
            alone.writer.begin_array("");
            alone.value(path, Slot::Item, Some(item)).err()
        })
    }

    /// What happens to one item: the trees of all filters that it matches, as one.
    fn merged<'t>(
        &self,
        children: &'t Items,
        item: &Element<'_>,
        index: usize,
    ) -> Result<Option<Cow<'t, Tree>>, QueryError> {
        let mut meant = Vec::new();
        for (identifier, tree) in children.children.iter() {
            self.modifiers.budget.spend_bytes(item.bytes().len())?;
            if self.applies_to(identifier, item)? {
                meant.push(tree);
            }
        }
        Ok(match meant[..] {
            [] => None,
            [only] => Some(Cow::Borrowed(only)),
            _ => {
                let path = join(&self.path.join("."), &index.to_string());
                Some(Cow::Owned(Tree::merge(&meant, &path)?))
            }
        })
    }

    fn applies_to(&self, identifier: &str, item: &Element<'_>) -> Result<bool, QueryError> {
        let filter = self.modifiers.filters.get(identifier);
        // Only `$[]` has no filter: parsing made sure of that.
        filter.map_or(Ok(true), |filter| filter.matches(item.value()))
    }

    fn resolve<'t>(&self, fields: &'t Fields) -> Result<Cow<'t, Fields>, QueryError> {
        if fields.get("$").is_none() {
            return Ok(Cow::Borrowed(fields));
        }
        let Some(ArrayPosition(index)) = self.context.position else {
            return Err(no_position());
        };
        fields.resolved(index, &self.path.join(".")).map(Cow::Owned)
    }

    fn creates(&self, tree: &Tree) -> bool {
        let has = |path: &Path| self.finder.get(path.parts()).is_some();
        tree.any_leaf(&mut |leaf| leaf.modifier.creates(self.context.is_upsert, has))
    }

    /// A field was named below something that has no such fields.
    fn not_viable(
        &self,
        (name, tree): &(Box<str>, Tree),
        element: &Element<'_>,
    ) -> Result<(), QueryError> {
        if let Some(path) = tree.path_of_items() {
            let below = if path.is_empty() {
                name.to_string()
            } else {
                join(name, &path)
            };
            return Err(self.must_exist(&below));
        }
        let shown = show::element(element);
        let error = |message| Err(QueryError::new(ErrorKind::PathNotViable, message));
        if self.creates(tree) {
            return error(format!(
                "Cannot create field '{name}' in element {{{shown}}}"
            ));
        }
        let path = tree.first_path();
        if tree.any_leaf(&mut |leaf| matches!(leaf.modifier, Modifier::RenameFrom)) {
            let above = self.path.last().map_or("", String::as_str);
            return error(format!(
                "cannot use the part ({above} of {path}) to traverse the element ({{{shown}}})"
            ));
        }
        if tree.any_leaf(&mut |leaf| leaf.modifier.needs_viable_path()) {
            return error(format!(
                "Cannot use the part ({name}) of ({path}) to traverse the element ({{{shown}}})"
            ));
        }
        Ok(())
    }

    /// The items of an array that is not there were meant, `below` where the walk is.
    fn must_exist(&self, below: &str) -> QueryError {
        let above = self.path.join(".");
        let path = if below.is_empty() {
            above
        } else {
            join(&above, below)
        };
        QueryError::bad_value(format!(
            "The path '{path}' must exist in the document in order to apply array updates."
        ))
    }

    fn leaf(
        &mut self,
        leaf: &Leaf,
        slot: Slot<'_>,
        existing: Option<&Element<'_>>,
    ) -> Result<(), QueryError> {
        let value = existing.map(Element::value);
        match &leaf.modifier {
            Modifier::Set(new) => self.put(slot, new.as_raw_bson_ref()),
            Modifier::SetOnInsert(new) if self.context.is_upsert => {
                self.put(slot, new.as_raw_bson_ref());
            }
            Modifier::SetOnInsert(_) => self.keep(slot, existing),
            Modifier::Unset | Modifier::RenameFrom => self.remove(slot, existing),
            // As it was given: a sum with zero may be written otherwise.
            Modifier::Increment(by) if existing.is_none() => self.put(slot, by.to_raw()),
            Modifier::Increment(by) => {
                let sum = self.arithmetic(leaf, value, "$inc", *by, Number::checked_add)?;
                self.settle(slot, existing, sum);
            }
            Modifier::Multiply(by) => {
                let product =
                    self.arithmetic(leaf, value, "$mul", *by, Number::checked_multiply)?;
                self.settle(slot, existing, product);
            }
            Modifier::Min(new) => self.bound(slot, existing, new, Ordering::Less),
            Modifier::Max(new) => self.bound(slot, existing, new, Ordering::Greater),
            Modifier::CurrentDate => self.put(slot, RawBsonRef::DateTime(self.context.now)),
            Modifier::CurrentTimestamp => {
                self.put(slot, RawBsonRef::Timestamp(self.context.timestamp));
            }
            Modifier::Bit(operations) => {
                let result = self.bits(leaf, value, operations)?;
                self.put(slot, result.to_raw());
            }
            Modifier::RenameTo(from) => match self.finder.get(from.parts()) {
                Some(moved) => self.put(slot, moved),
                None => self.keep(slot, existing),
            },
            _ => self.array_leaf(leaf, slot, existing)?,
        }
        Ok(())
    }

    fn array_leaf(
        &mut self,
        leaf: &Leaf,
        slot: Slot<'_>,
        existing: Option<&Element<'_>>,
    ) -> Result<(), QueryError> {
        let array = match existing.map(Element::value) {
            None => None,
            Some(RawBsonRef::Array(array)) => Some(array),
            Some(other) => return Err(self.not_an_array(leaf, other)),
        };
        match &leaf.modifier {
            Modifier::Push(push) => {
                let is_empty = array.is_none_or(RawArray::is_empty);
                // What it adds is not compared with what it cuts off.
                self.is_written |= !push.items().is_empty() || push.sorts() && !is_empty;
                self.begin_array(slot);
                push.write(array, &mut self.writer)?;
                self.writer.end();
            }
            Modifier::AddToSet(added) => {
                self.begin_array(slot);
                let collator = self.modifiers.collator.as_ref();
                write_set(array, added, collator, &mut self.writer);
                self.writer.end();
            }
            removing => {
                // Nothing is taken off what is not there.
                let Some(array) = array else {
                    return Ok(());
                };
                self.begin_array(slot);
                self.removed(removing, array)?;
                self.writer.end();
            }
        }
        Ok(())
    }

    fn removed(&mut self, modifier: &Modifier, array: &RawArray) -> Result<(), QueryError> {
        let writer = &mut self.writer;
        match modifier {
            Modifier::PopFirst => {
                for item in items(array).skip(1) {
                    writer.push_element(&item);
                }
            }
            Modifier::PopLast => {
                let length = items(array).count();
                for item in items(array).take(length.saturating_sub(1)) {
                    writer.push_element(&item);
                }
            }
            Modifier::Pull(pull) => write_without(array, writer, |item| pull.takes(item))?,
            Modifier::PullAll(values) => {
                let mut values = ValueSet::of(values, self.modifiers.collator.as_ref());
                write_without(array, writer, |item| Ok(values.contains(item)))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn not_an_array(&self, leaf: &Leaf, found: RawBsonRef<'_>) -> QueryError {
        let (path, kind) = (&leaf.path, kind::name(&found));
        match leaf.modifier {
            Modifier::Push(_) => QueryError::bad_value(format!(
                "The field '{path}' must be an array but is of type {kind} in document {{{}}}",
                show::id(self.root)
            )),
            Modifier::AddToSet(_) => QueryError::bad_value(format!(
                "Cannot apply $addToSet to non-array field. Field named '{}' has non-array type \
                 {kind}",
                self.path.last().map_or("", String::as_str)
            )),
            Modifier::PopFirst | Modifier::PopLast => {
                let message =
                    format!("Path '{path}' contains an element of non-array type '{kind}'");
                QueryError::new(ErrorKind::TypeMismatch, message)
            }
            _ => QueryError::bad_value("Cannot apply $pull to a non-array value"),
        }
    }

    fn arithmetic(
        &self,
        leaf: &Leaf,
        value: Option<RawBsonRef<'_>>,
        operator: &str,
        operand: Number,
        compute: fn(Number, Number) -> Option<Number>,
    ) -> Result<Number, QueryError> {
        let Some(value) = value else {
            // A missing field counts as zero, and takes the operand's type.
            return Ok(compute(Number::Int32(0), operand).unwrap_or(operand));
        };
        let Some(current) = Number::from_raw(value) else {
            let message = format!(
                "Cannot apply {operator} to a value of non-numeric type. {{{}}} has the field \
                 '{}' of non-numeric type {}",
                show::id(self.root),
                self.path.last().map_or(leaf.path.as_str(), String::as_str),
                kind::name(&value)
            );
            return Err(QueryError::new(ErrorKind::TypeMismatch, message));
        };
        compute(current, operand).ok_or_else(|| {
            let kind = if matches!(current, Number::Int32(_)) {
                "NumberInt"
            } else {
                "NumberLong"
            };
            QueryError::bad_value(format!(
                "Failed to apply {operator} operations to current value (({kind}){}) for document \
                 {{{}}}",
                show::value(value),
                show::id(self.root)
            ))
        })
    }

    fn bits(
        &self,
        leaf: &Leaf,
        value: Option<RawBsonRef<'_>>,
        operations: &[(BitOperation, Number)],
    ) -> Result<Number, QueryError> {
        let mut current = match value.map(|value| (value, Number::from_raw(value))) {
            None => Number::Int32(0),
            Some((_, Some(number @ (Number::Int32(_) | Number::Int64(_))))) => number,
            Some((other, _)) => {
                return Err(QueryError::bad_value(format!(
                    "Cannot apply $bit to a value of non-integral type.{} has the field {} of \
                     non-integer type {}",
                    show::id(self.root),
                    self.path.last().map_or(leaf.path.as_str(), String::as_str),
                    kind::name(&other)
                )));
            }
        };
        for (operation, operand) in operations {
            let (a, b) = (current.to_i64_saturating(), operand.to_i64_saturating());
            let result = match operation {
                BitOperation::And => a & b,
                BitOperation::Or => a | b,
                BitOperation::Xor => a ^ b,
            };
            current = match (current, operand) {
                // 32 bits with 32 bits stay 32 bits.
                (Number::Int32(_), Number::Int32(_)) => Number::Int32(result as i32),
                _ => Number::Int64(result),
            };
        }
        Ok(current)
    }

    fn bound(
        &mut self,
        slot: Slot<'_>,
        existing: Option<&Element<'_>>,
        new: &RawBson,
        wanted: Ordering,
    ) {
        let new = new.as_raw_bson_ref();
        let collator = self.modifiers.collator.as_ref();
        let order = existing.map(|element| compare_collated(new, element.value(), collator));
        match order {
            Some(order) if order != wanted => self.keep(slot, existing),
            _ => self.put(slot, new),
        }
    }

    /// Writes what comes of arithmetic. A result that equals the value and is of its type leaves it
    /// as it is written: zero with its sign, a decimal with its trailing zeros.
    fn settle(&mut self, slot: Slot<'_>, existing: Option<&Element<'_>>, result: Number) {
        self.is_written |= result.is_nan();
        let result = result.to_raw();
        let is_same = |value: RawBsonRef<'_>| match result {
            RawBsonRef::Double(_) | RawBsonRef::Decimal128(_) => {
                value.element_type() == result.element_type() && compare(value, result).is_eq()
            }
            _ => false,
        };
        match existing {
            Some(element) if is_same(element.value()) => self.keep(slot, existing),
            _ => self.put(slot, result),
        }
    }

    fn put(&mut self, slot: Slot<'_>, value: RawBsonRef<'_>) {
        match slot {
            Slot::Field(name) => self.writer.append(name, value),
            Slot::Item => self.writer.push(value),
        }
    }

    fn keep(&mut self, slot: Slot<'_>, existing: Option<&Element<'_>>) {
        match (slot, existing) {
            (Slot::Field(_), Some(element)) => self.writer.append_element(element),
            (Slot::Item, Some(element)) => self.writer.push_element(element),
            (_, None) => {}
        }
    }

    /// An item that is taken away leaves null behind, so that the others keep their positions.
    fn remove(&mut self, slot: Slot<'_>, existing: Option<&Element<'_>>) {
        if let (Slot::Item, Some(_)) = (slot, existing) {
            self.is_written = true;
            self.writer.push(RawBsonRef::Null);
        }
    }

    fn begin_document(&mut self, slot: Slot<'_>) {
        match slot {
            Slot::Field(name) => self.writer.begin_document(name),
            Slot::Item => self.writer.push_document(),
        }
    }

    fn begin_array(&mut self, slot: Slot<'_>) {
        match slot {
            Slot::Field(name) => self.writer.begin_array(name),
            Slot::Item => self.writer.push_array(),
        }
    }
}
