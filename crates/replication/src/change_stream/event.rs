//! Operations as MongoDB's change events.

use std::sync::Arc;
use std::time::Duration;

use banyan_execution::by_id;
use banyan_query::{diff, view};
use banyan_storage::{CatalogChange, CollectionId, Namespace};
use banyan_wire::params;
use banyan_wire::{CommandError, ErrorCode};

use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::options::{BeforeChange, FullDocument, Options};
use super::scope::Scope;
use super::token::Token;
use crate::clock;
use crate::entry::{Operation, Style};
use crate::errors;
use crate::machine::names::Name;
use crate::oplog::describe;
use crate::replica::Replica;

/// An event as the stream returns it.
pub struct Event {
    pub token: Token,
    pub document: RawDocumentBuf,
}

/// What a stream wants of operations, and where it looks things up.
pub struct Describer {
    pub replica: Arc<Replica>,
    pub scope: Scope,
    pub full_document: FullDocument,
    pub before_change: BeforeChange,
    pub expanded: bool,
    pub images: ImagesKept,
}

/// How long images are shown after the change, as told at any moment. `None`: for as long as the log
/// has them.
pub type ImagesKept = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// When and where an operation took place.
#[derive(Clone, Copy)]
pub struct Place {
    pub time: u64,
    pub wall_ms: i64,
}

/// The events of one operation: its own, and the end of the stream.
#[derive(Default)]
pub struct Events {
    pub event: Option<Event>,
    pub invalidate: Option<Event>,
}

impl Describer {
    pub fn new(
        replica: Arc<Replica>,
        scope: Scope,
        options: &Options,
        images: ImagesKept,
    ) -> Describer {
        Describer {
            replica,
            scope,
            full_document: options.full_document,
            before_change: options.before_change,
            expanded: options.expanded,
            images,
        }
    }

    /// The collection's name at that place, if the stream shows what happens to it.
    pub fn shown(&self, collection: CollectionId, index: u64) -> Option<Arc<Name>> {
        let name = self.replica.machine.name_at(collection, index)?;
        (self.scope.shows(&name.namespace) || self.shows_views_in(&name)).then_some(name)
    }

    /// Whether the documents of a collection are views that the stream tells of.
    fn shows_views_in(&self, name: &Name) -> bool {
        let namespace = &name.namespace;
        self.expanded
            && namespace.collection() == view::COLLECTION
            && self.scope.shows_views_of(namespace.database())
    }

    /// `name` is that of the collection whose document it is about, if it is shown.
    pub fn describe(
        &self,
        operation: &Operation<'_>,
        place: Place,
        name: Option<&Name>,
    ) -> Result<Events, CommandError> {
        if name.is_some_and(|name| self.shows_views_in(name)) {
            return Ok(self.view(operation, place));
        }
        let event = match (operation, name) {
            (Operation::Catalog(change, about), _) => {
                return Ok(self.catalog(change, about, place));
            }
            (Operation::DropDatabase { name }, _) => {
                return Ok(self.database(name, place));
            }
            (Operation::Insert { document, .. }, Some(name)) => {
                let mut event = self.start("insert", place, Some(&name.uuid));
                event.append(cstr!("fullDocument"), *document);
                event.append(cstr!("ns"), shown_name(&name.namespace));
                event.append(cstr!("documentKey"), key_of(document));
                event
            }
            (
                Operation::Update {
                    collection,
                    before,
                    after,
                    style,
                    ..
                },
                Some(name),
            ) => self.update(*collection, before, after, style, place, name)?,
            (Operation::Delete { before, .. }, Some(name)) => {
                let mut event = self.start("delete", place, Some(&name.uuid));
                event.append(cstr!("ns"), shown_name(&name.namespace));
                event.append(cstr!("documentKey"), key_of(before));
                self.append_before(&mut event, "delete", before, place, name)?;
                event
            }
            _ => return Ok(Events::default()),
        };
        let token = Token::event(place.time, name.map(|name| name.uuid));
        Ok(Events {
            event: Some(Event {
                token,
                document: event,
            }),
            invalidate: None,
        })
    }

