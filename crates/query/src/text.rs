//! `$text`: a search in the text index of the collection, and the score of what it finds.
//!
//! The score of a document goes with it as a field of its own, [`TEXT_SCORE_FIELD`], as long as
//! something may ask for it: `{$meta: "textScore"}` reads that field, and whoever hands documents
//! out drops it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use banyan_document::element::elements;
use banyan_document::kind;
use banyan_text::{Matcher, Search, SearchOptions, TextError, TextIndex};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::error::{ErrorKind, QueryError};

/// The field in which documents bring the score of a search.
pub const TEXT_SCORE_FIELD: &str = "$textScore";

/// What parsing needs to know of text searches. Without it there may be none.
#[derive(Clone, Debug)]
pub struct TextContext {
    pub index: SearchedIndex,
    /// Whether documents go to a router, which may ask for their scores.
    pub is_for_router: bool,
    others: Option<Arc<dyn TextIndexes>>,
    asked: Arc<AtomicBool>,
}

/// The text indexes of the other collections that a pipeline reads.
pub trait TextIndexes: Send + Sync + fmt::Debug {
    /// Of a collection of the pipeline's own database, unless another one is named.
    fn of(&self, database: Option<&str>, collection: &str) -> SearchedIndex;
}

/// The text index that is searched in.
#[derive(Clone, Debug)]
pub enum SearchedIndex {
    /// The collection has none.
    Missing,
    /// There is no such collection.
    NoCollection(String),
    /// What is parsed is only read here.
    Elsewhere,
    Here(Arc<TextIndex>),
}

impl TextContext {
    pub fn new(index: SearchedIndex) -> TextContext {
        TextContext {
            index,
            is_for_router: false,
            others: None,
            asked: Arc::default(),
        }
    }

    /// Stages that read other collections may search in these.
    pub fn with_others(self, others: Arc<dyn TextIndexes>) -> TextContext {
        TextContext {
            others: Some(others),
            ..self
        }
    }

    /// For the pipeline of a stage that reads another collection.
    pub(crate) fn of_other(&self, database: Option<&str>, collection: &str) -> TextContext {
        let index = match (&self.index, &self.others) {
            (SearchedIndex::Elsewhere, _) => SearchedIndex::Elsewhere,
            (_, Some(others)) => others.of(database, collection),
            (_, None) => SearchedIndex::Missing,
        };
        TextContext {
            others: self.others.clone(),
            ..TextContext::new(index)
        }
    }

    /// For the pipeline of a stage that reads what comes into it: that may have scores.
    pub(crate) fn of_input(&self) -> TextContext {
        TextContext {
            index: SearchedIndex::Missing,
            ..self.clone()
        }
    }

    /// Something asks for scores.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether something that was parsed has asked for scores.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// As [`TextContext::is_asked`], of what is parsed from one such question to the next.
    pub(crate) fn take_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }
}

/// A parsed `$text`.
#[derive(Clone, Debug)]
pub struct TextQuery {
    /// As it is shown: with all options.
    pub source: RawDocumentBuf,
    /// `None`: it is only read here.
    pub matcher: Option<Matcher>,
}

