//! Changes of views: of one document of `system.views`, under locks that keep both that and the
//! view's name for the one who changes them.

use std::sync::Arc;

use banyan_query::filter::Filter;
use banyan_query::update::{Update, UpdateContext};
use banyan_query::{Context, view};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::catalog_ops;
use super::context::WriteContext;
use super::insert::KeyedDocument;
use super::modify::{self, Action, Target};
use super::staging::Staging;
use crate::errors;
use crate::locks::Lock;

/// The definitions of the views of a database, for one who changes one of them.
pub struct Definitions<'a> {
    staging: Staging<'a>,
}

impl<'a> Definitions<'a> {
    /// Where the definitions of a database lie.
    pub fn namespace(database: &str) -> Namespace {
        Namespace::new(database, view::COLLECTION)
    }

    /// `locks` are exclusive ones, of the view's name and of `system.views`. `create`: that is made
    /// if it is missing.
    pub async fn open(
        ctx: WriteContext<'a>,
        locks: Vec<Lock>,
        create: bool,
    ) -> Result<Definitions<'a>, CommandError> {
        let namespace = Definitions::namespace(ctx.database);
        let replica = ctx.replica;
        if create && replica.store.catalog().find(&namespace).is_none() {
            let term = replica.writable_term()?;
            catalog_ops::refuse_other_case(replica, &namespace)?;
            let made = catalog_ops::creation(replica, &namespace, RawDocumentBuf::new());
            catalog_ops::apply(replica, &[made], term).await?;
        }
        let staging = Staging::under(ctx, locks, namespace).await?;
        Ok(Definitions { staging })
    }

    pub async fn insert(mut self, document: &RawDocument) -> Result<(), CommandError> {
        let staging = &mut self.staging;
        let Some(collection) = staging.collection.clone() else {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                "the collection is gone",
            ));
        };
        let mut keyed = KeyedDocument::new(&collection, document)?;
        keyed.insert(staging, &collection).await?;
        self.staging.finish().await
    }

    /// Puts a definition in the place of the one with its `_id`.
    pub async fn replace(self, document: &RawDocument) -> Result<(), CommandError> {
        let id = document.get_str("_id").unwrap_or_default();
        let source = RawBsonRef::Document(document);
        let update = Update::parse(source, &[], &Context::default()).map_err(errors::query)?;
        let now = self.staging.ctx.replica.clock.now();
        let context = UpdateContext::new(DateTime::now(), now);
        self.change(id, &Action::Update(&update, context)).await
    }

    pub async fn remove(self, id: &str) -> Result<(), CommandError> {
        self.change(id, &Action::Delete).await
    }

    async fn change(mut self, id: &str, action: &Action<'_>) -> Result<(), CommandError> {
        let filter = Filter::parse(&rawdoc! { "_id": id }, &Context::default());
        let target = Target {
            filter: Arc::new(filter.map_err(errors::query)?),
            hint: None,
            sort: None,
            hidden_too: false,
            most: None,
            multi: false,
            keep_documents: false,
        };
        modify::run(&mut self.staging, &target, action).await?;
        self.staging.finish().await
    }
}