    fn update(
        &self,
        collection: CollectionId,
        before: &RawDocument,
        after: &RawDocument,
        style: &Style<'_>,
        place: Place,
        name: &Name,
    ) -> Result<RawDocumentBuf, CommandError> {
        let diff = match style {
            Style::Replacement => None,
            Style::Pipeline => diff::by_pipeline(before, after),
            Style::Modifiers { wholes } => Some(diff::by_operators(before, after, wholes)),
        };
        let kind = if diff.is_some() { "update" } else { "replace" };
        let mut event = self.start(kind, place, Some(&name.uuid));
        if diff.is_none() {
            event.append(cstr!("fullDocument"), after);
        } else {
            self.append_after(&mut event, collection, after, place, name)?;
        }
        event.append(cstr!("ns"), shown_name(&name.namespace));
        event.append(cstr!("documentKey"), key_of(after));
        if let Some(diff) = diff {
            event.append(
                cstr!("updateDescription"),
                diff.to_description(self.expanded),
            );
        }
        self.append_before(&mut event, kind, before, place, name)?;
        Ok(event)
    }

    /// The document as an update left it, as far as it is asked for.
    fn append_after(
        &self,
        event: &mut RawDocumentBuf,
        collection: CollectionId,
        after: &RawDocument,
        place: Place,
        name: &Name,
    ) -> Result<(), CommandError> {
        match self.full_document {
            FullDocument::Default => {}
            FullDocument::UpdateLookup => match self.look_up(collection, after)? {
                Some(present) => event.append(cstr!("fullDocument"), present),
                None => event.append(cstr!("fullDocument"), RawBsonRef::Null),
            },
            _ if self.has_images(place, name) => event.append(cstr!("fullDocument"), after),
            FullDocument::WhenAvailable => event.append(cstr!("fullDocument"), RawBsonRef::Null),
            FullDocument::Required => {
                let wanted = "post-image for all update events, but the post-image";
                return Err(no_image(wanted, "update", place, name));
            }
        }
        Ok(())
    }

    /// The document as it is now.
    fn look_up(
        &self,
        collection: CollectionId,
        document: &RawDocument,
    ) -> Result<Option<RawDocumentBuf>, CommandError> {
        let (catalog, snapshot) = self.replica.view();
        let Some(collection) = catalog.by_id(collection) else {
            return Ok(None);
        };
        let Ok(Some(id)) = document.get("_id") else {
            return Ok(None);
        };
        let found = by_id::lookup(collection, &snapshot, id).map_err(errors::query)?;
        Ok(found.map(|record| RawDocument::to_owned(&record)))
    }

    /// The document as it was before a change, as far as it is asked for.
    fn append_before(
        &self,
        event: &mut RawDocumentBuf,
        kind: &str,
        before: &RawDocument,
        place: Place,
        name: &Name,
    ) -> Result<(), CommandError> {
        match self.before_change {
            BeforeChange::Off => {}
            _ if self.has_images(place, name) => {
                event.append(cstr!("fullDocumentBeforeChange"), before);
            }
            BeforeChange::WhenAvailable => {
                event.append(cstr!("fullDocumentBeforeChange"), RawBsonRef::Null);
            }
            BeforeChange::Required => {
                let wanted = "pre-image for all update, delete and replace events, but the \
                              pre-image";
                return Err(no_image(wanted, kind, place, name));
            }
        }
        Ok(())
    }

    /// Whether the states of a document around a change may still be shown.
    fn has_images(&self, place: Place, name: &Name) -> bool {
        let age =
            Duration::from_millis(clock::wall_ms().saturating_sub(place.wall_ms).max(0) as u64);
        name.pre_images && (self.images)().is_none_or(|kept| age < kept)
    }