impl TextQuery {
    pub(crate) fn parse(
        value: RawBsonRef<'_>,
        context: &TextContext,
    ) -> Result<TextQuery, QueryError> {
        let bad = |message: &str| QueryError::bad_value(message);
        let RawBsonRef::Document(document) = value else {
            return Err(bad("$text expects an object"));
        };
        let (mut search, mut options) = (None, SearchOptions::default());
        for element in elements(document) {
            let name = element.name();
            let wrong = |expected: &str| {
                let message = format!(
                    "\"{name}\" had the wrong type. Expected {expected}, found {}",
                    kind::name(&element.value())
                );
                QueryError::new(ErrorKind::TypeMismatch, message)
            };
            match (name, element.value()) {
                ("$search", RawBsonRef::String(text)) => search = Some(text),
                ("$language", RawBsonRef::String(name)) => options.language = Some(name.to_owned()),
                ("$search" | "$language", _) => return Err(wrong("string")),
                ("$caseSensitive", RawBsonRef::Boolean(flag)) => options.case_sensitive = flag,
                ("$diacriticSensitive", RawBsonRef::Boolean(flag)) => {
                    options.diacritic_sensitive = flag;
                }
                ("$caseSensitive" | "$diacriticSensitive", _) => return Err(wrong("bool")),
                _ => return Err(bad("extra fields in $text")),
            }
        }
        let Some(search) = search else {
            let message = "Missing expected field \"$search\"";
            return Err(QueryError::new(ErrorKind::NoSuchKey, message));
        };
        let index = match &context.index {
            SearchedIndex::Here(index) => index,
            SearchedIndex::Elsewhere => {
                return Ok(TextQuery {
                    source: document.to_owned(),
                    matcher: None,
                });
            }
            SearchedIndex::Missing => return Err(index_required()),
            SearchedIndex::NoCollection(name) => {
                let required = index_required();
                let message = format!("{} (no such collection '{name}')", required.message);
                return Err(QueryError::new(required.kind, message));
            }
        };
        let parsed = Search::parse(search, &options, index.default_language, index.version);
        let parsed = parsed.map_err(error)?;
        let language = options.language.as_deref();
        let source = rawdoc! {
            "$search": search,
            "$language": language.unwrap_or(parsed.language.name()),
            "$caseSensitive": parsed.case_sensitive,
            "$diacriticSensitive": parsed.diacritic_sensitive,
        };
        Ok(TextQuery {
            source,
            matcher: Some(Matcher {
                index: index.clone(),
                search: Arc::new(parsed),
            }),
        })
    }

    pub(crate) fn matches(&self, document: &RawDocument) -> Result<bool, QueryError> {
        match &self.matcher {
            Some(matcher) => matcher.matches(document).map_err(error),
            None => Err(index_required()),
        }
    }
}

/// `IndexNotFound`.
pub(crate) const INDEX_MISSING: ErrorKind = ErrorKind::Location(27);

/// The collection has no index to search in.
pub fn index_required() -> QueryError {
    QueryError::new(INDEX_MISSING, "text index required for $text query")
}

/// What a search or a text index refuses.
pub fn error(error: TextError) -> QueryError {
    let kind = match error {
        TextError::Language { .. } => ErrorKind::BadValue,
        ref other => ErrorKind::Location(u32::try_from(other.code()).unwrap_or_default()),
    };
    QueryError::new(kind, error.to_string())
}

pub(crate) fn score_missing() -> QueryError {
    QueryError::new(
        ErrorKind::Location(40218),
        "query requires text score metadata, but it is not available",
    )
}

/// Takes note of a `{$meta: "textScore"}`; an error where nothing is searched for.
pub(crate) fn ask_score(context: Option<&TextContext>) -> Result<(), QueryError> {
    let context = context.ok_or_else(score_missing)?;
    context.ask();
    Ok(())
}

/// The score that a search gives a document; `None` if it does not find it.
pub fn score(matcher: &Matcher, document: &RawDocument) -> Result<Option<f64>, QueryError> {
    if !matcher.matches(document).map_err(error)? {
        return Ok(None);
    }
    let scores = matcher.index.scores(document).map_err(error)?;
    let terms = matcher.search.looked_up.iter();
    Ok(Some(terms.filter_map(|term| scores.get(term)).sum()))
}

/// The score that a document brings.
pub(crate) fn score_of(document: &RawDocument) -> Option<f64> {
    match banyan_document::element::field(document, TEXT_SCORE_FIELD)? {
        RawBsonRef::Double(score) => Some(score),
        _ => None,
    }
}

/// A document without its score, if it has one.
pub fn without_score(document: &RawDocument) -> Option<RawDocumentBuf> {
    let has_score = elements(document).any(|element| element.name() == TEXT_SCORE_FIELD);
    has_score.then(|| {
        let mut writer = banyan_document::DocumentWriter::new();
        for element in elements(document) {
            if element.name() != TEXT_SCORE_FIELD {
                writer.append_element(&element);
            }
        }
        writer.finish()
    })
}