    /// Changes of collections and indexes.
    fn catalog(&self, change: &CatalogChange, about: &RawDocument, place: Place) -> Events {
        // The rename that put another in its place has an event for it.
        if about.get_bool("replaced").unwrap_or(false) {
            return Events::default();
        }
        let (namespace, uuid) = match change {
            CatalogChange::CreateCollection {
                namespace, uuid, ..
            } => (Some(namespace.clone()), Some(*uuid)),
            _ => (
                about.get_str("ns").ok().and_then(Namespace::parse),
                uuid_of(about),
            ),
        };
        let Some(namespace) = namespace else {
            return Events::default();
        };
        let target = match change {
            CatalogChange::RenameCollection { to, .. } => Some(to),
            _ => None,
        };
        let shown = self.scope.shows(&namespace) || target.is_some_and(|to| self.scope.shows(to));
        let kind = match change {
            _ if !shown => return Events::default(),
            CatalogChange::DropCollection { .. } => "drop",
            CatalogChange::RenameCollection { .. } => "rename",
            _ if !self.expanded => return Events::default(),
            CatalogChange::CreateCollection { .. } => "create",
            CatalogChange::CreateIndex { .. } | CatalogChange::CommitIndexBuild { .. } => {
                "createIndexes"
            }
            CatalogChange::StartIndexBuild { .. }
            | CatalogChange::AbortIndexBuild { .. }
            | CatalogChange::FinishIndexBuild { .. } => return Events::default(),
            CatalogChange::DropIndex { .. } => "dropIndexes",
            CatalogChange::SetOptions { .. } | CatalogChange::SetIndexSpec { .. } => "modify",
        };
        // As MongoDB has it: before everything else.
        let mut event = target.map_or_else(RawDocumentBuf::new, |to| {
            rawdoc! { "to": shown_name(to) }
        });
        let start = self.start(kind, place, uuid.as_ref());
        describe::append_all(&mut event, &start);
        event.append(cstr!("ns"), shown_name(&namespace));
        if self.expanded {
            append_description(&mut event, change, about);
        }
        let token = Token::event(place.time, uuid);
        let ends = match change {
            CatalogChange::DropCollection { .. } => self.scope.ends_with(&namespace),
            CatalogChange::RenameCollection { to, .. } => {
                self.scope.ends_with(&namespace) || self.scope.ends_with(to)
            }
            _ => false,
        };
        Events {
            event: Some(Event {
                token,
                document: event,
            }),
            invalidate: ends.then(|| self.invalidate(token, place)),
        }
    }

    /// Changes of views, whose definitions are documents.
    fn view(&self, operation: &Operation<'_>, place: Place) -> Events {
        let (kind, definition, is_told) = match operation {
            Operation::Insert { document, .. } => ("create", *document, true),
            Operation::Update { after, .. } => ("modify", *after, true),
            Operation::Delete { before, .. } => ("drop", *before, false),
            _ => return Events::default(),
        };
        let namespace = definition.get_str("_id").ok().and_then(Namespace::parse);
        let Some(namespace) = namespace else {
            return Events::default();
        };
        let mut event = self.start(kind, place, None);
        event.append(cstr!("ns"), shown_name(&namespace));
        if is_told {
            let mut description = RawDocumentBuf::new();
            for (name, value) in definition.iter().flatten() {
                if name != "_id" {
                    description.append(name, value);
                }
            }
            event.append(cstr!("operationDescription"), description);
        }
        Events {
            event: Some(Event {
                token: Token::event(place.time, None),
                document: event,
            }),
            invalidate: None,
        }
    }

    fn database(&self, name: &str, place: Place) -> Events {
        if !self.scope.shows_database(name) {
            return Events::default();
        }
        let token = Token::event(place.time, None);
        let mut event = self.start("dropDatabase", place, None);
        event.append(cstr!("ns"), rawdoc! { "db": name });
        let ends = self.scope.ends_with_database(name);
        Events {
            event: Some(Event {
                token,
                document: event,
            }),
            invalidate: ends.then(|| self.invalidate(token, place)),
        }
    }

    fn invalidate(&self, token: Token, place: Place) -> Event {
        let token = token.invalidate();
        Event {
            token,
            document: rawdoc! {
                "_id": token.to_document(),
                "operationType": "invalidate",
                "clusterTime": clock::from_bits(place.time),
                "wallTime": DateTime::from_millis(place.wall_ms),
            },
        }
    }

    fn start(&self, kind: &str, place: Place, uuid: Option<&[u8; 16]>) -> RawDocumentBuf {
        let token = Token::event(place.time, uuid.copied());
        let mut event = rawdoc! {
            "_id": token.to_document(),
            "operationType": kind,
            "clusterTime": clock::from_bits(place.time),
        };
        if let Some(uuid) = uuid.filter(|_| self.expanded) {
            event.append(cstr!("collectionUUID"), params::uuid(uuid));
        }
        event.append(cstr!("wallTime"), DateTime::from_millis(place.wall_ms));
        event
    }
}

/// What `showExpandedEvents` adds to a change of collections and indexes.
fn append_description(event: &mut RawDocumentBuf, change: &CatalogChange, about: &RawDocument) {
    let (mut description, mut before) = (RawDocumentBuf::new(), None);
    match change {
        CatalogChange::DropCollection { .. }
        | CatalogChange::StartIndexBuild { .. }
        | CatalogChange::AbortIndexBuild { .. }
        | CatalogChange::FinishIndexBuild { .. } => return,
        CatalogChange::CommitIndexBuild { .. } => {
            describe::append_indexes(&mut description, about);
        }
        CatalogChange::CreateCollection {
            options, indexes, ..
        } => {
            describe::append_all(&mut description, options);
            if let Some(id_index) = indexes.first() {
                description.append(cstr!("idIndex"), id_index.spec.clone());
            }
        }
        CatalogChange::RenameCollection { to, .. } => {
            description.append(cstr!("to"), shown_name(to));
            if let Ok(Some(target)) = about.get("dropTarget") {
                description.append(cstr!("dropTarget"), target);
            }
        }
        CatalogChange::CreateIndex { index, .. } => {
            let mut indexes = bson::RawArrayBuf::new();
            indexes.push(index.spec.clone());
            description.append(cstr!("indexes"), indexes);
        }
        CatalogChange::DropIndex { .. } => {
            let mut indexes = bson::RawArrayBuf::new();
            if let Ok(spec) = about.get_document("index") {
                indexes.push(spec.to_owned());
            }
            description.append(cstr!("indexes"), indexes);
        }
        CatalogChange::SetOptions { options, .. } => {
            describe::append_all(&mut description, &describe::changed_options(about, options));
            before = Some(rawdoc! { "collectionOptions": describe::collection_options(about) });
        }
        CatalogChange::SetIndexSpec { index, .. } => {
            description.append(cstr!("index"), describe::changed_index(&index.spec));
            let mut state = rawdoc! { "collectionOptions": describe::collection_options(about) };
            if let Ok(old) = about.get_document("index") {
                state.append(cstr!("indexOptions"), describe::hidden(old));
            }
            before = Some(state);
        }
    }
    event.append(cstr!("operationDescription"), description);
    if let Some(before) = before {
        event.append(cstr!("stateBeforeChange"), before);
    }
}

fn shown_name(namespace: &Namespace) -> RawDocumentBuf {
    rawdoc! { "db": namespace.database(), "coll": namespace.collection() }
}

fn key_of(document: &RawDocument) -> RawDocumentBuf {
    let id = document.get("_id").ok().flatten();
    id.map_or_else(RawDocumentBuf::new, |id| rawdoc! { "_id": id })
}

fn uuid_of(about: &RawDocument) -> Option<[u8; 16]> {
    match about.get("ui") {
        Ok(Some(RawBsonRef::Binary(uuid))) => uuid.bytes.try_into().ok(),
        _ => None,
    }
}

fn no_image(wanted: &str, kind: &str, place: Place, name: &Name) -> CommandError {
    let event = rawdoc! {
        "operationType": kind,
        "ns": shown_name(&name.namespace),
        "clusterTime": clock::from_bits(place.time),
    };
    CommandError::new(
        ErrorCode::NoMatchingDocument,
        format!(
            "Change stream was configured to require a {wanted} was not found for event: {}",
            errors::shown(RawBsonRef::Document(&event))
        ),
    )
}
